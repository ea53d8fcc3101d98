"""Observation of a node: the pods' cgroups, the processes in them, and the host processes that may run on exclusive CPUs."""

import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import chain

from msgspec.structs import replace

from nodeagent.core.model.cgroup import ObservedCgroups
from nodeagent.core.model.cgroup_layout import OWN_DIRECTORIES, cpuset_path, payload_path
from nodeagent.core.model.host_processes import HostProcess, HostProcesses
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import NodeState, run_id
from nodeagent.core.resources.cpu.holdings import exclusive_cpus
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree
from nodeagent.formats.node_view import NodeView, Observation


def add_cgroups(view: NodeView, *, only_pods: bool = False) -> NodeView:
    """Read the cgroups and add them to a view, unless the view has them already. Of the processes, the view then contains only the main
    ones.

    Args:
        view: the view.
        only_pods: whether to leave out cgroups that don't belong to a pod of the view.
    """
    if view.observation is not None:
        return view
    problems: list[str] = []
    view, observed = _read_cgroups(view, problems, only_pods=only_pods)
    at_ms = time.time_ns() // 1_000_000 if view.at_ms is None else view.at_ms
    return replace(view, observation=Observation(at_ms, os.sysconf("SC_PAGE_SIZE"), observed, tuple(problems)))


def add_observation(view: NodeView, *, host_processes: bool, only_pods: bool = False) -> NodeView:
    """Read the cgroups and the processes in them, and add them to a view. With `host_processes`, also add the host processes that may run
    on exclusive CPUs (D12).

    `only_pods` means the same as for `add_cgroups`.
    """
    if view.observation is not None:
        return view if host_processes else replace(view, observation=replace(view.observation, host=None))
    view = add_cgroups(view, only_pods=only_pods)
    processes, beside = _read_processes(view)
    own = frozenset[int]()
    if view.cgroup_root is not None:
        # the main process of the pods' unit sleeps in the cgroup `holder` (systemd/nodeagent-pods.service)
        with suppress(CgroupError):
            own = frozenset(CgroupTree(view.cgroup_root).processes.list_pids("holder"))
    managed = own.union(*processes.values())
    exclusive = exclusive_cpus(view.state.promises) & view.node.topology.online
    observation = replace(
        view.observed,
        process_counts={path: len(pids) for path, pids in processes.items()},
        strays=_find_strays(view, processes),
        beside=beside,
        host=_find_host_processes(exclusive, managed, view) if host_processes and view.is_here else None,
    )
    return replace(view, observation=observation)


def _read_cgroups(view: NodeView, problems: list[str], *, only_pods: bool) -> tuple[NodeView, ObservedCgroups | None]:
    """Read the pods' cgroups, and append problems to `problems`. The returned view also contains the paths of pinned units' cgroups."""
    if view.cgroup_root is None:
        return view, None
    tree = CgroupTree(view.cgroup_root)
    try:
        observed = {**tree.read(OWN_DIRECTORIES, _list_paths(view) if only_pods else None), **tree.read_above()}
        if pinning := view.state.pods_of_units():
            from nodeagent.daemon.domains.systemd.unit_cgroups import UnitCgroups, unit_paths

            units = UnitCgroups(tree)
            observed |= units.read(unit_paths(pinning))
            problems += [unknown.problem for unknown in units.last_read.unknown if unknown.problem not in view.problems]
            view = replace(view, unit_cgroups=units.unit_cgroups or view.unit_cgroups)
        runtime_paths = (status.cgroup for entry in view.state.entries for status in entry.containers if status.cgroup)
        found = ((path, tree.read_foreign(path)) for path in runtime_paths)
        observed = {**observed, **{path: cgroup for path, cgroup in found if cgroup is not None}}
    except CgroupError as err:
        problems.append(f"{err.message} ({err.hint})")
        return view, None
    if "" not in observed:
        problems.append(f"there is no cgroup {view.cgroup_root} (start it: systemctl start nodeagent-pods)")
        return view, None
    return view, observed


