"""What a turn reads and acts on: fixed while the agent runs. What changes from turn to turn is its memory."""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.cgroups.desired_cgroups import Kernel
from nodeagent.core.model.cgroup import DesiredCgroup
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import NodeState
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.core.turn.world import Turn, World
from nodeagent.daemon.domains.all_cgroups import Domains
from nodeagent.daemon.domains.systemd.unit_device_access import UnitDeviceAccess
from nodeagent.daemon.domains.systemd.unit_records import UnitRecords
from nodeagent.daemon.host.host_settings import HostSettings
from nodeagent.daemon.reports.logs import Log
from nodeagent.daemon.reports.metrics_recorder import MetricsRecorder
from nodeagent.daemon.turn.claim_statuses import ClaimStatuses
from nodeagent.daemon.turn.machine import Machine
from nodeagent.daemon.turn.placements import Placements
from nodeagent.daemon.turn.records import Recorder
from nodeagent.daemon.turn.runs import Runner
from nodeagent.daemon.turn.troubles import Trouble
from nodeagent.edge.cgroups.cgroupfs import CgroupTree

if TYPE_CHECKING:
    from nodeagent.core.model.devices import PlacedDevices
    from nodeagent.core.model.topology import Topology
    from nodeagent.core.resources.devices.pools import DevicePool


class SourceReader(Protocol):
    """A source of pods. It wakes the deciding thread itself when there is something new."""

    def look(self, *, rescan: bool) -> PodSource:
        """Return what the source has; with `rescan` as it is now, otherwise as of the last look."""
        ...

    def follow(self, config: Config) -> None:
        """Apply another configuration."""
        ...


class LetIn(Protocol):
    """Lets processes that others started into cgroups that are ready for them."""

    def __call__(
        self, state: NodeState, ready: Collection[str], placed: Mapping[str, ContainerPlacement], tree: CgroupTree, /
    ) -> None: ...


class ContainerRuntime(Protocol):
    """A container runtime's part of a turn."""

    @property
    def is_unsettled(self) -> bool: ...
    @property
    def has_told(self) -> bool: ...
    def problem(self) -> str | None: ...
    def decide(
        self, decided: Turn, world: World, kernel: Kernel, devices: "Callable[[Topology], PlacedDevices]", /
    ) -> Turn: ...
    def not_saved(self, why: Trouble, /) -> None: ...
    def occupied(self, state: NodeState, /) -> CpuSet: ...
    def answer(
        self,
        state: NodeState,
        wanted: tuple[DesiredCgroup, ...],
        unvacated_cpus: CpuSet,
        of_units: Mapping[str, str],
        /,
    ) -> tuple[Trouble, ...]: ...
    def count(self, metrics: MetricsRecorder, /) -> None: ...


class DevicePluginsTold(Protocol):
    """What device plugins have reported."""

    def pools(self) -> "tuple[DevicePool, ...]": ...
    def problems(self) -> tuple[str, ...]: ...


class _NoRuntime:
    """No container runtime: it asks for nothing."""

    is_unsettled = False
    has_told = True

    def problem(self) -> None:
        return None

    def decide(
        self, decided: Turn, _world: World, _kernel: Kernel, _devices: "Callable[[Topology], PlacedDevices]", /
    ) -> Turn:
        return decided

    def not_saved(self, why: Trouble, /) -> None: ...

    def occupied(self, _state: NodeState, /) -> CpuSet:
        return CpuSet()

    def answer(
        self,
        _state: NodeState,
        _wanted: tuple[DesiredCgroup, ...],
        _unvacated_cpus: CpuSet,
        _of_units: Mapping[str, str],
        /,
    ) -> tuple[Trouble, ...]:
        return ()

    def count(self, metrics: MetricsRecorder, /) -> None: ...


NO_RUNTIME = _NoRuntime()


class Edges(Struct, frozen=True, kw_only=True):
    """Parts of the agent that a turn uses. Each remembers at most what it has last read or written."""

    log: Log
    machine: Machine
    sources: tuple[SourceReader, ...]
    runner: Runner
    tree: CgroupTree
    cgroups: Domains
    """The cgroups of all domains."""
    unit_records: UnitRecords
    unit_devices: UnitDeviceAccess
    recorder: Recorder
    host_settings: HostSettings
    placements: Placements
    claim_statuses: ClaimStatuses
    let_in: LetIn = lambda _state, _ready, _placed, _tree: None
    runtime: ContainerRuntime = NO_RUNTIME
    plugins: DevicePluginsTold | None = None
    alive: Callable[[], None] = lambda: None
    """Called after each part of a turn: a file, a decision, a write, an action."""

    def plugin_pools(self) -> "tuple[DevicePool, ...]":
        """Return the devices of device plugins."""
        return () if self.plugins is None else self.plugins.pools()
