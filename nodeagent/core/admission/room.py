"""Room: all inputs of a decision except the request itself. The agent decides again on a refused pod only if there is more room than at the
refusal.
"""

from typing import TYPE_CHECKING

from msgspec import Struct, field

from nodeagent.core.admission.node_capacity import Allocatable, Usage
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.podmap import PodMap
from nodeagent.core.model.promises import PodPromises, UnrecoveredPod
from nodeagent.core.model.reservation import Reservation
from nodeagent.core.model.topology import Topology

if TYPE_CHECKING:
    from nodeagent.core.model.device_pools import DevicePool


class Room(Struct, frozen=True):
    """Inputs of a decision except the request itself: the node's resources, and the amounts that pods request and hold."""

    topology: Topology | None = None
    config: Config | None = None
    allocatable: Allocatable | None = None
    usage: Usage = Usage()
    held: PodMap[PodPromises] = field(default_factory=PodMap)
    """Allocations of the known pods, by UID."""
    unrecovered: tuple[UnrecoveredPod, ...] = ()
    orphans: CpuSet = CpuSet()
    """CPUs on which processes run that belong to no known pod."""
    reservations: tuple[tuple[Reservation, int, bool], ...] = ()
    """Reservations for jobs, as (reservation, start time, whether it has started). The start time is in milliseconds since boot, so it
    changes when the wall clock is set.
    """
    plugged: "tuple[DevicePool, ...]" = ()
    """Pools of devices that device plugins have reported."""

    def has_more_than(self, before: "Room") -> bool:
        """Return whether resources were released or the node has changed since `before`. Devices of device plugins don't count, because
        `has_new_devices` checks them.
        """
        if self is before:
            return False
        return (
            self.topology != before.topology
            or self.config != before.config
            or self.allocatable != before.allocatable
            or self.unrecovered != before.unrecovered
            or self.reservations != before.reservations
            or bool(before.orphans - self.orphans)
            or self.usage.is_less_than(before.usage)
            or (self.held != before.held and any(self.held.get(uid) != held for uid, held in before.held))
        )

    def has_new_devices(self, before: "Room", requested: frozenset[str]) -> bool:
        """Return whether a device of a requested resource has become available since `before`, because its plugin has registered or now
        reports it as healthy.
        """
        known = {pool.resource: pool for pool in before.plugged}
        for pool in self.plugged:
            if pool.resource not in requested:
                continue
            old = known.get(pool.resource)
            usable = {device.id for device in pool.healthy}
            if old is not None and old.plugin is pool.plugin:
                usable -= {device.id for device in old.healthy}
            if usable:
                return True
        return False


NO_ROOM = Room()
"""Room of a node that has no resources. Every real node has more room than this."""
