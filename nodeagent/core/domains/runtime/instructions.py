"""Events that the registry takes, and what it has done about them: instructions for whoever carries them out."""

from msgspec import Struct

from nodeagent.core.domains.runtime.answers import WantedPlacement
from nodeagent.core.domains.runtime.stages import ContainerEvent
from nodeagent.core.model.nri import Call, NriResources, Synchronized
from nodeagent.core.model.runtime_containers import ContainerKey


class Populated(Struct, frozen=True):
    """The containers' cgroups were looked at."""

    ids: frozenset[str]
    """Those with processes in them."""


class Unserved(Struct, frozen=True):
    """The containers' cgroups were looked at, and nobody tells what becomes of them any more: a container without processes has ended."""

    ids: frozenset[str]
    """Those with processes in them, or in a cgroup that nobody knows."""


class Looked(Struct, frozen=True):
    """What runs, seen in passing. What it leaves out may be under way: a runtime lists what it is making only when that is made."""

    found: Synchronized


class Retried(Struct, frozen=True):
    """Somebody wants a pod to be decided on again."""

    pod_uid: str


Happening = Call | Synchronized | Looked | Populated | Unserved | Retried


class Decide(Struct, frozen=True):
    """Let the managers decide, and tell `settled` before anything is answered."""

    key: ContainerKey
    id: str
    is_again: bool
    """The key holds something, which was asked for with other amounts."""
    is_of_pod: bool = False
    """Nothing else is asked than that the pod as a whole may have other amounts now, which kubelet's pods API says."""


class Place(Struct, frozen=True):
    """Give it what is promised to its key, all of it: it is about to be created or updated, or has just been decided on."""

    key: ContainerKey
    id: str


class Refuse(Struct, frozen=True):
    """Deny what the runtime is about to do."""

    key: ContainerKey
    id: str
    reason: str
    is_first: bool
    """Otherwise it has been told before: no log line."""


class LetStart(Struct, frozen=True):
    """Read the cpusets, and let it start if `check_start` (answers.py) does."""

    key: ContainerKey
    id: str
    rivals: tuple[str, ...]
    """Other containers of its key. While one has processes on CPUs that are the key's alone, it may not begin."""


class Adopt(Struct, frozen=True):
    """It runs, and has what is promised to it."""

    key: ContainerKey
    id: str


class Correct(Struct, frozen=True):
    """It has something else than what is promised to it: a difference to show, and to correct."""

    key: ContainerKey
    id: str
    wanted: WantedPlacement
    has: NriResources


class CountFailOpen(Struct, frozen=True):
    """It began while nobody was asked."""

    key: ContainerKey
    id: str


class CountIllegal(Struct, frozen=True):
    """An event came that the container's condition rules out."""

    event: ContainerEvent


class GiveBack(Struct, frozen=True):
    """Nobody has any more what was promised to the key."""

    key: ContainerKey


Todo = Decide | Place | Refuse | LetStart | Adopt | Correct | CountFailOpen | CountIllegal | GiveBack
