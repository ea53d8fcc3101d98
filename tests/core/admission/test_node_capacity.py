"""Whether one more pod fits on the node, in kubelet's words."""
# ruff: noqa: E501 (tables: one case, one line)

import random as randoms

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from nodeagent.core.admission.node_capacity import (
    Allocatable,
    Insufficient,
    Usage,
    allocatable_of,
    eviction_bytes,
    insufficient,
    reservation,
    usage_of,
    with_machine,
)
from nodeagent.core.model.config import Config
from nodeagent.core.model.pod import Pod, ResourceRequirements, Resources
from nodeagent.core.model.quantity import Quantity
from tests.support.pods import app, pod

GI = 2**30


def resources(**amounts: str) -> Resources:
    return Resources.of({name.replace("_", "-"): Quantity.parse(text) for name, text in amounts.items()})


def asking(**requests: str) -> Pod:
    return pod("p", app("a", resources=ResourceRequirements(resources(**requests))))


NODE = Allocatable(3, (("cpu", 15_000), ("hugepages-2Mi", 2**22), ("memory", 4 * GI)))


def refusal(usage: Usage, new: Pod) -> tuple[str, str] | None:
    found = insufficient(new, usage, NODE)
    return None if found is None else (found.reason, found.message)


CASES = [
    ("fits exactly", [asking(cpu="11", memory="3Gi")], asking(cpu="4", memory="1Gi"), None),
    ("cpu", [asking(cpu="13")], asking(cpu="4"), ("OutOfcpu", "Node didn't have enough resource: cpu, requested: 4000, used: 13000, capacity: 15000")),
    ("cpu by a thousandth", [asking(cpu="11001m")], asking(cpu="3999.1m"), ("OutOfcpu", "Node didn't have enough resource: cpu, requested: 4000, used: 11001, capacity: 15000")),
    ("memory", [asking(memory="3Gi")], asking(memory="2Gi"), ("OutOfmemory", f"Node didn't have enough resource: memory, requested: {2 * GI}, used: {3 * GI}, capacity: {4 * GI}")),
    ("huge pages", [asking(hugepages_2Mi="2Mi")], asking(cpu="1", hugepages_2Mi="4Mi"), ("OutOfhugepages-2Mi", f"Node didn't have enough resource: hugepages-2Mi, requested: {2**22}, used: {2**21}, capacity: {2**22}")),
    ("a page size the node hasn't", [], asking(cpu="1", hugepages_1Gi="1Gi"), ("OutOfhugepages-1Gi", f"Node didn't have enough resource: hugepages-1Gi, requested: {GI}, used: 0, capacity: 0")),
    ("pods", [asking(), asking(), asking()], asking(), ("OutOfpods", "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3")),
    ("pods come first", [asking(cpu="15"), asking(), asking()], asking(cpu="1"), ("OutOfpods", "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3")),
    ("then cpu", [asking(cpu="15", memory="4Gi")], asking(cpu="1", memory="1", hugepages_1Gi="1Gi"), ("OutOfcpu", "Node didn't have enough resource: cpu, requested: 1000, used: 15000, capacity: 15000")),
    ("then memory", [asking(memory="4Gi")], asking(cpu="1", memory="1", hugepages_1Gi="1Gi"), ("OutOfmemory", f"Node didn't have enough resource: memory, requested: 1, used: {4 * GI}, capacity: {4 * GI}")),
    ("what isn't asked for may be short", [asking(cpu="20")], asking(memory="1Gi"), None),
    ("zero asks for nothing", [asking(cpu="20")], asking(cpu="0", memory="1Gi"), None),
]  # fmt: skip


