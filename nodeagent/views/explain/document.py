"""Document of `nodeagent explain`: the decision, its steps, the missing resources and the remedies. docs/explain.md describes the document.

The modules words.py and text.py format the document for users.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from nodeagent.core.admission.managers import Admitted, Managers, preferred_class
from nodeagent.core.admission.node_capacity import Insufficient
from nodeagent.core.admission.node_rules import ContainerReport, isolation
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.cgroups.closing import Why, find_closings
from nodeagent.core.cgroups.desired_cgroups import shared_pool
from nodeagent.core.explain.merge_trace import MergeTrace
from nodeagent.core.explain.numa_headroom import headroom
from nodeagent.core.explain.remedies import Remedies
from nodeagent.core.explain.trace import Trace
from nodeagent.core.model.cgroup import PartitionKind
from nodeagent.core.model.config import Config
from nodeagent.core.model.demand import demand_of
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod, qos_class
from nodeagent.core.model.promises import NOTHING, Promises
from nodeagent.core.model.state import Origin, PodEntry
from nodeagent.core.model.topology import Topology
from nodeagent.core.model.waiting import RequestKind
from nodeagent.core.resources.explainer import AllocationStep
from nodeagent.formats.config.config_text import plugin_entries
from nodeagent.views.explain.resources.by_resource import describe_allocation, describe_events, describe_headroom
from nodeagent.views.explain.words import explain_refusal, format_remedy
from nodeagent.views.holdings.by_resource import decided_fields, promised_fields
from nodeagent.views.wording.runtime_pods import describe_known_amounts

if TYPE_CHECKING:
    from nodeagent.core.domains.runtime.pod_model import Known

Document = dict[str, Any]
VERSION = 1


class ExplainedPod(Struct, frozen=True):
    """Decision on a pod, with all details that an explanation needs."""

    before: WhatIf
    trace: Trace
    remedies: Remedies = Remedies()
    """Changes with which a refused pod would be admitted."""
    entry: PodEntry | None = None
    """The pod's entry in the state. None means that the pod is from a manifest, and that only a trial decision was made on it."""
    reproduced: bool | None = None
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    known: "tuple[Known, ...]" = ()
    """Properties that the agent knows or estimates for a pod of a container runtime, each with its source."""
    refused_resize: Document | None = None
    """Document that describes the refused resize of a running pod (views/explain/resizes.py)."""


class ResizedPod(Struct, frozen=True):
    """Resize of a running pod, as the document that `describe_resize` returns."""

    document: Document


def describe_explanation(
    explained: "Iterable[ExplainedPod | ResizedPod]",
    *,
    config: Config,
    what_if: WhatIf,
    where: str,
    has_partitions: bool | None = None,
    with_headroom: bool = True,
) -> Document:
    """Describe all decisions in one document.

    Args:
        explained: the pods, in decision order.
        config: the configuration that applied to the decisions.
        what_if: the node and its allocations.
        where: a short description of the machine.
        has_partitions: whether the machine's kernel supports partitions below other cgroups (6.7). None means that this is unknown. The
            document then assumes that the kernel supports them.
        with_headroom: whether to describe, for each decision, the free resources of each NUMA node and the owners of the rest. The time for
            n pods then grows with n².
    """
    return {
        "configuration": describe_configuration(config),
        "kind": "Explanation",
        "machine": describe_machine(what_if.managers.topology, what_if.managers.reserved, where),
        "pods": [
            each.document
            if isinstance(each, ResizedPod)
            else _describe_pod(each, config, has_partitions=has_partitions, with_headroom=with_headroom)
            for each in explained
        ],
        "version": VERSION,
    }


def describe_configuration(config: Config) -> Document:
    """Describe the settings that affect placement."""
    placement = config.placement
    return {
        "checkAllocatable": config.check_allocatable,
        **({"cpuManagerPlugins": plugin_entries(placement)} if placement.cpu_plugins else {}),
        "cpuManagerPolicy": placement.cpu_manager_policy,
        "cpuManagerPolicyOptions": dict(sorted(placement.cpu_manager_policy_options)),
        "errata": placement.errata.value,
        "exclusiveCoreClass": placement.exclusive_core_class,
        "isolatedCPUs": placement.isolated_cpus,
        "memoryManagerPolicy": placement.memory_manager_policy,
        "preferCPUsNumaNode": placement.prefer_cpus_numa_node,
        "sameNumaNodes": placement.same_numa_nodes,
        "sharedCoreClass": placement.shared_core_class,
        "spreadHugePages": placement.spread_huge_pages,
        "topologyManagerPolicy": placement.topology_manager_policy,
        "topologyManagerPolicyOptions": dict(sorted(placement.topology_manager_policy_options)),
        "topologyManagerScope": placement.topology_manager_scope,
    }


