"""Everything promised to pods, as one immutable value: what each pod holds, and what each resource keeps of the node, by resource.

Equal states are equal, however they came about. Only looks things up; decides nothing, and names no resource.
"""

import enum
from collections.abc import Iterator
from operator import itemgetter
from typing import TypeVar

from msgspec import Struct, field

from nodeagent.core.model.holdings import Books, Holdings, with_part
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.podmap import PodMap

H = TypeVar("H", bound=Holdings)
B = TypeVar("B", bound=Books)


class Hint(Struct, frozen=True):
    """What the topology manager stored for a container."""

    mask: NumaSet | None = None
    """None: no NUMA node is better than another ("any")."""
    preferred: bool = False


NO_HINT = Hint()


class PodPromises(Struct, frozen=True):
    """What one pod holds."""

    hints: tuple[tuple[str, Hint], ...] = ()
    """By container, sorted."""
    parts: tuple[Holdings, ...] = ()
    """What it has of each resource (`having`)."""

    def of(self, kind: type[H]) -> H:
        """Return what it has of a resource, by the type of that resource's holdings."""
        for part in self.parts:
            if isinstance(part, kind):
                return part
        return kind()

    def having(self, *parts: Holdings) -> "PodPromises":
        """Return it with other holdings of these resources."""
        own = self.parts
        for part in parts:
            own = with_part(own, part)
        return PodPromises(self.hints, own)

    def without(self, name: str) -> "PodPromises":
        """Return it without what one container has."""
        hints = tuple(item for item in self.hints if item[0] != name)
        return PodPromises(hints).having(*(part.without(name) for part in self.parts))

    def hint(self, name: str) -> Hint:
        for key, hint in self.hints:
            if key == name:
                return hint
        return NO_HINT

    @property
    def holders(self) -> list[str]:
        """The containers that hold something of a resource, sorted."""
        return sorted({name for part in self.parts for name in part.holders})

    @property
    def is_nothing(self) -> bool:
        return self == NOTHING


NOTHING = PodPromises()


class UnrecoveredPod(Struct, frozen=True):
    """A pod that may run, and of which there are records alone: the state that knew it was lost, and its manifest isn't there now."""

    uid: str
    held: PodPromises
    """What no cgroup shows. The cards of claims are under no container's name: nothing says which containers use them."""
    name: str = ""
    """As far as a record says it."""


class Promises(Struct, frozen=True):
    pods: PodMap[PodPromises] = field(default_factory=PodMap)
    """Every pod that holds something; other pods are not in it."""
    unrecovered: tuple[UnrecoveredPod, ...] = ()
    """What they have, no other pod gets."""
    parts: tuple[Books, ...] = ()
    """What each resource keeps of the node (`having`)."""

    def of(self, kind: type[B]) -> B:
        """Return what a resource keeps of the node, by the type of its books."""
        for part in self.parts:
            if isinstance(part, kind):
                return part
        return kind()

    def having(self, *parts: Books) -> "Promises":
        """Return them with other books of these resources."""
        own = self.parts
        for part in parts:
            own = with_part(own, part)
        return Promises(self.pods, self.unrecovered, own)

    def of_pod(self, uid: str) -> PodPromises:
        pod = self.pods.get(uid)
        return NOTHING if pod is None else pod

    def hint(self, uid: str, name: str) -> Hint:
        return self.of_pod(uid).hint(name)

    def all_pods(self) -> Iterator[tuple[str, PodPromises]]:
        """Return what all pods have, unrecovered ones too, sorted by UID."""
        more = [(one.uid, one.held) for one in self.unrecovered]
        return iter(sorted((*self.pods, *more), key=itemgetter(0)) if more else self.pods)


class Isolation(enum.StrEnum):
    """Which containers share a container's CPUs."""

    HOST = "host"
    POD = "pod"
    MIXED = "mixed"
    """Nobody shares its exclusive CPUs; beside them it has the shared pool."""
    CONTAINER = "container"

    @property
    def has_own_cpus(self) -> bool:
        """Whether the container has CPUs on which no other one runs."""
        return self in {Isolation.MIXED, Isolation.CONTAINER}


def with_pod(promises: Promises, uid: str, pod: PodPromises) -> Promises:
    """Replace what a pod holds; a pod that holds nothing is removed."""
    pods = promises.pods.without(uid) if pod == NOTHING else promises.pods.put(uid, pod)
    return Promises(pods, promises.unrecovered, promises.parts)
