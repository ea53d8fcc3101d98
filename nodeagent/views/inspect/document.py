"""Document of `nodeagent inspect`, with stable field names: node, pods, containers and differences.

The output depends only on the input. Field names are camelCase, times are milliseconds since the epoch, and sets of CPUs and NUMA nodes
have the kernel's notation.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from nodeagent.core.cgroups.closing import find_closings
from nodeagent.core.cgroups.desired_cgroups import desired_cgroups, runtime_cgroups
from nodeagent.core.cgroups.write_order import Plan, diff
from nodeagent.core.model.cgroup import DesiredCgroup
from nodeagent.core.model.cgroup_layout import cpuset_path, is_within, list_pod_paths
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.waiting import RequestKind
from nodeagent.formats.node_view import NodeView
from nodeagent.views.holdings.by_resource import node_fields, pod_fields
from nodeagent.views.holdings.devices import list_unrecovered
from nodeagent.views.inspect.containers import ContainerView, describe_container, describe_kernel_values
from nodeagent.views.inspect.differences import Difference, find_differences
from nodeagent.views.wording.cpu_places import Places
from nodeagent.views.wording.refusal_advice import advise_next_step

VERSION = 1
"""Version of the document. New fields don't increase the version, and fields are never renamed or removed."""

Document = dict[str, Any]

_WRONG = ("problems", "refused", "crashLoops", "degraded", "starved", "differences", "orphans")
"""Counters in the summary for things that need attention. If one of them isn't 0, the verdict is `wrong`."""


class NodeVerdict(StrEnum):
    """Verdict on a node, or only on the pods shown, that says whether anything needs attention."""

    HEALTHY = "healthy"
    WRONG = "wrong"
    AGENT_AWAY = "agentAway"
    """Verdict for a node whose agent doesn't answer. For a copied node, it means that the copy contains only the saved state."""
    REFUSED = "refused"
    """Verdict if the user asked for certain pods and one of them is refused."""


def inspect_node(view: NodeView, pod_uids: frozenset[str] | None = None) -> Document:
    """Describe the node, its pods, and the differences from the desired cgroups.

    Args:
        view: the state of the node, with the observed cgroups.
        pod_uids: UIDs of the pods to describe, with only their differences. None means all pods and all differences.
    """
    if pod_uids is not None:
        view = _narrow(view, pod_uids)
    wanted, plan, found = _compare_cgroups(view)
    entries = view.state.entries
    owners = {path: owner for entry in entries for path, owner in _owners_by_path(entry)} if found else {}
    if pod_uids is not None:
        paths = owners.keys() | {cpuset_path(path) for path in owners}
        found = tuple(d for d in found if d.path in paths)
    places, by_path = Places(view.node.topology), {want.path: want for want in wanted}
    differing = frozenset(difference.path for difference in found)
    pods = [_describe_pod(view, entry, by_path, differing, places) for entry in entries]
    described = [
        {
            "cgroup": view.shown_cgroup(difference.path),
            "container": owners.get(difference.path, (None, None))[1],
            "file": difference.file,
            "found": difference.found,
            "pod": owners.get(difference.path, (None, None))[0],
            "promised": difference.promised,
        }
        for difference in found
    ]
    host, node = view.observed.host, _describe_node(view)
    summary = _summarise(view, pods, found, plan if pod_uids is None else Plan(()))
    return {
        "atMs": view.observed.at_ms,
        "differences": None if view.observed.cgroups is None else described,
        "hostProcesses": None
        if host is None
        else {
            "hidden": host.hidden,
            "interrupts": [
                {"bound": i.is_bound, "cpus": str(i.cpus), "name": i.name, "number": i.number} for i in host.interrupts
            ],
            "kernelThreads": {"count": host.kernel_threads, "cpus": str(host.kernel_thread_cpus)},
            "processes": [{"cpus": str(p.cpus), "name": p.name, "pid": p.pid} for p in host.processes],
        },
        "kind": "Inspection",
        "node": node,
        "pods": pods,
        "orphans": _describe_orphans(view, plan) if pod_uids is None else [],
        "summary": summary,
        "verdict": _find_verdict(node["agent"], summary, is_about_pods=pod_uids is not None),
        "version": VERSION,
    }


def _narrow(view: NodeView, pod_uids: frozenset[str]) -> NodeView:
    """Reduce the view to these pods and their cgroups. The state keeps the allocations of the other pods, because they affect the shared
    pool.
    """
    entries = tuple(entry for entry in view.state.entries if entry.pod.uid in pod_uids)
    others = (entry for entry in view.state.entries if entry.pod.uid not in pod_uids)
    gone = {path for entry in others for path, _ in _owners_by_path(entry)}
    observation = view.observation
    if observation is not None and observation.cgroups is not None and gone:
        cgroups = {path: cgroup for path, cgroup in observation.cgroups.items() if path not in gone}
        observation = replace(observation, cgroups=cgroups)
    return replace(view, state=replace(view.state, entries=entries), observation=observation)


