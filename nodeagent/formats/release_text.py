"""What `nodeagent release` tells: what would be done, in its order, and what has happened since the last look. Decides nothing."""

from collections.abc import Collection, Iterator

from nodeagent.core.idset import CpuSet, NumaSet
from nodeagent.core.layout import pod_path
from nodeagent.core.pod import ContainerKind
from nodeagent.core.promises import Promises
from nodeagent.core.state import ContainerStatus, NodeState, PodEntry
from nodeagent.formats.inspection_words import counted


def plan_text(state: NodeState, entries: Collection[PodEntry]) -> list[str]:
    """Say what a release of these pods would do."""
    lines = []
    for entry in entries:
        name = entry.pod.full_name
        if not entry.is_active:
            why = entry.phase.value if entry.refusal is None else f"refused: {entry.refusal.reason}"
            lines.append(f"{name}: holds nothing ({why})")
            continue
        lines.append(f"{name}: ends" + (", as it does already" if entry.deleting_since_ms is not None else ""))
        waves = [", ".join(wave) for wave in _waves(entry)]
        if waves:
            after = f"SIGKILL after {entry.pod.termination_grace_seconds} s"
            lines.append(f"  SIGTERM to {'; after its end to '.join(waves)}; {after}")
        lines.append(f"  when its last process has gone: {_held(state.promises, entry)}; cgroup {pod_path(entry)} goes")
    return lines


def events(before: NodeState, after: NodeState, uids: Collection[str], now_ms: int) -> Iterator[str]:
    """Say what has become of pods since the last look, one line each."""
    for old in before.entries:
        if old.pod.uid not in uids or not old.is_active:
            continue
        new = after.entry(old.pod.uid)
        if new is not None:
            for was, status in zip(old.containers, new.containers, strict=False):
                yield from _container_events(old, was, status, now_ms)
        if new is None or not new.is_active:
            yield f"{old.pod.full_name}: gone; {_held(before.promises, old)}"


def longest_end_seconds(entries: Collection[PodEntry]) -> int:
    """Say how long the slowest of these pods may take by what it was promised: its grace period, and two seconds for each sidecar."""
    return max(
        (
            e.pod.termination_grace_seconds + 2 * sum(c.kind is ContainerKind.SIDECAR for c in e.pod.containers)
            for e in entries
        ),
        default=0,
    )


def _waves(entry: PodEntry) -> Iterator[list[str]]:
    """The containers that have processes, or may have, in the order in which they are stopped."""
    there = [c for c, s in entry.pairs() if s.is_started or not c.command]
    first = [c.name for c in there if c.kind is not ContainerKind.SIDECAR]
    if first:
        yield first
    for container in reversed(there):
        if container.kind is ContainerKind.SIDECAR:
            yield [container.name]


def _held(promises: Promises, entry: PodEntry) -> str:
    """Say what comes back. In a pool nothing is one pod's alone."""
    uid = entry.pod.uid
    cpus, nodes = promises.pod_set(uid) or CpuSet(), NumaSet()
    for container in entry.pod.containers:
        cpus |= promises.own_set(uid, container.name) or CpuSet()
        nodes |= promises.memory_nodes(uid, container.name) or NumaSet()
    held = [f"CPUs {cpus}"] if cpus else []
    held += [f"memory of NUMA {nodes}"] if nodes else []
    return f"{' and '.join(held)} {'are' if cpus else 'is'} free again" if held else "it had no CPUs of its own"


def _container_events(entry: PodEntry, was: ContainerStatus, status: ContainerStatus, now_ms: int) -> Iterator[str]:
    name = f"{entry.pod.full_name} {status.name}"
    has_processes = was.is_started or not entry.pod.container(status.name).command
    if status.stop_by_ms is not None and was.stop_by_ms is None and has_processes:
        seconds = max(0, status.stop_by_ms - now_ms + 999) // 1000
        yield f"{name}: SIGTERM; SIGKILL if it still runs in {counted(seconds, 'second')}"
    if status.exit is not None and was.exit is None:
        by = status.exit.reason if status.exit.signal is None else f"by signal {status.exit.signal}"
        yield f"{name}: ended, {by if status.exit.code is None else f'exit code {status.exit.code}'}"
