"""Input and output of the registry of a container runtime's containers: events, and instructions that follow from them."""

from msgspec import Struct

from nodeagent.core.domains.runtime.answers import WantedPlacement
from nodeagent.core.domains.runtime.stages import ContainerEvent
from nodeagent.core.model.nri import Call, NriResources, Synchronized
from nodeagent.core.model.refusals import Reason
from nodeagent.core.model.runtime_containers import ContainerKey


class Populated(Struct, frozen=True):
    """Event: the agent has read the containers' cgroups."""

    ids: frozenset[str]
    """IDs of the containers whose cgroups have processes."""


class Unserved(Struct, frozen=True):
    """Event: the agent has read the containers' cgroups while no runtime is connected. Without a runtime, nothing reports the end of a
    container, so a container without processes counts as ended.
    """

    ids: frozenset[str]
    """IDs of the containers whose cgroups have processes or are unknown."""


class Looked(Struct, frozen=True):
    """Event: the agent has listed the running containers. A container that isn't in the list may still be in preparation, because a runtime
    lists only created containers.
    """

    found: Synchronized


class Retried(Struct, frozen=True):
    """Event: a user requests a new decision on a pod (`nodeagent retry`)."""

    pod_uid: str


class RoomMade(Struct, frozen=True):
    """Event: there is more room than at the refusal of some containers, and `retryRefused` permits new decisions."""


Happening = Call | Synchronized | Looked | Populated | Unserved | Retried | RoomMade


class _ContainerTodo(Struct, frozen=True):
    key: ContainerKey
    id: str


class Decide(_ContainerTodo, frozen=True):
    """Instruction: let the managers decide on the container. Pass the decision to `record_decision` before the runtime gets an answer."""

    is_again: bool
    """Whether the key of the container (pod UID and container name) already has an allocation, which was made for other amounts."""
    is_of_pod: bool = False
    """Whether the decision is about changed pod-level amounts, which kubelet's pods API has reported, and not about the container's own
    amounts.
    """


class Place(_ContainerTodo, frozen=True):
    """Instruction: let the container use the allocation of its key (pod UID and container name). The runtime is about to create or update
    the container, or the agent has just decided on it.
    """


class Refuse(_ContainerTodo, frozen=True):
    """Instruction: deny the operation for which the runtime waits."""

    reason: str
    is_first: bool
    """Whether the refusal is new. A repeated refusal isn't logged a second time."""

    @property
    def is_undecided(self) -> bool:
        """Whether the refusal stands only until a device plugin has answered."""
        return self.reason.startswith(Reason.DEVICE_PLUGINS_SLOW)


class LetStart(_ContainerTodo, frozen=True):
    """Instruction: read the cpusets, and let the container start if `check_start` in answers.py permits it."""

    rivals: tuple[str, ...]
    """IDs of other containers with the same key (pod UID and container name). While one of them has processes on the key's exclusive CPUs,
    the container can't start.
    """


class Adopt(_ContainerTodo, frozen=True):
    """Instruction: take over a running container that already runs on its allocated CPUs and memory nodes."""


class Correct(_ContainerTodo, frozen=True):
    """Instruction: change a container's values to those of its allocation, and report the difference to users."""

    wanted: WantedPlacement
    has: NriResources


class CountFailOpen(_ContainerTodo, frozen=True):
    """Instruction: count in the metrics that a container has started without a call to the agent."""


class CountIllegal(Struct, frozen=True):
    """Instruction: count in the metrics that an event was illegal in the container's condition (stages.py)."""

    event: ContainerEvent


class GiveBack(Struct, frozen=True):
    """Instruction: release the allocation of a key (pod UID and container name), because no container uses it any more."""

    key: ContainerKey


Todo = Decide | Place | Refuse | LetStart | Adopt | Correct | CountFailOpen | CountIllegal | GiveBack
