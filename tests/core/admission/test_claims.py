"""Claims of pods: which CPUs, memory and cards their containers are promised, and what is refused with which words."""

from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from nodeagent.core.admission.managers import (
    Admitted,
    Managers,
    Rejected,
    admit,
    initial,
    remove_container,
    remove_pod,
    start_container,
    violations,
)
from nodeagent.core.admission.node_capacity import usage_of
from nodeagent.core.admission.resize import resized
from nodeagent.core.model.claims import ClaimRequest, ContainerClaim, DeviceRequest, MatchAttribute, PodClaim
from nodeagent.core.model.devices import PlacedDevices
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import NotResized, Reason
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.cpu.holdings import CpuHoldings, own_set_of
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.memory.holdings import MemoryHoldings
from nodeagent.formats.manifest.pod_rules import is_subdomain
from tests.support import builders, pods
from tests.support.builders import GIB, MACHINE_A, hybrid, machine, managers
from tests.support.claims import ETH0, NUMA, NVME0, claiming, request, spec, template, way

CARDS = PlacedDevices.of((ETH0, NVME0), MACHINE_A)
ON_NODE_1 = 'device.attributes["dra.cpu"].numaNodeID == 1'
A_NIC = 'device.attributes["nodeagent.io"].kind == "network"'


def node(**more: Any) -> Managers:
    memory = {0: "256Mi", 1: "256Mi"}
    return managers(reserved_memory=memory, **more).knowing(CARDS)


OF_ONE_THAT_STAYS = (
    "CPUs and memory must stay with one container, but later containers reuse the CPUs and memory of an init container"
)


def with_init(claim: PodClaim, cpu: str, *, of_app: bool = False) -> Pod:
    """A pod whose init container uses a claim."""
    users = (ContainerClaim(claim.name),)
    setup, main = pods.init("setup", cpu, claims=users), pods.app("app", cpu, claims=users if of_app else ())
    return builders.pod("a", setup, main, claims=(claim,))


def promised(here: Managers, *these: Pod) -> Promises:
    promises = initial(here)
    for one in these:
        decision = admit(here, promises, one)
        assert isinstance(decision, Admitted), decision.message
        promises = decision.promises
    assert violations(here, promises, these) == ()
    return promises


def refused(here: Managers, promises: Promises, one: Pod) -> str:
    decision = admit(here, promises, one)
    assert isinstance(decision, Rejected)
    assert decision.reason is Reason.CLAIM
    assert decision.promises == promises, "nothing of it is left"
    return decision.message


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
def test_a_claim_says_which_cpus_and_the_rest_follows(policy: str) -> None:
    here = node(topology_manager_policy=policy)
    one = claiming("a", "4", template(request("cpus", "dra.cpu", ON_NODE_1, count=4)))
    held = promised(here, one).of_pod("a")
    assert held.of(CpuHoldings).own_set("app") == CpuSet.of(4, 5, 12, 13), "whole cores, as the policy packs them"
    if policy != "none":
        assert [block.nodes for block in held.of(MemoryHoldings).blocks("app") or ()] == [NumaSet.of(1)]
        assert held.hint("app").mask == NumaSet.of(1)
    (claim,) = held.of(ClaimHoldings).claims
    assert (claim.claim, claim.name) == ("default/a-own", "own")
    assert [(each.request, each.device) for each in claim.devices] == [
        ("cpus", f"cpudev{cpu:03}") for cpu in (4, 5, 12, 13)
    ]


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_cpus_are_where_the_rest_of_the_pod_fits(policy: str) -> None:
    """Node 0 has more free CPUs, and too little memory: the ways that the claim leaves are tried until all fits."""
    here = node(topology_manager_policy=policy)
    full = builders.pod("full", pods.app("app", "1", "7Gi"), numa_node=0)
    one = claiming("a", "2", template(request("cpus", count=2)), memory="2Gi")
    promises = promised(here, full, one)
    assert here.topology.numa_of(own_set_of(promises, "a", "app") or CpuSet()) == NumaSet.of(1)


