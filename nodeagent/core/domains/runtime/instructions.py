"""Events of the registry, and the instructions that it returns for them."""

from msgspec import Struct

from nodeagent.core.domains.runtime.answers import WantedPlacement
from nodeagent.core.domains.runtime.stages import ContainerEvent
from nodeagent.core.model.nri import Call, NriResources, Synchronized
from nodeagent.core.model.refusals import Reason
from nodeagent.core.model.runtime_containers import ContainerKey


class Populated(Struct, frozen=True):
    """A read of the containers' cgroups."""

    ids: frozenset[str]
    """Containers with processes in their cgroups."""


class Unserved(Struct, frozen=True):
    """A read of the containers' cgroups while no runtime is served. Nobody reports ends now, so a container without processes has ended."""

    ids: frozenset[str]
    """Containers with processes in their cgroups, or in an unknown cgroup."""


class Looked(Struct, frozen=True):
    """A list of running containers. Others may be under way: a runtime lists a container only once it is created."""

    found: Synchronized


class Retried(Struct, frozen=True):
    """A user's request to decide on a pod again."""

    pod_uid: str


class RoomMade(Struct, frozen=True):
    """More room than the decisions on some refused containers have seen (`retryRefused`)."""


Happening = Call | Synchronized | Looked | Populated | Unserved | Retried | RoomMade


class _ContainerTodo(Struct, frozen=True):
    key: ContainerKey
    id: str


class Decide(_ContainerTodo, frozen=True):
    """Let the managers decide, and pass the result to `record_decision` before the answer."""

    is_again: bool
    """Whether the key has an allocation for other amounts."""
    is_of_pod: bool = False
    """Whether only the pod-level amounts may have changed, which kubelet's pods API reports."""


class Place(_ContainerTodo, frozen=True):
    """Give a container its key's whole allocation. The container is about to be created or updated, or was just decided on."""


class Refuse(_ContainerTodo, frozen=True):
    """Deny the pending operation of the runtime."""

    reason: str
    is_first: bool
    """False means that the refusal is logged already."""

    @property
    def is_undecided(self) -> bool:
        """Whether a device plugin has not answered yet."""
        return self.reason.startswith(Reason.DEVICE_PLUGINS_SLOW)


class LetStart(_ContainerTodo, frozen=True):
    """Read the cpusets, and let the container start if `check_start` (answers.py) does."""

    rivals: tuple[str, ...]
    """Other containers with the same key. The container may not start while one of them has processes on the key's exclusive CPUs."""


class Adopt(_ContainerTodo, frozen=True):
    """Take over a running container that has its allocation."""


class Correct(_ContainerTodo, frozen=True):
    """Correct a container whose values differ from its allocation, and show the difference."""

    wanted: WantedPlacement
    has: NriResources


class CountFailOpen(_ContainerTodo, frozen=True):
    """Count a container that started without a call to the agent."""


class CountIllegal(Struct, frozen=True):
    """Count an event that is illegal in the container's condition (stages.py)."""

    event: ContainerEvent


class GiveBack(Struct, frozen=True):
    """Release a key's allocation, which no container holds any more."""

    key: ContainerKey


Todo = Decide | Place | Refuse | LetStart | Adopt | Correct | CountFailOpen | CountIllegal | GiveBack
