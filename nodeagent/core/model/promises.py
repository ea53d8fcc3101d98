"""Promises, which are the allocations of all pods on the node, as one immutable value. They also contain the records that each resource
keeps for the whole node.

Equal promises compare equal, whatever changes led to them. The module depends on no particular resource, and makes no decisions.
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
    """Result of merging the NUMA hints for a container. The managers allocate CPUs, memory and devices by it."""

    mask: NumaSet | None = None
    """Chosen NUMA nodes. None means that all NUMA nodes are equally good ("any")."""
    preferred: bool = False


NO_HINT = Hint()


class PodPromises(Struct, frozen=True):
    """Allocation of one pod: its holdings of each resource, and the NUMA hints of its containers."""

    hints: tuple[tuple[str, Hint], ...] = ()
    """Pairs of container and hint, sorted by container."""
    parts: tuple[Holdings, ...] = ()
    """Holdings of the pod, one object per resource. Use `of` to read one, and `having` to replace some of them."""

    def of(self, kind: type[H]) -> H:
        """Return the pod's holdings of one resource, which is identified by the type of its holdings. They are empty if the pod holds
        nothing of the resource.
        """
        for part in self.parts:
            if type(part) is kind:
                return part
        return kind()

    def having(self, *parts: Holdings) -> "PodPromises":
        """Return a copy in which these holdings replace those of the same resources."""
        own = self.parts
        for part in parts:
            own = with_part(own, part)
        return PodPromises(self.hints, own)

    def without(self, name: str) -> "PodPromises":
        """Return a copy without the allocation of one container."""
        hints = tuple(item for item in self.hints if item[0] != name)
        return PodPromises(hints).having(*(part.without(name) for part in self.parts))

    def hint(self, name: str) -> Hint:
        for key, hint in self.hints:
            if key == name:
                return hint
        return NO_HINT

    @property
    def holders(self) -> list[str]:
        """Return the sorted names of the containers to which something is allocated."""
        return sorted({name for part in self.parts for name in part.holders})

    @property
    def is_nothing(self) -> bool:
        return self == NOTHING


NOTHING = PodPromises()


class UnrecoveredPod(Struct, frozen=True):
    """A pod that may still be running, but is known only from records: the agent's state was lost, and the pod's manifest is missing."""

    uid: str
    held: PodPromises
    """Holdings of the pod that its cgroups don't show, such as devices. Cards allocated to claims are listed under an empty container name,
    because the records don't say which containers use them.
    """
    name: str = ""
    """Pod name from a record. Empty means that no record contains the name."""


class Promises(Struct, frozen=True):
    pods: PodMap[PodPromises] = field(default_factory=PodMap)
    """Allocations by pod UID. Pods to which nothing is allocated are missing."""
    unrecovered: tuple[UnrecoveredPod, ...] = ()
    """Pods that are known only from records since the agent's state was lost. Their holdings can't be allocated to other pods."""
    parts: tuple[Books, ...] = ()
    """Records for the whole node, one object per resource. Use `of` to read one, and `having` to replace some of them."""

    def of(self, kind: type[B]) -> B:
        """Return one resource's records for the whole node. The resource is identified by the type of its records."""
        for part in self.parts:
            if type(part) is kind:
                return part
        return kind()

    def having(self, *parts: Books) -> "Promises":
        """Return a copy in which these records replace those of the same resources."""
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
        """Return the allocations of all pods, including unrecovered pods, sorted by UID."""
        more = [(one.uid, one.held) for one in self.unrecovered]
        return iter(sorted((*self.pods, *more), key=itemgetter(0)) if more else self.pods)


class Isolation(enum.StrEnum):
    """Kind of CPUs on which a container runs: the node's shared pool (`HOST`), its pod's shared pool (`POD`), its exclusive CPUs
    (`CONTAINER`), or both exclusive CPUs and the shared pool (`MIXED`).
    """

    HOST = "host"
    POD = "pod"
    MIXED = "mixed"
    """Exclusive CPUs of the container together with the shared pool."""
    CONTAINER = "container"

    @property
    def has_own_cpus(self) -> bool:
        """Whether the container has exclusive CPUs."""
        return self is Isolation.MIXED or self is Isolation.CONTAINER


def with_pod(promises: Promises, uid: str, pod: PodPromises) -> Promises:
    """Return a copy of the promises in which `pod` is the allocation of the pod with this UID. An empty allocation removes the pod."""
    pods = promises.pods.without(uid) if pod == NOTHING else promises.pods.put(uid, pod)
    return Promises(pods, promises.unrecovered, promises.parts)
