"""What the memory side of the core decides where the reference's scenarios seldom lead: value by value, each decision by itself."""

from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.admission import managers as core
from nodeagent.core.admission.managers import Managers, Rejected, build
from nodeagent.core.admission.records import Records, start, start_memory
from nodeagent.core.model.config import Errata, Placement, ReservedMemory
from nodeagent.core.model.demand import PodDemand, demand_of, why_shared
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.pod import Container, ContainerKind, Pod, ResourceRequirements, Resources
from nodeagent.core.model.pod_resources import effective_requests, with_container_defaults, with_pod_level_defaults
from nodeagent.core.model.podmap import PodMap
from nodeagent.core.model.promises import NOTHING, Hint, Promises, with_pod
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.records import Unreadable
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.topology import NumaNode, Topology
from nodeagent.core.numa import hint_family
from nodeagent.core.numa.hints import DONT_CARE
from nodeagent.core.resources.memory.accounting import (
    breaks_group,
    charge,
    free_of,
    initial_machine,
    release,
    take,
    used_cells,
)
from nodeagent.core.resources.memory.groups import NodeGroups, best_group, calculate_hints
from nodeagent.core.resources.memory.holdings import (
    Block,
    MemoryBooks,
    MemoryHoldings,
    MemoryReuse,
    memory_accounts,
    with_memory_accounts,
)
from nodeagent.core.resources.memory.records import MemoryRecord
from nodeagent.core.resources.resource import Resource, ResourceHints
from tests.support.builders import GIB, MACHINE_A, PLRM, admitted, machine, managers, pod
from tests.support.pods import app, exclusive, init, shared, sidecar

KUBELET, FIXED = Errata.KUBELET_1_36, Errata.FIXED
BOTH = pytest.mark.parametrize("errata", [KUBELET, FIXED])
ZERO, ONE, TWO = NumaSet.of(0), NumaSet.of(1), NumaSet.of(0, 1)


def node_of(topology: Topology = MACHINE_A, **more: Any) -> Managers:
    return managers(topology, reserved_memory={0: "1Gi"}, **more)


def demanded(node: Managers, one: Pod) -> PodDemand:
    return demand_of(node.rules, one)


def memory_of(node: Managers) -> Resource:
    _, memory = node.providers.resources
    return memory


def chosen(node: Managers, promises: Promises, one: Pod, hint: Hint) -> NumaSet | str:
    """The nodes that container a of the pod gets its memory from under this hint, or why it gets none."""
    held = replace(promises.of_pod(one.uid), hints=(("a", hint),))
    hinted, demand = replace(promises, pods=promises.pods.put(one.uid, held)), demanded(node, one)
    made = memory_of(node).allocate_container(hinted, demand, demand.containers[0])
    if made.refusal is not None:
        return made.refusal.message.removeprefix("Allocate failed due to ").removesuffix(", which is unexpected")
    blocks = made.promises.of_pod(one.uid).of(MemoryHoldings).blocks("a")
    assert blocks
    return blocks[0].nodes


# The books


def books(*free: int) -> Any:
    """Nodes that have so many bytes."""
    numa = [NumaNode(n, size, (("hugepages-2Mi", 0),), ()) for n, size in enumerate(free)]
    return initial_machine(Topology.of([], numa), {})


def test_what_is_taken_from_a_group_comes_back_to_it() -> None:
    blocks = (Block(TWO, "memory", 8),)
    machine = take(books(5, 7), TWO, "memory", 8)
    assert [(t.free, t.reserved) for n in machine for r, t in n.tables if r == "memory"] == [(0, 5), (4, 3)]
    assert [(n.assignments, n.cells) for n in machine] == [(1, TWO), (1, TWO)]
    assert list(used_cells(machine)) == [(1, 3), (2, 3)]
    assert release(machine, blocks) == books(5, 7)
    more = take(machine, TWO, "memory", 2)
    left = release(more, blocks)
    assert [(t.free, t.reserved) for n in left for r, t in n.tables if r == "memory"] == [(5, 0), (5, 2)]
    assert [(n.assignments, n.cells) for n in left] == [(1, TWO), (1, TWO)]


def test_what_nobody_has_free_overdraws_the_lowest_node() -> None:
    for size, free in ((11, (0, 1)), (12, (0, 0)), (13, (-1, 0)), (14, (-2, 0))):
        machine = charge(books(5, 7), TWO, "memory", size)
        assert tuple(t.free for n in machine for r, t in n.tables if r == "memory") == free


