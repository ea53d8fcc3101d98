"""What `nodeagent inspect` knows, as one plain document with stable names: node, pods, containers, every difference.

Everything is told (state, configuration, what was seen of cgroups and processes, the time): the same in, the same out. The renderers
add nothing but words. Names are camelCase, times milliseconds since the epoch, CPU and node sets the kernel's texts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from nodeagent.core.admission.managers import Managers
from nodeagent.core.cgroups.desired_cgroups import Kernel, container_path, pod_path, shared_pool, wishes
from nodeagent.core.cgroups.write_order import Plan, diff
from nodeagent.core.model.cgroup import DesiredCgroup, ObservedCgroup, ObservedCgroups
from nodeagent.core.model.config import Config
from nodeagent.core.model.host_processes import HostProcesses
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import NodeState, PodEntry, RecordedRefusal
from nodeagent.views.inspect.containers import ContainerSight, container_document, kernel_values
from nodeagent.views.inspect.differences import Difference, differences
from nodeagent.views.wording.cpu_places import Places
from nodeagent.views.wording.refusal_advice import next_step

VERSION = 1
"""Of the document: a field is added without a new one; none is renamed or removed."""

Document = dict[str, Any]


class Sight(Struct, frozen=True):
    """All that was found out about a node."""

    config: Config
    managers: Managers
    state: NodeState
    now_ms: int
    kernel: Kernel | None = None
    seen: ObservedCgroups | None = None
    """None: the pods' cgroup was not to be found or read; then nothing is compared."""
    cgroup_root: str | None = None
    pids: Mapping[str, int] | None = None
    """Main processes by run id. None: the launcher did not say."""
    process_counts: Mapping[str, int] | None = None
    """Processes by cgroup path; one that could not be read is missing."""
    strays: Mapping[str, int] = field(default_factory=dict)
    """Main processes that are not in their container's cgroup, by its path."""
    host: HostProcesses | None = None
    """None: nobody looked."""
    is_live: bool = False
    """The state is the running agent's; else it was read from its file."""
    is_ready: bool = False
    is_here: bool = True
    """False: it is a copy."""
    copied_at: str | None = None
    """When the copy was made, for people; None: nobody knows."""
    is_agent_known: bool = True
    """False: only a machine is known, and nothing of an agent on it."""
    problems: tuple[str, ...] = ()
    recovery: Mapping[str, Any] | None = None
    """What the running agent told of a start that could not use its state as it was. None: it could."""


def inspection(sight: Sight, pod_uids: frozenset[str] | None = None) -> Document:
    """Make the document.

    Args:
        sight: what was found out.
        pod_uids: pods to show; None: all. Differences are those of the pods shown.

    """
    wanted: tuple[DesiredCgroup, ...] = ()
    plan = Plan(())
    found: tuple[Difference, ...] = ()
    if sight.seen is not None and sight.kernel is not None:
        wanted = wishes(sight.config, sight.managers, sight.kernel, sight.state)
        plan = diff(wanted, sight.seen)
        found = (
            *differences(plan, wanted, sight.seen),
            *(
                Difference(path, "cgroup.procs", f"main process {pid}", "it has left this cgroup")
                for path, pid in sorted(sight.strays.items())
            ),
        )
    entries = [e for e in sight.state.entries if pod_uids is None or e.pod.uid in pod_uids]
    owners = {path: owner for entry in sight.state.entries for path, owner in _owned(entry)}
    if pod_uids is not None:
        paths = {path for entry in entries for path, _ in _owned(entry)}
        found = tuple(d for d in found if d.path in paths)
    pods = _pods(sight, entries, wanted, found)
    return {
        "atMs": sight.now_ms,
        "differences": [_difference(d, owners) for d in found] if sight.seen is not None else None,
        "hostProcesses": None if sight.host is None else _host(sight.host),
        "kind": "Inspection",
        "node": _node(sight),
        "pods": pods,
        "strangers": _strangers(sight, plan) if pod_uids is None else [],
        "summary": _summary(pods, found, plan if pod_uids is None else Plan(())),
        "version": VERSION,
    }


def has_difference(document: Document) -> bool:
    return bool(document["differences"] or document["strangers"])


def _owned(entry: PodEntry) -> list[tuple[str, tuple[str, str | None]]]:
    pod = entry.pod.full_name
    return [
        (pod_path(entry), (pod, None)),
        *((container_path(entry, c.name), (pod, c.name)) for c in entry.containers),
    ]


def _summary(pods: Sequence[Document], found: Sequence[Difference], plan: Plan) -> Document:
    phases = [pod["phase"] for pod in pods]
    return {
        "byPhase": {phase: phases.count(phase) for phase in sorted(set(phases))},
        "containers": sum(len(pod["containers"]) for pod in pods),
        "differences": len(found),
        "pods": len(pods),
        "strangers": len(plan.strangers),
    }


def _phase(entry: PodEntry) -> str:
    return entry.phase.value if entry.refusal is None else "Refused"


