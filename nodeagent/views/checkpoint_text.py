"""A checkpoint as text. Adds words and layout to what formats/checkpoint/checkpoint_versions.py has read, no facts."""

from collections.abc import Iterator

from nodeagent.core.model.promises import Blocks, PodPromises
from nodeagent.errors import printable
from nodeagent.formats.checkpoint.checkpoint_versions import Checkpoint
from nodeagent.views.wording.columns import table
from nodeagent.views.wording.words import bytes_text, counted


def summary(checkpoint: Checkpoint) -> Iterator[str]:
    """Describe it in a few lines, and whether it is intact."""
    return map(printable, _summary(checkpoint))


def _summary(checkpoint: Checkpoint) -> Iterator[str]:
    pods = checkpoint.promises.pods
    containers = len(checkpoint.by_id) or sum(len({n for n, _ in (*p.cpus, *p.memory)}) for _, p in pods)
    policies = ", ".join(f"{field} {policy}" for field, policy in sorted(checkpoint.policies.items()))
    whole = "whole" if checkpoint.problem is None else "DAMAGED"
    yield f"{checkpoint.version}, {whole}: {policies}, {counted(len(pods), 'pod')}, {counted(containers, 'container')}"
    if checkpoint.problem is not None:
        yield f"  {checkpoint.problem}"
    if checkpoint.note is not None:
        yield f"  {checkpoint.note}"


def render_checkpoint(checkpoint: Checkpoint) -> Iterator[str]:
    """Print everything: what is left for all, then a line per container. Names in it are as hostile as the file."""
    return map(printable, _lines(checkpoint))


def _lines(checkpoint: Checkpoint) -> Iterator[str]:
    yield from summary(checkpoint)
    promises = checkpoint.promises
    if not checkpoint.version.startswith("memory"):
        yield f"default set: {promises.default or 'empty'}"
    for node in promises.memory:
        for resource, t in node.tables:
            yield (
                f"NUMA node {node.id}, {resource}: {bytes_text(t.total)}, free {bytes_text(max(t.free, 0))}, "
                f"promised {bytes_text(t.reserved)}, reserved for the system {bytes_text(t.system_reserved)}"
            )
    rows = [(each, str(cpus), "") for each, cpus in sorted(checkpoint.by_id.items())]
    rows += [row for uid, pod in promises.pods for row in _rows(uid, pod)]
    if rows:
        yield from table([("POD CONTAINER", "CPUS", "MEMORY"), *rows], None)
    if checkpoint.saved is not None:
        state = checkpoint.saved.state
        yield f"generation {state.generation}, {counted(len(state.entries), 'pod')} known:"
        yield from (f"  {e.pod.full_name} ({e.pod.uid}): {e.phase.value}, {e.origin.name}" for e in state.entries)


def _rows(uid: str, pod: PodPromises) -> Iterator[tuple[str, str, str]]:
    if pod.pod_cpus is not None or pod.pod_memory is not None:
        yield f"{uid} (as a whole)", str(pod.pod_cpus or ""), _memory(pod.pod_memory or ())
    for name in sorted({name for name, _ in (*pod.cpus, *pod.memory)}):
        yield f"{uid} {name}", str(pod.own_set(name) or ""), _memory(pod.blocks(name) or ())


def _memory(blocks: Blocks) -> str:
    return ", ".join(f"{b.resource} {bytes_text(b.size_bytes)} on {b.nodes}" for b in blocks)