def describe_machine(topology: Topology, reserved: CpuSet, where: str) -> Document:
    """Describe the machine and its reserved CPUs."""
    return {
        "cpus": len(topology.online),
        "numaNodes": len(topology.numa),
        "reserved": str(reserved),
        "sockets": len(topology.sockets),
        "source": where,
    }


def _describe_pod(
    explained: ExplainedPod, config: Config, *, has_partitions: bool | None, with_headroom: bool
) -> Document:
    trace = explained.trace
    pod, decision = trace.pod, trace.decision
    gate = explained.before.managers.placement.gate("PodLevelResources")
    is_admitted = isinstance(decision, Admitted)
    held = decision.promises.of_pod(pod.uid) if isinstance(decision, Admitted) else NOTHING
    optional = decided_fields(pod, held)
    if explained.refused_resize is not None:
        optional["refusedResize"] = explained.refused_resize
    nodes = (
        headroom(explained.before.managers, explained.before.promises, explained.before.pods) if with_headroom else ()
    )
    recorded, entry = None, explained.entry
    if entry is not None:
        recorded = {
            "atMs": entry.decided_at_ms,
            "decision": "admitted" if entry.refusal is None else "refused",
            "message": None if entry.refusal is None else entry.refusal.message,
            "reason": None if entry.refusal is None else entry.refusal.reason,
            "reproduced": explained.reproduced,
            "retries": list(entry.list_retries(RequestKind.POD, for_room=config.retries_for_room)),
            "withoutLaterPods": list(explained.left_out),
        }
    return {
        "allTried": explained.remedies.all_tried,
        **optional,
        "closedToHost": _describe_isolation(explained, config, has_partitions),
        "containers": describe_placed_containers(
            explained.before.managers, pod, decision.report.containers, decision.promises
        )
        if isinstance(decision, Admitted)
        else [],
        "coreClass": pod.core_class,
        "decision": "admitted" if is_admitted else "refused",
        "known": describe_known_amounts(explained.known),
        "message": None if isinstance(decision, Admitted) else decision.message,
        "name": pod.name,
        "namespace": pod.namespace,
        "near": _describe_near(explained),
        "nodes": [describe_headroom(node) for node in nodes],
        "notes": list(explained.notes),
        "numaNode": pod.numa_node,
        "preferredCoreClass": _describe_preferred_class(explained),
        "qos": qos_class(pod, pod_level_resources=gate).value,
        "reason": None if isinstance(decision, Admitted) else str(decision.reason),
        "recorded": recorded,
        "remedies": [
            {
                "after": remedy.after,
                "amounts": [
                    {"after": each.after, "before": each.before, "container": each.container, "resource": each.resource}
                    for each in remedy.amounts
                ],
                "before": remedy.before,
                "change": remedy.change.value,
                "subject": list(remedy.subject),
                "text": format_remedy(remedy),
            }
            for remedy in explained.remedies.found
        ],
        "steps": [describe_step(step) for step in trace.steps],
        "uid": pod.uid,
        "why": [] if is_admitted else explain_refusal(explained.before, trace),
    }


def _describe_near(explained: ExplainedPod) -> list[Document]:
    """Describe, by name, the devices that the pod wants its CPUs to be near. The addresses are null if the machine's devices weren't
    scanned.
    """
    there = explained.before.managers.providers.devices
    found = []
    for name in explained.trace.pod.near:
        devices = None if there is None else there.find_named(name)
        nodes = NumaSet.from_ids(node for _, node in devices or () if node is not None)
        addresses = None if devices is None else [device.address for device, _ in devices]
        found.append({"devices": addresses, "name": name, "numaNodes": str(nodes)})
    return found