@pytest.mark.parametrize(("running", "new", "expected"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_the_first_resource_that_is_short_is_the_reason(
    running: list[Pod], new: Pod, expected: tuple[str, str] | None
) -> None:
    assert refusal(usage_of(running), new) == expected


CONFIG = Config(
    system_reserved=resources(cpu="500m", memory="512Mi"), kube_reserved=resources(cpu="250m", memory="512Mi")
)


def test_allocatable_is_what_kubelet_reports() -> None:
    found = allocatable_of(
        CONFIG, cpu_count=16, memory_bytes=64 * GI, hugepages=(("hugepages-1Gi", 4 * GI), ("hugepages-2Mi", GI))
    )
    assert found == Allocatable(
        1000,
        (
            ("cpu", 15_250),
            ("hugepages-1Gi", 4 * GI),
            ("hugepages-2Mi", GI),
            # Less reservations, eviction threshold and the pages that are allocated already.
            ("memory", 64 * GI - GI - 100 * 2**20 - 5 * GI),
        ),
        (("maxPods", 1000, 1),),
    )


def test_allocatable_never_goes_below_zero() -> None:
    found = allocatable_of(CONFIG, cpu_count=0, memory_bytes=GI, hugepages=(("hugepages-2Mi", 2 * GI),))
    assert dict(found.amounts) == {"cpu": 0, "memory": 0, "hugepages-2Mi": 2 * GI}


@pytest.mark.parametrize(("max_pods", "per_core", "pods"), [(1000, 0, 1000), (1000, 10, 160), (50, 10, 50)])
def test_pods_per_core_bounds_the_number_of_pods(max_pods: int, per_core: int, pods: int) -> None:
    config = Config(max_pods=max_pods, pods_per_core=per_core)
    assert allocatable_of(config, cpu_count=16, memory_bytes=GI, hugepages=()).pods == pods


@pytest.mark.parametrize(
    ("percent", "memory", "in_bytes"),
    [
        # int64(float64(capacity) * float64(float32(p) / 100)), as kubelet computes it.
        ("5", 64 * GI, 3_435_973_888),
        ("10", 64 * GI, 6871947776),
        ("7.5", 16_384_000_000, 1228800048),
        ("50", 3, 1),
        ("0.1", 1000, 1),
    ],
)
def test_a_threshold_in_percent_is_as_imprecise_as_kubelets(percent: str, memory: int, in_bytes: int) -> None:
    config = Config(eviction_memory_bytes=None, eviction_memory_percent=percent)
    assert eviction_bytes(config, memory) == in_bytes


def test_the_reservation_keeps_kubelets_notation_and_drops_zero_sums() -> None:
    assert {name: str(amount) for name, amount in reservation(CONFIG, 64 * GI)} == {"cpu": "750m", "memory": "1124Mi"}
    assert (
        reservation(replace(Config(), eviction_memory_bytes=None, kube_reserved=resources(cpu="0")), GI) == Resources()
    )
    completed = with_machine(replace(CONFIG, eviction_memory_bytes=None, eviction_memory_percent="50"), 4 * GI)
    assert {name: str(amount) for name, amount in completed.placement.memory_reservation} == {"memory": "3Gi"}


requests = st.dictionaries(st.sampled_from(["cpu", "memory", "hugepages_2Mi"]), st.integers(0, 9).map(str), max_size=3)


@given(st.lists(requests.map(lambda amounts: asking(**amounts)), max_size=8), st.randoms(use_true_random=False))
def test_usage_comes_back_whatever_the_order(pods: list[Pod], random: randoms.Random) -> None:
    usage = usage_of(pods)
    assert usage.pods == len(pods)
    shuffled = list(pods)
    random.shuffle(shuffled)
    assert usage_of(shuffled) == usage
    for one in shuffled:
        usage = usage.minus(one)
    assert usage == Usage()


def test_giving_back_what_was_never_counted_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        usage_of([asking(cpu="1")]).minus(asking(cpu="2"))


def test_the_reason_holds_name_value_and_capacity() -> None:
    found = Insufficient("cpu", 1, 2, 3)
    assert (found.reason, found.message) == (
        "OutOfcpu",
        "Node didn't have enough resource: cpu, requested: 1, used: 2, capacity: 3",
    )
