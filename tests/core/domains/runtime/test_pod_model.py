"""Kubelet's pod, made into what NRI tells, made into a pod again: what must come back, what may be estimated, and what is said of it."""

from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from nodeagent.core.domains.runtime.estimates import estimate_cpu_request
from nodeagent.core.domains.runtime.pod_model import RuntimePod, ToldBy, build_runtime_pod, find_qos_class
from nodeagent.core.domains.runtime.stated_pod import StatedContainer, StatedPod, add_kubelet_data
from nodeagent.core.model.config import Placement
from nodeagent.core.model.demand import DemandRules, demand_of
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.nri import NriContainer
from nodeagent.core.model.pod import (
    CPU,
    MEMORY,
    Container,
    ContainerKind,
    Pod,
    QosClass,
    ResourceRequirements,
    Resources,
    qos_class,
)
from nodeagent.core.model.pod_amounts import get_requested
from nodeagent.core.model.quantity import Quantity
from nodeagent.formats.manifest.pod_manifest import pod_from_document, pod_to_document
from tests.support.pods import amounts, app, burstable, exclusive, pod
from tests.support.runtime_pods import GIB, kubelets, sandbox_of, told, told_resources

CAPACITY = 64 * GIB
NOTHING_STATED = StatedPod()
RULES = DemandRules.of(
    Placement(cpu_manager_policy="static", memory_manager_policy="Static", reserved_system_cpus=CpuSet.of(0))
)


def seen(of: Pod, stated: StatedPod = NOTHING_STATED, capacity: int = CAPACITY) -> RuntimePod:
    containers = [told(of, container, CAPACITY) for container in of.containers]
    return build_runtime_pod(sandbox_of(of), containers, stated, capacity)


def stated_as(of: Pod) -> StatedPod:
    """Annotations that say all."""
    containers = (
        StatedContainer(c.name, c.kind, c.resources.requests, c.resources.limits, c.exclusive_cpus, c.interrupts)
        for c in of.containers
    )
    return StatedPod(tuple(containers), names_all=True)


cpu_milli = st.one_of(st.integers(1, 512).map(lambda cpus: cpus * 1000), st.integers(1, 300_000))
bytes_ = st.integers(1, CAPACITY)


@st.composite
def resources(draw: Any) -> ResourceRequirements:
    limits = draw(st.fixed_dictionaries({}, optional={CPU: cpu_milli, MEMORY: bytes_}))
    requests = draw(st.fixed_dictionaries({}, optional={CPU: cpu_milli, MEMORY: bytes_}))
    requests = {name: min(amount, limits.get(name, amount)) for name, amount in requests.items()}
    made = {
        part: Resources.of(
            {name: Quantity(n * 10**6) if name == CPU else Quantity.of_bytes(n) for name, n in amounts_.items()}
        )
        for part, amounts_ in (("limits", limits), ("requests", limits | requests))
    }
    return ResourceRequirements(made["requests"], made["limits"])


@st.composite
def pods_of_kubelet(draw: Any) -> Pod:
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True))
    return pod("p", *(Container(name, resources=draw(resources())) for name in names))


@given(
    st.lists(st.integers(1, 2_000), min_size=1, max_size=4),
    st.integers(1_000, 1_000_000),
    st.booleans(),
)
def test_whole_cpus_of_guaranteed_pods_always_come_back(cpus: list[int], period_us: int, has_quota: bool) -> None:
    """Also where kubelet sets no quota (cpuCFSQuota: false), as far as shares reach: to 255 CPUs."""
    made = [app(f"c{n}", str(count if has_quota else min(count, 255))) for n, count in enumerate(cpus)]
    of = pod("p", *made)
    containers = [told(of, one, resources=told_resources(one, period_us, has_quota=has_quota)) for one in of.containers]
    found = build_runtime_pod(sandbox_of(of), containers, NOTHING_STATED, CAPACITY).pod
    assert demand_of(RULES, found) == demand_of(RULES, of)


