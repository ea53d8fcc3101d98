"""Each policy's promise against a search through all possibilities, on machines small enough for that."""

from collections.abc import Iterator
from itertools import combinations, product

import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from msgspec.structs import replace

from nodeagent.core.admission import managers as core
from nodeagent.core.admission.managers import Admitted, Managers
from nodeagent.core.model.config import Errata, Placement
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.topology import Topology
from nodeagent.core.numa.hints import DONT_CARE, UNSATISFIABLE, HintList, Merged, MergeRules, merge
from nodeagent.core.resources.cpu.assignment import Picking, pick
from nodeagent.core.resources.cpu.distribution import Distributing, distribute
from nodeagent.core.resources.cpu.holdings import default_set, own_set_of
from nodeagent.core.resources.cpu.layout import CpuLayout
from nodeagent.core.resources.cpu.points import CpuShortage
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.memory.holdings import memory_accounts, memory_nodes_of
from nodeagent.core.resources.memory.resource import MemoryResource
from tests.support.builders import GIB, machine, managers, pod
from tests.support.invariants import core_errors
from tests.support.pods import app
from tests.support.shares import share_of
from tests.support.strategies import Event, even_machines, lived, lives, machines, nodes

examples = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
)

# The merge: kubelet's comparison of one permutation after the other

FOUR_NODES = 0b1111
DISTANCES = {0: (10, 20, 31, 31), 1: (20, 10, 31, 31), 2: (31, 31, 10, 12), 3: (31, 31, 12, 10)}


def permuted(rules: MergeRules, lists: list[HintList]) -> Merged:
    if rules.single_node:
        lists = [tuple(h for h in each if h[1] and (h[0] is None or h[0].bit_count() == 1)) for each in lists]
    narrowest = [min((mask.bit_count() for mask, _ in each if mask is not None), default=0) for each in lists]
    wanted = max(narrowest, default=0)
    best: tuple[int, bool] | None = None
    for permutation in product(*lists):
        masks = [mask for mask, _ in permutation if mask is not None]
        merged = rules.default_mask
        for mask in masks:
            merged &= mask
        preferred = all(flag for _, flag in permutation) and len(set(masks)) <= 1
        if merged and (best is None or is_better(rules, wanted, (merged, preferred), best)):
            best = (merged, preferred)
    mask, preferred = best or (rules.default_mask, False)
    return Merged(None if rules.single_node and mask == rules.default_mask else mask, preferred)


def is_better(rules: MergeRules, wanted: int, one: tuple[int, bool], current: tuple[int, bool]) -> bool:
    (mask, preferred), (held, held_preferred) = one, current
    count, now = mask.bit_count(), held.bit_count()
    if preferred != held_preferred:
        return preferred
    if preferred or now > wanted:
        return is_fitter(rules, mask, held)
    if now == wanted:
        return count == wanted and is_fitter(rules, mask, held)
    if count >= wanted:
        return count == wanted
    return count > now or (count == now and is_fitter(rules, mask, held))


def is_fitter(rules: MergeRules, mask: int, held: int) -> bool:
    if mask.bit_count() != held.bit_count():
        return mask.bit_count() < held.bit_count()
    if rules.distances is not None and not rules.single_node:
        average, so_far = (
            sum(DISTANCES[a][b] for a in NumaSet(each) for b in NumaSet(each)) / each.bit_count() ** 2
            for each in (mask, held)
        )
        if average != so_far:
            return average < so_far
    return mask < held


hint_lists = st.one_of(
    st.lists(
        st.tuples(st.integers(1, FOUR_NODES), st.booleans()), min_size=1, max_size=6, unique_by=lambda h: h[0]
    ).map(tuple),
    st.sampled_from([DONT_CARE, UNSATISFIABLE]),
)