def _compare_cgroups(view: NodeView) -> tuple[tuple[DesiredCgroup, ...], Plan, tuple[Difference, ...]]:
    """Return the desired cgroups, the plan that would produce them, and all differences. All three are empty if cgroups weren't read."""
    observed, kernel = view.observed.cgroups, view.kernel
    if observed is None or kernel is None:
        return (), Plan(()), ()
    wanted = desired_cgroups(view.node.config, view.node.rules, kernel, view.state)
    of_runtime = runtime_cgroups(view.node.config, view.node.rules, kernel, view.state).values()
    # Of a container runtime's cgroups, only existing ones are compared, because the runtime may remove a cgroup and create it again when it
    # retries to run the container.
    wanted += tuple(want for want in of_runtime if want.path in observed)
    plan = diff(wanted, observed)
    found = list(find_differences(plan, wanted, observed))
    for path, pid in sorted(view.observed.strays.items()):
        found.append(Difference(path, "cgroup.procs", f"main process {pid}", "it left this cgroup"))
    for path, pid in sorted(view.observed.beside.items()):
        actual = f"process {pid}, not from `nodeagent exec`"
        found.append(Difference(path, "cgroup.procs", "no process outside payload", actual))
    return wanted, plan, tuple(found)


def _find_verdict(agent: Document, summary: Document, *, is_about_pods: bool) -> NodeVerdict:
    if not agent["live"]:
        return NodeVerdict.AGENT_AWAY
    if is_about_pods and summary["refused"]:
        return NodeVerdict.REFUSED
    is_wrong = not agent["ready"] or any(summary[name] for name in _WRONG)
    return NodeVerdict.WRONG if is_wrong else NodeVerdict.HEALTHY


def has_difference(document: Document) -> bool:
    return bool(document["differences"] or document["orphans"])


def _owners_by_path(entry: PodEntry) -> list[tuple[str, tuple[str, str | None]]]:
    pod = entry.pod.full_name
    return [
        (entry.pod_path, (pod, None)),
        *((entry.container_path(c.name), (pod, c.name)) for c in entry.containers),
    ]


def _summarise(view: NodeView, pods: Sequence[Document], found: Sequence[Difference], plan: Plan) -> Document:
    phases = [pod["phase"] for pod in pods]
    containers = [container for pod in pods for container in pod["containers"]]
    return {
        "byPhase": {phase: phases.count(phase) for phase in sorted(set(phases))},
        "containers": len(containers),
        "crashLoops": sum(c["state"]["reason"] == "CrashLoopBackOff" for c in containers),
        "degraded": sum(c["degraded"] for c in containers),
        "differences": len(found),
        "pods": len(pods),
        "problems": len(view.problems) + len(view.observed.problems),
        "refused": sum(entry.refusal is not None and not entry.is_queued for entry in view.state.entries),
        "starved": sum(c["starved"] for c in containers),
        "orphans": len(plan.orphans),
    }


def _describe_node(view: NodeView) -> Document:
    topology, placement = view.node.topology, view.node.config.placement
    return {
        "agent": {
            "known": view.is_agent_known,
            "launcherKnown": view.pids is not None,
            "live": view.is_live,
            "ready": view.is_ready,
        },
        "cgroupRoot": view.cgroup_root,
        "coreClasses": {name: str(cpus) for name, cpus in topology.core_classes.items()},
        "copied": not view.is_here,
        "copiedAt": view.copied_at,
        **node_fields(view),
        "generation": view.state.generation,
        "hostname": view.hostname,
        "numaNodes": len(topology.numa),
        "policies": {
            "cpuCFSQuota": view.node.config.cpu_cfs_quota,
            "cpuManagerPolicy": placement.cpu_manager_policy,
            "cpuManagerPolicyOptions": dict(sorted(placement.cpu_manager_policy_options)),
            "exclusiveCoreClass": placement.exclusive_core_class,
            "memoryManagerPolicy": placement.memory_manager_policy,
            "preferCPUsNumaNode": placement.prefer_cpus_numa_node,
            "sameNumaNodes": placement.same_numa_nodes,
            "sharedCoreClass": placement.shared_core_class,
            "spreadHugePages": placement.spread_huge_pages,
            "topologyManagerPolicy": placement.topology_manager_policy,
            "topologyManagerPolicyOptions": dict(sorted(placement.topology_manager_policy_options)),
            "isolatedCPUs": placement.isolated_cpus,
            "topologyManagerScope": placement.topology_manager_scope,
        },
        "problems": [*view.problems, *view.observed.problems],
        "reservations": None if view.reservations is None else [one.as_document() for one in view.reservations],
        "recovery": None if view.recovery is None else dict(view.recovery),
        "sockets": len(topology.sockets),
    }