def test_less_than_nothing_wraps_around_as_in_the_reference() -> None:
    numa = [NumaNode(0, 5, (("hugepages-2Mi", 4),), ())]
    tables = dict(initial_machine(Topology.of([], numa), {(0, "memory"): 3, (0, "hugepages-2Mi"): 1})[0].tables)
    assert tables["memory"].allocatable == tables["memory"].free == 2**64 - 2
    assert tables["hugepages-2Mi"].allocatable == 3


def test_a_single_free_byte_counts_and_less_than_none_doesn_t() -> None:
    assert free_of(books(1, 7), TWO, "memory") == 8
    assert free_of(books(1, 7), ONE, "memory") == 7
    overdrawn = charge(books(3, 7), ZERO, "memory", 5)
    assert free_of(overdrawn, TWO, "memory") == 7
    assert free_of(overdrawn, TWO, "hugepages-1Gi") == 0


@pytest.mark.parametrize(
    ("held", "asked", "expected"),
    [(ZERO, ZERO, False), (ZERO, TWO, True), (TWO, ZERO, True), (TWO, TWO, False), (ZERO, ONE, False)],
)
def test_groups_mix_with_no_other(held: NumaSet, asked: NumaSet, expected: bool) -> None:
    assert breaks_group(take(books(5, 5), held, "memory", 1), asked) is expected


# Groups


def stocked(*free: int, reuse: MemoryReuse | None = None) -> Promises:
    return Promises().having(MemoryBooks(nodes=books(*free), reuse=reuse))


LENT = MemoryReuse("p", (((ONE, "memory"), 4),))


@pytest.mark.parametrize(
    ("uid", "size", "expected"),
    [
        ("p", 6, ((2, True),)),
        ("p", 7, ((2, True),)),
        ("p", 8, ()),
        ("q", 6, ()),
        ("q", 4, ((1, True),)),
        ("q", 3, ((1, True), (2, True))),
    ],
    ids=["what it may take over counts", "all of it", "no more", "no other pod's", "not a byte", "what is free is"],
)
def test_groups_with_what_a_pod_may_take_over(uid: str, size: int, expected: Any) -> None:
    promises = stocked(5, 7, reuse=LENT)
    taken = with_memory_accounts(promises, take(memory_accounts(promises), ONE, "memory", 4))
    assert calculate_hints(NodeGroups.of(books(5, 7)), taken, uid, (("memory", size),)) == expected


def test_what_one_node_lends_is_not_the_group_s() -> None:
    groups, promises = NodeGroups.of(books(5, 7)), stocked(5, 7, reuse=LENT)
    assert calculate_hints(groups, promises, "p", (("memory", 12),)) == ((3, True),)
    assert calculate_hints(groups, promises, "p", (("memory", 13),)) == ()
    assert calculate_hints(groups, promises, "p", ()) == ()


def test_the_best_group_is_preferred_then_small_then_low() -> None:
    groups = NodeGroups.of(books(5, 7, 7))
    promises = stocked(5, 7, 7)
    ask = best_group(groups, promises, "p", (("memory", 6),))
    assert ask == (ONE, True)
    assert best_group(groups, promises, "p", (("memory", 6),), NumaSet.of(2)) == (NumaSet.of(2), True)
    assert best_group(groups, promises, "p", (("memory", 6),), ZERO) == (TWO, False)
    assert best_group(groups, promises, "p", (("memory", 20),)) is None


def test_groups_that_are_described_are_those_that_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_of_four = books(5, 7, 7, 9)
    listing = NodeGroups.of(machine_of_four)
    monkeypatch.setattr(hint_family, "MAX_LISTED_NODES", 0)
    describing = NodeGroups.of(machine_of_four)
    assert (len(listing.masks), len(describing.masks)) == (15, 0)
    insides = [NumaSet(mask) for mask in range(16)]
    for held in ((), ((ZERO, 2),), ((TWO, 3),), ((TWO, 3), (NumaSet.of(3), 1)), ((NumaSet.of(1, 3), 8),)):
        promises = stocked(5, 7, 7, 9, reuse=LENT)
        for nodes, size in held:
            promises = with_memory_accounts(promises, take(memory_accounts(promises), nodes, "memory", size))
        for size in range(1, 30):
            for inside in insides:
                asked = (("memory", size),)
                expected = best_group(listing, promises, "p", asked, inside)
                assert best_group(describing, promises, "p", asked, inside) == expected


# Hints of containers and pods


def listed(node: Managers, promises: Promises, one: Pod, name: str) -> ResourceHints:
    demand = demanded(node, one)
    container = next(c for c in demand.containers if c.name == name)
    return memory_of(node).container_hints(promises, demand, container)


