"""CPUs of pods when the agent starts with a lost state, or on a changed machine or configuration. Pods keep the CPUs that this machine
still has, get others for lost CPUs, and the differences are reported.
"""

from collections.abc import Iterator, Mapping

from nodeagent.core.model.cgroup import Attribute, ObservedCgroup, ObservedCgroups
from nodeagent.core.model.cgroup_layout import POOL
from nodeagent.core.model.demand import PodDemand
from nodeagent.core.model.holdings import put_item
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Container, ContainerKind, Pod
from nodeagent.core.model.promises import Promises, with_pod
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.violations import MachineChange
from nodeagent.core.numa.topology_manager import TopologyManager
from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings, default_set, free_cpus, with_default_set
from nodeagent.core.resources.cpu.manager import CpuManager, choose_near, release_container
from nodeagent.core.resources.cpu.points import CpuShortage
from nodeagent.core.resources.cpu.restore import list_allocated_cpus
from nodeagent.core.resources.resource import AGAIN, HoldingChange


def find_cpus_in_cgroups(
    entry: PodEntry,
    demand: PodDemand,
    groups: Mapping[str, ObservedCgroup | None],
    observed: ObservedCgroups,
    *,
    by_pod: bool,
) -> CpuHoldings:
    """Derive the exclusive CPUs of a running pod from its cgroups."""
    cpus = {name: own for name, group in groups.items() if group is not None and (own := cpus_of(group))}
    for container in entry.pod.containers:
        if container.is_mixed and container.name in cpus:
            cpus[container.name] -= _find_cpus_of_others(entry, container, observed)
    if by_pod:
        # The pod's CPUs are the slices of its containers and its own shared pool.
        whole = CpuSet()
        for each in cpus.values():
            whole |= each
        if len(whole) != demand.cpus or len(cpus) != len(demand.containers):
            return CpuHoldings()
        return CpuHoldings(tuple(sorted(cpus.items())), whole)
    # A container whose set is larger than its request has no exclusive set, but runs in the shared pool.
    return CpuHoldings(
        tuple(sorted((c.name, cpus[c.name]) for c in demand.containers if 0 < len(cpus.get(c.name, ())) <= c.cpus))
    )


def _find_cpus_of_others(entry: PodEntry, mixed: Container, observed: ObservedCgroups) -> CpuSet:
    """Return the CPUs in the cpusets of all other containers and of the shared pool. The init containers of the same pod are left out,
    because they may have used the container's exclusive CPUs before.
    """
    apart = {entry.container_path(c.name) for c in entry.pod.containers if c is mixed or c.kind is ContainerKind.INIT}
    above = {path.rpartition("/")[0] for path in observed} - {POOL}
    cpus = CpuSet()
    for path, group in observed.items():
        if path not in above and path not in apart:
            cpus |= cpus_of(group)
    return cpus


def cpus_of(group: ObservedCgroup) -> CpuSet:
    """Return the CPUs of a cgroup's `cpuset.cpus`, or an empty set if the file is missing or empty."""
    value = group.get(Attribute.CPUSET_CPUS)
    return value if isinstance(value, CpuSet) else CpuSet()


def keep_cpus(manager: CpuManager, promises: Promises, pod: Pod, demand: PodDemand, before: CpuHoldings) -> Promises:
    """Allocate to a pod the CPUs that it held before, except CPUs that are now reserved, belong to an earlier pod, or don't exist
    any more.
    """
    held = _choose_kept(manager, promises, pod, demand, before)
    after = with_default_set(promises, default_set(promises) - held.every_cpu)
    return with_pod(after, pod.uid, after.of_pod(pod.uid).having(held))


def _choose_kept(
    manager: CpuManager, promises: Promises, pod: Pod, demand: PodDemand, before: CpuHoldings
) -> CpuHoldings:
    if not manager.static:
        return CpuHoldings()
    machine_cpus = manager.topology.online | manager.topology.offline
    barred = manager.reserved | list_allocated_cpus(promises)
    whole = before.pod_cpus
    if whole is not None:
        # The slices and the pool of a pod were chosen together, so the pod keeps either the whole set or no CPUs.
        fits = len(whole) == demand.cpus and whole.isdisjoint(barred) and whole <= machine_cpus
        slices = [(c.name, before.own_set(c.name)) for c in pod.containers]
        own = tuple(sorted((name, cpus) for name, cpus in slices if cpus and cpus <= whole))
        return CpuHoldings(own, whole) if fits and len(own) == len(slices) else CpuHoldings()
    kept: tuple[tuple[str, CpuSet], ...] = ()
    cpus_in_use = CpuSet()
    for wanted in demand.containers:
        cpus = (before.own_set(wanted.name) or CpuSet()) & machine_cpus - barred - cpus_in_use
        if not cpus or len(cpus) > wanted.cpus:
            continue
        kept = put_item(kept, wanted.name, cpus)
        if wanted.kind is not ContainerKind.INIT:
            cpus_in_use |= cpus
    return CpuHoldings(kept)


