"""Containers of a container runtime and who of them holds what, as one immutable value: part of the node's state.

What events make of it is in core/domains/runtime/registry.py, which has the rules.
"""

from enum import IntEnum
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.pod import is_own_annotation
from nodeagent.core.model.refusals import OF_RESIZES, RESIZE_DEFERRED, Reason

if TYPE_CHECKING:  # every state has a registry, and most are empty
    from nodeagent.core.model.kubelet_pod import KubeletPod
    from nodeagent.core.model.nri import NriContainer, NriResources, Sandbox


class ContainerKey(Struct, frozen=True, order=True):
    pod_uid: str
    name: str

    @classmethod
    def of(cls, sandbox: "Sandbox", container: "NriContainer") -> "ContainerKey":
        """A pod that isn't Kubernetes' has no UID: its id stands for it."""
        return cls(sandbox.uid or sandbox.id, container.name)


class Stage(IntEnum):
    CREATED = 1
    STARTED = 2
    """Its first process was about to begin."""
    STOPPED = 3
    REMOVED = 4
    """It will never run again, whatever is still in its cgroup."""


class Asked(Struct, frozen=True):
    """What kubelet asks for, as far as a decision depends on it."""

    resources: "NriResources"
    """Without CPUs and memory nodes: these are the answer."""
    oom_score_adj: int | None
    cgroup_parent: str
    annotations: tuple[tuple[str, str], ...]
    """The agent's own, of the pod."""

    @classmethod
    def of(cls, sandbox: "Sandbox", container: "NriContainer") -> "Asked":
        return cls(
            replace(container.resources, cpus=None, mems=None),
            container.oom_score_adj,
            sandbox.cgroup_parent,
            tuple(pair for pair in sandbox.annotations if is_own_annotation(pair[0])),
        )


class MadeContainer(Struct, frozen=True):
    """One of the containers that the runtime has made for a key."""

    id: str
    sandbox_id: str
    stage: Stage
    asked: Asked
    is_placed: bool = False
    """It was given what is promised to its key; otherwise that was not decided on, or was refused, and it may run anywhere."""
    cgroup: str = ""
    """Below the root of all cgroups. Empty: unknown."""


class KeyEntry(Struct, frozen=True):
    key: ContainerKey
    made: tuple[MadeContainer, ...] = ()
    """Oldest first, until the runtime has removed them and their cgroups are empty."""
    is_held: bool = False
    """Something is promised to the key."""
    asked: Asked | None = None
    """What that was asked with. None: nothing is promised, or only the promise is known."""


class RefusedKey(Struct, frozen=True):
    key: ContainerKey
    asked: Asked
    reason: str

    @property
    def is_of_update(self) -> bool:
        """It keeps what runs as it is; what is made anew is decided on."""
        return self.reason.startswith(OF_RESIZES)

    @property
    def is_deferred(self) -> bool:
        """It is decided on again whenever it is asked for again."""
        return self.reason.startswith((RESIZE_DEFERRED, Reason.DEVICE_PLUGINS_SLOW))


class KnownSandbox(Struct, frozen=True):
    id: str
    pod_uid: str
    is_stopped: bool = False


class Registry(Struct, frozen=True):
    """All of it, each sorted by key or id."""

    sandboxes: tuple[KnownSandbox, ...] = ()
    entries: tuple[KeyEntry, ...] = ()
    refused: tuple[RefusedKey, ...] = ()
    pods: "tuple[KubeletPod, ...]" = ()
    """What kubelet has said of the pods of `sandboxes`, sorted by UID."""

    def pod(self, uid: str) -> "KubeletPod | None":
        return next((pod for pod in self.pods if pod.uid == uid), None)

    def entry(self, key: ContainerKey) -> KeyEntry:
        return next((entry for entry in self.entries if entry.key == key), KeyEntry(key))

    def key_of(self, container_id: str) -> ContainerKey | None:
        """Return the key of a container; None: it is unknown."""
        return next((e.key for e in self.entries for made in e.made if made.id == container_id), None)

    def refused_of(self, pod_uid: str) -> tuple[RefusedKey, ...]:
        return tuple(one for one in self.refused if one.key.pod_uid == pod_uid)

    def refusal(self, key: ContainerKey, asked: Asked) -> RefusedKey | None:
        return next((one for one in self.refused if one.key == key and one.asked == asked), None)