@BOTH
def test_memory_that_is_held_leads_to_its_node(errata: Errata) -> None:
    node = node_of(errata=errata, topology_manager_policy="best-effort")
    one = pod("p", app("a", "1", "8Gi"))
    promises = admitted(node, one)
    assert dict(promises.of_pod("p").of(MemoryHoldings).memory)["a"] == (Block(ONE, "memory", 8 * GIB),)
    assert listed(node, promises, one, "a") == (("memory", ((2, True),)),)
    assert listed(node, promises, pod("p", app("a", "1", "1Gi")), "a") == (("memory", DONT_CARE),)
    assert listed(node, promises, pod("q", app("a", "1", "1Gi")), "a") == (("memory", ((1, True),)),)


def test_only_guaranteed_pods_get_hints() -> None:
    node = node_of(topology_manager_policy="best-effort")
    half = ResourceRequirements(exclusive("1").requests, Resources())
    burstable = pod("p", Container("a", ContainerKind.APP, half))
    demand = demanded(node, burstable)
    assert not demand.is_guaranteed
    asking = replace(demand.containers[0], memory=(("memory", GIB),))
    asked = replace(demand, containers=(asking,), memory=asking.memory)
    initial, memory, no_matter = core.initial(node), memory_of(node), (("memory", DONT_CARE),)
    assert memory.container_hints(initial, asked, asking) == no_matter
    assert memory.pod_hints(initial, asked) == no_matter
    assert memory.pod_hints(initial, replace(asked, is_guaranteed=True)) != no_matter


def test_what_init_containers_had_counts_in_hints() -> None:
    """7 GiB are left on node 0 and 8 on node 1: the init container's 7 are taken over by the app."""
    node = node_of(topology_manager_policy="single-numa-node")
    one = pod("p", app("a", "1", "7Gi"))
    empty = core.initial(node)
    taken = with_memory_accounts(empty, take(memory_accounts(empty), ZERO, "memory", 7 * GIB))
    lent = taken.having(replace(taken.of(MemoryBooks), reuse=MemoryReuse("p", (((ZERO, "memory"), 7 * GIB),))))
    assert listed(node, lent, one, "a")[0][1][0] == (1, True)
    assert listed(node, taken, one, "a")[0][1][0] == (2, True)
    assert chosen(node, lent, one, UNSURE) == ZERO
    assert chosen(node, lent, pod("q", app("a", "1", "7Gi")), UNSURE) == ONE


@pytest.mark.parametrize(("errata", "expected"), [(KUBELET, ((1, True),)), (FIXED, ((3, True),))])
def test_a_pod_s_hints_come_from_all_that_it_holds(errata: Errata, expected: Any) -> None:
    node = node_of(errata=errata, topology_manager_policy="best-effort", topology_manager_scope="pod")
    blocks = (("a", (Block(ZERO, "memory", 2 * GIB),)), ("b", (Block(ONE, "memory", GIB),)))
    promises = replace(core.initial(node), pods=PodMap().put("p", NOTHING.having(MemoryHoldings(memory=blocks))))
    asked = pod("p", app("a", "1", "2Gi"), app("b", "1", "1Gi"))
    demand = replace(demanded(node, asked), memory=(("memory", 2 * GIB),))
    assert memory_of(node).pod_hints(promises, demand) == (("memory", expected),)


# Choosing nodes

UNSURE = Hint(None, preferred=False)
SURE = Hint(None, preferred=True)


def crowded(node: Managers, *taken: tuple[NumaSet, int]) -> Promises:
    promises = core.initial(node)
    machine = memory_accounts(promises)
    for nodes, gib in taken:
        machine = take(machine, nodes, "memory", gib * GIB)
    return with_memory_accounts(promises, machine)