@settings(max_examples=share_of(400))
@given(st.lists(hint_lists, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_the_merge_is_the_best_of_all_permutations(lists: list[HintList], single_node: bool, closest: bool) -> None:
    rows = {a: dict(enumerate(row)) for a, row in DISTANCES.items()}
    rules = MergeRules(FOUR_NODES, single_node=single_node, distances=rows if closest else None)
    assert merge(rules, lists) == permuted(rules, lists)


# Where a container could go, by looking at every set of NUMA nodes


def groups_of(node: Managers) -> Iterator[frozenset[int]]:
    ids = [n.id for n in node.topology.numa]
    for size in range(1, len(ids) + 1):
        yield from (frozenset(chosen) for chosen in combinations(ids, size))


def free_cpus(node: Managers, promises: Promises, group: frozenset[int]) -> int:
    free = default_set(promises) - node.reserved
    return len([cpu for cpu in node.topology.cpus if cpu.id in free and cpu.numa in group])


def has_memory(promises: Promises, group: frozenset[int], size: int) -> bool:
    """Enough is free, and the group mixes with no other."""
    inside = [n for n in memory_accounts(promises) if n.id in group]
    if any(n.assignments and set(n.cells) != group for n in inside):
        return False
    return sum(t.free for n in inside for name, t in n.tables if name == "memory") >= size


def smallest_for_cpus(node: Managers, count: int) -> int:
    """On an empty machine, and as if nothing were reserved."""
    sizes = sorted((len(cpus) for cpus in node.topology.nodes.values()), reverse=True)
    fitting = [number for number in range(1, len(sizes) + 1) if sum(sizes[:number]) >= count]
    return fitting[0] if fitting else len(sizes)


def smallest_for_memory(node: Managers, size: int) -> int:
    empty = memory_accounts(core.initial(node))
    room = sorted((t.allocatable for n in empty for name, t in n.tables if name == "memory"), reverse=True)
    fitting = [number for number in range(1, len(room) + 1) if sum(room[:number]) >= size]
    return fitting[0] if fitting else len(room)


def node_like(node: Managers, policy: str, *, memory: bool | None = None, full_cores: bool | None = False) -> Managers:
    """The same machine under another policy; options that change where CPUs may come from are left out."""
    kept = {"strict-cpu-reservation", "prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"}
    options = [o for o in node.placement.cpu_manager_policy_options if o[0] in kept]
    if full_cores:
        options.append(("full-pcpus-only", "true"))
    placement = replace(
        node.placement,
        topology_manager_policy=policy,
        topology_manager_scope="container",
        cpu_manager_policy_options=tuple(options),
    )
    if memory is False:
        placement = replace(placement, memory_manager_policy="None", reserved_memory=())
    built = core.build(node.topology, placement)
    assert isinstance(built, Managers), built
    return built


def lived_through(node: Managers, events: list[Event]) -> Promises:
    """The promises after all of it."""
    promises = core.initial(node)
    for moment in lived(node, events):
        promises = moment.after
    return promises


AMOUNTS = st.tuples(st.integers(0, 12), st.sampled_from([256 * 2**20, GIB, 3 * GIB, 5 * GIB, 9 * GIB, 14 * GIB]))


def asking(count: int, size: int) -> Pod:
    return pod("new", app("a", str(count) if count else "500m", str(size)))


@examples
@given(nodes(), lives(), AMOUNTS)
def test_single_numa_node_admits_if_and_only_if_some_node_fits(
    like: Managers, events: list[Event], amounts: tuple[int, int]
) -> None:
    node, (count, size) = node_like(like, "single-numa-node"), amounts
    promises = lived_through(node, events)
    pinned = node.providers.of(MemoryResource).manager.static
    fits = any(
        free_cpus(node, promises, group) >= count and (not pinned or has_memory(promises, group, size))
        for group in groups_of(node)
        if len(group) == 1 and (count == 0 or group <= set(node.topology.nodes))
    )
    decision = core.admit(node, promises, asking(count, size))
    assert isinstance(decision, Admitted) == (fits or (count == 0 and not pinned))
    if isinstance(decision, Admitted):
        own = own_set_of(decision.promises, "new", "a")
        assert len({node.topology.cpu[cpu].numa for cpu in own or ()}) <= 1
        assert len(memory_nodes_of(decision.promises, "new", "a") or ()) <= 1


@examples
@given(nodes(), lives(), AMOUNTS)
def test_restricted_admits_if_and_only_if_some_smallest_group_fits(
    like: Managers, events: list[Event], amounts: tuple[int, int]
) -> None:
    """Smallest for each resource on an empty machine; a group that is not so for both is no good."""
    node, (count, size) = node_like(like, "restricted"), amounts
    promises = lived_through(node, events)
    pinned = node.providers.of(MemoryResource).manager.static
    sizes = {smallest_for_cpus(node, count)} if count else set()
    sizes |= {smallest_for_memory(node, size)} if pinned else set()
    fits = not sizes or any(
        {len(group)} == sizes
        and free_cpus(node, promises, group) >= count
        and (not pinned or has_memory(promises, group, size))
        for group in groups_of(node)
        if count == 0 or group <= set(node.topology.nodes)
    )
    decision = core.admit(node, promises, asking(count, size))
    assert isinstance(decision, Admitted) == fits
    if isinstance(decision, Admitted):
        own, nodes_of_memory = own_set_of(decision.promises, "new", "a"), memory_nodes_of(decision.promises, "new", "a")
        if count:
            assert len({node.topology.cpu[cpu].numa for cpu in own or ()}) <= smallest_for_cpus(node, count)
        if pinned:
            assert len(nodes_of_memory or ()) == smallest_for_memory(node, size)


@examples
@given(nodes(), lives(), AMOUNTS)
def test_without_alignment_a_pod_is_admitted_if_and_only_if_it_fits_anywhere(
    like: Managers, events: list[Event], amounts: tuple[int, int]
) -> None:
    """And its memory comes from as few nodes as there is a fitting group of."""
    node, (count, size) = node_like(like, "none"), amounts
    promises = lived_through(node, events)
    everywhere = frozenset(n.id for n in node.topology.numa)
    fits, fitting = free_cpus(node, promises, everywhere) >= count, []
    if node.providers.of(MemoryResource).manager.static:
        fitting = [len(group) for group in groups_of(node) if has_memory(promises, group, size)]
        fits = fits and bool(fitting)
    decision = core.admit(node, promises, asking(count, size))
    assert isinstance(decision, Admitted) == fits
    if isinstance(decision, Admitted) and fitting:
        assert len(memory_nodes_of(decision.promises, "new", "a") or ()) == min(fitting)


@examples
@given(nodes(), lives(), st.integers(1, 12))
def test_best_effort_admits_if_and_only_if_there_are_cpus(like: Managers, events: list[Event], count: int) -> None:
    """From as few nodes as it can: if one has them all, from one."""
    node = node_like(like, "best-effort", memory=False)
    promises = lived_through(node, events)
    free = {n: free_cpus(node, promises, frozenset([n])) for n in node.topology.nodes}
    decision = core.admit(node, promises, asking(count, GIB))
    assert isinstance(decision, Admitted) == (sum(free.values()) >= count)
    if isinstance(decision, Admitted) and max(free.values()) >= count:
        assert len({node.topology.cpu[cpu].numa for cpu in own_set_of(decision.promises, "new", "a") or ()}) == 1


@examples
@given(nodes(), lives(), AMOUNTS)
def test_a_pod_of_several_containers_fits_one_node_by_its_sum(
    like: Managers, events: list[Event], amounts: tuple[int, int]
) -> None:
    """Pod scope: what its containers need at the same time, from one node."""
    count, size = amounts
    assume(count >= 2)
    alone = node_like(like, "single-numa-node")
    node = core.build(alone.topology, replace(alone.placement, topology_manager_scope="pod"))
    assert isinstance(node, Managers)
    promises = lived_through(node, events)
    pinned = node.providers.of(MemoryResource).manager.static
    fits = any(
        free_cpus(node, promises, group) >= count and (not pinned or has_memory(promises, group, 2 * size))
        for group in groups_of(node)
        if len(group) == 1
    )
    two = pod("new", app("a", str(count - 1), str(size)), app("b", "1", str(size)))
    decision = core.admit(node, promises, two)
    assert isinstance(decision, Admitted) == fits


# Whole cores


@examples
@given(nodes(), lives(), st.integers(1, 16), st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]))
def test_full_pcpus_only_admits_what_whole_free_cores_add_up_to(
    like: Managers, events: list[Event], count: int, policy: str
) -> None:
    node = node_like(like, policy, memory=False, full_cores=True)
    promises = lived_through(node, events)
    free = default_set(promises) - node.reserved
    sizes = [len(cpus) for cpus in node.topology.cores.values() if cpus <= free]
    sums = (
        {sum(chosen) for number in range(len(sizes) + 1) for chosen in combinations(sizes, number)}
        if len(sizes) <= 12
        else None
    )
    decision = core.admit(node, promises, asking(count, GIB))
    if isinstance(decision, Admitted):
        assert sums is None or count in sums
        assert list(core_errors(node, decision.promises)) == []
    elif policy in ("none", "best-effort") and sums is not None:
        assert count not in sums


