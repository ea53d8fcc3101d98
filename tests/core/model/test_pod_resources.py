"""What a pod asks for as a whole, and what its cgroups get."""
# ruff: noqa: E501 (tables: one case, one line)

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from nodeagent.core.model.pod import (
    Container,
    ContainerKind,
    Pod,
    QosClass,
    ResourceRequirements,
    Resources,
    has_pod_level_resources,
    qos_class,
)
from nodeagent.core.model.pod_resources import (
    CgroupAmounts,
    container_cgroup_amounts,
    effective_limits,
    effective_requests,
    pod_cgroup_amounts,
    with_container_defaults,
)
from nodeagent.core.model.quantity import Quantity

APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR
Amounts = dict[str, str]


def resources(amounts: Amounts) -> Resources:
    return Resources.of({name: Quantity.parse(text) for name, text in amounts.items()})


def container(kind: ContainerKind, requests: Amounts, limits: Amounts | None = None) -> Container:
    requirements = ResourceRequirements(resources(requests), resources(limits or {}))
    return Container(name=kind.value, kind=kind, resources=requirements)


def pod(
    *containers: Container,
    requests: Amounts | None = None,
    limits: Amounts | None = None,
    overhead: Amounts | None = None,
) -> Pod:
    own = None
    if requests is not None or limits is not None:
        own = ResourceRequirements(resources(requests or {}), resources(limits or {}))
    return with_container_defaults(
        Pod("u", "default", "p", containers, resources=own, overhead=resources(overhead or {}))
    )


def cpu(kind: ContainerKind, amount: str) -> Container:
    return container(kind, {"cpu": amount})


SUMS = [
    ("no containers' amounts", (container(APP, {}),), {}),
    ("apps add up", (cpu(APP, "1"), cpu(APP, "500m")), {"cpu": "1500m"}),
    ("an init container is a floor", (cpu(INIT, "3"), cpu(APP, "1"), cpu(APP, "1")), {"cpu": "3"}),
    ("init containers run one after another", (cpu(INIT, "1"), cpu(INIT, "2"), cpu(APP, "1")), {"cpu": "2"}),
    ("a sidecar stays beside the apps", (cpu(SIDECAR, "1"), cpu(APP, "2")), {"cpu": "3"}),
    ("and beside later init containers", (cpu(SIDECAR, "1"), cpu(INIT, "3"), cpu(APP, "1")), {"cpu": "4"}),
    ("but not beside earlier ones", (cpu(INIT, "3"), cpu(SIDECAR, "1"), cpu(APP, "1")), {"cpu": "3"}),
    ("sidecars in a row", (cpu(SIDECAR, "1"), cpu(SIDECAR, "1"), cpu(INIT, "1"), cpu(APP, "1")), {"cpu": "3"}),
    ("what only an init container asks for counts", (container(INIT, {"memory": "1Gi"}), cpu(APP, "1")), {"cpu": "1", "memory": "1Gi"}),
    ("each resource on its own", (container(INIT, {"cpu": "1", "memory": "3Gi"}), container(APP, {"cpu": "2", "memory": "1Gi"})), {"cpu": "2", "memory": "3Gi"}),
    ("limits stand for requests", (container(APP, {}, {"cpu": "2"}),), {"cpu": "2"}),
]  # fmt: skip


@pytest.mark.parametrize(("containers", "total"), [row[1:] for row in SUMS], ids=[row[0] for row in SUMS])
def test_requests_add_up_as_containers_run(containers: tuple[Container, ...], total: Amounts) -> None:
    assert {name: str(amount) for name, amount in effective_requests(pod(*containers)).items()} == total


