"""Owners of exclusive CPUs, each with the cgroups in which the owner's processes are."""

from collections.abc import Iterator

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import PodEntry
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.formats.node_view import NodeView


class ExclusiveCpus(Struct, frozen=True):
    """CPUs that only one owner may use. The owner is usually one container, but may be several containers of a pod."""

    pod: str
    uid: str
    containers: tuple[str, ...]
    cpus: CpuSet
    """Exclusive CPUs of the owner that are online."""
    cgroups: tuple[str, ...]
    """Cgroups of all containers in the owner's pod that may use any of these CPUs, as paths below the pods' cgroup."""
    devices: tuple[str, ...] = ()
    """Devices whose interrupts the owner's containers requested on their own CPUs."""


def find_exclusive_owners(view: NodeView, uids: frozenset[str] | None = None) -> tuple[ExclusiveCpus, ...]:
    """Return the owners of exclusive CPUs, ordered by pod. `uids` contains the UIDs of the pods to include. None means all pods."""
    return tuple(
        owner
        for entry in view.state.entries
        if entry.is_active and (uids is None or entry.pod.uid in uids)
        for owner in _find_owners(view, entry)
    )


def _find_owners(view: NodeView, entry: PodEntry) -> Iterator[ExclusiveCpus]:
    """Yield the owners of exclusive CPUs in a pod.

    Containers with overlapping CPUs, such as an init container and the container that reuses its CPUs, count as one owner.
    """
    names: dict[CpuSet, list[str]] = {}
    for container in entry.pod.containers:
        own = own_set_of(view.state.promises, entry.pod.uid, container.name)
        if own is not None and own & view.node.topology.online:
            names.setdefault(own & view.node.topology.online, []).append(container.name)
    for cpus in names:
        if not any(cpus <= other for other in names if other != cpus):
            sharing = [name for other, found in names.items() if not cpus.isdisjoint(other) for name in found]
            within = [name for other, found in names.items() if other <= cpus for name in found]
            yield ExclusiveCpus(
                entry.pod.full_name,
                entry.pod.uid,
                tuple(c.name for c in entry.pod.containers if c.name in within),
                cpus,
                tuple(view.cgroup_of(entry.container_path(c.name)) for c in entry.pod.containers if c.name in sharing),
                tuple(
                    device
                    for c in entry.pod.containers
                    if c.name in sharing
                    for device in view.node.config.claimed_devices(c)
                ),
            )