NO_DEFAULT = "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
NOT_PREFERRED = "[memorymanager] failed to find the default preferred hint"
NO_EXTENSION = "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
NOT_EXTENDED = "[memorymanager] failed to find the extended preferred hint"
VIOLATES = "[memorymanager] preferred hint violates NUMA node allocation"
CHOICES: list[tuple[str, str, tuple[tuple[NumaSet, int], ...], int, Hint, Any]] = [
    ("the lowest node that has it", "none", (), 2, UNSURE, ZERO),
    ("the node that has it", "none", ((ZERO, 6),), 2, UNSURE, ONE),
    ("both nodes", "none", (), 14, UNSURE, TWO),
    ("too much", "none", (), 16, UNSURE, NO_DEFAULT),
    ("two where one must do", "none", ((ZERO, 0), (ONE, 0)), 20, SURE, NO_DEFAULT),
    ("as hinted", "best-effort", (), 2, Hint(ONE, preferred=True), ONE),
    ("wider than hinted", "best-effort", (), 10, Hint(ONE, preferred=False), TWO),
    ("wider is best for so much", "restricted", (), 10, Hint(ONE, preferred=True), TWO),
    ("nothing to widen it by", "best-effort", ((ZERO, 6), (ONE, 1)), 8, Hint(ZERO, preferred=False), NO_EXTENSION),
    ("its group is another, which is refused", "restricted", ((TWO, 1),), 2, Hint(ZERO, preferred=True), VIOLATES),
    ("its group is another", "best-effort", ((TWO, 10),), 2, Hint(ZERO, preferred=False), TWO),
    (
        "its group is another, and one must do",
        "single-numa-node",
        ((TWO, 1),),
        2,
        Hint(ZERO, preferred=True),
        VIOLATES,
    ),
    ("its group is another, and too small", "best-effort", ((TWO, 14),), 2, Hint(ZERO, preferred=False), VIOLATES),
    ("two nodes of which one is alone", "best-effort", ((ZERO, 1),), 2, Hint(TWO, preferred=False), VIOLATES),
]


@pytest.mark.parametrize(
    ("policy", "taken", "gib", "hint", "expected"), [c[1:] for c in CHOICES], ids=[c[0] for c in CHOICES]
)
def test_nodes_are_chosen_under_the_hint(
    policy: str, taken: tuple[tuple[NumaSet, int], ...], gib: int, hint: Hint, expected: Any
) -> None:
    node = node_of(topology_manager_policy=policy)
    assert chosen(node, crowded(node, *taken), pod("p", app("a", "1", f"{gib}Gi")), hint) == expected


def test_no_default_is_preferred_where_one_node_would_do_when_empty() -> None:
    node = node_of(topology_manager_policy="none")
    assert chosen(node, crowded(node, (TWO, 1)), pod("p", app("a", "1", "2Gi")), SURE) == NOT_PREFERRED


def test_no_extension_is_preferred_where_one_node_would_do_when_empty() -> None:
    node = node_of(topology_manager_policy="best-effort")
    one = pod("p", app("a", "1", "2Gi"))
    assert chosen(node, crowded(node, (TWO, 1)), one, Hint(ZERO, preferred=True)) == NOT_EXTENDED


def test_pages_that_no_node_has_are_named() -> None:
    node = node_of()
    one = pod("p", app("a", "1", "1Gi", hugepages_1Gi="1Gi"))
    assert chosen(node, core.initial(node), one, UNSURE) == "[memorymanager] no NUMA node has hugepages-1Gi"


# Allocation and release


@BOTH
def test_memory_that_is_held_is_allocated_again(errata: Errata) -> None:
    node = node_of(errata=errata)
    demand = demanded(node, pod("p", init("i", "1", "1Gi"), app("a", "1", "1Gi")))
    memory = memory_of(node)
    first = memory.allocate_container(core.initial(node), demand, demand.containers[0])
    forgotten = first.promises.having(replace(first.promises.of(MemoryBooks), reuse=None))
    again = memory.allocate_container(forgotten, demand, demand.containers[0])
    assert again.promises == first.promises
    assert again.promises.of(MemoryBooks).reuse == MemoryReuse("p", (((ZERO, "memory"), GIB),))
    assert len(again.deltas) == 1
    then = memory.allocate_container(again.promises, demand, demand.containers[1])
    assert then.promises.of(MemoryBooks).reuse is None
    assert [n.tables for n in memory_accounts(then.promises)] == [n.tables for n in memory_accounts(first.promises)]
    assert [n.assignments for n in memory_accounts(then.promises)] == [2, 0]


PAGED = machine(hugepages={"hugepages-2Mi": GIB, "hugepages-1Gi": 2 * GIB})