def _list_paths(view: NodeView) -> list[str]:
    """List the cgroups to read: the pods' top cgroup, those of the view's pods and containers, and those whose cpuset applies to them."""
    entries = [entry for entry in view.state.own_entries() if not entry.pins_units]
    own = [
        path
        for entry in entries
        for path in (entry.pod_path, *(entry.container_path(status.name) for status in entry.containers))
    ]
    return ["", *sorted({*map(cpuset_path, own)} - {*own}), *own]


def _read_processes(view: NodeView) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """Return the processes of each container by cgroup path, and, for each container with misplaced processes, one of them.

    A misplaced process is in the container's own cgroup, although the cgroup `payload` below it exists. The kernel allows this only while
    `payload` has no processes, and then no process can enter `payload`. Unreadable cgroups are left out.
    """
    if view.cgroup_root is None:
        return {}, {}
    tree = CgroupTree(view.cgroup_root)
    found, misplaced = {}, {}
    for path in [entry.container_path(c.name) for entry in view.state.entries for c in entry.containers]:
        cgroup = view.cgroup_of(path)
        try:
            by_cgroup = tree.processes.list_by_cgroup(cgroup)
        except CgroupError:
            continue
        found[path] = tuple(dict.fromkeys(chain.from_iterable(by_cgroup.values())))
        if by_cgroup[cgroup] and payload_path(path) in by_cgroup.keys() - {cgroup}:
            misplaced[path] = by_cgroup[cgroup][0]
    return found, misplaced


def _find_strays(view: NodeView, processes: Mapping[str, Collection[int]]) -> dict[str, int]:
    """Find containers whose main process has left the cgroup in which it was started. Return the process ID by the
    container's cgroup path.
    """
    strays = {}
    for entry in view.state.entries:
        for status in (status for container, status in entry.pairs() if container.is_launched):
            pid = (view.pids or {}).get(run_id(entry, status))
            path = entry.container_path(status.name)
            if pid is not None and pid not in processes.get(path, ()):
                strays[path] = pid
    return strays


def _find_host_processes(exclusive: CpuSet, managed: frozenset[int], view: NodeView) -> HostProcesses:
    """Find host processes that may run on exclusive CPUs (D12), and interrupts that may arrive there although no container of these CPUs
    requested them.
    """
    if not exclusive:
        return HostProcesses()
    from nodeagent.edge.kernel.interrupts import find_interrupts_on
    from nodeagent.edge.processes.host_processes import find_caller_pids, find_processes_on

    wanted = {} if view.node.config.interrupt_isolation == "none" else _find_requested_interrupts(view.state)
    scan = find_processes_on(exclusive, excluding=(managed | find_caller_pids()).__contains__)
    threads = [p for p in scan.found if p.is_kernel_thread]
    return HostProcesses(
        processes=tuple(HostProcess(p.pid, p.name, p.cpus & exclusive) for p in scan.found if not p.is_kernel_thread),
        kernel_threads=len(threads),
        kernel_thread_cpus=CpuSet.from_ids(cpu for p in threads for cpu in p.cpus & exclusive),
        hidden=len(scan.hidden),
        interrupts=tuple(
            replace(one, cpus=cpus)
            for one in find_interrupts_on(exclusive)
            if (cpus := one.cpus - wanted.get(one.number, CpuSet()))
        ),
    )


def _find_requested_interrupts(state: NodeState) -> dict[int, CpuSet]:
    """Return the CPUs to which each interrupt goes because a container requested it, by the interrupt's number."""
    from nodeagent.core.host.irq_owners import assign_interrupts, interrupt_requests
    from nodeagent.edge.kernel.host_settings import HostSettingsFiles

    holders = assign_interrupts(interrupt_requests(state), HostSettingsFiles().interrupts_of).holders
    return {int(interrupt.name): claim.cpus for interrupt, claim in holders.items()}