def test_cpus_and_a_card_of_one_node() -> None:
    here = node(topology_manager_policy="restricted")
    claim = template(request("cpus", count=4), request("nic", "nodeagent.io", A_NIC), match=NUMA)
    promises = promised(here, claiming("a", "4", claim))
    held = promises.of_pod("a")
    assert here.topology.numa_of(held.of(CpuHoldings).own_set("app") or CpuSet()) == NumaSet.of(1), "where eth0 is"
    card = HeldDevice("nodeagent.io", ETH0.address, NumaSet.of(1), "network", ("eth0",), "default/a-own")
    assert held.of(DeviceHoldings).devices_of("app") == (card,)
    said = refused(here, promises, claiming("b", "1", template(request("nic", "nodeagent.io", A_NIC))))
    assert said == "claim default/b-own, request nic: 1 wanted, 1 device meets its selectors, 0 of them free"
    gone, _ = remove_pod(here, promises, "a")
    assert gone == initial(here)


def test_cpus_and_a_card_of_one_root() -> None:
    here = node(topology_manager_policy="none")
    claim = template(
        request("cpus", count=4),
        request("nic", "nodeagent.io", A_NIC),
        match="resource.kubernetes.io/pcieRoot",
    )
    cpus = own_set_of(promised(here, claiming("a", "4", claim)), "a", "app")
    assert here.topology.numa_of(cpus or CpuSet()) == NumaSet.of(1), "the CPUs near the root that eth0 is below"


def test_a_card_draws_the_cpus_to_it_without_a_constraint() -> None:
    here = node(topology_manager_policy="best-effort")
    claim = template(request("nic", "nodeagent.io", A_NIC))
    promises = promised(here, claiming("a", "4", claim))
    assert here.topology.numa_of(own_set_of(promises, "a", "app") or CpuSet()) == NumaSet.of(1)


def test_memory_of_a_node_is_claimed_with_the_cpus_of_it() -> None:
    here = node(topology_manager_policy="single-numa-node")
    claim = template(
        request("cpus", "dra.cpu", ON_NODE_1, count=2), request("zone", "dra.memory", size=2 * GIB), match=NUMA
    )
    promises = promised(here, claiming("a", "2", claim, memory="2Gi"))
    blocks = promises.of_pod("a").of(MemoryHoldings).blocks("app") or ()
    assert [(block.nodes, block.size_bytes) for block in blocks] == [(NumaSet.of(1), 2 * GIB)]
    assert promises.of_pod("a").of(ClaimHoldings).claims[0].devices[-1].capacity == (("dra.memory/size", 2 * GIB),)
    said = refused(here, promises, claiming("b", "2", claim, memory="3Gi"))
    assert (
        said
        == "container app requests 3Gi, but its claims have 2Gi of memory: set this amount as the container's request and limit"
    )


def test_memory_of_an_init_container_is_taken_over_once() -> None:
    """What has its memory by a claim had it before the init container: that lends it to who comes after."""
    here = node(topology_manager_policy="none")
    one = builders.pod(
        "a",
        pods.init("first", "1", "64Mi"),
        pods.app("app", "1", "1Gi", claims=(ContainerClaim("own"),)),
        pods.app("beside", "1", "64Mi"),
        claims=(template(request("zone", "dra.memory", 'device.attributes["dra.memory"].numaNode == 0', size=GIB)),),
    )
    promises = promised(here, one)
    gone, _ = remove_pod(here, promises, "a")
    assert gone == initial(here)


def test_containers_divide_a_claim_by_its_requests() -> None:
    here = node(topology_manager_policy="restricted")
    claim = template(request("fast", count=2), request("slow", count=4), match=NUMA)
    one = builders.pod(
        "a",
        pods.app("one", "2", claims=(ContainerClaim("own", "fast"),)),
        pods.app("two", "4", claims=(ContainerClaim("own", "slow"),)),
        claims=(claim,),
    )
    held = promised(here, one).of_pod("a")
    assert [len(held.of(CpuHoldings).own_set(name) or ()) for name in ("one", "two")] == [2, 4]
    assert here.topology.numa_of(
        CpuSet() | (held.of(CpuHoldings).own_set("one") or CpuSet()) | (held.of(CpuHoldings).own_set("two") or CpuSet())
    ) == (NumaSet.of(0))