# Uncore caches


def caches_of(layout: CpuLayout, cpus: int) -> int:
    return sum(1 for uncore in layout.uncores if uncore.cpus & cpus)


@settings(max_examples=share_of(300))
@given(even_machines, st.integers(0, 2**48 - 1), st.integers(1, 16))
def test_uncore_alignment_is_never_worse_than_packed(topology: Topology, bits: int, count: int) -> None:
    layout = CpuLayout.of(topology)
    available = bits & topology.online.bits
    packed, aligned = (
        pick(Picking(layout), available, count),
        pick(Picking(layout, align_uncore=True), available, count),
    )
    if isinstance(packed, CpuShortage):
        assert aligned == packed
        return
    assert isinstance(aligned, int)
    assert caches_of(layout, aligned) <= caches_of(layout, packed)


# Distribution


def deviation(values: list[int]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)


def evenly(free: list[int], count: int, size: int) -> list[list[int]]:
    """All ways to take equal shares from the fewest nodes that allow it, what is left over from different ones of them."""
    for k in range(1, len(free) + 1):
        share = count // k // size * size
        extra = (count - share * k) // size
        ways = []
        for chosen in combinations(range(len(free)), k):
            for more in combinations(chosen, extra):
                after = list(free)
                for x in chosen:
                    after[x] -= share + (size if x in more else 0)
                if min(after) >= 0:
                    ways.append(after)
        if ways:
            return ways
    return []


