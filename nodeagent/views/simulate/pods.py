"""Pods decided one after the other, as a document: decisions, final placement, what is left. docs/simulate.md describes it."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from nodeagent.core.admission.managers import Admitted
from nodeagent.core.cgroups.desired_cgroups import shared_pool
from nodeagent.core.explain.capacity_search import Capacity
from nodeagent.core.explain.numa_headroom import NodeHeadroom, headroom
from nodeagent.core.explain.resizing import Resizing
from nodeagent.core.explain.what_if import Refused, WhatIf, keys_of
from nodeagent.core.model.config import Config
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import NOTHING, Isolation, PodPromises
from nodeagent.core.model.refusals import NotResized
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.cpu.manager import NOBODY
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.views.explain.document import configuration, headroom_document, machine, placed_containers
from nodeagent.views.explain.resizes import resize_part
from nodeagent.views.wording.further_holdings import further_holdings

Document = dict[str, Any]
VERSION = 1


class Simulation(Struct, frozen=True):
    """Pods decided on one node."""

    config: Config
    source: str
    """The configuration's name."""
    before: WhatIf
    after: WhatIf
    decisions: tuple[tuple[Pod, Admitted | Refused | NotResized], ...]
    capacity: Capacity | None = None
    copied: tuple[Pod, ...] = ()
    """The pods whose copies the capacity counts."""
    ended: tuple[Pod, ...] = ()
    """Pods of the node that are replaced."""
    resizes: tuple[Resizing, ...] = ()
    """Those of the decisions that are on running pods' amounts."""


def run_document(run: Simulation, where: str) -> Document:
    """Describe one run.

    Args:
        run: as decided.
        where: the machine, in a few words.
    """
    return {
        **_side(run),
        "kind": "Simulation",
        "capacity": None if run.capacity is None else _capacity(run.capacity, run.copied),
        "machine": _machine(run, where),
        "version": VERSION,
    }


def comparison(first: Simulation, second: Simulation, where: str) -> Document:
    """Compare two runs of the same pods side by side.

    Args:
        first: under one configuration.
        second: under the other.
        where: the machine, in a few words.
    """
    sides = [_side(first), _side(second)]
    pairs = zip(sides[0]["pods"], sides[1]["pods"], strict=True)
    return {
        "differing": [f"{a['namespace']}/{a['name']}" for a, b in pairs if not a["replaced"] and _own(a) != _own(b)],
        "kind": "Comparison",
        "machine": _machine(first, where),
        "sides": sides,
        "version": VERSION,
    }


def _machine(run: Simulation, where: str) -> Document:
    return machine(run.after.managers.topology, run.after.managers.reserved, where)


def _own(pod: Document) -> Document:
    """Return only the decision on the pod: shared containers are where all shared ones are."""
    containers = [{**c, "cpus": ""} if c["isolation"] == Isolation.HOST.value else c for c in pod["containers"]]
    return {**pod, "containers": containers}


def _side(run: Simulation) -> Document:
    left, free, largest = left_on(run.after)
    pods = [
        _pod(run, pod, decision, replaced=replaced)
        for (pod, decision), replaced in zip(run.decisions, _replaced([pod for pod, _ in run.decisions]), strict=True)
    ]
    staying = [pod["decision"] for pod in pods if not pod["replaced"]]
    return {
        "configuration": {**configuration(run.config), "file": run.source},
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


def _replaced(pods: Sequence[Pod]) -> list[bool]:
    """Return for each pod whether a later one replaces it."""
    taken: set[tuple[str, str]] = set()
    found = []
    for pod in reversed(pods):
        found.append(not taken.isdisjoint(keys_of(pod)))
        taken |= keys_of(pod)
    return found[::-1]


def left_on(what_if: WhatIf) -> tuple[list[Document], int, int]:
    """Return what each NUMA node has left, how many CPUs in all, and at most for one container on one node."""
    left = headroom(what_if.managers, what_if.promises, what_if.pods)
    cpu = what_if.managers.providers.of(CpuResource).manager
    anyone = cpu.asking(what_if.promises, NOBODY, None, 0, 0)
    return (
        [{**headroom_document(node), "fragmentationPercent": _fragmentation(node)} for node in left],
        sum(len(node.free) for node in left),
        max((cpu.usable(anyone, node.free.bits).bit_count() for node in left), default=0),
    )


def _fragmentation(node: NodeHeadroom) -> int:
    """How many of the free CPUs aren't whole cores."""
    return 100 * len(node.split) // len(node.free) if node.free else 0


def _pod(run: Simulation, pod: Pod, decision: Admitted | Refused | NotResized, *, replaced: bool) -> Document:
    """Describe one decision, with the final places of the containers; for a replaced pod, the initial ones."""
    refusal = None if isinstance(decision, Admitted) else decision
    held = NOTHING
    if isinstance(decision, Admitted):
        held = (decision.promises if replaced else run.after.promises).of_pod(pod.uid)
    resize = next((one for one in run.resizes if one.new is pod), None)
    resources = run.after.managers.providers.resources
    further = {c.name: found for c in pod.containers if (found := further_holdings(resources, held, c.name))}
    return {
        "containers": []
        if not isinstance(decision, Admitted)
        else placed_containers(
            run.after.managers, pod, decision.report.containers, decision.promises if replaced else run.after.promises
        ),
        **({"claims": _claims(held)} if held.of(ClaimHoldings).claims else {}),
        "decision": "admitted" if refusal is None else "refused",
        **({"devices": _devices(held)} if held.of(DeviceHoldings).devices else {}),
        **({"further": further} if further else {}),
        "message": None if refusal is None else refusal.message,
        "name": pod.name,
        "namespace": pod.namespace,
        "reason": None if refusal is None else str(refusal.reason),
        "replaced": replaced,
        **({} if resize is None else {"resize": resize_part(resize)}),
        "uid": pod.uid,
    }


def _devices(held: PodPromises) -> list[Document]:
    return [
        {
            "container": name,
            "id": device.id,
            "names": list(device.names),
            "numaNodes": str(device.nodes) if device.nodes else None,
            "resource": device.claim or device.resource,
        }
        for name, own in held.of(DeviceHoldings).devices
        for device in own
    ]


def _claims(held: PodPromises) -> list[Document]:
    from nodeagent.views.wording.claims import claim_documents  # noqa: PLC0415 - few pods have claims

    return claim_documents(held.of(ClaimHoldings).claims)


def _capacity(capacity: Capacity, copied: Sequence[Pod]) -> Document:
    decision = capacity.decision
    return {
        "complete": decision is not None,
        "copies": capacity.copies,
        "of": [pod.full_name for pod in copied],
        "message": None if decision is None else decision.message,
        "pod": None if capacity.refused is None else capacity.refused.full_name,
        "reason": None if decision is None else str(decision.reason),
    }
