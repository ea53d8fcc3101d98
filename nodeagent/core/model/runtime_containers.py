"""Registry of a container runtime's containers, and of the keys (pod UID and container name) to which allocations belong. It is an
immutable value and a part of the node's state.

core/domains/runtime/registry.py determines how the runtime's events change the registry.
"""

from enum import IntEnum
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.pod import is_own_annotation
from nodeagent.core.model.refusals import OF_RESIZES, RESIZE_DEFERRED, UID_TAKEN, Reason
from nodeagent.core.model.waiting import is_for_room

if TYPE_CHECKING:  # the import is only for types, because every state has a registry, but most registries are empty
    from nodeagent.core.model.kubelet_pod import KubeletPod
    from nodeagent.core.model.nri import NriContainer, NriResources, Sandbox


class ContainerKey(Struct, frozen=True, order=True):
    pod_uid: str
    name: str

    @classmethod
    def of(cls, sandbox: "Sandbox", container: "NriContainer") -> "ContainerKey":
        """Return the key of a container. A pod from outside of Kubernetes has no UID, so its sandbox ID replaces the UID."""
        return cls(sandbox.uid or sandbox.id, container.name)


class Stage(IntEnum):
    CREATED = 1
    STARTED = 2
    """Stage that begins when the agent permits the start of the container's first process."""
    STOPPED = 3
    REMOVED = 4
    """Stage that begins when the runtime has removed the container, which then never runs again. The container's cgroup may still contain
    processes.
    """


class Asked(Struct, frozen=True):
    """The parts of kubelet's request for a container on which the agent's decision depends."""

    resources: "NriResources"
    """Requested amounts, without the CPUs and memory nodes, which the agent chooses."""
    oom_score_adj: int | None
    cgroup_parent: str
    annotations: tuple[tuple[str, str], ...]
    """Annotations of the pod in the agent's annotation domain."""

    @classmethod
    def of(cls, sandbox: "Sandbox", container: "NriContainer") -> "Asked":
        return cls(
            replace(container.resources, cpus=None, mems=None),
            container.oom_score_adj,
            sandbox.cgroup_parent,
            tuple(pair for pair in sandbox.annotations if is_own_annotation(pair[0])),
        )


class MadeContainer(Struct, frozen=True):
    """A container that the runtime has created. Several containers can have the same key, for example after a restart."""

    id: str
    sandbox_id: str
    stage: Stage
    asked: Asked
    is_placed: bool = False
    """Whether the container uses the allocation of its key. If not, the agent has refused its request or not decided yet, and the container
    may run on any CPUs.
    """
    cgroup: str = ""
    """Path of the container's cgroup below the cgroup v2 root. Empty means that it is unknown."""


class KeyEntry(Struct, frozen=True):
    key: ContainerKey
    made: tuple[MadeContainer, ...] = ()
    """Containers that have this key, the oldest first. A container is listed until the runtime has removed it and its cgroup is empty."""
    is_held: bool = False
    """Whether the key has an allocation."""
    asked: Asked | None = None
    """Request for which the allocation was made. None means that there is no allocation, or that its request is unknown."""

    def find(self, container_id: str) -> MadeContainer | None:
        return next((made for made in self.made if made.id == container_id), None)


class RefusedKey(Struct, frozen=True):
    key: ContainerKey
    asked: Asked
    reason: str

    @property
    def is_of_update(self) -> bool:
        """Whether the refused request was an update of a running container. When the runtime creates the container again, this refusal no
        longer counts.
        """
        return self.reason.startswith(OF_RESIZES)

    @property
    def is_for_room(self) -> bool:
        """Whether the agent could grant the request if other pods released their resources."""
        return is_for_room(self.reason.partition(":")[0])

    @property
    def is_deferred(self) -> bool:
        """Whether the agent makes a new decision whenever the request is repeated, instead of answering with this refusal."""
        return self.reason.startswith((RESIZE_DEFERRED, UID_TAKEN, Reason.DEVICE_PLUGINS_SLOW))


class KnownSandbox(Struct, frozen=True):
    id: str
    pod_uid: str
    is_stopped: bool = False


class Registry(Struct, frozen=True):
    """All known pods and containers of a container runtime. Each tuple is sorted by key or ID."""

    sandboxes: tuple[KnownSandbox, ...] = ()
    entries: tuple[KeyEntry, ...] = ()
    refused: tuple[RefusedKey, ...] = ()
    pods: "tuple[KubeletPod, ...]" = ()
    """kubelet's data about the pods in `sandboxes`, sorted by UID."""

    def pod(self, uid: str) -> "KubeletPod | None":
        return next((pod for pod in self.pods if pod.uid == uid), None)

    def entry(self, key: ContainerKey) -> KeyEntry:
        return next((entry for entry in self.entries if entry.key == key), KeyEntry(key))

    def key_of(self, container_id: str) -> ContainerKey | None:
        """Return the key of the container with this ID. None means that the container is unknown."""
        return next((e.key for e in self.entries for made in e.made if made.id == container_id), None)

    def refused_of(self, pod_uid: str) -> tuple[RefusedKey, ...]:
        return tuple(one for one in self.refused if one.key.pod_uid == pod_uid)

    def refusal(self, key: ContainerKey, asked: Asked) -> RefusedKey | None:
        return next((one for one in self.refused if one.key == key and one.asked == asked), None)