def test_a_request_of_few_choices_is_met_before_one_of_many() -> None:
    here = node(topology_manager_policy="none")
    claim = template(
        request("any", count=12),
        request("two", "dra.cpu", 'device.attributes["dra.cpu"].cpuID in [1, 9]', count=2),
    )
    held = promised(here, claiming("a", "14", claim)).of_pod("a")
    assert [each.device for each in held.of(ClaimHoldings).claims[0].devices if each.request == "two"] == [
        "cpudev001",
        "cpudev009",
    ]


def test_alternatives_are_tried_in_order() -> None:
    here = node(topology_manager_policy="none")
    first = way("dra.cpu", ON_NODE_1, count=8, name="near")
    claim = template(ClaimRequest("cpus", (first, way("dra.cpu", count=8, name="any"))))
    promises = promised(here, claiming("a", "8", claim))
    assert {each.request for each in promises.of_pod("a").of(ClaimHoldings).claims[0].devices} == {"cpus/near"}
    both = claiming("b", "6", template(ClaimRequest("cpus", (first, way("dra.cpu", count=6, name="any")))))
    after = admit(here, promises, both)
    assert isinstance(after, Admitted)
    assert {each.request for each in after.promises.of_pod("b").of(ClaimHoldings).claims[0].devices} == {"cpus/any"}


def test_all_is_all_of_them_or_none() -> None:
    here = node(topology_manager_policy="none")
    everything = template(request("all", "nodeagent.io", count=None))
    promises = promised(here, claiming("a", "1", everything))
    assert [one.id for one in promises.of_pod("a").of(DeviceHoldings).devices_of("app")] == [
        ETH0.address,
        NVME0.address,
    ]
    nic = promised(here, claiming("a", "1", template(request("nic", "nodeagent.io", A_NIC))))
    said = refused(here, nic, claiming("b", "1", everything))
    assert said == "claim default/b-own, request all: all 2 wanted, 2 devices meet its selectors, 1 of them free"


def test_cards_are_shared_by_who_names_the_same_claim() -> None:
    here = node(topology_manager_policy="none")
    shared = PodClaim("net", "the-nic", spec=spec(request("nic", "nodeagent.io", A_NIC)))
    promises = promised(here, claiming("a", "1", shared), claiming("b", "1", replace(shared, name="nic")))
    assert [promises.of_pod(uid).of(ClaimHoldings).claims[0].claim for uid in "ab"] == ["default/the-nic"] * 2
    assert promises.of_pod("a").of(DeviceHoldings).devices_of("app") == promises.of_pod("b").of(
        DeviceHoldings
    ).devices_of("app")
    first, _ = remove_pod(here, promises, "a")
    assert refused(here, first, claiming("c", "1", template(request("nic", "nodeagent.io", A_NIC))))
    last, _ = remove_pod(here, first, "b")
    assert last == initial(here)
    cpus = PodClaim("cpus", "the-cpus", spec=spec(request("cpus", count=2)))
    had = promised(here, claiming("a", "2", cpus))
    said = refused(here, had, claiming("b", "2", cpus))
    assert said == (
        "claim default/the-cpus of pod a has CPUs, which only one container can use: "
        "give each pod a claim of its own by a resourceClaimTemplate"
    )


def test_a_pod_has_of_a_shared_claim_what_its_containers_use() -> None:
    here = node(topology_manager_policy="none")
    disk = request("disk", "nodeagent.io", 'device.attributes["nodeagent.io"].kind == "nvme"')
    shared = PodClaim("net", "both", spec=spec(request("nic", "nodeagent.io", A_NIC), disk))

    def using(uid: str, *names: str) -> Pod:
        users = [pods.app(name, "1", claims=(ContainerClaim("net", name),)) for name in names]
        return builders.pod(uid, *users, claims=(shared,))

    promises = promised(here, using("c", "nic", "disk"), using("b", "disk"), using("d", "nic"))
    assert [one.request for one in promises.of_pod("b").of(ClaimHoldings).claims[0].devices] == ["disk"]
    assert promises.of_pod("b").of(DeviceHoldings).devices == (
        ("disk", promises.of_pod("c").of(DeviceHoldings).devices_of("disk")),
    )
    promises, _ = remove_container(here, promises, "c", "nic")
    after = admit(here, promises, using("a", "nic"))
    assert isinstance(after, Admitted), "d has it still"
    promises, _ = remove_pod(here, promises, "d")
    assert refused(here, promises, using("a", "nic")) == (
        "claim default/both of pod b has no devices for request nic, because they were released or never "
        "allocated: the claim gets devices for this request when no pod uses the claim"
    )


