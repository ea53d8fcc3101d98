"""Parts of the agent through which a turn reads and writes. They exist as long as the agent, whereas each turn replaces its memory."""

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
    """Interface to the device plugins that a turn uses."""

    def pools(self) -> "tuple[DevicePool, ...]": ...
    def problems(self) -> tuple[str, ...]: ...
    def begin_turn(self) -> None: ...


class Edges(Struct, frozen=True, kw_only=True):
    """Parts of the agent that a turn uses. They remember nothing except what they last read and wrote."""

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
    """Function that is called after each part of a turn (a file, a decision, a write, an action), to notify systemd's watchdog during a
    long turn.
    """

    def plugin_pools(self) -> "tuple[DevicePool, ...]":
        """Return the pools of all device plugins. Empty means that device plugins aren't configured, or that none has registered."""
        return () if self.plugins is None else self.plugins.pools()
