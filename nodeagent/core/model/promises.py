"""Promises to pods as one immutable value: the holdings of each pod, and each resource's accounts for the whole node.

Equal promises are equal values, whatever changes led to them. This module only looks values up. It makes no decisions and doesn't name any
resource.
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
    """Holdings by resource. Use `having` to replace them."""

    def of(self, kind: type[H]) -> H:
        """Return the holdings of one type. Each type belongs to one resource."""
        for part in self.parts:
            if type(part) is kind:
                return part
        return kind()

    def having(self, *parts: Holdings) -> "PodPromises":
        """Return the promises with some resources' holdings replaced."""
        own = self.parts
        for part in parts:
            own = with_part(own, part)
        return PodPromises(self.hints, own)

    def without(self, name: str) -> "PodPromises":
        """Return the pod's promises without the promises of one container."""
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
    """A pod that may be running but is known only from records, because the agent's state was lost and the pod's manifest is missing
    now.
    """

    uid: str
    held: PodPromises
    """Holdings of the pod that cgroups don't show. Claimed cards are listed under an empty container name, because the records don't
    contain the containers that use them.
    """
    name: str = ""
    """Name of the pod according to a record. Empty if the records don't contain the name."""


class Promises(Struct, frozen=True):
    pods: PodMap[PodPromises] = field(default_factory=PodMap)
    """All pods with holdings."""
    unrecovered: tuple[UnrecoveredPod, ...] = ()
    """Unrecovered pods. Their holdings aren't allocated to other pods."""
    parts: tuple[Books, ...] = ()
    """Accounts of each resource for the whole node. Use `having` to replace them."""

    def of(self, kind: type[B]) -> B:
        """Return the accounts of one type. Each type belongs to one resource."""
        for part in self.parts:
            if type(part) is kind:
                return part
        return kind()

    def having(self, *parts: Books) -> "Promises":
        """Return the promises with some resources' accounts replaced."""
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
    """Kind of isolation: the other containers with which a container shares its CPUs."""

    HOST = "host"
    POD = "pod"
    MIXED = "mixed"
    """The container has both exclusive CPUs and the shared pool."""
    CONTAINER = "container"

    @property
    def has_own_cpus(self) -> bool:
        """Whether the container has exclusive CPUs."""
        return self is Isolation.MIXED or self is Isolation.CONTAINER


def with_pod(promises: Promises, uid: str, pod: PodPromises) -> Promises:
    """Replace the holdings of a pod. A pod without holdings is removed."""
    pods = promises.pods.without(uid) if pod == NOTHING else promises.pods.put(uid, pod)
    return Promises(pods, promises.unrecovered, promises.parts)
