"""cgroup v2 values and the kernel's text: what is printed is read back, and what the kernel would not write is refused."""

import pytest
from hypothesis import given, strategies as st

from nodeagent.core.model.cgroup import MEMBER, Attribute, ByteLimit, CpuMax, Partition, PartitionKind, TaskLimit, Value
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.formats.kernel.cgroup_values import (
    CgroupValueError,
    format_for_write,
    format_value,
    parse_flat_keyed,
    parse_value,
)

AMOUNTS = st.integers(0, 2**63 - 1)
IDS = st.sets(st.integers(0, 4096), min_size=1)
VALUES: dict[Attribute, st.SearchStrategy[Value]] = {
    Attribute.CPUSET_CPUS: IDS.map(CpuSet.from_ids),
    Attribute.FALLBACK_CPUS: IDS.map(CpuSet.from_ids),
    Attribute.CPUSET_CPUS_EXCLUSIVE: IDS.map(CpuSet.from_ids),
    Attribute.CPUSET_CPUS_PARTITION: st.builds(
        Partition, st.sampled_from(PartitionKind), st.sampled_from(["", "Parent is not a partition root", "a (b) c"])
    ),
    Attribute.CPUSET_MEMS: IDS.map(NumaSet.from_ids),
    Attribute.CPU_MAX: st.builds(CpuMax, st.none() | st.integers(1000, 2**40), st.integers(1000, 1_000_000)),
    Attribute.CPU_WEIGHT: st.integers(1, 10_000),
    Attribute.MEMORY_MAX: st.builds(ByteLimit, st.none() | AMOUNTS),
    Attribute.PIDS_MAX: st.builds(TaskLimit, st.none() | AMOUNTS),
    Attribute.MEMORY_SWAP_MAX: st.builds(ByteLimit, st.none() | AMOUNTS),
    Attribute.MEMORY_OOM_GROUP: st.booleans(),
    Attribute.FREEZE: st.booleans(),
}


def test_every_attribute_has_values() -> None:
    assert set(VALUES) == set(Attribute)


@given(st.sampled_from(list(Attribute)).flatmap(lambda a: st.tuples(st.just(a), VALUES[a])))
def test_what_is_printed_is_read_back(pair: tuple[Attribute, Value]) -> None:
    attribute, value = pair
    text = format_value(value)
    assert parse_value(attribute, text) == value
    assert parse_value(attribute, text + "\n") == value, "the kernel ends its lines"
    assert type(parse_value(attribute, text)) is type(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (CpuSet.of(0, 1, 2, 3, 8), "0-3,8"),
        (NumaSet.of(1), "1"),
        (CpuMax(None, 100_000), "max 100000"),
        (CpuMax(150_000, 100_000), "150000 100000"),
        (ByteLimit(None), "max"),
        (ByteLimit(0), "0"),
        (True, "1"),
        (False, "0"),
        (174, "174"),
        (MEMBER, "member"),
        (Partition(PartitionKind.ISOLATED), "isolated"),
        (
            Partition(PartitionKind.ROOT, "Cpu list in cpuset.cpus not exclusive"),
            "root invalid (Cpu list in cpuset.cpus not exclusive)",
        ),
    ],
)
def test_text(value: Value, text: str) -> None:
    assert format_value(value) == text


def test_a_set_of_exclusive_cpus_may_be_emptied() -> None:
    """By a line without content: a write of no bytes never reaches the kernel."""
    assert format_for_write(Attribute.CPUSET_CPUS_EXCLUSIVE, CpuSet()) == "\n"
    assert format_for_write(Attribute.CPUSET_CPUS_EXCLUSIVE, CpuSet.of(2, 3)) == "2-3"
    with pytest.raises(AssertionError, match="must never be written"):
        format_for_write(Attribute.CPUSET_CPUS, CpuSet())


def test_a_partition_that_the_kernel_ended_without_a_reason() -> None:
    found = parse_value(Attribute.CPUSET_CPUS_PARTITION, "root invalid\n")
    assert isinstance(found, Partition)
    assert found.kind is PartitionKind.ROOT
    assert found.problem