@given(pods_of_kubelet())
def test_an_amount_is_the_pods_or_is_said_to_be_an_estimate_with_bounds_that_hold_it(of: Pod) -> None:
    found = seen(of)
    assert qos_class(found.pod, pod_level_resources=True) is qos_class(of, pod_level_resources=True)
    for one in of.containers:
        for part in ("requests", "limits"):
            was, now = getattr(one.resources, part), getattr(found.pod.container(one.name).resources, part)
            said = {k.what: k for k in found.known if k.container == one.name}
            for name in (CPU, MEMORY):
                before, after = (0 if x is None else x.nano for x in (was.get(name), now.get(name)))
                known = said.get(f"{part}.{name}")
                if known is None or known.is_exact:
                    assert before == after, (one.name, part, name)
                else:
                    assert known.between is not None
                    amount = was.get(name)
                    unit = 0 if amount is None else amount.milli() if name == CPU else amount.value()
                    assert unit in known.between


@given(pods_of_kubelet())
def test_a_pod_that_states_all_comes_back_whole_and_contradicts_nothing(of: Pod) -> None:
    found = seen(of, stated_as(of))
    assert found.contradictions == ()
    assert found.is_whole
    assert replace(found.pod, given_qos=None) == saved(of)


@given(pods_of_kubelet())
def test_a_pod_that_kubelet_knows_comes_back_whole(of: Pod) -> None:
    found = seen(of, add_kubelet_data(NOTHING_STATED, kubelets(of)))
    assert found.contradictions == ()
    assert found.is_whole
    assert replace(found.pod, given_qos=None) == saved(of)
    assert {known.by for known in found.known} == {ToldBy.CGROUP_PARENT, ToldBy.PODS_API}


@pytest.mark.parametrize("is_kubelets", [False, True])
def test_devices_are_what_the_pod_states_whoever_knows_the_rest(is_kubelets: bool) -> None:
    of = pod("p", app("a", "2"), app("b", "1"))
    states = StatedPod((StatedContainer("b", devices=(("example.com/nic", 2),)),))
    found = seen(of, add_kubelet_data(states, kubelets(of) if is_kubelets else None))
    devices = {one.name: [(name, str(count)) for name, count in one.devices] for one in found.pod.containers}
    assert devices == {"a": [], "b": [("example.com/nic", "2")]}
    assert found.contradictions == ()
    assert [(one.what, one.value, one.is_exact) for one in found.known if one.by is ToldBy.ANNOTATION] == [
        ("requests.example.com/nic", "2", True),
        ("limits.example.com/nic", "2", True),
    ]
    assert pod_from_document(pod_to_document(found.pod)) == found.pod


@given(pods_of_kubelet(), st.sampled_from(["nobody", "annotations", "kubelet"]))
def test_a_pod_is_the_same_after_it_was_saved(of: Pod, who: str) -> None:
    said = {
        "nobody": NOTHING_STATED,
        "annotations": stated_as(of),
        "kubelet": add_kubelet_data(NOTHING_STATED, kubelets(of)),
    }
    found = seen(of, said[who])
    assert saved(found.pod) == found.pod


@given(pods_of_kubelet(), st.data())
def test_what_kubelet_has_made_counts_where_it_says_something_else(of: Pod, data: st.DataObject) -> None:
    """As in a resize that it has no room for yet: whatever it wants, no CPU request is above what its shares say."""
    wanted = replace(of, containers=tuple(replace(one, resources=data.draw(resources())) for one in of.containers))
    found = seen(of, add_kubelet_data(NOTHING_STATED, kubelets(wanted)))
    assert found.contradictions == (), "that is nobody's mistake"
    for has, asked in zip(found.pod.containers, saved(of).containers, strict=True):
        shares = told_resources(asked).cpu_shares
        assert shares is not None
        # A request of nothing has the shares of the limit; those of two thousandths are those of nothing.
        assert {get_requested(has.resources, CPU), get_requested(limits_of(has), CPU)} & set(possible(shares))
        assert get_requested(has.resources, CPU) <= possible(shares)[-1]
    assert saved(found.pod) == found.pod


def limits_of(one: Container) -> ResourceRequirements:
    return ResourceRequirements(one.resources.limits)