def test_init_containers_lend_every_resource() -> None:
    node = node_of(PAGED)
    one = pod(
        "p",
        Container("i", ContainerKind.INIT, exclusive("1", "1Gi", hugepages_2Mi="64Mi", hugepages_1Gi="1Gi")),
        app("a", "1", "512Mi"),
    )
    demand = demanded(node, one)
    memory = memory_of(node)
    first = memory.allocate_container(core.initial(node), demand, demand.containers[0])
    lent = first.promises.of(MemoryBooks).reuse
    assert lent is not None
    assert lent.amounts == (
        ((ZERO, "hugepages-1Gi"), GIB),
        ((ZERO, "hugepages-2Mi"), 64 << 20),
        ((ZERO, "memory"), GIB),
    )
    second = memory.allocate_container(first.promises, demand, demand.containers[1])
    left = second.promises.of(MemoryBooks).reuse
    assert left is not None
    assert left.amounts[-1] == ((ZERO, "memory"), GIB // 2)
    held = dict(second.promises.of_pod("p").of(MemoryHoldings).memory)
    assert [b.size_bytes for b in held["i"]] == [GIB, 64 << 20, GIB // 2]
    assert [b.size_bytes for b in held["a"]] == [GIB // 2]


def test_what_is_taken_over_is_taken_off_the_first_lender_then_the_next() -> None:
    node = node_of()
    one = pod("p", init("i", "1", "1Gi"), init("j", "1", "3Gi"), app("a", "1", "2Gi"))
    held = dict(admitted(node, one).of_pod("p").of(MemoryHoldings).memory)
    sizes = {name: [block.size_bytes // GIB for block in blocks] for name, blocks in held.items()}
    assert sizes == {"i": [0], "j": [1], "a": [2]}
    more = pod("q", init("i", "1", "3Gi"), init("j", "1", "1Gi"), app("a", "1", "2Gi"))
    held = dict(admitted(node, more).of_pod("q").of(MemoryHoldings).memory)
    sizes = {name: [block.size_bytes // GIB for block in blocks] for name, blocks in held.items()}
    assert sizes == {"i": [0], "j": [1], "a": [2]}


def test_what_is_taken_over_is_counted_to_the_byte() -> None:
    node = node_of()
    one = pod("p", init("i", "1", "5"), init("j", "1", "2"), app("a", "1", "4"))
    held = dict(admitted(node, one).of_pod("p").of(MemoryHoldings).memory)
    assert {name: [b.size_bytes for b in blocks] for name, blocks in held.items()} == {"i": [0], "j": [1], "a": [4]}


def test_of_what_nobody_lent_all_is_taken() -> None:
    node = node_of(PAGED)
    none = Container("i", ContainerKind.INIT, exclusive("1", "1Gi", hugepages_2Mi="0"))
    one = pod("p", none, Container("a", ContainerKind.APP, exclusive("1", "1Gi", hugepages_2Mi="64Mi")))
    demand = demanded(node, one)
    assert demanded(node, pod("p", replace(none, kind=ContainerKind.APP))).memory == (
        ("hugepages-2Mi", 0),
        ("memory", GIB),
    )
    memory = memory_of(node)
    first = memory.allocate_container(core.initial(node), demand, demand.containers[0]).promises
    assert first.of(MemoryBooks).reuse == MemoryReuse("p", (((ZERO, "memory"), GIB),))
    second = memory.allocate_container(first, demand, demand.containers[1]).promises
    taken = {resource: table.reserved for resource, table in memory_accounts(second)[0].tables}
    assert taken == {"hugepages-1Gi": 0, "hugepages-2Mi": 64 << 20, "memory": GIB}


def test_a_pod_s_blocks_without_containers_come_back() -> None:
    node = node_of(gates=PLRM, topology_manager_policy="best-effort", topology_manager_scope="pod")
    one = pod("p", app("a", "2", "1Gi"), shared("b"), resources=exclusive("4", "4Gi"))
    promises = admitted(node, one)
    held = promises.of_pod("p")
    assert held.of(MemoryHoldings).pod_memory == (Block(ZERO, "memory", 4 * GIB),)
    orphaned = with_pod(promises, "p", held.having(MemoryHoldings(pod_memory=(Block(ZERO, "memory", 4 * GIB),))))
    memory = memory_of(node)
    after, _ = memory.release_pod(orphaned, "p")
    assert memory_accounts(after) == memory_accounts(core.initial(node))
    assert after.of_pod("p").of(MemoryHoldings).pod_memory is None
    assert memory.release_pod(promises, "p") == (promises, ())
    gone, _ = core.remove_pod(node, promises, "p")
    assert gone == core.initial(node)


# Pods with resources of their own

WHOLE = exclusive("8", "4Gi", hugepages_2Mi="64Mi")


def with_pages(name: str, kind: ContainerKind, memory: str, pages: str) -> Container:
    return Container(name, kind, exclusive("1", memory, hugepages_2Mi=pages))


POD_BUDGETS: list[tuple[str, tuple[Container, ...], str | None]] = [
    (
        "an init container larger than what is left",
        (sidecar("s", "1", "2Gi"), init("i", "1", "3Gi"), app("a", "1", "1Gi")),
        f"pod rejected, largest exclusive init container requests {3 * GIB} of memory, but only {2 * GIB} available",
    ),
    (
        "a shared init container beside one that has all",
        (sidecar("s", "1", "4Gi"), shared("i", ContainerKind.INIT)),
        "pod rejected, pod has shared init containers but no memory available for them",
    ),
    (
        "nothing left for shared ones",
        (with_pages("a", ContainerKind.APP, "4Gi", "32Mi"), shared("b")),
        (
            "pod rejected, sum of exclusive container memory requests equals pod budget, leaving no memory for shared "
            "containers"
        ),
    ),
    (
        "no pages left for shared ones",
        (with_pages("a", ContainerKind.APP, "1Gi", "64Mi"), shared("b")),
        (
            "pod rejected, sum of exclusive container hugepages-2Mi requests equals pod budget, leaving no memory for "
            "shared containers"
        ),
    ),
    (
        "an init container that asks for no pages, where none are left",
        (with_pages("s", ContainerKind.SIDECAR, "1Gi", "64Mi"), init("i", "1", "1Gi"), app("a", "1", "1Gi")),
        None,
    ),
    (
        "more than the pod has",
        (app("a", "1", "3Gi"), app("b", "1", "2Gi")),
        (
            f"Allocate failed due to [memorymanager] exclusive containers request {5 * GIB} of memory, but only {4 * GIB} available in "
            "the pod, which is unexpected"
        ),
    ),
    ("all of it", (app("a", "1", "3Gi"), app("b", "1", "1Gi")), None),
]


@pytest.mark.parametrize(("containers", "message"), [c[1:] for c in POD_BUDGETS], ids=[c[0] for c in POD_BUDGETS])
def test_memory_budgets_of_pods(containers: tuple[Container, ...], message: str | None) -> None:
    node = node_of(PAGED, gates=PLRM, topology_manager_policy="best-effort", topology_manager_scope="pod")
    made = memory_of(node).allocate_pod(core.initial(node), demanded(node, pod("p", *containers, resources=WHOLE)))
    assert (made.refusal.message if made.refusal else None) == message


def test_a_pod_that_fits_nowhere_is_refused() -> None:
    node = node_of(gates=PLRM, topology_manager_policy="best-effort", topology_manager_scope="pod")
    one = pod("p", app("a", "2", "1Gi"), shared("b"), resources=exclusive("4", "64Gi"))
    decision = core.admit(node, core.initial(node), one)
    assert isinstance(decision, Rejected)
    assert decision.message == f"Allocate failed due to {NO_EXTENSION}, which is unexpected"
    assert decision.reason.value == "UnexpectedAdmissionError"


# Starts that are refused


def start_refused(found: object) -> tuple[str, str]:
    assert isinstance(found, StartRefused), found
    return found.message, found.about


def reserved(*entries: tuple[int, dict[str, str]], node: dict[str, str] | None = None) -> Placement:
    def parsed(texts: dict[str, str]) -> Resources:
        return Resources.of({name: Quantity.parse(text) for name, text in texts.items()})

    return Placement(
        memory_manager_policy="Static",
        reserved_memory=tuple(ReservedMemory(number, parsed(texts)) for number, texts in entries),
        memory_reservation=parsed(node if node is not None else dict(entries[-1][1]) if entries else {}),
    )


TWICE = (0, {"memory": "1Gi"})
RESERVATIONS: list[tuple[str, Placement, str]] = [
    (
        "a resource that isn't memory",
        reserved((0, {"cpu": "1", "memory": "1Gi"}), node={"memory": "1Gi"}),
        (
            'invalid configuration: the limit type "cpu" for NUMA node 0 is not supported, only [memory '
            "hugepages-<HugePageSize>] is accepted"
        ),
    ),
    (
        "nothing",
        reserved((1, {"memory": "0"})),
        'invalid configuration: reserved memory may not be zero for NUMA node 1 and resource "memory"',
    ),
    (
        "twice",
        reserved(TWICE, TWICE),
        'invalid configuration: the reserved memory has a duplicate value for NUMA node 0 and resource "memory"',
    ),
    (
        "two findings",
        reserved(TWICE, TWICE, (1, {"memory": "0"})),
        (
            '[invalid configuration: the reserved memory has a duplicate value for NUMA node 0 and resource "memory", '
            'invalid configuration: reserved memory may not be zero for NUMA node 1 and resource "memory"]'
        ),
    ),
    (
        "no such node",
        reserved((7, {"memory": "1Gi"})),
        "the reserved memory configuration references a NUMA node 7 that does not exist on this machine",
    ),
    (
        "another sum",
        reserved((0, {"memory": "1Gi"}), (1, {"memory": "1Gi"}), node={"memory": "1Gi"}),
        (
            'the total amount "2Gi" of type "memory" is not equal to the value "1Gi" determined by Node Allocatable '
            "feature"
        ),
    ),
    (
        "no sum",
        reserved((0, {"memory": "1Gi"}), node={}),
        (
            'the total amount "1Gi" of type "memory" is not equal to the value "0" determined by Node Allocatable '
            "feature"
        ),
    ),
    (
        "none where the node reserves some",
        reserved((0, {"memory": "1Gi"}), node={"memory": "1Gi", "hugepages-2Mi": "2Mi"}),
        (
            'the total amount "0" of type "hugepages-2Mi" is not equal to the value "2Mi" determined by Node '
            "Allocatable feature"
        ),
    ),
    (
        "a fraction of a byte",
        reserved((0, {"memory": "1500m"})),
        "could not covert a variable of type Quantity to int64",
    ),
    ("none at all", reserved(node={}), "[memorymanager] you should specify the system reserved memory"),
    (
        "pages only",
        reserved((0, {"hugepages-2Mi": "2Mi"})),
        "[memorymanager] you should specify the system reserved memory",
    ),
]


@pytest.mark.parametrize(("placement", "message"), [c[1:] for c in RESERVATIONS], ids=[c[0] for c in RESERVATIONS])
def test_reservations_that_are_refused(placement: Placement, message: str) -> None:
    assert start_refused(build(PAGED, placement)) == (message, "reservedMemory")


@pytest.mark.parametrize("amount", ["1", "1Ki", "4Gi"])
def test_any_reservation_of_whole_bytes_is_accepted(amount: str) -> None:
    built = build(PAGED, reserved((0, {"memory": amount})))
    assert isinstance(built, Managers)
    table = memory_accounts(core.initial(built))[0].table("memory")
    assert table is not None
    assert table.system_reserved == Quantity.parse(amount).value()


DIFFER = "[memorymanager] the expected machine state is different from the real one"
MEMORY_FILE = (
    "could not restore state from checkpoint: {}, please drain this node and delete the memory manager checkpoint file "
    '"/var/lib/kubelet/memory_manager_state" before restarting Kubelet'
)


@BOTH
@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Unreadable("checkpoint is corrupted"), MEMORY_FILE.format("checkpoint is corrupted")),
        (
            MemoryRecord("None"),
            MEMORY_FILE.format(
                '[memorymanager] configured policy "Static" differs from state checkpoint policy "None"'
            ),
        ),
        (
            MemoryRecord("Static", (), (("p", (("a", (Block(ZERO, "memory", GIB),)),)),)),
            "[memorymanager] machine state can not be empty when it has memory assignments",
        ),
    ],
    ids=["unreadable", "another policy", "no books"],
)
def test_files_that_are_refused(record: Any, message: str, errata: Errata) -> None:
    found = start(node_of(errata=errata), Records(memory=record))
    assert start_refused(found) == (message, "memory_manager_state")


def test_books_of_another_machine_differ() -> None:
    """kubelet says so and refuses; without errata they are made anew."""
    strict, fixed = node_of(errata=KUBELET), node_of()
    one = pod("p", app("a", "1", "2Gi"))

    def started(node: Managers, stored: Promises) -> Promises | str:
        found = start_memory(node, stored, Records())
        return found if isinstance(found, Promises) else found.message

    for node, is_strict in ((strict, True), (fixed, False)):
        promises = admitted(node, one)
        assert started(node, promises) == promises
        foreign = replace(memory_accounts(promises)[1], id=5)
        counted = replace(memory_accounts(promises)[0], assignments=2)
        celled = replace(memory_accounts(promises)[0], cells=TWO)
        for stored in (
            memory_accounts(promises)[:1],
            (memory_accounts(promises)[0], foreign),
            (counted, memory_accounts(promises)[1]),
            (celled, memory_accounts(promises)[1]),
            memory_accounts(core.initial(node)),
        ):
            assert started(node, with_memory_accounts(promises, stored)) == (DIFFER if is_strict else promises)
    held = admitted(strict, one)

    def holding(block: Block) -> Promises:
        return replace(held, pods=PodMap().put("p", NOTHING.having(MemoryHoldings(memory=(("a", (block,)),)))))

    far, odd = holding(Block(NumaSet.of(7), "memory", 1)), holding(Block(ZERO, "hugepages-1Gi", 1))
    assert started(strict, far) == (
        "[memorymanager] (pod: p, container: a) the memory assignment uses the NUMA that does not exist"
    )
    assert started(strict, odd) == (
        "[memorymanager] (pod: p, container: a) the memory assignment uses memory resource that does not exist"
    )
    assert started(fixed, far) == with_memory_accounts(far, memory_accounts(core.initial(fixed)))


# What pods ask for


def test_the_peak_of_sidecars_and_init_containers() -> None:
    node = node_of()
    one = pod("p", sidecar("s", "1", "1Gi"), sidecar("t", "2", "2Gi"), init("i", "4", "4Gi"), app("a", "1", "1Gi"))
    demand = demanded(node, one)
    assert demand.cpus == 7
    assert demand.memory == (("memory", 7 * GIB),)
    assert demanded(node, pod("p", sidecar("s", "1", "1Gi"), init("i", "1", "1Gi"), app("a", "3", "3Gi"))).memory == (
        ("memory", 4 * GIB),
    )
    two = demanded(node, pod("p", init("i", "1", "5Gi"), init("j", "1", "2Gi"), app("a", "1", "1Gi")))
    assert two.memory == (("memory", 5 * GIB),)
    assert two.cpus == 1


def test_amounts_that_are_no_whole_bytes() -> None:
    whole = ResourceRequirements(exclusive("2", "1500m").requests, exclusive("2", "1500m").limits)
    node = node_of(gates=PLRM)
    assert demanded(node, pod("p", app("a", "2", "1500m"))).memory is None
    assert demanded(node, pod("p", app("a", "1", "1500m"), shared("b"), resources=whole)).memory is None


@pytest.mark.parametrize(
    ("policy", "scope", "expected"),
    [
        ("none", "pod", "it requests no CPU"),
        ("restricted", "container", "it requests no CPU"),
        ("restricted", "pod", "it runs in its pod's shared pool"),
    ],
)
def test_why_a_container_shares(policy: str, scope: str, expected: str) -> None:
    node = managers(gates=PLRM, topology_manager_policy=policy, topology_manager_scope=scope)
    one = pod("p", app("a", "2", "1Gi"), shared("b"), resources=exclusive("4", "4Gi"))
    found = why_shared(node.placement, one, one.containers[1])
    assert found is not None
    assert found.value == expected


def test_shared_containers_ask_for_no_memory() -> None:
    node = node_of(gates=PLRM)
    assert [
        c.memory for c in demanded(node, pod("p", app("a", "2", "1Gi"), shared("b"), resources=WHOLE)).containers
    ] == [
        (("memory", GIB),),
        (),
    ]


def quantities(**texts: str) -> Resources:
    return Resources.of({name.replace("_", "-"): Quantity.parse(text) for name, text in texts.items()})


def test_defaults_of_requests() -> None:
    limited = Container("a", ContainerKind.APP, ResourceRequirements(quantities(cpu="1"), quantities(memory="1Gi")))
    plain = Container("b", ContainerKind.APP, ResourceRequirements(quantities(cpu="1"), quantities(cpu="1")))
    made = with_container_defaults(pod("p", limited, plain))
    assert [dict(c.resources.requests) for c in made.containers] == [
        {"cpu": Quantity.parse("1"), "memory": Quantity.parse("1Gi")},
        {"cpu": Quantity.parse("1")},
    ]
    bare = pod("p", limited, resources=ResourceRequirements(quantities(cpu="2"), Resources()))
    assert with_pod_level_defaults(bare) == bare
    own = pod("p", plain, resources=ResourceRequirements(Resources(), quantities(memory="2Gi")))
    requested = with_pod_level_defaults(own).resources
    assert requested is not None
    assert dict(requested.requests) == {"cpu": Quantity.parse("1"), "memory": Quantity.parse("2Gi")}


def test_the_first_of_equal_peaks_gives_the_notation() -> None:
    """1Gi and 1024Mi are as much: what was counted first stands."""
    one = pod("p", init("i", resources=exclusive(None, "1024Mi")), app("a", resources=exclusive(None, "1Gi")))
    assert str(effective_requests(one)["memory"]) == "1Gi"
    two = pod("p", init("i", resources=exclusive(None, "1073741824")), app("a", resources=exclusive(None, "1Gi")))
    assert str(effective_requests(two)["memory"]) == "1Gi"