@pytest.mark.parametrize("empty", [CpuSet(), NumaSet()])
def test_an_empty_cpuset_is_never_printed(empty: Value) -> None:
    with pytest.raises(AssertionError, match="must never be written"):
        format_value(empty)


@pytest.mark.parametrize(
    ("attribute", "value"), [(Attribute.CPUSET_CPUS, CpuSet()), (Attribute.CPUSET_MEMS, NumaSet())]
)
def test_an_empty_cpuset_is_read_from_a_fresh_cgroup(attribute: Attribute, value: Value) -> None:
    assert parse_value(attribute, "\n") == value


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        (Attribute.CPUSET_CPUS, "3-1"),
        (Attribute.CPUSET_CPUS, "0-9999999999999"),
        (Attribute.CPUSET_CPUS, "a"),
        (Attribute.CPUSET_CPUS, "0,,1"),
        (Attribute.CPUSET_MEMS, "-1"),
        (Attribute.CPU_MAX, ""),
        (Attribute.CPU_MAX, "max"),
        (Attribute.CPU_MAX, "max 100000 1"),
        (Attribute.CPU_MAX, "max  100000"),
        (Attribute.CPU_MAX, "100000 max"),
        (Attribute.CPU_MAX, "-1 100000"),
        (Attribute.CPU_MAX, "1.5 100000"),
        (Attribute.CPU_WEIGHT, ""),
        (Attribute.CPU_WEIGHT, "1_00"),
        (Attribute.CPU_WEIGHT, "+1"),
        (Attribute.CPU_WEIGHT, "-5"),
        (Attribute.CPU_WEIGHT, "１００"),
        (Attribute.CPU_WEIGHT, "9" * 10_000),
        (Attribute.MEMORY_MAX, "Max"),
        (Attribute.MEMORY_MAX, "-1"),
        (Attribute.MEMORY_MAX, "4096k"),
        (Attribute.MEMORY_SWAP_MAX, "none"),
        (Attribute.MEMORY_OOM_GROUP, "2"),
        (Attribute.MEMORY_OOM_GROUP, ""),
        (Attribute.FREEZE, "true"),
        (Attribute.FREEZE, "-1"),
        (Attribute.CPUSET_CPUS_EXCLUSIVE, "3-1"),
        (Attribute.CPUSET_CPUS_PARTITION, ""),
        (Attribute.CPUSET_CPUS_PARTITION, "Root"),
        (Attribute.CPUSET_CPUS_PARTITION, "root valid"),
        (Attribute.CPUSET_CPUS_PARTITION, "member invalid (a"),
    ],
)
def test_malformed_text_is_refused_with_the_file_and_the_value(attribute: Attribute, text: str) -> None:
    with pytest.raises(CgroupValueError) as caught:
        parse_value(attribute, text)
    assert attribute.value in str(caught.value)
    assert repr(text)[:40] in str(caught.value)
    assert len(str(caught.value)) < 300


def test_flat_keyed_files() -> None:
    assert parse_flat_keyed("populated 1\nfrozen 0\n") == {"populated": 1, "frozen": 0}
    assert parse_flat_keyed("") == {}


@pytest.mark.parametrize(
    "text", ["populated", "populated x", "populated -1", "populated 1 2", "populated ²", " \n", "1"]
)
def test_malformed_flat_keyed_files_are_refused(text: str) -> None:
    with pytest.raises(CgroupValueError, match="is not a key and a number"):
        parse_flat_keyed(text)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,20}", fullmatch=True), AMOUNTS))
def test_flat_keyed_files_are_read_back(content: dict[str, int]) -> None:
    assert parse_flat_keyed("".join(f"{key} {number}\n" for key, number in content.items())) == content


@given(st.sampled_from(list(Attribute)), st.text(max_size=30))
def test_any_text_is_a_value_or_refused(attribute: Attribute, text: str) -> None:
    try:
        value = parse_value(attribute, text)
    except CgroupValueError:
        return
    if value or not isinstance(value, (CpuSet, NumaSet)):
        assert parse_value(attribute, format_value(value)) == value