def possible(shares: int) -> range:
    """The CPU requests that have these shares, up to the largest that can be told from larger ones."""
    found = estimate_cpu_request(shares)
    return range(found.least, (found.most or 10**6) + 1)


def test_kubelets_word_counts_more_than_an_annotations_and_says_nothing_of_what_only_these_can_say() -> None:
    of = pod("web", app("main", resources=burstable("1500m")))
    annotated = StatedPod(
        (StatedContainer("main", requests=amounts("3"), exclusive_cpus=1), StatedContainer("gone")), numa_node=1
    )
    assert seen(of, annotated).contradictions
    found = seen(of, add_kubelet_data(annotated, kubelets(of)))
    assert found.contradictions == ()
    assert found.is_whole
    (main,) = found.pod.containers
    assert (main.resources.requests, main.exclusive_cpus, found.pod.numa_node) == (amounts("1500m"), 1, 1)


def test_what_the_pod_has_as_a_whole_is_known_from_kubelet_alone() -> None:
    """Its limit is in its containers' quotas, though they have none of their own."""
    of = pod("web", app("main", resources=burstable("500m")), app("side"), resources=exclusive("2", "1Gi"))
    limited = [
        replace(one, resources=ResourceRequirements(one.resources.requests, amounts("2", "1Gi")))
        for one in of.containers
    ]
    containers = [told(of, one) for one in limited]
    said = add_kubelet_data(NOTHING_STATED, kubelets(of))
    found = build_runtime_pod(sandbox_of(of), containers, said, CAPACITY)
    assert found.is_whole
    assert found.pod.resources == of.resources
    assert [one.resources.limits for one in found.pod.containers] == [Resources(), Resources()]
    assert ("limits.cpu", "2", "podsApi", "") in {
        (one.what, one.value, one.by.value, one.container) for one in found.known
    }
    exclusive_one = add_kubelet_data(StatedPod((StatedContainer("main", exclusive_cpus=1),)), kubelets(of))
    (against,) = build_runtime_pod(sandbox_of(of), containers, exclusive_one, CAPACITY).contradictions
    assert "spec.resources" in against.text


def saved(of: Pod) -> Pod:
    """As it is read from a state again."""
    return pod_from_document(pod_to_document(of))


@given(pods_of_kubelet(), st.data())
def test_no_statement_gets_more_cpus_than_kubelet_knows_of(of: Pod, data: st.DataObject) -> None:
    """Whatever it says: it is contradicted, or no CPU request is above what its shares say."""
    says = StatedPod(
        tuple(
            StatedContainer(
                one.name,
                requests=data.draw(st.none() | resources().map(lambda r: r.requests)),
                limits=data.draw(st.none() | resources().map(lambda r: r.limits)),
                exclusive_cpus=data.draw(st.none() | st.integers(1, 300)),
            )
            for one in of.containers
        )
    )
    found = seen(of, says)
    if not found.contradictions:
        for one in found.pod.containers:
            request, real = (
                0 if amount is None else amount.milli()
                for amount in (one.resources.requests.get(CPU), of.container(one.name).resources.requests.get(CPU))
            )
            assert request <= max(2, real) or real >= 256_000
            assert (one.exclusive_cpus or 0) * 1000 <= max(2, real) or real >= 256_000


@pytest.mark.parametrize(
    ("parent", "qos"),
    [
        ("kubepods-pod1234_5678.slice", QosClass.GUARANTEED),
        ("kubepods-burstable-pod1234_5678.slice", QosClass.BURSTABLE),
        ("kubepods-besteffort-pod1234_5678.slice", QosClass.BEST_EFFORT),
        ("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice", QosClass.BURSTABLE),
        ("mine-kubepods-burstable-pod1.slice", QosClass.BURSTABLE),
        ("/kubepods/pod1234-5678", QosClass.GUARANTEED),
        ("/kubepods/burstable/pod1234-5678", QosClass.BURSTABLE),
        ("/mine/kubepods/besteffort/pod1/", QosClass.BEST_EFFORT),
        ("", None),
        ("/", None),
        ("pod1", None),
        ("system.slice", None),
        ("kubepods-burstable.slice", None),
        ("/mine/pod1", None),
        ("/kubepods/burstable", None),
        ("kubepods-guaranteed-pod1.slice", None),
    ],
)
def test_the_class_in_the_parents_name(parent: str, qos: QosClass | None) -> None:
    assert find_qos_class(parent) is qos