def fill_cpus(
    manager: CpuManager, topology: TopologyManager, promises: Promises, pod: Pod, demand: PodDemand
) -> tuple[Promises, ...]:
    """Add CPUs to each container of the pod that has too few of them, close to the CPUs that the container still has.

    Returns:
        Two variants of the promises, with and without the CPUs that only init containers hold. The tuple is empty if the policy's options
            don't permit such a set, or if there are CPU plugins, because plugins decide only on whole requests.
    """
    if manager.chooser is not None:
        return ()
    machine, layout, of_pod = manager.topology, manager.layout, promises.of_pod(demand.uid)
    for wanted in demand.containers:
        held = of_pod.of(CpuHoldings)
        own = held.own_set(wanted.name)
        if own is None or len(own) >= wanted.cpus:
            continue
        near = machine.numa_of(own)
        missing = manager.asking(
            promises, demand, wanted.name, free_cpus(promises, manager.grantable).bits, wanted.cpus - len(own)
        )
        chosen = choose_near(manager, missing, near.bits)
        if isinstance(chosen, CpuShortage):
            return ()
        whole = own | chosen
        splits_core = manager.options.full_pcpus_only and layout.whole_cores(whole.bits) != whole.bits
        if splits_core or (topology.is_strict and not machine.numa_of(whole) <= near):
            return ()
        of_pod = of_pod.having(CpuHoldings(put_item(held.cpus, wanted.name, whole), held.pod_cpus, held.first_cpus))
        promises = with_pod(with_default_set(promises, default_set(promises) - chosen), demand.uid, of_pod)
    without_inits = promises
    for container in pod.containers:
        if container.kind is ContainerKind.INIT:
            without_inits, _ = release_container(manager, without_inits, pod.uid, container.name)
    return promises, without_inits


def cpu_differences(
    manager: CpuManager,
    promises: Promises,
    pod: Pod,
    demand: PodDemand,
    before: CpuHoldings,
    name: str,
    *,
    by_pod: bool,
) -> Iterator[HoldingChange]:
    """Yield the differences between the CPUs that a container has now, the CPUs that it had before, and the number of CPUs that it
    requests.
    """
    container = next(one for one in demand.containers if one.name == name)
    old_cpus, new_cpus = before.own_set(name), promises.of_pod(pod.uid).of(CpuHoldings).own_set(name)
    wanted = demand.due_cpus(container, by_pod=by_pod) if manager.static else 0
    if old_cpus != new_cpus or (len(new_cpus or ()) < wanted and container.kind is not ContainerKind.INIT):
        reason = _explain_change(manager, pod, promises, old_cpus or CpuSet(), new_cpus or CpuSet(), wanted)
        yield HoldingChange(
            "CPUs", str(old_cpus) if old_cpus else "shared", str(new_cpus) if new_cpus else "shared", reason
        )


def _explain_change(
    manager: CpuManager, pod: Pod, promises: Promises, old_cpus: CpuSet, new_cpus: CpuSet, wanted: int
) -> str:
    if not manager.static:
        return "cpuManagerPolicy is none now"
    others = CpuSet()
    for uid, held in promises.pods:
        if uid != pod.uid:
            others |= held.of(CpuHoldings).every_cpu
    lost, online = old_cpus - new_cpus, manager.topology.online
    parts = []
    if lost & manager.reserved:
        parts.append(f"CPUs {lost & manager.reserved} are reserved")
    if lost & others:
        parts.append(f"CPUs {lost & others} belong to another pod")
    if lost - online:
        parts.append(f"CPUs {lost - online} are not online")
    if len(new_cpus) < wanted:
        parts.append(f"degraded: has {len(new_cpus)} of {wanted} exclusive CPUs, no more are available; {AGAIN}")
    elif not parts:
        parts.append("exclusive CPUs are available for it now" if not old_cpus else "it could not keep its CPUs")
    return "; ".join(parts)


def list_cpu_changes(before: Promises, after: Promises) -> Iterator[MachineChange]:
    """Yield the changes of the shared pool, and of the CPUs that later containers may reuse from init containers."""
    old, new = before.of(CpuBooks), after.of(CpuBooks)
    if old.default != new.default:
        yield MachineChange("shared CPUs", str(old.default) or "none", str(new.default) or "none")
    if old.reuse != new.reuse:
        old_cpus, new_cpus = ("none" if books.reuse is None else str(books.reuse.cpus) for books in (old, new))
        yield MachineChange("CPUs of init containers", old_cpus, new_cpus)