def test_two_claims_of_one_name_are_not_one() -> None:
    """A template's claim is called POD-NAME, and a document may be called so, too."""
    here = node(topology_manager_policy="none")
    nic = request("nic", "nodeagent.io", A_NIC)
    from_template, named = claiming("a", "1", template(nic)), claiming("b", "1", PodClaim("x", "a-own", spec=spec(nic)))
    said = (
        "claim default/a-own already belongs to pod a, and can't be shared: a claim from a template (named POD-NAME) belongs to one "
        "pod only"
    )
    assert refused(here, promised(here, from_template), named) == said
    assert refused(here, promised(here, named), from_template) == said.replace("pod a,", "pod b,")


def test_a_long_name_is_shortened_to_one_of_its_own() -> None:
    names = [template(name=name).claim_name("p" * 250) for name in ("one", "two")]
    assert len(set(names)) == 2
    assert all(len(name) == 253 and is_subdomain(name.replace("p" * 64, "p")) for name in names)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (
            replace(
                claiming("a", "2", template(request("cpus", count=2))),
                containers=(pods.app("app", "2", claims=(ContainerClaim("own", "cpu"),)),),
            ),
            "container app uses request cpu of claim own, which has no such request",
        ),
        (
            claiming("a", "3", template(request("cpus", count=2))),
            'container app requests 3 exclusive CPUs, but its claims have 2 CPUs: set cpu: "2" and memory as its requests and limits',
        ),
        (
            claiming("a", None, template(request("cpus", count=1))),
            'container app requests no exclusive CPUs, but its claims have 1 CPU: set cpu: "1" and memory as its requests and limits',
        ),
        (
            claiming("a", "2", template(request("cpus", "dra.cpu", 'device.attributes["dra.cpu"].clock > 1', count=2))),
            'clock is missing: `device.attributes["dra.cpu"].clock > 1`, of cpudev001',
        ),
        (
            claiming("a", "20", template(request("cpus", count=20))),
            "claim default/a-own, request cpus: 20 wanted, 14 devices meet its selectors, 14 of them free",
        ),
        (
            claiming("a", "4", template(request("cpus", cpu=4))),
            "claim default/a-own, request cpus: 1 wanted, 0 devices meet its selectors and have dra.cpu/cpu, 0 of them with room for it",
        ),
        (
            claiming("a", "1", template(request("mem", "dra.memory", size=9 * GIB)), memory="9Gi"),
            "claim default/a-own, request mem: 1 wanted, 2 devices meet its selectors and have dra.memory/size, 0 of them with room for it",
        ),
        (
            claiming("a", "9", template(request("cpus", count=9), match="dra.cpu/socketID")),
            "claim default/a-own: too few free devices have the same dra.cpu/socketID: request cpus is for 9 of 14",
        ),
        (
            claiming("a", "1", PodClaim("own", "mine")),
            "there is no ResourceClaim default/mine: put its document into the manifest directory",
        ),
        (
            claiming("a", "1", PodClaim("own", template="mine", missing="DeviceClass fast")),
            "there is no DeviceClass fast: put its document into the manifest directory",
        ),
        (
            claiming("a", "2", template(ClaimRequest("mixed", (DeviceRequest("", "x", ("true",), 1),)))),
            "claim default/a-own, request mixed: devices of several drivers match its selectors, but all must be of one driver",
        ),
        (
            with_init(template(request("cpus")), "1"),
            f"claim default/a-own, request cpus: {OF_ONE_THAT_STAYS} such as setup",
        ),
    ],
)
def test_what_is_said(one: Pod, said: str) -> None:
    here = node(topology_manager_policy="none")
    assert refused(here, initial(here), one) == said


