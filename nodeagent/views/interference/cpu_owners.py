"""Which CPUs are whose: the exclusive CPUs by owner, and the cgroups in which their owners' processes are."""

from collections.abc import Iterator

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import PodEntry
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.formats.node_view import NodeView


class ExclusiveCpus(Struct, frozen=True):
    """CPUs that only some containers of one pod may use: mostly one container."""

    pod: str
    uid: str
    containers: tuple[str, ...]
    cpus: CpuSet
    """Those that are online."""
    cgroups: tuple[str, ...]
    """Of all containers of the pod that may use one of these CPUs, below the pods' cgroup."""
    devices: tuple[str, ...] = ()
    """Those whose interrupts these containers want there, and get."""


def exclusive_cpus(view: NodeView, uids: frozenset[str] | None = None) -> tuple[ExclusiveCpus, ...]:
    """Return who owns exclusive CPUs, in the order of the pods; `uids`: of these pods only."""
    return tuple(
        claim
        for entry in view.state.entries
        if entry.is_active and (uids is None or entry.pod.uid in uids)
        for claim in _of_pod(view, entry)
    )


def _of_pod(view: NodeView, entry: PodEntry) -> Iterator[ExclusiveCpus]:
    """Containers that have the same CPUs, or some of another's (init containers and their successors), make one claim."""
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
