"""Promises to pods as one immutable value: the holdings of each pod, and each resource's accounts for the whole node.

Equal promises compare equal, whatever changes led to them. This module only looks values up. It makes no decisions, and doesn't know any
particular resource.
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
    """Preferred NUMA nodes. None means that all NUMA nodes are equally good ("any")."""
    preferred: bool = False


NO_HINT = Hint()


class PodPromises(Struct, frozen=True):
    """Holdings of one pod."""

    hints: tuple[tuple[str, Hint], ...] = ()
    """Hints by container, sorted by container name."""
    parts: tuple[Holdings, ...] = ()
    """Holdings by resource. The method `having` replaces them."""

    def of(self, kind: type[H]) -> H:
        """Return the holdings of one type. Each type belongs to one resource."""
        for part in self.parts:
            if type(part) is kind:
                return part
        return kind()

    def having(self, *parts: Holdings) -> "PodPromises":
        """Return the promises with other holdings for some resources."""
        own = self.parts
        for part in parts:
            own = with_part(own, part)
        return PodPromises(self.hints, own)

    def without(self, name: str) -> "PodPromises":
        """Return the pod's promises without those of one container."""
        hints = tuple(item for item in self.hints if item[0] != name)
        return PodPromises(hints).having(*(part.without(name) for part in self.parts))

    def hint(self, name: str) -> Hint:
        for key, hint in self.hints:
            if key == name:
                return hint
        return NO_HINT

    @property
    def holders(self) -> list[str]:
        """Return the sorted names of the containers with holdings."""
        return sorted({name for part in self.parts for name in part.holders})

    @property
    def is_nothing(self) -> bool:
        return self == NOTHING


NOTHING = PodPromises()


class UnrecoveredPod(Struct, frozen=True):
    """A pod that may be running but is known only from records, because the agent's state was lost and the pod's manifest is now
    missing.
    """

    uid: str
    held: PodPromises
    """Holdings of the pod that its cgroups don't show. Claimed cards are listed under an empty container name, because the records don't
    say which containers use them.
    """
    name: str = ""
    """Name of the pod according to a record. It is empty if no record has the name."""


class Promises(Struct, frozen=True):
    pods: PodMap[PodPromises] = field(default_factory=PodMap)
    """All pods with holdings."""
    unrecovered: tuple[UnrecoveredPod, ...] = ()
    """Unrecovered pods. Other pods don't get their holdings."""
    parts: tuple[Books, ...] = ()
    """Accounts of each resource for the whole node. The method `having` replaces them."""

    def of(self, kind: type[B]) -> B:
        """Return the accounts of one type. Each type belongs to one resource."""
        for part in self.parts:
            if type(part) is kind:
                return part
        return kind()

    def having(self, *parts: Books) -> "Promises":
        """Return the promises with other accounts for some resources."""
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
    """Degree of isolation. It tells with which other containers a container shares its CPUs."""

    HOST = "host"
    POD = "pod"
    MIXED = "mixed"
    """The container has exclusive CPUs and may also use the shared pool."""
    CONTAINER = "container"

    @property
    def has_own_cpus(self) -> bool:
        """Whether the container has exclusive CPUs."""
        return self is Isolation.MIXED or self is Isolation.CONTAINER


def with_pod(promises: Promises, uid: str, pod: PodPromises) -> Promises:
    """Replace the holdings of a pod. A pod without holdings is removed."""
    pods = promises.pods.without(uid) if pod == NOTHING else promises.pods.put(uid, pod)
    return Promises(pods, promises.unrecovered, promises.parts)