def test_a_whole_socket_is_one_value() -> None:
    here = node(topology_manager_policy="none")
    one = claiming("a", "8", template(request("cpus", count=8), match="dra.cpu/socketID"))
    assert own_set_of(promised(here, one), "a", "app") == here.topology.sockets[1], "of the other one CPUs are reserved"


def test_each_has_a_value_of_its_own() -> None:
    """A CPU on each NUMA node, for one request or for two; a third node there is not."""
    here = node(topology_manager_policy="none")
    distinct = MatchAttribute("dra.cpu/numaNodeID", is_distinct=True)
    for requests in ((request("cpus", count=2),), (request("one"), request("other"))):
        one = claiming("a", "2", template(*requests, match=distinct))
        held = promised(here, one)
        assert here.topology.numa_of(own_set_of(held, "a", "app") or CpuSet()) == NumaSet.of(0, 1)
        (claim,) = held.of_pod("a").of(ClaimHoldings).claims
        assert len(claim.devices) == 2
    three = claiming("a", "3", template(request("cpus", count=3), match=distinct))
    assert refused(here, initial(here), three) == (
        "claim default/a-own: too few free devices have different values of dra.cpu/numaNodeID: request cpus is for 3 of 14"
    )


def test_an_init_container_may_have_the_card_of_another_or_one_alone() -> None:
    here = node(topology_manager_policy="none")
    shared = with_init(template(request("nic", "nodeagent.io", A_NIC)), "1", of_app=True)
    held = promised(here, shared).of_pod("a")
    assert [[one.id for one in held.of(DeviceHoldings).devices_of(name)] for name in ("setup", "app")] == [
        [ETH0.address]
    ] * 2
    alone = with_init(template(request("nic", "nodeagent.io", A_NIC)), "1")
    promises = promised(here, alone)
    started = start_container(here, promises, alone, "app")
    assert started.of_pod("a").of(DeviceHoldings).devices_of("setup"), (
        "it has it until the pod ends, as it may run again"
    )
    assert remove_pod(here, started, "a")[0] == initial(here)


def test_a_class_of_cores_is_chosen_as_for_other_pods() -> None:
    """Performance cores are the default where there are two kinds; a selector asks for others."""
    policy = {"topology_manager_policy": "none", "exclusive_core_class": "performance"}
    here = managers(hybrid(), reserved="0,1", **policy).knowing(PlacedDevices())
    promises = initial(here)
    fast = admit(here, promises, claiming("a", "2", template(request("cpus", count=2))))
    slow = template(request("cpus", "dra.cpu", 'device.attributes["dra.cpu"].coreType == "e-core"', count=2))
    other = admit(here, promises, claiming("b", "2", slow))
    assert isinstance(fast, Admitted)
    assert isinstance(other, Admitted)
    classes = {cpu.id: cpu.core_class for cpu in here.topology.cpus}
    assert {classes[cpu] for cpu in own_set_of(fast.promises, "a", "app") or ()} == {"performance"}
    assert {classes[cpu] for cpu in own_set_of(other.promises, "b", "app") or ()} == {"efficiency"}


def test_a_claim_for_another_node_than_the_pod_asks_for_is_refused_with_both() -> None:
    here = node(topology_manager_policy="none")
    one = claiming("a", "2", template(request("cpus", "dra.cpu", ON_NODE_1, count=2)), numa_node=0)
    assert refused(here, initial(here), one) == (
        "claim default/a-own, request cpus: 2 wanted, 8 devices meet its selectors, 0 of them free (only on NUMA node 0, which it "
        "requires)"
    )


def test_whole_cores_stay_whole() -> None:
    here = node(options=("full-pcpus-only",), topology_manager_policy="none")
    said = refused(here, initial(here), claiming("a", "3", template(request("cpus", count=3))))
    assert "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2" in said
    held = own_set_of(promised(here, claiming("a", "4", template(request("cpus", count=4)))), "a", "app")
    assert held == CpuSet.of(1, 2, 9, 10)