def _describe_preferred_class(explained: ExplainedPod) -> Document | None:
    """Describe which class of cores is preferred for the pod, and whether the pod got cores of this class. None means that no class is
    preferred.
    """
    trace, managers = explained.trace, explained.before.managers
    undecided = demand_of(managers.rules, trace.pod)
    wish = preferred_class(managers, trace.pod, undecided)
    if wish is None:
        return None
    is_decided = not isinstance(trace.decision, Insufficient)
    return {
        "coreClass": wish,
        "granted": trace.demand.core_class == wish if is_decided else None,
        "isTheNodes": trace.pod.preferred_core_class is None,
    }


def _describe_isolation(explained: ExplainedPod, config: Config, has_partitions: bool | None) -> list[Document]:
    """Describe the partitions or systemd settings that isolate exclusive CPUs from the host.

    Containers with the same isolation share one description.
    """
    managers, pod, decision = explained.before.managers, explained.trace.pod, explained.trace.decision
    if not isinstance(decision, Admitted):
        return []
    qos = qos_class(pod, pod_level_resources=managers.placement.gate("PodLevelResources"))
    entry = PodEntry(pod, qos, Origin(pod.full_name), 0)
    found: dict[tuple[PartitionKind | None, bool, Why], list[tuple[str, CpuSet]]] = {}
    known = find_closings(config, managers, decision.promises, entry, has_partitions=has_partitions is not False)
    for name, closing in known.items():
        found.setdefault((closing.kind, closing.is_of_pod, closing.why), []).append((name, closing.cpus))
    return [
        {
            "assumed": kind is not None and has_partitions is None,
            "containers": [name for name, _ in alike],
            "cpus": str(CpuSet.from_ids(cpu for _, cpus in alike for cpu in cpus)),
            "kind": None if kind is None else kind.value,
            "means": "systemd" if kind is None else "partition",
            "partitionOf": None if kind is None else "pod" if is_of_pod else "container",
            "why": why.value,
        }
        for (kind, is_of_pod, why), alike in found.items()
    ]


def describe_placed_containers(
    managers: Managers, pod: Pod, containers: tuple[ContainerReport, ...], promises: Promises
) -> list[Document]:
    """Describe the resources of each container of an admitted pod.

    Args:
        managers: the managers that decided.
        pod: the pod with defaults applied.
        containers: the containers' allocations.
        promises: all allocations on the node, including the pod's.
    """
    reports = {report.name: report for report in containers}
    pool = shared_pool(managers, promises, managers.topology.online)
    found = []
    for container, demand in zip(pod.containers, demand_of(managers.rules, pod).containers, strict=True):
        report = reports[container.name]
        level = isolation(managers, promises, pod, container.name)
        found.append(
            {
                "coreClasses": list(managers.topology.classes_of(report.cpus or CpuSet())),
                "cpus": str(pool if report.cpus is None else report.cpus),
                "exclusiveCpus": demand.cpus,
                "isolation": level.value,
                "kind": container.kind.value,
                "memoryNodes": promised_fields(promises.of_pod(pod.uid), container.name)["mems"],
                "name": container.name,
                "numaNodes": None if report.cpus is None else str(managers.topology.numa_of(report.cpus)),
                "whyShared": None if report.why_shared is None else report.why_shared.value,
            }
        )
    return found


def describe_step(step: MergeTrace | AllocationStep) -> Document:
    """Describe one step of a decision: the merge of NUMA hints, or the allocation of one resource."""
    if not isinstance(step, MergeTrace):
        return describe_allocation(step)
    events = describe_events(step.events)
    return {
        "admitted": step.admitted,
        **({"answers": events} if events else {}),
        "allSets": step.all_sets,
        "candidates": [
            {
                "becauseOf": list(candidate.because_of),
                "nodes": str(candidate.nodes),
                "opinions": {resource: opinion.value for resource, opinion in candidate.opinions},
                "verdict": candidate.verdict.value,
            }
            for candidate in step.candidates
        ],
        "container": step.container,
        "nodes": None if step.nodes is None else str(step.nodes),
        "overruled": list(step.overruled),
        "insteadOf": None if step.instead_of is None else str(step.instead_of),
        "preferred": step.preferred,
        "silent": list(step.silent),
        "step": "merge",
    }