OWN = [
    ("the pod's own amount replaces the sum", pod(cpu(APP, "1"), requests={"cpu": "3"}), {"cpu": "3"}, {}),
    ("per resource", pod(container(APP, {"cpu": "1", "memory": "1Gi"}), requests={"cpu": "3"}), {"cpu": "3", "memory": "1Gi"}, {}),
    ("overhead comes on top", pod(cpu(APP, "1"), requests={"cpu": "3"}, overhead={"cpu": "250m", "memory": "1Mi"}), {"cpu": "3250m", "memory": "1Mi"}, {}),
    ("limits take overhead only where they are set", pod(container(APP, {}, {"cpu": "2"}), overhead={"cpu": "1", "memory": "1Mi"}), {"cpu": "3", "memory": "1Mi"}, {"cpu": "3"}),
    ("and only where they aren't zero", pod(container(APP, {}, {"cpu": "0"}), overhead={"cpu": "1"}), {"cpu": "1"}, {"cpu": "0"}),
    ("the pod's limit replaces the sum", pod(container(APP, {}, {"cpu": "2"}), limits={"cpu": "5"}), {"cpu": "2"}, {"cpu": "5"}),
    ("other names are no pod-level resources", pod(cpu(APP, "1"), requests={"ephemeral-storage": "1Gi"}), {"cpu": "1"}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "requests", "limits"), [row[1:] for row in OWN], ids=[row[0] for row in OWN])
def test_the_pods_own_resources_and_overhead(owner: Pod, requests: Amounts, limits: Amounts) -> None:
    assert {name: str(amount) for name, amount in effective_requests(owner).items()} == requests
    assert {name: str(amount) for name, amount in effective_limits(owner).items()} == limits


def test_without_the_gate_the_pods_own_resources_do_not_count() -> None:
    owner = pod(container(APP, {"cpu": "1"}, {"cpu": "2"}), requests={"cpu": "3"}, limits={"cpu": "5"})
    assert str(effective_requests(owner, pod_level_resources=False)["cpu"]) == "1"
    assert str(effective_limits(owner, pod_level_resources=False)["cpu"]) == "2"
    assert pod_cgroup_amounts(owner, pod_level_resources=False).cpu_limit_milli == 2000
    assert pod_cgroup_amounts(owner).cpu_limit_milli == 5000


both = {"cpu": "2", "memory": "1Gi"}
CGROUPS = [
    ("best effort", pod(container(APP, {})), CgroupAmounts(0, None, None, ())),
    ("guaranteed", pod(container(APP, {}, both), container(APP, {}, both)), CgroupAmounts(4000, 4000, 2 * 2**30, ())),
    ("one container without limits takes the pod's away", pod(container(APP, {}, both), container(APP, {"cpu": "1"})), CgroupAmounts(3000, None, None, ())),
    ("an init container too", pod(container(INIT, {}), container(APP, {}, both)), CgroupAmounts(2000, None, None, ())),
    ("per resource", pod(container(APP, {}, both), container(APP, {}, {"cpu": "1"})), CgroupAmounts(3000, 3000, None, ())),
    ("a zero limit is none", pod(container(APP, {}, {"cpu": "0", "memory": "1Gi"})), CgroupAmounts(0, None, 2**30, ())),
    ("the pod's own limit declares it", pod(container(APP, {"cpu": "1"}), limits={"cpu": "3"}), CgroupAmounts(1000, 3000, None, ())),
    ("the peak counts, not the sum", pod(container(INIT, {}, {"cpu": "4", "memory": "1Gi"}), container(APP, {}, both)), CgroupAmounts(4000, 4000, 2**30, ())),
    ("huge pages by request", pod(container(APP, {}, both | {"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"})), CgroupAmounts(2000, 2000, 2**30, (("hugepages-1Gi", 2**30), ("hugepages-2Mi", 2**22)))),
    ("overhead", pod(container(APP, {}, both), overhead={"cpu": "250m"}), CgroupAmounts(2250, 2250, 2**30, ())),
    ("fractions of a thousandth count up", pod(container(APP, {}, {"cpu": "1.0001", "memory": "0.5"})), CgroupAmounts(1001, 1001, 1, ())),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "expected"), [row[1:] for row in CGROUPS], ids=[row[0] for row in CGROUPS])