def _describe_pod(
    view: NodeView, entry: PodEntry, wanted: Mapping[str, DesiredCgroup], differing: frozenset[str], places: Places
) -> Document:
    pod, cgroups = entry.pod, view.observed.cgroups or {}
    cgroup = cgroups.get(entry.pod_path)
    effective = None
    if cgroup is not None:
        values = describe_kernel_values(cgroup, None)
        effective = {name: values[name] for name in ("memoryMaxBytes", "quota", "weight")}
    change = _describe_waiting(view, entry, RequestKind.CHANGE)
    if change is not None and entry.refused_change is not None:
        from nodeagent.core.admission.resize import changed_amounts  # noqa: PLC0415 - few changes are refused

        change["amounts"] = [to_builtins(one) for one in changed_amounts(pod, entry.refused_change.pod)]
    estimates = []
    if entry.is_requested_per_container:
        from nodeagent.views.wording.runtime_pods import describe_known_amounts, find_known_amounts  # noqa: PLC0415 - most nodes have no container runtime

        known = find_known_amounts(entry, view.state, view.node.rules.topology.memory_bytes)
        estimates = describe_known_amounts(one for one in known if not one.is_exact)
    containers = []
    has_partitions = view.kernel is None or bool(view.kernel.path_to_partitions)
    closed = (
        find_closings(view.node.config, view.node.rules, view.state.promises, entry, has_partitions=has_partitions)
        if entry.is_active
        else {}
    )
    process_settings = pod.resolve_process(view.node.config.profiles)
    for container, status in entry.pairs():
        path = entry.container_path(container.name)
        of_cpuset = cpuset_path(path)
        subject = ContainerView(
            view,
            entry,
            container,
            status,
            path,
            cgroups.get(path),
            cgroups.get(of_cpuset) if path in cgroups else None,
            process_settings,
            wanted.get(path),
            is_different=path in differing or of_cpuset in differing,
            closing=closed.get(container.name),
        )
        containers.append(describe_container(subject, places))
    return {
        "cgroup": None if entry.refusal is not None else entry.own_cgroup,
        **pod_fields(pod, view.state.promises.of_pod(pod.uid)),
        "containers": containers,
        "coreClass": pod.core_class,
        "decidedAtMs": entry.decided_at_ms,
        "deletingSinceMs": entry.deleting_since_ms,
        "domain": entry.domain,
        "effective": effective,
        "idle": None if entry.idle is None else {"refusal": _describe_waiting(view, entry, RequestKind.RESUME)},
        "estimates": estimates,
        "name": pod.name,
        "namespace": pod.namespace,
        "phase": "Unknown"
        if any(c["state"]["name"] == "Unknown" for c in containers)
        else entry.phase.value
        if entry.refusal is None
        else "Waiting"
        if entry.is_queued
        else "Refused",
        "preferredCoreClass": pod.preferred_core_class,
        "qos": entry.qos.value,
        "refusal": _describe_waiting(view, entry, RequestKind.POD),
        "refusedChange": change,
        "source": entry.origin.name,
        "starved": any(c["starved"] for c in containers),
        "uid": pod.uid,
    }


def _describe_waiting(view: NodeView, entry: PodEntry, kind: RequestKind) -> Document | None:
    """Describe a request of the pod that the agent hasn't fulfilled: the reason, and the events after which the agent tries it again."""
    waiting = dict(entry.waiting).get(kind)
    if waiting is None:
        return None
    retries = entry.list_retries(kind, for_room=view.node.config.retries_for_room)
    found = {"atMs": waiting.at_ms, "message": waiting.message, "reason": waiting.reason, "retries": list(retries)}
    if kind is RequestKind.RESUME:
        return found
    return found | {"nextStep": advise_next_step(waiting.reason, entry.pod.full_name, waiting.message)}


def _describe_orphans(view: NodeView, plan: Plan) -> list[Document]:
    observed = view.observed.cgroups or {}
    return [
        {
            "cgroup": path,
            "cpus": str(observed[cpuset_path(path)].cpus_effective or CpuSet()),
            "devices": list_unrecovered(
                one
                for one in view.state.promises.unrecovered
                if any(is_within(path, pod) for pod in list_pod_paths(one.uid))
            ),
            "nextStep": f"cd {view.cgroup_root} && echo 1 >{path}/cgroup.kill",
        }
        for path in plan.orphans
    ]
