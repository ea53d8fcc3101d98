"""Edges: the parts of the agent that a turn uses for reading and writing. These parts stay the same, while the turn's memory changes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from nodeagent.core.domains.domain import Domain
from nodeagent.daemon.host.host_settings import HostSettings
from nodeagent.daemon.reports.logs import Log
from nodeagent.daemon.turn.claim_statuses import ClaimStatuses
from nodeagent.daemon.turn.machine import Machine
from nodeagent.daemon.turn.placements import Placements
from nodeagent.daemon.turn.records import Recorder
from nodeagent.daemon.turn.runs import Runner
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree

if TYPE_CHECKING:
    from nodeagent.core.model.device_pools import DevicePool


class DevicePluginsTold(Protocol):
    """Interface to the device plugins during a turn."""

    def pools(self) -> "tuple[DevicePool, ...]": ...
    def problems(self) -> tuple[str, ...]: ...
    def begin_turn(self) -> None: ...


class Edges(Struct, frozen=True, kw_only=True):
    """Parts of the agent that a turn uses. A part remembers nothing except its last readings and writes."""

    log: Log
    machine: Machine
    domains: tuple[Domain, ...]
    """Domains in the order in which their pods are admitted."""
    runner: Runner
    tree: CgroupTree
    recorder: Recorder
    host_settings: HostSettings
    placements: Placements
    claim_statuses: ClaimStatuses
    plugins: DevicePluginsTold | None = None
    alive: Callable[[], None] = lambda: None
    """Function called after each part of a turn (a file, a decision, a write, an action), to tell systemd's watchdog that the agent is
    alive.
    """

    def plugin_pools(self) -> "tuple[DevicePool, ...]":
        """Return the device pools of all device plugins. The result is empty without device plugins."""
        return () if self.plugins is None else self.plugins.pools()
