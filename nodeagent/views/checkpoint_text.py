"""Text of a kubelet checkpoint, formatted from a decoded `Checkpoint`."""

from collections.abc import Iterator, Sequence

from nodeagent.core.model.promises import PodPromises
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set
from nodeagent.core.resources.devices.holdings import DeviceHoldings, taken_devices
from nodeagent.core.resources.memory.holdings import Blocks, MemoryHoldings, memory_accounts
from nodeagent.errors import printable
from nodeagent.formats.checkpoint.agreement import Disagreement
from nodeagent.formats.checkpoint.checkpoint_versions import DEVICES, Checkpoint
from nodeagent.views.wording.columns import format_table
from nodeagent.views.wording.words import format_bytes, format_count


def summarise_checkpoint(checkpoint: Checkpoint) -> Iterator[str]:
    """Summarise a checkpoint in a few lines, which also say whether the checkpoint is damaged."""
    pods = checkpoint.promises.pods
    containers = len(checkpoint.by_id) or sum(len(pod.holders) for _, pod in pods)
    lines = [f"{field} {policy}" for field, policy in sorted(checkpoint.policies.items())]
    lines += [format_count(len(pods), "pod"), format_count(containers, "container")]
    if checkpoint.version == DEVICES:
        lines.append(format_count(len(taken_devices(checkpoint.promises)), "device"))
    whole = "whole" if checkpoint.problem is None else "DAMAGED"
    yield printable(f"{checkpoint.version}, {whole}: {', '.join(lines)}")
    yield from (printable(f"  {text}") for text in (checkpoint.problem, checkpoint.note) if text is not None)


def format_agreement(found: Sequence[Disagreement]) -> Iterator[str]:
    """State whether the checkpoint agrees with the node's state, and list the differences."""
    yield "  DIFFERS from the node's state:" if found else "  agrees with the node's state"
    for each in found:
        pod = f"pod {each.pod}" if each.pod or each.container else ""
        where = " ".join(filter(None, (pod, f"container {each.container}" if each.container else "")))
        values = f"{each.file or 'nothing'} here, {each.state or 'nothing'} in the state"
        yield printable(f"    {where}{', ' if where else ''}{each.what}: {values}")


def render_checkpoint(checkpoint: Checkpoint) -> Iterator[str]:
    """Format the whole checkpoint: first the node's values, then one line per container.

    Unprintable characters are escaped, because the file may contain hostile names.
    """
    return map(printable, _format_lines(checkpoint))


def _format_lines(checkpoint: Checkpoint) -> Iterator[str]:
    yield from summarise_checkpoint(checkpoint)
    promises = checkpoint.promises
    for resource, ids in sorted(checkpoint.registered.items()):
        yield f"registered {resource}: {', '.join(ids) or 'none'}"
    if checkpoint.version != DEVICES and not checkpoint.version.startswith("memory"):
        yield f"default set: {default_set(promises) or 'empty'}"
    for node in memory_accounts(promises):
        for resource, t in node.tables:
            yield (
                f"NUMA node {node.id}, {resource}: {format_bytes(t.total)}, free {format_bytes(max(t.free, 0))}, "
                f"allocated {format_bytes(t.reserved)}, reserved for the system {format_bytes(t.system_reserved)}"
            )
    rows = [(each, str(cpus), "", "") for each, cpus in sorted(checkpoint.by_id.items())]
    rows += [row for uid, pod in promises.pods for row in _format_pod(uid, pod)]
    rows += [row for lost in promises.unrecovered for row in _format_pod(f"{lost.uid} (lost)", lost.held)]
    if rows:
        columns = (
            (0, 3) if checkpoint.version == DEVICES else (0, 1, 2, 3) if any(row[3] for row in rows) else (0, 1, 2)
        )
        rows = [("POD CONTAINER", "CPUS", "MEMORY", "DEVICES"), *rows]
        yield from format_table([[row[column] for column in columns] for row in rows], None)
    if checkpoint.saved is not None:
        state = checkpoint.saved.state
        yield f"generation {state.generation}, {format_count(len(state.entries), 'pod')} known:"
        yield from (f"  {e.pod.full_name} ({e.pod.uid}): {e.phase.value}, {e.origin.name}" for e in state.entries)


def _format_pod(uid: str, pod: PodPromises) -> Iterator[tuple[str, str, str, str]]:
    if pod.of(CpuHoldings).pod_cpus is not None or pod.of(MemoryHoldings).pod_memory is not None:
        yield (
            f"{uid} (as a whole)",
            str(pod.of(CpuHoldings).pod_cpus or ""),
            _format_memory(pod.of(MemoryHoldings).pod_memory or ()),
            "",
        )
    for name in pod.holders:
        devices = ", ".join(
            f"{one.claim or one.resource} {one.id}{f' on {one.nodes}' if one.nodes else ''}"
            for one in pod.of(DeviceHoldings).devices_of(name)
        )
        yield (
            f"{uid} {name}",
            str(pod.of(CpuHoldings).own_set(name) or ""),
            _format_memory(pod.of(MemoryHoldings).blocks(name) or ()),
            devices,
        )


def _format_memory(blocks: Blocks) -> str:
    return ", ".join(f"{b.resource} {format_bytes(b.size_bytes)} on {b.nodes}" for b in blocks)