@pytest.mark.parametrize(
    ("score", "qos"), [(-997, "Guaranteed"), (1000, "BestEffort"), (998, "Burstable"), (None, "Burstable")]
)
def test_without_kubelets_parent_the_class_is_estimated(score: int | None, qos: str) -> None:
    of = pod("p", app(cpu="2"))
    box = replace(sandbox_of(of), cgroup_parent="system.slice")
    container = replace(told(of, of.containers[0]), oom_score_adj=score)
    known = build_runtime_pod(box, [container], NOTHING_STATED, CAPACITY).known[0]
    assert (known.what, known.value, known.by, known.is_exact) == ("qosClass", qos, ToldBy.OOM_SCORE_ADJ, False)


def one(
    container: Container, told_of: NriContainer | None = None, stated: StatedPod = NOTHING_STATED
) -> dict[str, Any]:
    of = pod("p", container)
    found = build_runtime_pod(sandbox_of(of), [told_of or told(of, container, CAPACITY)], stated, CAPACITY)
    return {k.what: (k.value, k.by, k.is_exact) for k in found.known if k.container}


def test_what_is_known_of_a_guaranteed_container() -> None:
    assert one(app(cpu="2", memory="4Gi", hugepages_2Mi="1Gi")) == {
        "kind": ("app", ToldBy.SEEN, False),
        "requests.cpu": ("2", ToldBy.CPU_SHARES, True),
        "limits.cpu": ("2", ToldBy.CPU_SHARES, True),
        "requests.memory": ("4Gi", ToldBy.QOS_CLASS, True),
        "limits.memory": ("4Gi", ToldBy.MEMORY_LIMIT, True),
        "requests.hugepages-2Mi": ("1Gi", ToldBy.HUGEPAGE_LIMIT, True),
        "limits.hugepages-2Mi": ("1Gi", ToldBy.HUGEPAGE_LIMIT, True),
    }


def test_beyond_what_shares_can_say_the_quota_does() -> None:
    assert one(app(cpu="300"))["requests.cpu"] == ("300", ToldBy.CPU_QUOTA, True)


def test_what_is_known_of_a_burstable_container() -> None:
    half = Container("app", resources=ResourceRequirements(amounts("100m", "6Gi"), amounts("2", "10Gi")))
    assert one(half) == {
        "kind": ("app", ToldBy.SEEN, False),
        "requests.cpu": ("100m", ToldBy.CPU_SHARES, True),
        "limits.cpu": ("2", ToldBy.CPU_QUOTA, True),
        "requests.memory": ("6390911337", ToldBy.OOM_SCORE_ADJ, False),
        "limits.memory": ("10Gi", ToldBy.MEMORY_LIMIT, True),
    }


def test_a_memory_request_that_can_be_the_limit_is_taken_for_it() -> None:
    equal = Container("app", resources=ResourceRequirements(amounts("100m", "6Gi"), amounts(None, "6Gi")))
    assert one(equal)["requests.memory"] == ("6Gi", ToldBy.OOM_SCORE_ADJ, False)


def test_a_best_effort_container_asks_for_nothing() -> None:
    found = one(Container("app"))
    assert {what: value for what, (value, _, _) in found.items()} == {"kind": "app", "requests.cpu": "0"}


def test_without_the_nodes_memory_a_burstable_request_is_unknown() -> None:
    found = seen(pod("p", app(resources=burstable())), capacity=0)
    assert found.pod.containers[0].resources.requests.get(MEMORY) is None
    assert [k.between for k in found.known if k.what == "requests.memory"] == [None]


