"""Promises rebuilt from what pods are known to hold, on the current machine and under the current configuration.

Running pods stay where they are as far as possible; what can't be kept is replaced by as much as is available; every remaining difference
is reported per container. Knows no file and no cgroup: the caller passes what was held (core/turn/adoption.py, the saved state).
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.held_claims import with_held_claims
from nodeagent.core.admission.managers import Admitted, Managers, Rejected, admit, initial, remove_pod, resume
from nodeagent.core.admission.one_pod import is_by_pod
from nodeagent.core.model.demand import ContainerDemand, Gates, PodDemand, demand_of
from nodeagent.core.model.holdings import put
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import ContainerKind, Pod
from nodeagent.core.model.promises import NOTHING, Hint, PodPromises, Promises, with_pod
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.numa.topology_manager import TopologyPolicy
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set, own_set_of, with_default_set
from nodeagent.core.resources.cpu.invariants import pod_violations
from nodeagent.core.resources.cpu.manager import choose_near, release_container
from nodeagent.core.resources.cpu.points import CpuShortage
from nodeagent.core.resources.cpu.restore import given_cpus
from nodeagent.core.resources.devices.holdings import DeviceHoldings, HeldDevice
from nodeagent.core.resources.memory.accounting import breaks_group, charge
from nodeagent.core.resources.memory.holdings import (
    Blocks,
    MemoryHoldings,
    memory_accounts,
    with_memory_accounts,
)

_AGAIN = "remove its manifest and add it again when there is room"


class Claim(Struct, frozen=True):
    """What an admitted pod is known to hold."""

    pod: Pod
    held: PodPromises
    stays: bool
    """It has processes: it stays where it is, whatever can be had for it."""
    ends: bool = False
    """It has none, and is to give back what it holds: it keeps what it may, and gets nothing in place of the rest."""


class Deviation(Struct, frozen=True):
    """Something that a container, or a pod as a whole, no longer has as before."""

    pod: Pod
    container: str | None
    resource: str
    """`CPUs` or `memory nodes`."""
    before: str
    after: str
    why: str

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """For the log and `inspect`."""
        return (("resource", self.resource), ("before", self.before), ("after", self.after), ("why", self.why))

    def __str__(self) -> str:
        who = f"pod {self.pod.full_name}" + ("" if self.container is None else f", container {self.container}")
        return f"{who}: {self.resource} {self.before} → {self.after}: {self.why}"


class Settled(Struct, frozen=True):
    promises: Promises
    refused: tuple[tuple[str, Rejected], ...] = ()
    """By pod UID: pods without processes that could not get what they need."""
    differences: tuple[Deviation, ...] = ()


def settled(managers: Managers, claims: Sequence[Claim], promises: Promises | None = None) -> Settled:
    """Place every claim.

    Args:
        managers: for the current machine and configuration.
        claims: in the order of the pods' admission: if two claim the same, the first gets it.
        promises: to the pods that are already placed, and to lost ones; None: to none.
    """
    promises = initial(managers) if promises is None else promises
    for claim in claims:
        promises = _with_kept(managers, promises, claim)
    refused: list[tuple[str, Rejected]] = []
    for claim in claims:
        after = _completed(managers, promises, claim)
        if isinstance(after, Rejected):
            refused.append((claim.pod.uid, after))
            promises = after.promises
        else:
            promises = after
    balanced = resume(managers, promises)
    assert not isinstance(balanced, StartRefused), f"what was placed again does not fit: {balanced}"
    gone = {uid for uid, _ in refused}
    differences = [
        difference
        for claim in claims
        if claim.pod.uid not in gone and not claim.ends
        for difference in _differences(managers, claim, balanced)
    ]
    return Settled(balanced, tuple(refused), tuple(differences))


def lacking_cpus(managers: Managers, promises: Promises, pod: Pod, name: str) -> int:
    """How many exclusive CPUs a container of an admitted pod asks for but was not promised: a recovery had no more."""
    demand = demand_of(managers.rules, pod)
    wanted = next(c for c in demand.containers if c.name == name)
    own = own_set_of(promises, pod.uid, name) or ()
    # Plain init containers may have passed theirs on to later ones.
    return 0 if wanted.kind is ContainerKind.INIT else max(0, _due_cpus(managers, demand, wanted) - len(own))


def _due_cpus(managers: Managers, demand: PodDemand, container: ContainerDemand) -> int:
    """How many exclusive CPUs a container should have, if available."""
    if not managers.providers.cpu.static or demand.is_skipped:
        return 0
    return 0 if is_by_pod(managers.providers.topology, demand) and not demand.cpus else container.cpus


# What can be kept


def _with_kept(managers: Managers, promises: Promises, claim: Claim) -> Promises:
    """Promise a pod what it holds and may keep: the rest follows once every pod has what it keeps."""
    demand = _demand_behind(managers, claim)
    held = _kept_cpus(managers, promises, claim.pod, demand, claim.held)
    taken = held.of(CpuHoldings).every_cpu
    machine = memory_accounts(promises)
    held, charged = _kept_memory(managers, promises, demand, held, claim.held)
    for block in charged:
        machine = charge(machine, block.nodes, block.resource, block.size_bytes)
    names = {c.name for c in claim.pod.containers}
    held = held.having(kept_devices(promises, claim.pod, claim.held.of(DeviceHoldings)))
    if claim.held.of(ClaimHoldings).claims:
        held = with_held_claims(held.having(claim.held.of(ClaimHoldings)))
    if managers.providers.topology.policy is not TopologyPolicy.NONE:
        held = replace(held, hints=tuple((n, h) for n, h in claim.held.hints if n in names and _is_here(managers, h)))
    after = with_memory_accounts(with_default_set(promises, default_set(promises) - taken), machine)
    return with_pod(after, claim.pod.uid, held)


def _demand_behind(managers: Managers, claim: Claim) -> PodDemand:
    """What the pod asked for when it got what it holds: that stays, even with the gates turned off (KEP-5526)."""
    demand = demand_of(managers.rules, claim.pod)
    has_resources = claim.held.of(CpuHoldings) != CpuHoldings() or claim.held.of(MemoryHoldings) != MemoryHoldings()
    if not demand.is_skipped or not has_resources:
        return demand
    return demand_of(replace(managers.rules, gates=Gates(True, True)), claim.pod)


def kept_devices(promises: Promises, pod: Pod, before: DeviceHoldings) -> DeviceHoldings:
    """Return what a pod keeps of its devices, be they there or not: all but those that another container has claimed first.
    What plain init containers have, later ones of their pod may have, too.
    """
    kinds, mine = {container.name: container.kind for container in pod.containers}, {*before.holders}
    taken: dict[tuple[str, str], str] = {}
    """By key, the claim."""
    own: dict[tuple[str, str], str] = {}
    for uid, held in promises.pods:
        for name, devices in held.of(DeviceHoldings).devices:
            if uid != pod.uid:
                taken |= {one.key: one.claim for one in devices}
            elif name not in mine and kinds.get(name) is not ContainerKind.INIT:
                own |= {one.key: one.claim for one in devices}
    kept = []
    for name, devices in before.devices:
        if name not in kinds:
            continue
        lends, left = kinds[name] is ContainerKind.INIT, list[HeldDevice]()
        for one in devices:
            of = taken.get(one.key) if lends else taken.get(one.key, own.get(one.key))
            if of is None or (one.claim and of == one.claim):
                left.append(one)
                own |= {} if lends else {one.key: one.claim}
        kept += [(name, tuple(left))] if left else []
    return DeviceHoldings(tuple(kept), tuple(item for item in before.answers if item[0] in kinds))


def _is_here(managers: Managers, hint: Hint) -> bool:
    return hint.mask is None or hint.mask <= managers.topology.node_ids


def _kept_cpus(managers: Managers, promises: Promises, pod: Pod, demand: PodDemand, before: PodPromises) -> PodPromises:
    cpu = managers.providers.cpu
    if not cpu.static:
        return NOTHING
    there = managers.topology.online | managers.topology.offline
    barred = managers.reserved | given_cpus(promises)
    whole = before.of(CpuHoldings).pod_cpus
    if whole is not None:
        # Slices and pool are one decision: all of it can be kept, or none.
        fits = len(whole) == demand.cpus and whole.isdisjoint(barred) and whole <= there
        slices = [(c.name, before.of(CpuHoldings).own_set(c.name)) for c in pod.containers]
        own = tuple(sorted((name, cpus) for name, cpus in slices if cpus and cpus <= whole))
        return NOTHING.having(CpuHoldings(cpus=own, pod_cpus=whole)) if fits and len(own) == len(slices) else NOTHING
    kept: tuple[tuple[str, CpuSet], ...] = ()
    beside = CpuSet()
    for wanted in demand.containers:
        cpus = (before.of(CpuHoldings).own_set(wanted.name) or CpuSet()) & there - barred - beside
        if not cpus or len(cpus) > wanted.cpus:
            continue
        kept = put(kept, wanted.name, cpus)
        if wanted.kind is not ContainerKind.INIT:
            beside |= cpus
    return NOTHING.having(CpuHoldings(cpus=kept))


def _kept_memory(
    managers: Managers, promises: Promises, demand: PodDemand, held: PodPromises, before: PodPromises
) -> tuple[PodPromises, Blocks]:
    """Return the pod with the memory that it keeps, and what to charge to the accounting."""
    memory = managers.providers.memory
    if not memory.static or not demand.is_guaranteed:
        return held, ()
    books = {node.id: {resource for resource, _ in node.tables} for node in memory_accounts(promises)}

    def fits(blocks: Blocks) -> bool:
        return all(
            b.nodes
            and all(b.resource in books.get(node, ()) for node in b.nodes)
            and not breaks_group(memory_accounts(promises), b.nodes)
            for b in blocks
        )

    if before.of(MemoryHoldings).pod_memory is not None:
        whole, names = before.of(MemoryHoldings).pod_memory, {c.name for c in demand.containers}
        parts = tuple(
            (name, blocks) for name, blocks in before.of(MemoryHoldings).memory if name in names and fits(blocks)
        )
        if (
            not whole
            or not fits(whole)
            or _amounts(whole) != dict(demand.memory or ())
            or parts != before.of(MemoryHoldings).memory
        ):
            return held, ()
        return held.having(MemoryHoldings(memory=parts, pod_memory=whole)), whole
    wanted = {c.name: c for c in demand.containers}
    parts = tuple(
        (name, blocks)
        for name, blocks in before.of(MemoryHoldings).memory
        if name in wanted and fits(blocks) and _is_asked_for(wanted[name], _amounts(blocks))
    )
    groups = {block.nodes for _, blocks in parts for block in blocks}
    if len(groups) > 1 and any(not a.isdisjoint(b) for a in groups for b in groups if a != b):
        return held, ()
    return held.having(MemoryHoldings(parts)), tuple(block for _, blocks in parts for block in blocks)


def _amounts(blocks: Blocks) -> dict[str, int]:
    return {block.resource: block.size_bytes for block in blocks}


def _is_asked_for(container: ContainerDemand, held: dict[str, int]) -> bool:
    if container.memory is None:
        return False
    wanted = dict(container.memory)
    if container.kind is ContainerKind.INIT:  # later ones may have taken some over
        return all(size <= wanted.get(resource, -1) for resource, size in held.items())
    return bool(held) and held == wanted


# What is missing


def _completed(managers: Managers, promises: Promises, claim: Claim) -> Promises | Rejected:
    """Get a pod what it lacks, moving as little of it as possible."""
    if claim.ends:
        return promises
    held = promises.of_pod(claim.pod.uid)
    demand = demand_of(managers.rules, claim.pod)
    lacks = _lacks(managers, demand, held)
    waits = not claim.stays and _is_offline(managers, held)
    # What its claims allow, only they know: what runs gets the nearest instead, all else is decided on anew.
    has_lost = not claim.stays and held.of(ClaimHoldings).claims != claim.held.of(ClaimHoldings).claims
    if not lacks and not waits and not has_lost:
        return _with_hints(managers, promises, claim.pod)
    topped = None if waits or has_lost else _topped_up(managers, promises, demand)
    attempts = [] if topped is None else [topped, _without_inits(managers, topped, claim.pod)]
    attempts.append(remove_pod(managers, promises, claim.pod.uid)[0])
    last: Rejected | None = None
    for attempt in attempts:
        decision = admit(managers, attempt, claim.pod)
        if isinstance(decision, Rejected):
            last = decision
        elif not any(pod_violations(claim.pod, decision.promises.of_pod(claim.pod.uid).of(CpuHoldings))):
            # A later container may already have what init containers lend, if an earlier one is looked after only now.
            return decision.promises
    assert last is not None
    # CPUs that are only offline may return: until then D14 holds.
    return promises if claim.stays or not (lacks or has_lost) else last


def _without_inits(managers: Managers, promises: Promises, pod: Pod) -> Promises:
    """Take back what only plain init containers have: they have run, or are not worth moving the others for."""
    for container in pod.containers:
        if container.kind is ContainerKind.INIT:
            promises, _ = release_container(managers.providers.cpu, promises, pod.uid, container.name)
    return promises


def _lacks(managers: Managers, demand: PodDemand, held: PodPromises) -> bool:
    if demand.is_skipped:
        return False
    cpu, memory, owned = managers.providers.cpu, managers.providers.memory, managers.providers.owned
    if is_by_pod(managers.providers.topology, demand):
        lacks_cpus = cpu.static and bool(demand.cpus) and held.of(CpuHoldings).pod_cpus is None
        return lacks_cpus or (memory.static and bool(demand.memory) and held.of(MemoryHoldings).pod_memory is None)
    lasting = [c for c in demand.containers if c.kind is not ContainerKind.INIT]
    # Plain init containers may have run, and have passed theirs on to later ones.
    return any(
        (cpu.static and len(held.of(CpuHoldings).own_set(c.name) or ()) < c.cpus)
        or (memory.static and bool(c.memory) and held.of(MemoryHoldings).blocks(c.name) is None)
        or (owned is not None and not owned.has_container(held, c))
        for c in lasting
    )


def _is_offline(managers: Managers, held: PodPromises) -> bool:
    return any(not cpus <= managers.topology.online for _, cpus in held.of(CpuHoldings).cpus)


def _topped_up(managers: Managers, promises: Promises, demand: PodDemand) -> Promises | None:
    """Add CPUs to the sets that are too small, close to those that are there. None: the options allow no such set, or plugins choose: they
    are asked about the whole pod then.
    """
    cpu, layout = managers.providers.cpu, managers.providers.cpu.layout
    if cpu.plugins:
        return None
    held = promises.of_pod(demand.uid)
    for wanted in demand.containers:
        own = held.of(CpuHoldings).own_set(wanted.name)
        if own is None or len(own) >= wanted.cpus:
            continue
        near = managers.topology.numa_of(own)
        missing = cpu.asking(promises, demand, wanted.name, cpu.free_cpus(promises), wanted.cpus - len(own))
        chosen = choose_near(cpu, missing, near.bits)
        if isinstance(chosen, CpuShortage):
            return None
        whole = own | chosen
        splits_core = cpu.options.full_pcpus_only and layout.whole_cores(whole.bits) != whole.bits
        is_spread = managers.providers.memory.keeps_one_node and not managers.topology.numa_of(whole) <= near
        if splits_core or is_spread:
            return None
        held = held.having(replace(held.of(CpuHoldings), cpus=put(held.of(CpuHoldings).cpus, wanted.name, whole)))
        promises = with_pod(with_default_set(promises, default_set(promises) - chosen), demand.uid, held)
    return promises


def _with_hints(managers: Managers, promises: Promises, pod: Pod) -> Promises:
    """Let the topology manager store where the pod is, as it does for pods that it finds already placed."""
    held = promises.of_pod(pod.uid)
    is_known = {name for name, _ in held.hints} == {c.name for c in pod.containers}
    if is_known or held.is_nothing or managers.providers.topology.policy is TopologyPolicy.NONE:
        return promises
    decision = admit(managers, promises, pod)
    return decision.promises if isinstance(decision, Admitted) else promises


# What differs


def _differences(managers: Managers, claim: Claim, promises: Promises) -> Iterator[Deviation]:
    before, after = claim.held, promises.of_pod(claim.pod.uid)
    whole = demand_of(managers.rules, claim.pod)
    demand = {c.name: c for c in whole.containers}
    for container in claim.pod.containers:
        had, has = before.of(CpuHoldings).own_set(container.name), after.of(CpuHoldings).own_set(container.name)
        wanted = _due_cpus(managers, whole, demand[container.name])
        if had != has or (len(has or ()) < wanted and container.kind is not ContainerKind.INIT):
            why = _why(managers, claim.pod, promises, had or CpuSet(), has or CpuSet(), wanted)
            yield Deviation(claim.pod, container.name, "CPUs", _text(had), _text(has), why)
        stood, stands = _nodes(before, container.name), _nodes(after, container.name)
        if stood != stands:
            why = _why_elsewhere(
                managers, stood, lacks=not stands and not whole.is_skipped and bool(demand[container.name].memory)
            )
            yield Deviation(claim.pod, container.name, "memory nodes", str(stood or "any"), str(stands or "any"), why)


def _why_elsewhere(managers: Managers, stood: NumaSet, *, lacks: bool) -> str:
    if not managers.providers.memory.static:
        return "memoryManagerPolicy is None now"
    gone = stood - managers.topology.node_ids
    parts = [f"NUMA nodes {gone} are gone"] if gone else []
    if lacks:
        parts.append(f"degraded: no NUMA node has room for what it asks for; {_AGAIN}")
    elif not parts:
        parts.append("memory of its own is available now" if not stood else "its memory could not stay where it was")
    return "; ".join(parts)


def _text(cpus: CpuSet | None) -> str:
    return str(cpus) if cpus else "shared"


def _nodes(held: PodPromises, name: str) -> NumaSet:
    nodes = NumaSet()
    for block in held.of(MemoryHoldings).blocks(name) or ():
        nodes |= block.nodes
    return nodes


def _why(managers: Managers, pod: Pod, promises: Promises, had: CpuSet, has: CpuSet, wanted: int) -> str:
    if not managers.providers.cpu.static:
        return "cpuManagerPolicy is none now"
    others = CpuSet()
    for uid, held in promises.pods:
        if uid != pod.uid:
            others |= held.of(CpuHoldings).pod_cpus or CpuSet()
            for _, cpus in held.of(CpuHoldings).cpus:
                others |= cpus
    lost = had - has
    parts = []
    if lost & managers.reserved:
        parts.append(f"CPUs {lost & managers.reserved} are reserved")
    if lost & others:
        parts.append(f"CPUs {lost & others} belong to another pod")
    if lost - managers.topology.online:
        parts.append(f"CPUs {lost - managers.topology.online} are not online")
    if len(has) < wanted:
        parts.append(f"degraded: has {len(has)} of {wanted} CPUs of its own, no more are available; {_AGAIN}")
    elif not parts:
        parts.append("whole CPUs of its own are available now" if not had else "its set could not stay as it was")
    return "; ".join(parts)
