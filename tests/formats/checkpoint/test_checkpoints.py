"""kubelet's checkpoint files: exact bytes and sums of what is written, every version and every refusal of what is read."""

import json
from pathlib import Path
from typing import Any

import pytest

from nodeagent.core.admission.managers import Managers, build, initial
from nodeagent.core.model.config import Errata, Placement
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.podmap import PodMap
from nodeagent.core.model.promises import NOTHING, PodPromises, Promises
from nodeagent.core.model.records import Unreadable
from nodeagent.core.model.topology import Cpu, NumaNode, Topology
from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings
from nodeagent.core.resources.cpu.records import CpuRecord
from nodeagent.core.resources.memory.holdings import (
    Block,
    MemoryBooks,
    MemoryHoldings,
    MemoryNode,
    MemoryTable,
    memory_accounts,
)
from nodeagent.core.resources.memory.records import MemoryRecord
from nodeagent.formats.checkpoint import memory_checkpoint
from nodeagent.formats.checkpoint.cpu_checkpoint import decode_cpu_state, encode_cpu_state
from nodeagent.formats.checkpoint.memory_checkpoint import decode_memory_state, encode_memory_state
from nodeagent.formats.syntax.fnv import fnv1a_32
from nodeagent.formats.syntax.go_json import decode_json

GIB = 2**30
STATIC = "static"


def pods(**held: PodPromises) -> PodMap[PodPromises]:
    found: PodMap[PodPromises] = PodMap()
    for uid, promises in held.items():
        found = found.put(uid, promises)
    return found


def own_sets(**sets: str) -> PodPromises:
    return NOTHING.having(CpuHoldings(cpus=tuple(sorted((name, CpuSet.parse(text)) for name, text in sets.items()))))


def managers_of(topology: Topology, **placement: Any) -> Managers:
    managers = build(topology, Placement(cpu_manager_policy=STATIC, **placement))
    assert isinstance(managers, Managers), managers
    return managers


