"""Events that the registry handles, and the instructions that the registry returns for these events."""

from msgspec import Struct

from nodeagent.core.domains.runtime.answers import WantedPlacement
from nodeagent.core.domains.runtime.stages import ContainerEvent
from nodeagent.core.model.nri import Call, NriResources, Synchronized
from nodeagent.core.model.refusals import Reason
from nodeagent.core.model.runtime_containers import ContainerKey


class Populated(Struct, frozen=True):
    """Event: the containers' cgroups were read."""

    ids: frozenset[str]
    """IDs of the containers that have processes in their cgroups."""


class Unserved(Struct, frozen=True):
    """Event: the containers' cgroups were read while no runtime is connected. Ends of containers aren't reported then, so a container
    without processes counts as ended.
    """

    ids: frozenset[str]
    """IDs of the containers that have processes in their cgroups, or whose cgroup is unknown."""


class Looked(Struct, frozen=True):
    """Event: the running containers were listed. Unlisted containers may still be in preparation, because a runtime lists a container
    only once it is created.
    """

    found: Synchronized


class Retried(Struct, frozen=True):
    """Event: a user requests another decision on a pod."""

    pod_uid: str


class RoomMade(Struct, frozen=True):
    """Event: there is more room now than when some containers were refused (`retryRefused`)."""


Happening = Call | Synchronized | Looked | Populated | Unserved | Retried | RoomMade


class _ContainerTodo(Struct, frozen=True):
    key: ContainerKey
    id: str


class Decide(_ContainerTodo, frozen=True):
    """Instruction: let the managers decide on the container, and pass the result to `record_decision` before the runtime is answered."""

    is_again: bool
    """Whether the container's key (pod and container name) already has an allocation, but of other amounts."""
    is_of_pod: bool = False
    """Whether only the pod-level amounts may have changed. kubelet's pods API reports such a change."""


class Place(_ContainerTodo, frozen=True):
    """Instruction: give a container the whole allocation of its key. The container is about to be created or updated, or has just been
    decided.
    """


class Refuse(_ContainerTodo, frozen=True):
    """Instruction: deny the pending operation of the runtime."""

    reason: str
    is_first: bool
    """Whether the refusal is new. A repeated refusal was already logged."""

    @property
    def is_undecided(self) -> bool:
        """Whether the refusal is only temporary, because a device plugin hasn't answered yet."""
        return self.reason.startswith(Reason.DEVICE_PLUGINS_SLOW)


class LetStart(_ContainerTodo, frozen=True):
    """Instruction: read the cpusets, and let the container start if `check_start` (answers.py) allows it."""

    rivals: tuple[str, ...]
    """Other containers with the same key. The container may not start while one of them has processes on the key's exclusive CPUs."""


class Adopt(_ContainerTodo, frozen=True):
    """Instruction: take over a running container that already has its allocated CPUs and memory."""


class Correct(_ContainerTodo, frozen=True):
    """Instruction: correct a container whose values differ from its allocation, and report the difference."""

    wanted: WantedPlacement
    has: NriResources


class CountFailOpen(_ContainerTodo, frozen=True):
    """Instruction: count a container that started without a call to the agent."""


class CountIllegal(Struct, frozen=True):
    """Instruction: count an event that is illegal in the container's current condition (stages.py)."""

    event: ContainerEvent


class GiveBack(Struct, frozen=True):
    """Instruction: release the allocation of a key (pod and container name) that has no container left."""

    key: ContainerKey


Todo = Decide | Place | Refuse | LetStart | Adopt | Correct | CountFailOpen | CountIllegal | GiveBack