def test_containers_that_are_stated_but_not_seen_are_of_the_pod() -> None:
    of = pod("p", app("a", cpu="2"))
    says = StatedPod(
        (
            StatedContainer("setup", ContainerKind.INIT, amounts("1"), amounts("1")),
            StatedContainer("a", ContainerKind.APP),
            StatedContainer("b", ContainerKind.APP, limits=amounts("3")),
            StatedContainer("c", ContainerKind.APP),
        ),
        names_all=True,
    )
    found = seen(of, says)
    assert [(c.name, c.kind) for c in found.pod.containers] == [
        ("setup", ContainerKind.INIT),
        ("a", ContainerKind.APP),
        ("b", ContainerKind.APP),
        ("c", ContainerKind.APP),
    ]
    assert found.pod.container("b").resources == exclusive("3")
    assert [(k.container, k.what) for k in found.estimates] == [("c", "requests")]
    assert not found.is_whole


def test_a_container_that_the_list_leaves_out_is_an_estimate() -> None:
    found = seen(
        pod("p", app("a", cpu="2"), app("debugger")), StatedPod((StatedContainer("a", ContainerKind.APP),), True)
    )
    assert [k.what for k in found.estimates if k.container == "debugger"] == [
        "kind",
        "requests.cpu",
        "requests.memory",
    ]


def test_of_two_containers_of_one_name_the_later_one_counts() -> None:
    old, new = app("a", cpu="2"), app("a", cpu="3")
    of = pod("p", new)
    found = build_runtime_pod(sandbox_of(of), [told(of, old), told(of, new, id="new")], NOTHING_STATED, CAPACITY)
    assert [c.resources.requests.get(CPU) for c in found.pod.containers] == [Quantity.of(3)]


@pytest.mark.parametrize(
    ("stated", "text"),
    [
        (
            StatedContainer("app", requests=amounts("4", "4Gi"), limits=amounts("4", "4Gi")),
            "limits.cpu 4, but kubelet gave it a quota of 200000 in 100000 µs",
        ),
        (
            StatedContainer("app", requests=amounts("4", "4Gi")),
            "requests.cpu 4, but kubelet gave it 2048 CPU shares, as for 2",
        ),
        (
            StatedContainer("app", requests=amounts("2", "1Gi")),
            "requests.memory 1Gi, but its limit is 4Gi, and the pod is Guaranteed",
        ),
        (StatedContainer("app", limits=amounts("2", "8Gi")), "limits.memory 8Gi, but kubelet gave it 4Gi"),
        (StatedContainer("app", limits=amounts("2", None)), "limits.memory none, but kubelet gave it 4Gi"),
        (
            StatedContainer("app", limits=amounts("2", "4Gi", hugepages_2Mi="2Mi")),
            "limits.hugepages-2Mi 2Mi, but kubelet gave it 0",
        ),
        (
            StatedContainer("app", requests=amounts("2", "5Gi")),
            "requests.memory 5Gi, but its limit is 4Gi, and the pod is Guaranteed",
        ),
        (StatedContainer("app", exclusive_cpus=3), "exclusive-cpus 3, but it requests cpu: 2"),
    ],
)
def test_what_contradicts_kubelet_is_told(stated: StatedContainer, text: str) -> None:
    found = seen(pod("p", app(cpu="2", memory="4Gi")), StatedPod((stated,)))
    assert [c.text for c in found.contradictions if text in c.text], [c.text for c in found.contradictions]


def test_a_contradiction_says_the_next_step() -> None:
    found = seen(pod("p", app(cpu="2", memory="4Gi")), StatedPod((StatedContainer("app", exclusive_cpus=3),)))
    assert "\n".join(c.text for c in found.contradictions) == (
        "container app: its annotation says exclusive-cpus 3, but it requests cpu: 2: "
        "write what the container's `resources` say, or remove the annotation"
    )


def test_a_request_above_the_limit_is_told() -> None:
    of = pod("p", app(resources=burstable("1", "2")))
    found = seen(of, StatedPod((StatedContainer("app", requests=amounts("1", "1Gi")),)))
    assert [c.told for c in found.contradictions] == ["its limit is 64Mi"]