def test_the_pods_cgroup(owner: Pod, expected: CgroupAmounts) -> None:
    assert pod_cgroup_amounts(owner) == expected


def test_a_containers_cgroup_falls_back_to_the_pods_limits() -> None:
    bare = container(APP, {"cpu": "500m"})
    limited = replace(container(APP, {}, {"cpu": "1", "memory": "1Gi"}), name="limited")
    owner = pod(bare, limited, limits={"cpu": "3", "memory": "4Gi", "hugepages-2Mi": "2Mi"})
    assert container_cgroup_amounts(owner, owner.containers[0]) == CgroupAmounts(
        500, 3000, 4 * 2**30, (("hugepages-2Mi", 2**21),)
    )
    assert container_cgroup_amounts(owner, owner.containers[1]) == CgroupAmounts(
        1000, 1000, 2**30, (("hugepages-2Mi", 2**21),)
    )
    assert container_cgroup_amounts(owner, owner.containers[0], pod_level_resources=False) == CgroupAmounts(
        500, None, None, ()
    )


QOS = [
    ("nothing", pod(container(APP, {})), QosClass.BEST_EFFORT),
    ("zero is nothing", pod(container(APP, {}, {"cpu": "0"})), QosClass.BEST_EFFORT),
    ("other resources don't count", pod(container(APP, {}, {"hugepages-2Mi": "2Mi"})), QosClass.BEST_EFFORT),
    ("requests alone", pod(container(APP, both)), QosClass.BURSTABLE),
    ("limits alone", pod(container(APP, {}, both)), QosClass.GUARANTEED),
    ("equal in another notation", pod(container(APP, {"cpu": "2000m", "memory": "1024Mi"}, both)), QosClass.GUARANTEED),
    ("one resource only", pod(container(APP, {}, {"cpu": "1"})), QosClass.BURSTABLE),
    ("one container without", pod(container(APP, {}, both), container(APP, {})), QosClass.BURSTABLE),
    ("an init container without", pod(container(INIT, {}), container(APP, {}, both)), QosClass.BURSTABLE),
    ("less than the limit", pod(container(APP, {"cpu": "1"}, both)), QosClass.BURSTABLE),
    ("the pod's own resources decide alone", pod(container(APP, {}), requests=both, limits=both), QosClass.GUARANTEED),
    ("also against its containers", pod(container(APP, {}, both), requests={"cpu": "1"}), QosClass.BURSTABLE),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "expected"), [row[1:] for row in QOS], ids=[row[0] for row in QOS])
def test_the_qos_class_is_kubernetes(owner: Pod, expected: QosClass) -> None:
    assert qos_class(owner, pod_level_resources=True) is expected


def test_without_the_gate_the_containers_decide_the_class() -> None:
    owner = pod(container(APP, {}), requests=both, limits=both)
    assert has_pod_level_resources(owner)
    assert qos_class(owner, pod_level_resources=False) is QosClass.BEST_EFFORT


amounts = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(0, 5).map(str), max_size=2)
containers = st.lists(st.builds(container, st.sampled_from([APP, INIT, SIDECAR]), amounts), min_size=1, max_size=6)


@given(containers)
def test_the_effective_request_is_the_peak_of_the_pods_life(parts: list[Container]) -> None:
    """An oracle: walk through the pod's life and look at every moment."""
    ordered = sorted(parts, key=lambda c: c.kind is APP)
    owner = pod(*ordered)
    for name in ("cpu", "memory"):

        def of(c: Container, name: str = name) -> int:
            amount = c.resources.requests.get(name)
            return 0 if amount is None else amount.nano

        running: list[Container] = []
        peak = 0
        for part in owner.inits():
            peak = max(peak, sum(map(of, [*running, part])))
            if part.kind is SIDECAR:
                running.append(part)
        peak = max(peak, sum(map(of, [*running, *owner.apps()])))
        found = effective_requests(owner).get(name)
        assert (0 if found is None else found.nano) == peak
