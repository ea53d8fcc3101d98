"""Hint families: NUMA hints that are described by conditions instead of listed, and their merge. They are used on machines with so many
NUMA nodes that lists of hints would be too long.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from nodeagent.core.model.idset import NumaMask
from nodeagent.core.numa.hint_table import order_sets
from nodeagent.core.numa.hints import HintList, Merged, MergeRules, fitness
from nodeagent.core.numa.node_search import Cover, Steps, both, fittest_cover, fittest_remainder, narrowest

MAX_LISTED_NODES = 5
"""Largest number of NUMA nodes for which hints are listed. Five nodes have 31 non-empty sets, and merging such lists takes no longer than a
search.
"""

MAX_STEPS = 20_000
"""Maximum number of search steps of one merge, or of one choice of nodes. This many steps take some hundredths of a second."""


class HintFamily(Struct, frozen=True):
    listed: tuple[tuple[NumaMask, bool], ...]
    """Hints that are listed, as pairs (mask, preferred), in addition to those that `cover` describes."""
    cover: Cover | None
    preferred_count: int
    """Number of nodes of a preferred set."""
    sockets: tuple[NumaMask, ...] = ()
    """Nodes of each socket. The tuple is empty if `preferred_sockets` is None."""
    preferred_sockets: int | None = None
    """Number of sockets. A set of nodes on exactly this many sockets is preferred, too, whatever its number of nodes. None means that
    sockets don't matter.
    """

    def prefers(self, mask: NumaMask) -> bool:
        return any(hint == (mask, True) for hint in self.listed) or (
            self.cover is not None and self.is_preferred(mask) and self.cover.contains(mask)
        )

    def is_preferred(self, mask: NumaMask) -> bool:
        """Return whether a set that the cover describes is a preferred hint."""
        return mask.bit_count() == self.preferred_count or (
            self.preferred_sockets is not None
            and sum(1 for socket in self.sockets if socket & mask) == self.preferred_sockets
        )

    def list_hints(self, nodes: tuple[int, ...]) -> HintList:
        """Return all hints as a list. This is only possible on a machine with few NUMA nodes."""
        listed = dict(sorted(self.listed))
        if self.cover is not None:
            sums = [self.cover.sum_up(nodes, number) for number in range(len(self.cover.needs))]
            for index, mask in order_sets(nodes):
                if all(
                    of[index] >= need for of, need in zip(sums, self.cover.needs, strict=True)
                ) and self.cover.has_right_nodes(mask):
                    listed[mask] = listed.get(mask, False) or self.is_preferred(mask)
        return tuple(listed.items())

    def single_nodes(self) -> HintList:
        """Return those preferred hints that consist of a single node."""
        masks = {mask for mask, preferred in self.listed if preferred and mask.bit_count() == 1}
        if self.cover is not None:
            nodes = (NumaMask(1 << node) for node, _ in self.cover.amounts)
            masks |= {node for node in nodes if self.prefers(node)}
        return tuple((mask, True) for mask in sorted(masks))

    def fewest_nodes(self, steps: Steps) -> int:
        """Return the number of nodes in the smallest hint, or 0 if there is no hint."""
        found = None if self.cover is None else narrowest(self.cover, steps)
        masks = [mask for mask, _ in self.listed] + ([] if found is None else [found])
        return min((mask.bit_count() for mask in masks), default=0)


Hints = HintList | HintFamily


def preferred_nodes(hints: Hints) -> tuple[NumaMask, ...]:
    """Return those preferred hints that consist of a single node."""
    listed = hints.single_nodes() if isinstance(hints, HintFamily) else hints
    return tuple(mask for mask, preferred in listed if preferred and mask is not None and mask.bit_count() == 1)


def is_fine_with(hints: Hints, mask: NumaMask) -> bool:
    """Return whether the set is a preferred hint, or all sets are accepted."""
    return hints.prefers(mask) if isinstance(hints, HintFamily) else (mask, True) in hints or (None, True) in hints


def merge_families(rules: MergeRules, lists: Sequence[Hints], steps: Steps) -> Merged:
    """Merge one hint from each list or family into the best hint, under policy best-effort or restricted.

    The result is exact unless the limit on steps is reached. In this case a preferred hint may be missed, so policy restricted refuses the
    pod, and best-effort uses a non-preferred hint. The result may then also have higher node IDs than necessary.
    """
    preferred = _find_best_preferred(rules, lists, steps)
    if preferred is not None:
        return Merged(preferred, preferred=True)
    return Merged(_find_best_non_preferred(rules, lists, steps), preferred=False)


def _find_best_preferred(rules: MergeRules, lists: Sequence[Hints], steps: Steps) -> NumaMask | None:
    families = _drop_duplicates(each for each in lists if isinstance(each, HintFamily))
    listed = [each for each in lists if not isinstance(each, HintFamily) and (None, True) not in each]
    if listed:
        common = {mask for mask, preferred in listed[0] if preferred and mask is not None}
        found = {m for m in common if all((m, True) in each for each in listed) and all(f.prefers(m) for f in families)}
        return min((NumaMask(mask & rules.default_mask) for mask in found), key=fitness(rules), default=None)
    found = {
        mask
        for family in families
        for mask, preferred in family.listed
        if preferred and all(other.prefers(mask) for other in families)
    }
    covered = _find_preferred_in_covers(rules, families, steps)
    if covered is not None:
        found.add(covered)
    return min(found, key=fitness(rules), default=None)


def _drop_duplicates(families: Iterator[HintFamily]) -> list[HintFamily]:
    # All resources of a manager have the same family, which is then listed once.
    return list(dict.fromkeys(families))


def _find_preferred_in_covers(rules: MergeRules, families: Sequence[HintFamily], steps: Steps) -> NumaMask | None:
    covers = [family.cover for family in families if family.cover is not None]
    if len(covers) < len(families):
        return None
    cover = both(covers)
    if cover.is_empty:
        return None
    strict = {family.preferred_count for family in families if family.preferred_sockets is None}
    if len(strict) > 1:
        return None
    sockets = next((family.sockets for family in families if family.preferred_sockets is not None), ())
    for count in sorted(strict) or range(cover.fewest(), cover.universe.bit_count() + 1):
        loose = [family for family in families if family.preferred_count != count]

        def is_allowed(mask: NumaMask, families: Sequence[HintFamily] = loose) -> bool:
            return all(family.is_preferred(mask) for family in families)

        found = fittest_cover(
            cover, count, steps, distances=rules.distances, sockets=sockets, is_allowed=is_allowed if loose else None
        )
        if found is not None:
            return found
    return None


def _find_best_non_preferred(rules: MergeRules, lists: Sequence[Hints], steps: Steps) -> NumaMask:
    """Return the best mask when no preferred hint exists. As in `hints.merge`, masks with the wanted number of nodes (`wanted_count`) come
    first, then smaller masks, then larger masks.
    """
    fewest = {
        each: each.fewest_nodes(steps) for each in _drop_duplicates(e for e in lists if isinstance(e, HintFamily))
    }
    wanted = max(
        fewest[each]
        if isinstance(each, HintFamily)
        else min((m.bit_count() for m, _ in each if m is not None), default=0)
        for each in lists
    )
    choices = _list_choices(rules, lists)
    most = rules.default_mask.bit_count()
    for count in (*range(wanted, 0, -1), *range(wanted + 1, most + 1)):
        found = []
        for mask, covers in choices:
            if mask.bit_count() > count and covers:
                found.append(fittest_remainder(mask, covers, count, steps, rules.distances))
            elif mask.bit_count() == count:
                found.append(mask)
        best = min((mask for mask in found if mask is not None), key=fitness(rules), default=None)
        if best is not None:
            return best
    return rules.default_mask


def _list_choices(rules: MergeRules, lists: Sequence[Hints]) -> list[tuple[NumaMask, list[Cover]]]:
    """Return all ways to choose one mask or cover from each list or family. For each way, return the intersection of the chosen masks, and
    the chosen covers.

    The intersection is limited to nodes that are in the universes of all chosen covers.
    """
    covers: dict[Cover, int] = {}
    choices: set[tuple[NumaMask, tuple[int, ...]]] = {(rules.default_mask, ())}
    for each in lists:
        if isinstance(each, HintFamily):
            masks = {mask for mask, _ in each.listed}
            number = None if each.cover is None else covers.setdefault(each.cover, len(covers))
        else:
            masks = {rules.default_mask if mask is None else mask for mask, _ in each}
            number = None
        choices = {(NumaMask(a & b), taken) for a, taken in choices for b in masks if a & b} | (
            set() if number is None else {(a, (*taken, number)) for a, taken in choices}
        )
    known = list(covers)
    narrowed = []
    for mask, taken in choices:
        common = mask
        for number in taken:
            common = NumaMask(common & known[number].universe)
        if common:
            narrowed.append((common, [known[number] for number in taken]))
    return narrowed
