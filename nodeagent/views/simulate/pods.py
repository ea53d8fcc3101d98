"""Document of a simulation that decides on pods one after the other: the decisions, the final placement, and the remaining resources.
docs/simulate.md describes the document.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from nodeagent.core.admission.managers import Admitted
from nodeagent.core.admission.what_if import Refused, WhatIf, keys_of
from nodeagent.core.cgroups.desired_cgroups import shared_pool
from nodeagent.core.explain.capacity_search import Capacity
from nodeagent.core.explain.numa_headroom import headroom
from nodeagent.core.explain.resizing import Resizing
from nodeagent.core.model.config import Config
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import NOTHING, Isolation
from nodeagent.core.model.refusals import NotResized
from nodeagent.views.explain.document import (
    describe_configuration,
    describe_machine,
    describe_placed_containers,
)
from nodeagent.views.explain.resizes import describe_resize_changes
from nodeagent.views.explain.resources.by_resource import describe_headroom
from nodeagent.views.explain.resources.cpu import count_free_cpus, measure_fragmentation
from nodeagent.views.holdings.by_resource import decided_fields

Document = dict[str, Any]
VERSION = 1


class Simulation(Struct, frozen=True):
    """Simulated decisions on pods of one node, from which the document is made."""

    config: Config
    source: str
    """Name of the configuration file."""
    before: WhatIf
    after: WhatIf
    decisions: tuple[tuple[Pod, Admitted | Refused | NotResized], ...]
    capacity: Capacity | None = None
    copied: tuple[Pod, ...] = ()
    """Pods of which the simulation counts how many copies fit on the node."""
    ended: tuple[Pod, ...] = ()
    """Pods on the node that were assumed to end, because simulated pods replace them."""
    resizes: tuple[Resizing, ...] = ()
    """Details of those decisions that resize running pods."""


def describe_run(run: Simulation, where: str) -> Document:
    """Describe one simulation as a document.

    Args:
        run: the simulation.
        where: a short description of the machine.
    """
    found, capacity = run.capacity, None
    if found is not None:
        refusal = found.decision
        capacity = {
            "complete": refusal is not None,
            "copies": found.copies,
            "of": [pod.full_name for pod in run.copied],
            "message": None if refusal is None else refusal.message,
            "pod": None if found.refused is None else found.refused.full_name,
            "reason": None if refusal is None else str(refusal.reason),
        }
    return {
        **_describe_side(run),
        "kind": "Simulation",
        "capacity": capacity,
        "machine": _describe_machine(run, where),
        "version": VERSION,
    }


def describe_comparison(first: Simulation, second: Simulation, where: str) -> Document:
    """Compare two simulations of the same pods side by side.

    Args:
        first: the simulation with one configuration.
        second: the simulation with the other configuration.
        where: a short description of the machine.
    """
    sides = [_describe_side(first), _describe_side(second)]
    pairs = zip(sides[0]["pods"], sides[1]["pods"], strict=True)
    return {
        "differing": [
            f"{a['namespace']}/{a['name']}"
            for a, b in pairs
            if not a["replaced"] and _remove_shared_cpus(a) != _remove_shared_cpus(b)
        ],
        "kind": "Comparison",
        "machine": _describe_machine(first, where),
        "sides": sides,
        "version": VERSION,
    }


def _describe_machine(run: Simulation, where: str) -> Document:
    return describe_machine(run.after.managers.topology, run.after.managers.reserved, where)


def _remove_shared_cpus(pod: Document) -> Document:
    """Return the document of a pod without the CPUs of containers in the shared pool. A different pool alone is then no difference between
    two simulations.
    """
    containers = [{**c, "cpus": ""} if c["isolation"] == Isolation.HOST.value else c for c in pod["containers"]]
    return {**pod, "containers": containers}


def _describe_side(run: Simulation) -> Document:
    left, free, largest = describe_remaining(run.after)
    pods = [
        _describe_pod(run, pod, decision, replaced=replaced)
        for (pod, decision), replaced in zip(
            run.decisions, _find_replaced([pod for pod, _ in run.decisions]), strict=True
        )
    ]
    staying = [pod["decision"] for pod in pods if not pod["replaced"]]
    return {
        "configuration": {**describe_configuration(run.config), "file": run.source},
        "ended": [pod.full_name for pod in run.ended],
        "nodes": left,
        "pods": pods,
        "reserved": str(run.after.managers.reserved),
        "shared": str(shared_pool(run.after.managers, run.after.promises, run.after.managers.topology.online)),
        "summary": {
            "admitted": staying.count("admitted"),
            "before": len(run.before.pods),
            "freeCpus": free,
            "largestFreeNode": largest,
            "refused": staying.count("refused"),
            "replaced": len(pods) - len(staying),
        },
    }


def _find_replaced(pods: Sequence[Pod]) -> list[bool]:
    """Return, for each pod of the sequence, whether a later pod replaces it."""
    taken: set[tuple[str, str]] = set()
    found = []
    for pod in reversed(pods):
        found.append(not taken.isdisjoint(keys_of(pod)))
        taken |= keys_of(pod)
    return found[::-1]


def describe_remaining(what_if: WhatIf) -> tuple[list[Document], int, int]:
    """Return the remaining resources of each NUMA node, the number of free CPUs, and the number of CPUs of the largest container that fits
    on one node.
    """
    left = headroom(what_if.managers, what_if.promises, what_if.pods)
    nodes = [{**describe_headroom(node), "fragmentationPercent": measure_fragmentation(node)} for node in left]
    return (nodes, *count_free_cpus(what_if, left))


def _describe_pod(run: Simulation, pod: Pod, decision: Admitted | Refused | NotResized, *, replaced: bool) -> Document:
    """Describe the decision on one pod.

    The document shows the containers' placement at the end of the simulation. If a later pod replaces this one, the document shows the
    placement right after the decision.
    """
    refusal = None if isinstance(decision, Admitted) else decision
    held = NOTHING
    if isinstance(decision, Admitted):
        held = (decision.promises if replaced else run.after.promises).of_pod(pod.uid)
    resize = next((one for one in run.resizes if one.new is pod), None)
    return {
        "containers": []
        if not isinstance(decision, Admitted)
        else describe_placed_containers(
            run.after.managers, pod, decision.report.containers, decision.promises if replaced else run.after.promises
        ),
        "decision": "admitted" if refusal is None else "refused",
        **(decided_fields(pod, held) if refusal is None else {}),
        "message": None if refusal is None else refusal.message,
        "name": pod.name,
        "namespace": pod.namespace,
        "reason": None if refusal is None else str(refusal.reason),
        "replaced": replaced,
        **({} if resize is None else {"resize": describe_resize_changes(resize)}),
        "uid": pod.uid,
    }
