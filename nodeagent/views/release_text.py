"""Documents and texts of `nodeagent release`: the planned steps in order, and the changes since the last poll."""

from collections.abc import Collection, Iterator
from typing import Any

from nodeagent.core.model.pod import ContainerKind
from nodeagent.core.model.promises import NOTHING
from nodeagent.core.model.state import ContainerStatus, NodeState, Phase, PodEntry
from nodeagent.views.holdings.by_resource import freed_fields
from nodeagent.views.wording.words import format_count

Document = dict[str, Any]


def describe_plan(state: NodeState, entry: PodEntry) -> Document:
    """Describe the release of a pod: the order in which its containers are stopped, and the resources that become free."""
    held = state.promises.of_pod(entry.pod.uid) if entry.is_active else NOTHING
    return {
        "namespace": entry.pod.namespace,
        "name": entry.pod.name,
        "uid": entry.pod.uid,
        "phase": "Refused" if entry.refusal else entry.phase.value,
        "refusal": None if entry.refusal is None else entry.refusal.reason,
        "outcome": "planned" if entry.is_active else "nothing",
        "order": list(_find_stop_order(entry)) if entry.is_active else [],
        "terminationGracePeriodSeconds": entry.pod.termination_grace_seconds,
        **freed_fields(held),
        "cgroup": entry.own_cgroup if entry.is_active else None,
        "units": list(entry.pod.units) if entry.is_active else [],
    }


def add_outcome(plan: Document, after: NodeState) -> Document:
    """Add to the plan of a pod's release whether the pod was released, according to the later state `after`."""
    if plan["outcome"] != "planned":
        return plan
    entry = after.entry(plan["uid"])
    return plan | {"outcome": "left" if entry is not None and entry.is_active else "released"}


def format_plan(plan: Document) -> list[str]:
    """Format the plan of a pod's release as lines of text."""
    name = f"{plan['namespace']}/{plan['name']}"
    if plan["outcome"] == "nothing":
        why = plan["phase"] if plan["refusal"] is None else f"refused: {plan['refusal']}"
        return [f"{name}: holds nothing ({why})"]
    lines = [f"{name}: ends" + (", which has already begun" if plan["phase"] == Phase.TERMINATING.value else "")]
    if plan["order"]:
        waves = "; then to ".join(", ".join(wave) for wave in plan["order"])
        lines.append(f"  SIGTERM to {waves}; SIGKILL after {plan['terminationGracePeriodSeconds']} s")
    held = _format_freed(plan)
    if plan["units"]:
        return [*lines, f"  {', '.join(plan['units'])} keeps running under systemd's own settings: {held}"]
    return [*lines, f"  after its last process has ended: {held}; cgroup {plan['cgroup']} is removed"]


def format_events(before: NodeState, after: NodeState, uids: Collection[str], now_ms: int) -> Iterator[str]:
    """Compare two successive states of the node, and yield one line for each event of the pods in between."""
    for old in before.entries:
        if old.pod.uid not in uids or not old.is_active:
            continue
        new = after.entry(old.pod.uid)
        if new is not None:
            for was, status in zip(old.containers, new.containers, strict=False):
                yield from _describe_container_events(old, was, status, now_ms)
        if new is None or not new.is_active:
            yield f"{old.pod.full_name}: ended; {_format_freed(freed_fields(before.promises.of_pod(old.pod.uid)))}"


def find_longest_end_seconds(entries: Collection[PodEntry]) -> int:
    """Return the number of seconds within which all these pods end. A pod needs its grace period, and two more seconds for each sidecar."""
    return max(
        (
            e.pod.termination_grace_seconds + 2 * sum(c.kind is ContainerKind.SIDECAR for c in e.pod.containers)
            for e in entries
        ),
        default=0,
    )


def _find_stop_order(entry: PodEntry) -> Iterator[list[str]]:
    """Yield groups of container names in the order in which the containers are stopped. The containers of a group are stopped together.

    Containers that can't have processes are left out.
    """
    stoppable = [c for c, s in entry.pairs() if s.is_started or (not c.is_launched and not c.unit)]
    first = [c.name for c in stoppable if c.kind is not ContainerKind.SIDECAR]
    if first:
        yield first
    for container in reversed(stoppable):
        if container.kind is ContainerKind.SIDECAR:
            yield [container.name]


def _format_freed(freed: Document) -> str:
    cpus, nodes = freed["cpus"], freed["memoryNodes"]
    held = [f"CPUs {cpus}"] if cpus else []
    held += [f"memory of NUMA {nodes}"] if nodes else []
    return f"{' and '.join(held)} {'are' if cpus else 'is'} free again" if held else "it had no exclusive CPUs"


def _describe_container_events(
    entry: PodEntry, was: ContainerStatus, status: ContainerStatus, now_ms: int
) -> Iterator[str]:
    name = f"{entry.pod.full_name} {status.name}"
    has_processes = was.is_started or not entry.pod.container(status.name).is_launched
    if status.stop_by_ms is not None and was.stop_by_ms is None and has_processes:
        seconds = max(0, status.stop_by_ms - now_ms + 999) // 1000
        yield f"{name}: SIGTERM; SIGKILL if it still runs in {format_count(seconds, 'second')}"
    if status.exit is not None and was.exit is None:
        by = status.exit.reason if status.exit.signal is None else f"by signal {status.exit.signal}"
        yield f"{name}: ended, {by if status.exit.code is None else f'exit code {status.exit.code}'}"
