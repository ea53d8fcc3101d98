"""What a refused request wanted of the NUMA nodes, and what they have too little of, in plain words."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from nodeagent.core.explain.numa_headroom import Room
from nodeagent.core.explain.what_if import Trial
from nodeagent.core.memory.groups import fewest_nodes
from nodeagent.core.model.demand import Amounts
from nodeagent.views.wording.words import bytes_text, counted

_MOST_HOLDERS = 8
FEW_SETS = 3
"""Of NUMA nodes, that are all named where they fare alike."""
MOST_NODES = 8
"""Of more nodes only the best are told one by one."""


class Demanded(Struct, frozen=True):
    """So much of one resource, on as few NUMA nodes as could hold it if nobody else were there."""

    resource: str
    """Empty: CPUs."""
    amount: int
    nodes: int
    whole_cores: bool = False
    """Of CPUs only those count whose cores are free as a whole."""

    def size(self, amount: int) -> str:
        """Spell an amount of it."""
        if not self.resource:
            return counted(amount, "CPU")
        return f"{bytes_text(amount) if amount else '0'} of {self.resource}"

    def can_give(self, amount: int) -> str:
        """Spell an amount that is free for it."""
        return self.size(amount) + (" in whole cores" if self.whole_cores else "")

    def short(self, amount: int) -> str:
        """Say that so much is missing."""
        return f"{bytes_text(amount) if self.resource else amount} short"

    def free(self, room: Room) -> int:
        """How much of it a node can still give."""
        if not self.resource:
            return len(room.free - room.split if self.whole_cores else room.free)
        return next((m.free_bytes for m in room.memory if m.resource == self.resource), 0)

    def has(self, room: Room) -> int:
        """How much of it a node could give if nobody were there."""
        if not self.resource:
            return len(room.cpus)
        return next((m.allocatable_bytes for m in room.memory if m.resource == self.resource), 0)


def wishes_of(cpus: int, memory: Amounts, before: Trial) -> list[Demanded]:
    """Give a wish for each resource of which anything is wanted; memory counts where the nodes' memory is managed."""
    cpu, books = before.managers.providers.cpu, before.promises
    wishes = [Demanded("", cpus, cpu.layout.fewest_nodes(cpus), cpu.picking.whole_cores)] if cpus else []
    wanted = tuple((resource, size) for resource, size in memory if size and books.memory)
    return wishes + [Demanded(resource, size, fewest_nodes(books, wanted)) for resource, size in wanted]


def wanted_where(wishes: Iterable[Demanded]) -> str:
    """Say on how many NUMA nodes."""
    counts = {wish.nodes for wish in wishes} or {1}
    if counts == {1}:
        return "on a single NUMA node"
    if len(counts) == 1:
        return f"on {counts.pop()} NUMA nodes, the fewest that could hold it"
    each = ", ".join(f"{wish.resource or 'CPUs'} on {wish.nodes}" for wish in wishes)
    return f"each on the fewest NUMA nodes that could hold it: {each}"


def lacking(wishes: Sequence[Demanded], nodes: Sequence[Room]) -> Iterator[str]:
    """Say what the nodes together have too little of, then each node: those first that come nearest."""
    yield from lacking_in_all([wish for wish in wishes if wish.nodes > 1], nodes)
    told = [(_distance(wishes, room), room.node, text) for room in nodes if (text := _of_node(wishes, room))]
    told.sort()
    yield from (text for _, _, text in told[:MOST_NODES])
    if len(told) > MOST_NODES:
        yield f"and {counted(len(told) - MOST_NODES, 'NUMA node')} that {'have' if len(told) > MOST_NODES + 1 else 'has'} less"


def lacking_in_all(wishes: Iterable[Demanded], nodes: Sequence[Room]) -> Iterator[str]:
    """Say of what all nodes together, or as many as are wanted, have too little."""
    for wish in wishes:
        free = sorted((wish.free(room) for room in nodes), reverse=True)
        most = sum(free[: wish.nodes])
        if sum(free) < wish.amount:
            yield f"in all {wish.can_give(sum(free))} can still be given: {wish.short(wish.amount - sum(free))}"
        elif wish.nodes > 1 and most < wish.amount:
            yield f"no {wish.nodes} NUMA nodes have more than {wish.can_give(most)} free together: {wish.short(wish.amount - most)}"


def _distance(wishes: Sequence[Demanded], room: Room) -> int:
    """How far a node is from what is wanted of the first resource (CPUs, if any are): of it alone, or of all that it has."""
    wish = wishes[0]
    return (wish.amount if wish.nodes == 1 else wish.has(room)) - wish.free(room)


def _of_node(wishes: Sequence[Demanded], room: Room) -> str:
    """Say what a node has too little of; nothing if it has all that could be wanted of it."""
    parts = []
    for wish in wishes:
        free, has = wish.free(room), wish.has(room)
        if wish.resource and not room.memory:
            continue
        of = "" if wish.resource else f" of {has}"
        if wish.whole_cores and room.split:
            of += f" ({room.split} are halves of cores)"
        if wish.nodes == 1 and free < wish.amount:
            parts.append(f"{wish.can_give(free)} free{of}, {wish.short(wish.amount - free)}")
        elif wish.nodes > 1 and free < has:
            parts.append(f"{wish.can_give(free)} free{of or f', of {bytes_text(has)}'}")
    if room.group is not None and any(wish.resource for wish in wishes):
        parts.append(f"its memory is given only together with that of NUMA {room.group}")
    if not parts:
        return ""
    return f"NUMA {room.node}: {'; '.join(parts)}{taken_text(room)}"


def taken_text(room: Room) -> str:
    """Say who has its CPUs, in brackets; nothing if nobody has."""
    holders = [f"{h.pod} {h.container or ''}".rstrip() + f" has {h.cpus}" for h in room.holders]
    more = len(holders) - _MOST_HOLDERS
    held = ", ".join(holders if more <= 0 else [*holders[:_MOST_HOLDERS], f"and {more} more (-o json has all)"])
    reserved = f"reserved {room.reserved}" if room.reserved else ""
    taken = "; ".join(part for part in (held, reserved) if part)
    return f" ({taken})" if taken else ""


def sets_text(sets: Sequence[str]) -> str:
    """Name sets of nodes that fare alike: a few as they are, of more an example and how many there are."""
    return " or ".join(sets) if len(sets) <= FEW_SETS else f"{sets[0]} and {len(sets) - 1} more sets"