@pytest.mark.parametrize(("first", "given"), [("1, 9, 2, 10", (2, 10)), ("1, 9, 2, 12", None)])
def test_whole_cores_stay_whole_where_room_is_left_for_others(first: str, given: tuple[int, int] | None) -> None:
    """Core 1, that would be taken first, is the only one for the second request: what else there is must be a core, too."""
    here = node(options=("full-pcpus-only",), topology_manager_policy="none")
    few, all_of_it = (f'device.attributes["dra.cpu"].cpuID in [{cpus}]' for cpus in (first, "1, 9, 3, 11"))
    one = claiming(
        "a", "6", template(request("few", "dra.cpu", few, count=2), request("all", "dra.cpu", all_of_it, count=4))
    )
    if given is None:
        assert "SMT Alignment Error" in refused(here, initial(here), one)
    else:
        assert own_set_of(promised(here, one), "a", "app") == CpuSet.of(1, 9, 3, 11, *given)


def test_what_is_had_by_a_claim_is_not_resized() -> None:
    here = node(topology_manager_policy="restricted")
    one = claiming("a", "2", template(request("cpus", count=2)))
    promises = promised(here, one)
    bigger = replace(one, containers=(pods.app("app", "4", claims=one.containers[0].claims),))
    answer = resized(here, promises, one, bigger, usage=usage_of((one,)), allocatable=None)
    assert isinstance(answer, NotResized)
    assert (answer.reason, answer.message) == (
        "ResizeInfeasible",
        "container app has its CPUs by a claim, which a resize can't change: change both, and restart the pod",
    )
    larger = replace(one, containers=(pods.app("app", "2", "128Mi", claims=one.containers[0].claims),))
    assert isinstance(resized(here, promises, one, larger, usage=usage_of((one,)), allocatable=None), Promises)


BIG = machine(nodes=4, cores=2)
SELECTORS = [
    "true",
    ON_NODE_1,
    'device.attributes["dra.cpu"].coreID < 5',
    'device.attributes["dra.cpu"].cpuID in [2, 3, 4]',
]


@st.composite
def histories(draw: st.DrawFn) -> list[Pod | str]:
    """Pods with claims, and without, that come and go."""
    steps: list[Pod | str] = []
    for number in range(draw(st.integers(1, 8))):
        counts = draw(st.lists(st.integers(1, 4), min_size=0, max_size=2))
        requests = [
            request(f"r{place}", "dra.cpu", draw(st.sampled_from(SELECTORS)), count=count)
            for place, count in enumerate(counts)
        ]
        match = draw(st.sampled_from([None, NUMA, "dra.cpu/coreID"]))
        claims = (template(*requests, match=match),) if requests else ()
        steps.append(claiming(f"p{number}", str(sum(counts) or draw(st.integers(1, 3))), *claims))
        if draw(st.booleans()):
            steps.append(f"p{draw(st.integers(0, number))}")
    return steps


@given(
    histories(),
    st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]),
    st.sampled_from(["container", "pod"]),
)
def test_whatever_comes_and_goes_every_promise_holds(history: list[Pod | str], policy: str, scope: str) -> None:
    rules = {"topology_manager_policy": policy, "topology_manager_scope": scope}
    here = managers(BIG, reserved="0,8", **rules).knowing(PlacedDevices())
    empty = promises = initial(here)
    active: dict[str, Pod] = {}
    for step in history:
        if isinstance(step, str):
            promises, _ = remove_pod(here, promises, step)
            active.pop(step, None)
        else:
            decision = admit(here, promises, step)
            if isinstance(decision, Admitted):
                promises = decision.promises
                active[step.uid] = step
                for claim in promises.of_pod(step.uid).of(ClaimHoldings).claims:
                    named = CpuSet.from_ids(int(each.device.removeprefix("cpudev")) for each in claim.devices)
                    assert named == own_set_of(promises, step.uid, "app")
            else:
                assert decision.promises == promises
        assert violations(here, promises, tuple(active.values())) == ()
    for uid in active:
        promises, _ = remove_pod(here, promises, uid)
    assert promises == empty
