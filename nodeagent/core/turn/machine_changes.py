"""Differences between a saved state and the same state on the current machine, while all pods keep their allocations."""

from collections.abc import Iterator

from msgspec import Struct

from nodeagent.core.model.pod import MEMORY
from nodeagent.core.model.promises import Promises
from nodeagent.core.resources.cpu.holdings import CpuBooks
from nodeagent.core.resources.memory.holdings import memory_accounts

_KIB = 1024
_MOST_WOBBLE_BYTES = 2**26
_WOBBLE_SHARE = 1000
"""The kernel keeps a different part of the memory to itself after every boot, some KiB to a few MiB. Larger differences, or those of more
than a thousandth of a node, are another machine.
"""


class MachineChange(Struct, frozen=True):
    """A value of the node that differs."""

    what: str
    before: str
    after: str
    is_ordinary: bool = False
    """Whether such a difference is usual after a boot."""

    def __str__(self) -> str:
        return f"{self.what}: {self.before} → {self.after}"


def list_machine_changes(before: Promises, after: Promises) -> tuple[MachineChange, ...]:
    """List the values of the node that differ: the shared pool, and the memory of each NUMA node."""
    return (
        *_list_cpu_changes(before, after),
        *_list_memory_changes(before, after),
        *_list_other_changes(before, after),
    )


def _list_cpu_changes(before: Promises, after: Promises) -> Iterator[MachineChange]:
    old, new = before.of(CpuBooks), after.of(CpuBooks)
    if old.default != new.default:
        yield MachineChange("shared CPUs", str(old.default) or "none", str(new.default) or "none")
    if old.reuse != new.reuse:
        old_cpus, new_cpus = ("none" if books.reuse is None else str(books.reuse.cpus) for books in (old, new))
        yield MachineChange("CPUs of init containers", old_cpus, new_cpus)


def _list_memory_changes(before: Promises, after: Promises) -> Iterator[MachineChange]:
    olds, news = ({node.id: node for node in memory_accounts(promises)} for promises in (before, after))
    for node in sorted(olds.keys() | news.keys()):
        old_tables, new_tables = (dict(nodes[node].tables) if node in nodes else {} for nodes in (olds, news))
        for resource in sorted(old_tables.keys() | new_tables.keys()):
            old, new = old_tables.get(resource), new_tables.get(resource)
            where = f"{resource} of NUMA node {node}"
            if old is None or new is None:
                was, now = (_format_kib(None if table is None else table.total) for table in (old, new))
                yield MachineChange(where, was, now)
                continue
            if old.total != new.total:
                most = min(_MOST_WOBBLE_BYTES, old.total // _WOBBLE_SHARE)
                is_ordinary = resource == MEMORY and abs(new.total - old.total) <= most
                yield MachineChange(where, _format_kib(old.total), _format_kib(new.total), is_ordinary)
            if old.system_reserved != new.system_reserved:
                was, now = (_format_kib(table.system_reserved) for table in (old, new))
                yield MachineChange(f"reserved {where}", was, now)
        if node in olds and node in news and olds[node].cells != news[node].cells:
            yield MachineChange(f"memory group of NUMA node {node}", str(olds[node].cells), str(news[node].cells))


def _list_other_changes(before: Promises, after: Promises) -> Iterator[MachineChange]:
    """Name the pods whose recorded hints or invalid leftovers are gone."""
    old, new = dict(before.pods), dict(after.pods)
    for uid in sorted(old.keys() | new.keys()):
        if old.get(uid) != new.get(uid):
            yield MachineChange(f"records of pod {uid}", "as saved", "without what is not on this machine")


def _format_kib(size: int | None) -> str:
    return "none" if size is None else f"{size // _KIB:,} KiB"
