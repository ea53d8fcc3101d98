"""Promises to pods as one immutable value: the holdings of each pod and the data of each resource.

Equal states are equal values, whatever their history. Only looks things up. Decides nothing, and names no resource.
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
    """Hint that the topology manager stored for a container."""

    mask: NumaSet | None = None
    """None means that no NUMA node is better than another ("any")."""
    preferred: bool = False


NO_HINT = Hint()


class PodPromises(Struct, frozen=True):
    """Holdings of one pod."""

    hints: tuple[tuple[str, Hint], ...] = ()
    """Hints by container, sorted."""
    parts: tuple[Holdings, ...] = ()
    """Holdings by resource (`having`)."""

    def of(self, kind: type[H]) -> H:
        """Return the holdings of one type, and so of one resource."""
        for part in self.parts:
            if isinstance(part, kind):
                return part
        return kind()

    def having(self, *parts: Holdings) -> "PodPromises":
        """Return the promises with some resources' holdings replaced."""
        own = self.parts
        for part in parts:
            own = with_part(own, part)
        return PodPromises(self.hints, own)

    def without(self, name: str) -> "PodPromises":
        """Return the promises without those of a container."""
        hints = tuple(item for item in self.hints if item[0] != name)
        return PodPromises(hints).having(*(part.without(name) for part in self.parts))

    def hint(self, name: str) -> Hint:
        for key, hint in self.hints:
            if key == name:
                return hint
        return NO_HINT

    @property
    def holders(self) -> list[str]:
        """Names of the containers with holdings, sorted."""
        return sorted({name for part in self.parts for name in part.holders})

    @property
    def is_nothing(self) -> bool:
        return self == NOTHING


NOTHING = PodPromises()


class UnrecoveredPod(Struct, frozen=True):
    """A pod that may run, and is known from records only. The state was lost, and its manifest is absent now."""

    uid: str
    held: PodPromises
    """Holdings that no cgroup shows. Cards of claims are under no container's name, because no record says which containers use them."""
    name: str = ""
    """Name in a record, if any."""


class Promises(Struct, frozen=True):
    pods: PodMap[PodPromises] = field(default_factory=PodMap)
    """All pods with holdings."""
    unrecovered: tuple[UnrecoveredPod, ...] = ()
    """Unrecovered pods. No other pod gets their holdings."""
    parts: tuple[Books, ...] = ()
    """Data of each resource on the whole node (`having`)."""

    def of(self, kind: type[B]) -> B:
        """Return the data of one type, and so of one resource."""
        for part in self.parts:
            if isinstance(part, kind):
                return part
        return kind()

    def having(self, *parts: Books) -> "Promises":
        """Return the promises with some resources' data replaced."""
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
        """Return the holdings of all pods, including unrecovered ones, sorted by UID."""
        more = [(one.uid, one.held) for one in self.unrecovered]
        return iter(sorted((*self.pods, *more), key=itemgetter(0)) if more else self.pods)


class Isolation(enum.StrEnum):
    """Set of containers that share a container's CPUs."""

    HOST = "host"
    POD = "pod"
    MIXED = "mixed"
    """Exclusive CPUs and the shared pool."""
    CONTAINER = "container"

    @property
    def has_own_cpus(self) -> bool:
        """Whether the container has exclusive CPUs."""
        return self in {Isolation.MIXED, Isolation.CONTAINER}


def with_pod(promises: Promises, uid: str, pod: PodPromises) -> Promises:
    """Replace the holdings of a pod. A pod without holdings is removed."""
    pods = promises.pods.without(uid) if pod == NOTHING else promises.pods.put(uid, pod)
    return Promises(pods, promises.unrecovered, promises.parts)
