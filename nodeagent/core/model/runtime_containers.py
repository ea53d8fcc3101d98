"""Containers of a container runtime, and the keys (pod and container name) to which their allocations belong. They are one immutable value
in the node's state.

core/domains/runtime/registry.py contains the rules and the effects of events.
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
        """Return the container's key. If the pod comes from outside of Kubernetes, it has no UID, and its ID is used instead."""
        return cls(sandbox.uid or sandbox.id, container.name)


class Stage(IntEnum):
    CREATED = 1
    STARTED = 2
    """The start of the container's first process was allowed."""
    STOPPED = 3
    REMOVED = 4
    """The container will never run again, even if its cgroup still has processes."""


class Asked(Struct, frozen=True):
    """Parts of kubelet's request on which a decision depends."""

    resources: "NriResources"
    """Requested amounts. CPUs and memory nodes are left out, because the agent decides on them."""
    oom_score_adj: int | None
    cgroup_parent: str
    annotations: tuple[tuple[str, str], ...]
    """Annotations of the pod that belong to the agent's domain."""

    @classmethod
    def of(cls, sandbox: "Sandbox", container: "NriContainer") -> "Asked":
        return cls(
            replace(container.resources, cpus=None, mems=None),
            container.oom_score_adj,
            sandbox.cgroup_parent,
            tuple(pair for pair in sandbox.annotations if is_own_annotation(pair[0])),
        )


class MadeContainer(Struct, frozen=True):
    """A container that the runtime has created for a key. There may be several for one key."""

    id: str
    sandbox_id: str
    stage: Stage
    asked: Asked
    is_placed: bool = False
    """Whether the container has the allocation of its key. Otherwise its request was refused or not yet decided, and the container may
    run on any CPUs.
    """
    cgroup: str = ""
    """Path of the container's cgroup below the root of all cgroups. Empty means that the path is unknown."""


class KeyEntry(Struct, frozen=True):
    key: ContainerKey
    made: tuple[MadeContainer, ...] = ()
    """Containers of the key, the oldest first. A container stays listed until the runtime has removed it and its cgroup is empty."""
    is_held: bool = False
    """Whether the key has an allocation."""
    asked: Asked | None = None
    """Request on which the allocation is based. None means that the key has no allocation, or that the request is unknown."""

    def find(self, container_id: str) -> MadeContainer | None:
        return next((made for made in self.made if made.id == container_id), None)


class RefusedKey(Struct, frozen=True):
    key: ContainerKey
    asked: Asked
    reason: str

    @property
    def is_of_update(self) -> bool:
        """Whether the refused request was an update. Such a refusal doesn't apply when the container is created again."""
        return self.reason.startswith(OF_RESIZES)

    @property
    def is_for_room(self) -> bool:
        """Whether the request could be granted if other pods released their resources."""
        return is_for_room(self.reason.partition(":")[0])

    @property
    def is_deferred(self) -> bool:
        """Whether the request is decided again each time it is repeated."""
        return self.reason.startswith((RESIZE_DEFERRED, UID_TAKEN, Reason.DEVICE_PLUGINS_SLOW))


class KnownSandbox(Struct, frozen=True):
    id: str
    pod_uid: str
    is_stopped: bool = False


class Registry(Struct, frozen=True):
    """All known containers. Each tuple is sorted by key or ID."""

    sandboxes: tuple[KnownSandbox, ...] = ()
    entries: tuple[KeyEntry, ...] = ()
    refused: tuple[RefusedKey, ...] = ()
    pods: "tuple[KubeletPod, ...]" = ()
    """kubelet's data about the pods of `sandboxes`, sorted by UID."""

    def pod(self, uid: str) -> "KubeletPod | None":
        return next((pod for pod in self.pods if pod.uid == uid), None)

    def entry(self, key: ContainerKey) -> KeyEntry:
        return next((entry for entry in self.entries if entry.key == key), KeyEntry(key))

    def key_of(self, container_id: str) -> ContainerKey | None:
        """Return the key of a container. None means that the container is unknown."""
        return next((e.key for e in self.entries for made in e.made if made.id == container_id), None)

    def refused_of(self, pod_uid: str) -> tuple[RefusedKey, ...]:
        return tuple(one for one in self.refused if one.key.pod_uid == pod_uid)

    def refusal(self, key: ContainerKey, asked: Asked) -> RefusedKey | None:
        return next((one for one in self.refused if one.key == key and one.asked == asked), None)