def test_checksums_of_the_strict_reservation_kep() -> None:
    """KEP-4540, user story 2: 64 CPUs, `reservedSystemCPUs: "0,32,1,33,16,48"`, with and without strict-cpu-reservation."""
    cpus = [Cpu(c, c % 32, c % 32 // 16, c % 32 // 16) for c in range(64)]
    topology = Topology.of(cpus, [NumaNode(0, 64 * GIB), NumaNode(1, 64 * GIB)])
    reserved = CpuSet.parse("0,32,1,33,16,48")
    relaxed = managers_of(topology, reserved_system_cpus=reserved)
    strict = managers_of(
        topology, reserved_system_cpus=reserved, cpu_manager_policy_options=(("strict-cpu-reservation", "true"),)
    )
    assert encode_cpu_state(STATIC, initial(relaxed), pod_level=False) == (
        '{"policyName":"static","defaultCpuSet":"0-63","checksum":1058907510}'
    )
    assert encode_cpu_state(STATIC, initial(strict), pod_level=False) == (
        '{"policyName":"static","defaultCpuSet":"2-15,17-31,34-47,49-63","checksum":4141502832}'
    )


TWO_CONTAINERS = pods(pod=own_sets(container1="4-6", container2="1-3"))
POD_SET = pods(
    pod1=own_sets(container1="5-6", container2="3-4"), pod2=NOTHING.having(CpuHoldings(pod_cpus=CpuSet.parse("7-9")))
)

CPU_SUMS = [
    ("a fresh node", STATIC, "0-63", PodMap(), False, 1058907510),
    ("version 3", STATIC, "0-63", PodMap(), True, 861680244),
    ("runs", STATIC, "2-15,17-31,34-47,49-63", PodMap(), True, 3992868550),
    ("policy none", "none", "", PodMap(), False, 1353318690),
    ("own sets", STATIC, "7-9", TWO_CONTAINERS, False, 964019483),
    ("own sets, version 3", STATIC, "7-9", TWO_CONTAINERS, True, 1844444301),
    ("a pod set", STATIC, "1-2", POD_SET, True, 766259872),
]


@pytest.mark.parametrize(
    ("policy", "default", "held", "pod_level", "checksum"), [c[1:] for c in CPU_SUMS], ids=[c[0] for c in CPU_SUMS]
)
def test_cpu_checksums(policy: str, default: str, held: PodMap[PodPromises], pod_level: bool, checksum: int) -> None:
    promises = Promises(pods=held).having(CpuBooks(default=CpuSet.parse(default)))
    text = encode_cpu_state(policy, promises, pod_level=pod_level)
    assert json.loads(text)["checksum"] == checksum
    record = decode_cpu_state(text, pod_level=pod_level, initial={})
    assert isinstance(record, CpuRecord)
    assert record.policy_name == policy
    assert record.default == default
    assert record.entries == tuple(
        (uid, tuple((n, str(s)) for n, s in p.of(CpuHoldings).cpus)) for uid, p in held if p.of(CpuHoldings).cpus
    )
    assert record.pod_entries == tuple(
        (uid, p.of(CpuHoldings).pod_cpus) for uid, p in held if p.of(CpuHoldings).pod_cpus
    )


def test_cpu_text_to_the_letter() -> None:
    """cpu-manager pod of a fixed set: members in order, no spaces, pod entries before the checksum."""
    held = NOTHING.having(
        CpuHoldings(
            cpus=own_sets(a="2,10", b="3,9,11", i1="1-2,9", i2="2-3,9-11", s1="1").of(CpuHoldings).cpus,
            pod_cpus=CpuSet.parse("1-3,9-11"),
        )
    )
    promises = Promises(pods=pods(p1=held)).having(CpuBooks(default=CpuSet.parse("0,4-8,12-15")))
    assert encode_cpu_state(STATIC, promises, pod_level=True) == (
        '{"policyName":"static","defaultCpuSet":"0,4-8,12-15","entries":{"p1":{"a":"2,10","b":"3,9,11","i1":"1-2,9",'
        '"i2":"2-3,9-11","s1":"1"}},"podEntries":{"p1":{"cpuSet":"1-3,9-11"}},"checksum":448156626}'
    )


def test_strings_are_escaped_as_go_does() -> None:
    promises = Promises(pods=pods(**{'a<b>&"c': own_sets(c="1")}))
    text = encode_cpu_state(STATIC, promises, pod_level=False)
    assert r'"a\u003cb\u003e\u0026\"c"' in text
    record = decode_cpu_state(text, pod_level=False, initial={})
    assert isinstance(record, CpuRecord)
    assert record.entries[0][0] == 'a<b>&"c'


INITIAL = {"containerID1": ("pod-a", "one"), "containerID2": ("pod-b", "two")}
VERSION_1 = '{"policyName":"static","defaultCpuSet":"7-9","entries":{"containerID1":"4-6","containerID2":"1-3"},"checksum":2026311253}'
VERSION_2 = '{"policyName":"static","defaultCpuSet":"7-9","entries":{"pod":{"container1":"4-6","container2":"1-3"}},"checksum":964019483}'
BETWEEN_RELEASES = VERSION_2.replace("964019483", "1692845551")
VERSION_3 = encode_cpu_state(
    STATIC, Promises(pods=POD_SET).having(CpuBooks(default=CpuSet.parse("1-2"))), pod_level=True
)
NO_JSON = "unexpected end of JSON input"
CORRUPTED = "checkpoint is corrupted"
POD_AS_STRING = "json: cannot unmarshal object into Go struct field CPUManagerCheckpointV1.entries.pod of type string"

CPU_READS: list[tuple[str, str, bool, str | None]] = [
    ("version 1", VERSION_1, False, None),
    ("version 1, gate on", VERSION_1, True, None),
    ("version 1 without a sum", VERSION_1.replace("2026311253", "0"), False, None),
    ("version 2", VERSION_2, False, None),
    ("version 2, gate on", VERSION_2, True, None),
    ("version 2 between releases", BETWEEN_RELEASES, False, None),
    ("version 2 between releases, gate on", BETWEEN_RELEASES, True, POD_AS_STRING),
    ("version 3", VERSION_3, True, None),
    ("version 3, gate off", VERSION_3, False, POD_AS_STRING.replace("entries.pod ", "entries.pod1 ")),
    ("space, other order and case", json.dumps(json.loads(VERSION_2), indent=1, sort_keys=True).replace("entries", "ENTRIES"), False, None),
    ("a wrong sum, with entries", VERSION_2.replace("964019483", "964019484"), False, POD_AS_STRING),
    ("a wrong sum, no entries", '{"policyName":"static","defaultCpuSet":"0-63","checksum":1}', False, CORRUPTED),
    ("empty", "", False, NO_JSON),
    ("cut", VERSION_2[:40], True, NO_JSON),
]  # fmt: skip


@pytest.mark.parametrize(("text", "pod_level", "refusal"), [c[1:] for c in CPU_READS], ids=[c[0] for c in CPU_READS])
def test_cpu_versions(text: str, pod_level: bool, refusal: str | None) -> None:
    record = decode_cpu_state(text, pod_level=pod_level, initial=INITIAL)
    if refusal is None:
        assert isinstance(record, CpuRecord), record
        assert record.policy_name == STATIC
    else:
        assert record == Unreadable(refusal)


def test_version_1_is_migrated_by_the_runtime_s_containers() -> None:
    record = decode_cpu_state(VERSION_1, pod_level=False, initial=INITIAL)
    assert isinstance(record, CpuRecord)
    assert record.entries == (("pod-a", (("one", "4-6"),)), ("pod-b", (("two", "1-3"),)))
    assert decode_cpu_state(VERSION_1, pod_level=False, initial={}) == Unreadable(
        "failed to migrate checkpoint from v1 to v2: containerID 'containerID1' not found in initial containers list"
    )


def test_pod_entries_are_left_over_from_the_failed_version_3_try() -> None:
    unsummed = VERSION_3.replace(f'"checksum":{json.loads(VERSION_3)["checksum"]}', '"checksum":0')
    record = decode_cpu_state(unsummed, pod_level=True, initial={})
    assert isinstance(record, CpuRecord)
    assert record.pod_entries == (("pod2", CpuSet.parse("7-9")),)
    bad = decode_cpu_state(unsummed.replace('"7-9"', '"9-7"'), pod_level=True, initial={})
    assert isinstance(bad, CpuRecord)
    assert bad.pod_entries == (("pod2", CpuSet()),)


def with_data(text: str, data: str) -> str:
    return text[:-1] + f',"data":{json.dumps(data)},"dataChecksum":{fnv1a_32("(string)" + data)}}}'


def test_newer_cpu_version_is_read_if_wanted() -> None:
    data = '{"policyName":"static","defaultCpuSet":"1-2","entries":{},"podEntries":{"pod2":{"cpuSet":"7-9"}}}'
    text = with_data(VERSION_2, data)
    old = decode_cpu_state(text, pod_level=False, initial={})
    new = decode_cpu_state(text, pod_level=False, initial={}, newer=True)
    assert isinstance(old, CpuRecord)
    assert isinstance(new, CpuRecord)
    assert (old.default, new.default) == ("7-9", "1-2")
    assert new.pod_entries == (("pod2", CpuSet.parse("7-9")),)
    damaged = decode_cpu_state(text.replace("1-2", "1-3"), pod_level=False, initial={}, newer=True)
    assert damaged == Unreadable(f"could not load v4 checkpoint: {CORRUPTED}")


def node(number: int, reserved: int, taken: int, assignments: int = 0, total: int = 8 * GIB) -> MemoryNode:
    allocatable = total - reserved
    table = MemoryTable(total, reserved, allocatable, taken, allocatable - taken)
    return MemoryNode(number, assignments, NumaSet.of(number), (("memory", table),))


def block(size: int, *nodes: int) -> Block:
    return Block(NumaSet.of(*nodes), "memory", size)


IDLE = Promises().having(MemoryBooks(nodes=(node(0, GIB, 0),)))
ONE_GIB = Promises(pods=pods(**{"uid-1": NOTHING.having(MemoryHoldings(memory=(("app", (block(GIB, 0),)),)))})).having(
    MemoryBooks(nodes=(node(0, GIB, GIB, 1),))
)
POD_GIB = Promises(
    pods=pods(
        **{"uid-1": NOTHING.having(MemoryHoldings(memory=(("app", (block(GIB, 0),)),), pod_memory=(block(GIB, 0),)))}
    )
).having(MemoryBooks(nodes=memory_accounts(ONE_GIB)))

MEMORY_SUMS = [
    ("policy None", "None", Promises(), False, 4236770233),
    ("policy None, version 2", "None", Promises(), True, 512582496),
    ("idle", "Static", IDLE, False, 1434168666),
    ("idle, version 2", "Static", IDLE, True, 1913760965),
    ("a container", "Static", ONE_GIB, False, 131223885),
    ("a container, version 2", "Static", ONE_GIB, True, 817310156),
    ("a pod entry", "Static", POD_GIB, True, 3756130336),
]


@pytest.mark.parametrize(
    ("policy", "promises", "pod_level", "checksum"), [c[1:] for c in MEMORY_SUMS], ids=[c[0] for c in MEMORY_SUMS]
)
def test_memory_checksums(policy: str, promises: Promises, pod_level: bool, checksum: int) -> None:
    text = encode_memory_state(policy, promises, pod_level=pod_level)
    assert json.loads(text)["checksum"] == checksum
    record = decode_memory_state(text, pod_level=pod_level)
    assert isinstance(record, MemoryRecord)
    assert record.policy_name == policy
    assert record.machine == memory_accounts(promises)
    assert record.entries == tuple((uid, held.of(MemoryHoldings).memory) for uid, held in promises.pods)
    expected_pods = tuple(
        (uid, held.of(MemoryHoldings).pod_memory) for uid, held in promises.pods if held.of(MemoryHoldings).pod_memory
    )
    assert record.pod_entries == (expected_pods if pod_level else ())


def test_memory_text_to_the_letter() -> None:
    text = encode_memory_state("Static", ONE_GIB, pod_level=False)
    assert text == (
        '{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"memory":{"total":8589934592,'
        '"systemReserved":1073741824,"allocatable":7516192768,"reserved":1073741824,"free":6442450944}},"cells":[0]}},'
        '"entries":{"uid-1":{"app":[{"numaAffinity":[0],"type":"memory","size":1073741824}]}},"checksum":131223885}'
    )
    assert len(text) == 325


def test_nodes_are_sorted_as_texts_in_the_file_and_as_numbers_in_the_sum() -> None:
    promises = Promises().having(MemoryBooks(nodes=tuple(node(number, 0, 0) for number in (0, 1, 2, 10))))
    text = encode_memory_state("Static", promises, pod_level=False)
    assert list(json.loads(text)["machineState"]) == ["0", "1", "10", "2"]
    assert isinstance(decode_memory_state(text, pod_level=False), MemoryRecord)


ODD = (
    '{"policyName":"None","machineState":{"0":null,"1":{"numberOfAssignments":1},"10":{"cells":[]},"2":{}},'
    '"entries":{"a":{"x":[{"type":"memory"}]},"p":null,"q":{},"r":{"c":null,"d":[]}},"checksum":171925454}'
)
DATA = json.dumps(
    {
        "policyName": "Static",
        "machineState": json.loads(encode_memory_state("Static", POD_GIB, pod_level=True))["machineState"],
        "entries": json.loads(encode_memory_state("Static", POD_GIB, pod_level=True))["entries"],
        "podEntries": json.loads(encode_memory_state("Static", POD_GIB, pod_level=True))["podEntries"],
    },
    separators=(",", ":"),
)
NEWER = with_data(encode_memory_state("Static", ONE_GIB, pod_level=False), DATA)


def test_nulls_count_in_the_sum() -> None:
    """A damaged file whose sum is right is still no state: the reference would panic on the null node."""
    contents = memory_checkpoint.read_memory_contents(decode_json(ODD))
    assert fnv1a_32(*contents.dump("MemoryManagerCheckpoint", with_pods=False)) == 171925454
    assert decode_memory_state(ODD, pod_level=False) == Unreadable(CORRUPTED)
    without_null = ODD.replace('"0":null,', "")
    assert decode_memory_state(without_null, pod_level=False) == Unreadable(CORRUPTED)
    unsummed = decode_memory_state(without_null.replace("171925454", "0"), pod_level=False)
    assert isinstance(unsummed, MemoryRecord)
    assert [n.id for n in unsummed.machine] == [1, 2, 10]


LEGACY = encode_memory_state("None", Promises(), pod_level=False)
MEMORY_READS = [
    ("legacy name", LEGACY, False, None),
    ("legacy name, gate on", LEGACY, True, None),
    ("version 1 name", LEGACY.replace("4236770233", "467305784"), False, None),
    ("version 1 name, gate on", LEGACY.replace("4236770233", "467305784"), True, CORRUPTED),
    ("version 2", LEGACY.replace("4236770233", "512582496"), True, None),
    ("version 2, gate off", LEGACY.replace("4236770233", "512582496"), False, CORRUPTED),
    ("no sum", '{"policyName":"None","machineState":{}}', False, None),
    ("empty", "", False, NO_JSON),
    ("cut", LEGACY[:-5], True, NO_JSON),
    ("version 3 is read as version 1", NEWER, False, None),
]


@pytest.mark.parametrize(
    ("text", "pod_level", "refusal"), [c[1:] for c in MEMORY_READS], ids=[c[0] for c in MEMORY_READS]
)
def test_memory_versions(text: str, pod_level: bool, refusal: str | None) -> None:
    record = decode_memory_state(text, pod_level=pod_level)
    if refusal is None:
        assert isinstance(record, MemoryRecord), record
    else:
        assert record == Unreadable(refusal)


def test_newer_memory_version_is_read_if_wanted() -> None:
    """Of kubelet 1.37: both sums as its documentation of the format has them."""
    assert NEWER.endswith('"dataChecksum":2084914556}')
    old, new = decode_memory_state(NEWER, pod_level=True), decode_memory_state(NEWER, pod_level=True, newer=True)
    assert isinstance(old, MemoryRecord)
    assert isinstance(new, MemoryRecord)
    assert old.pod_entries == ()
    assert new.pod_entries == (("uid-1", (block(GIB, 0),)),)
    damaged = decode_memory_state(NEWER.replace("2084914556", "1"), pod_level=True, newer=True)
    assert damaged == Unreadable(f"could not load v3 checkpoint: {CORRUPTED}")


HOSTILE = [
    ("no object", "[1]"),
    ("null", "null"),
    ("wrong types", '{"policyName":1,"defaultCpuSet":[],"machineState":3,"entries":"x","checksum":"y"}'),
    ("negative sum", '{"policyName":"static","checksum":-1}'),
    ("deep", "[" * 100_000),
    ("NaN", '{"policyName":"static","checksum":NaN}'),
    ("huge node", '{"policyName":"Static","machineState":{"99999999999":{}},"checksum":0}'),
    ("huge affinity", '{"policyName":"Static","entries":{"a":{"b":[{"numaAffinity":[9999999999]}]}},"checksum":0}'),
]


@pytest.mark.parametrize("text", [c[1] for c in HOSTILE], ids=[c[0] for c in HOSTILE])
@pytest.mark.parametrize("newer", [False, True])
def test_hostile_files_are_refused_or_empty(text: str, newer: bool) -> None:
    cpu = decode_cpu_state(text, pod_level=True, initial={}, newer=newer)
    memory = decode_memory_state(text, pod_level=True, newer=newer)
    assert isinstance(cpu, Unreadable) or cpu.entries == ()
    assert isinstance(memory, Unreadable) or memory.entries == ()


def test_errata_decide_on_nothing_here() -> None:
    """The same promises are the same bytes in both modes: projections are what kubelet would write (D3)."""
    topology = Topology.of([Cpu(0, 0, 0, 0), Cpu(1, 1, 0, 0)], [NumaNode(0, GIB)])
    texts = set()
    for errata in Errata:
        managers = managers_of(topology, reserved_system_cpus=CpuSet.of(0), errata=errata)
        texts.add(encode_cpu_state(STATIC, initial(managers), pod_level=False))
    assert len(texts) == 1


def test_vectors_folder_is_complete() -> None:
    assert len(list((Path(__file__).parents[2] / "vectors").glob("*.jsonl.gz"))) == 10