def _node(sight: Sight) -> Document:
    topology, promises = sight.managers.topology, sight.state.promises
    placement = sight.config.placement
    shared = shared_pool(sight.managers, promises, topology.online)
    cpu = sight.managers.providers.cpu
    available = CpuSet(cpu.free_cpus(promises)) & shared if cpu.static else CpuSet()
    exclusive = promises.exclusive()
    return {
        "agent": {
            "known": sight.is_agent_known,
            "launcherKnown": sight.pids is not None,
            "live": sight.is_live,
            "ready": sight.is_ready,
        },
        "cgroupRoot": sight.cgroup_root,
        "copied": not sight.is_here,
        "copiedAt": sight.copied_at,
        "cpus": {
            "available": str(available),
            "availableCount": len(available),
            "exclusive": str(exclusive),
            "exclusiveCount": len(exclusive),
            "isolated": str(topology.isolated),
            "offline": str(topology.offline),
            "online": str(topology.online),
            "onlineCount": len(topology.online),
            "reserved": str(sight.managers.reserved),
            "reservedCount": len(sight.managers.reserved),
            "shared": str(shared),
            "sharedMillicores": 1000 * len(shared),
        },
        "generation": sight.state.generation,
        "numaNodes": len(topology.numa),
        "policies": {
            "cpuCFSQuota": sight.config.cpu_cfs_quota,
            "cpuManagerPolicy": placement.cpu_manager_policy,
            "cpuManagerPolicyOptions": dict(sorted(placement.cpu_manager_policy_options)),
            "memoryManagerPolicy": placement.memory_manager_policy,
            "topologyManagerPolicy": placement.topology_manager_policy,
            "topologyManagerPolicyOptions": dict(sorted(placement.topology_manager_policy_options)),
            "isolatedCPUs": placement.isolated_cpus,
            "topologyManagerScope": placement.topology_manager_scope,
        },
        "problems": list(sight.problems),
        "recovery": None if sight.recovery is None else dict(sight.recovery),
        "sockets": len(topology.sockets),
    }


def _pods(
    sight: Sight, entries: Sequence[PodEntry], wanted: Sequence[DesiredCgroup], found: Sequence[Difference]
) -> list[Document]:
    places = Places(sight.managers.topology)
    by_path = {wish.path: wish for wish in wanted}
    differing = frozenset(difference.path for difference in found)
    return [_pod(sight, entry, by_path, differing, places) for entry in entries]


def _pod(
    sight: Sight, entry: PodEntry, wanted: Mapping[str, DesiredCgroup], differing: frozenset[str], places: Places
) -> Document:
    pod, promises = entry.pod, sight.state.promises
    there = None if sight.seen is None else sight.seen.get(pod_path(entry))
    root = None if sight.seen is None else sight.seen.get("")
    containers = [
        container_document(
            ContainerSight(
                entry=entry,
                container=container,
                status=status,
                promises=promises,
                managers=sight.managers,
                wish=wanted.get(container_path(entry, container.name)),
                seen=None if sight.seen is None else sight.seen.get(container_path(entry, container.name)),
                controllers=None if root is None else root.controllers,
                is_seen=sight.seen is not None,
                pids=sight.pids,
                is_different=container_path(entry, container.name) in differing,
                process_count=_process_count(sight, container_path(entry, container.name)),
                now_ms=sight.now_ms,
            ),
            places,
        )
        for container, status in entry.pairs()
    ]
    pool = promises.pod_set(pod.uid)
    return {
        "cgroup": None if entry.refusal is not None else pod_path(entry),
        "containers": containers,
        "decidedAtMs": entry.decided_at_ms,
        "deletingSinceMs": entry.deleting_since_ms,
        "effective": None if there is None else _pod_values(there),
        "name": pod.name,
        "namespace": pod.namespace,
        "phase": "Unknown" if any(c["state"]["name"] == "Unknown" for c in containers) else _phase(entry),
        "podCpus": None if pool is None else str(pool),
        "qos": entry.qos.value,
        "refusal": _refusal(entry, entry.refusal),
        "refusedChange": _refusal(entry, entry.change_refusal),
        "source": entry.source,
        "starved": any(c["starved"] for c in containers),
        "uid": pod.uid,
    }


def _process_count(sight: Sight, path: str) -> int | None:
    """None: nobody could look."""
    if sight.seen is None:
        return None
    return (sight.process_counts or {}).get(path) if path in sight.seen else 0


def _pod_values(there: ObservedCgroup) -> Document:
    return {key: value for key, value in kernel_values(there).items() if key in {"memoryMaxBytes", "quota", "weight"}}


def _refusal(entry: PodEntry, refusal: RecordedRefusal | None) -> Document | None:
    if refusal is None:
        return None
    return {
        "atMs": refusal.at_ms,
        "message": refusal.message,
        "nextStep": next_step(refusal.reason, entry.pod.full_name),
        "reason": refusal.reason,
    }


def _difference(difference: Difference, owners: Mapping[str, tuple[str, str | None]]) -> Document:
    pod, container = owners.get(difference.path, (None, None))
    return {
        "cgroup": difference.path,
        "container": container,
        "file": difference.file,
        "found": difference.found,
        "pod": pod,
        "promised": difference.promised,
    }


def _strangers(sight: Sight, plan: Plan) -> list[Document]:
    seen = sight.seen or {}
    return [
        {
            "cgroup": path,
            "cpus": str(seen[path].cpus_effective or CpuSet()),
            "nextStep": f"cd {sight.cgroup_root} && echo 1 >{path}/cgroup.kill",
        }
        for path in plan.strangers
    ]


def _host(host: HostProcesses) -> Document:
    return {
        "hidden": host.hidden,
        "kernelThreads": {"count": host.kernel_threads, "cpus": str(host.kernel_thread_cpus)},
        "processes": [{"cpus": str(p.cpus), "name": p.name, "pid": p.pid} for p in host.processes],
    }