@settings(max_examples=share_of(300))
@given(even_machines, st.integers(0, 2**48 - 1), st.integers(1, 24), st.booleans())
def test_distribution_leaves_nodes_as_even_as_it_can(topology: Topology, bits: int, count: int, cores: bool) -> None:
    layout = CpuLayout.of(topology)
    size = layout.per_core if cores else 1
    assume(count % size == 0)
    available = bits & topology.online.bits
    if cores:
        available = layout.whole_cores(available)
    free = [(node.cpus & available).bit_count() for node in layout.nodes]
    result = distribute(Distributing(Picking(layout), size), available, count)
    ways = evenly(free, count, size)
    if not ways:
        return
    assert isinstance(result, int)
    after = [(node.cpus & available & ~result).bit_count() for node in layout.nodes]
    assert deviation(after) <= min(map(deviation, ways)) + 0.01


@pytest.mark.parametrize("count", range(1, 33))
def test_distribution_over_empty_nodes_differs_by_a_core_at_most(count: int) -> None:
    """32 CPUs on 4 nodes: as few nodes as hold it, each with as much."""
    topology = machine(nodes=4, cores=4)
    layout = CpuLayout.of(topology)
    for size in (1, 2):
        if count % size:
            continue
        result = distribute(Distributing(Picking(layout), size), layout.online, count)
        assert isinstance(result, int)
        counts = [taken for node in layout.nodes if (taken := (node.cpus & result).bit_count())]
        assert len(counts) == -(-count // 8)
        assert max(counts) - min(counts) <= size


# Spreading and packing


@pytest.mark.parametrize("count", range(1, 9))
def test_spreading_uses_as_many_cores_as_there_are(count: int) -> None:
    """Within a socket of 8 cores of 2 CPUs."""
    topology = machine(nodes=2, cores=8)
    layout = CpuLayout.of(topology)
    result = pick(Picking(layout, spread=True), layout.online, count)
    assert isinstance(result, int)
    assert sum(1 for c in layout.cores if c.cpus & result) == count
    assert sum(1 for s in layout.sockets if s.cpus & result) == 1


@examples
@given(machines, st.integers(0, 2**48 - 1), st.integers(1, 16))
def test_packing_breaks_no_more_cores_than_it_must(topology: Topology, bits: int, count: int) -> None:
    """Of the cores that are free as a whole, it takes single CPUs of one at most."""
    layout = CpuLayout.of(topology)
    available = bits & topology.online.bits
    result = pick(Picking(layout), available, count)
    if isinstance(result, CpuShortage):
        assert count > available.bit_count()
        return
    whole = [c.cpus for c in layout.cores if c.cpus & available == c.cpus]
    assert sum(1 for cpus in whole if cpus & result and cpus & ~result) <= 1


# NUMA hints


def test_reserved_cpus_count_for_what_is_preferred_but_not_for_what_fits() -> None:
    node = managers(topology_manager_policy="best-effort")
    wide = core.admit(node, core.initial(node), pod("p", app("a", "8")))
    assert isinstance(wide, Admitted)
    assert wide.report.merges[0].hints[0] == ("cpu", ((0b10, True), (0b11, False)))


def test_machines_without_memory_managers_take_any_amount() -> None:
    node = core.build(machine(), Placement(cpu_manager_policy="static", reserved_cpu_milli=1000, errata=Errata.FIXED))
    assert isinstance(node, Managers)
    assert isinstance(core.admit(node, core.initial(node), asking(2, 2**50)), Admitted)
    assert CpuSet(node.providers.of(CpuResource).manager.universe) == node.topology.online
