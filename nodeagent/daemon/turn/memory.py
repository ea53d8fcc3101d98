"""Memory of the deciding thread between turns, as one value. A restarted agent begins with an empty memory."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers
from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.cgroups.container_placement import ContainerPlacements
from nodeagent.core.cgroups.desired_cgroups import PodCgroups
from nodeagent.core.cgroups.write_order import InPlace
from nodeagent.core.domains.domain import DomainView
from nodeagent.core.host.quiet import QuietCores
from nodeagent.core.model.cgroup import DesiredCgroup
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.model.topology import Topology
from nodeagent.core.model.violations import Shortfall
from nodeagent.core.turn.pod_sources import ManifestProblem
from nodeagent.core.turn.quiet import LeftAlone
from nodeagent.core.turn.world import SeenRoom
from nodeagent.daemon.host.host_settings import WantedSettings
from nodeagent.daemon.turn.execution import FailureResponse
from nodeagent.daemon.turn.problem import Problem

if TYPE_CHECKING:
    from nodeagent.core.model.devices import PlacedDevices

POLL_SECONDS = 0.05


class Reported(Struct, frozen=True):
    """Problems that have been logged and still last."""

    problems: frozenset[Problem] = frozenset()
    manifests: tuple[ManifestProblem, ...] = ()
    """Problems with manifests that have been logged."""
    duplicates: tuple[tuple[str, str], ...] = ()
    """Manifest files that are ignored because of a duplicate name or UID, each with the reason."""
    shortfalls: Mapping[Shortfall, Mapping[str, str]] = field(default_factory=dict)
    """Allocations that exceed the machine's resources, each with its log fields."""


class Settled(Struct, frozen=True):
    """A turn that left nothing to do until an input changes or a certain time has passed."""

    inputs: tuple[object, ...]
    """All inputs of the turn's result, except the time and requests."""
    host: WantedSettings
    wake_at_ms: int | None
    """Time at which the turn's result would change even without a change of the inputs. None means never."""


class TurnMemory(Struct, frozen=True):
    """Everything that a turn needs to know about earlier turns. The agent replaces this value once, at the end of a turn.

    A turn that ends early therefore leaves the rest of the memory unchanged.
    """

    node: NodeSetup
    state: NodeState
    """Saved state. Ends of pods that need not be saved may be added to it."""
    full_topology: Topology
    """Topology of the machine, including the CPUs that cgroups above the pods' cgroup withhold."""
    lead_ms: int
    """Lead of the wall clock over the time since boot, in milliseconds."""
    adapted_to: Managers
    """Managers of the machine to which the state's allocations belong."""
    slept_ms: int = 0
    """Total time of sleep since boot, in milliseconds."""
    is_saved: bool = True
    """Whether the current state is saved on disk, except for confirmed starts that need not be saved."""
    save_failed: bool = False
    """Whether the last turn could not save its decision."""
    unsaved: tuple[PodEntry, ...] = ()
    """Pods with a refusal, because the decision that would have met their requests could not be saved."""
    postponed: tuple[PodEntry, ...] = ()
    """Pods on which the decision is postponed until device plugins answer."""
    ancestor_cpus: tuple[tuple[str, CpuSet], ...] = ()
    """CPUs of the pods' cgroup and of each cgroup above it."""
    unit_cgroups: Mapping[str, str] = field(default_factory=dict)
    """Cgroups of pinned units below the cgroup root, by unit, as of the last read."""
    withheld_problem: str = ""
    """Problem with CPUs that a cgroup above the pods' cgroup withholds. Empty means that none are withheld."""
    machine_problems: tuple[Problem, ...] = ()
    devices: "PlacedDevices | None" = None
    """Devices of the last scan. None means that a scan wasn't needed yet."""
    seen_room: SeenRoom = field(default_factory=dict)
    """Free CPUs and memory at each saved decision. A restarted agent lacks this value, and therefore decides on the requests again."""
    in_sync: Mapping[str, DesiredCgroup] = field(default_factory=dict)
    """Cgroups with their desired values at the end of the last turn, by path."""
    in_place: InPlace = MappingProxyType({})
    """Cgroups that needed no change in the last turn, by path."""
    pod_cgroups: PodCgroups = PodCgroups()
    placements: ContainerPlacements = ContainerPlacements()
    quiet_cores: QuietCores = QuietCores()
    """Core settings that pods request for their exclusive CPUs."""
    refused_partitions: CpuSet | None = None
    """CPUs of partitions that could not be created. None means that no turn has tried to create a partition yet."""
    failures: FailureResponse = FailureResponse()
    """Response to the failed cgroup writes of the last turn."""
    signalled: frozenset[str] = frozenset()
    """IDs of the stopping runs whose processes got SIGTERM."""
    asked: frozenset[str] = frozenset()
    """IDs of the stopping runs for which SIGTERM was tried, with or without success. SIGKILL follows after the grace period."""
    conditions: tuple[str, ...] = ()
    """Problems that remain after the last complete turn, except failures."""
    misplaced_problem: str = ""
    """Problem with main processes outside their containers' cgroups. Empty means that there is no such process."""
    has_reconciled: bool = False
    """Whether a complete turn has been done, even if its decision could not be saved."""
    reported: Reported = Reported()
    left_alone: LeftAlone | None = None
    """Pods that the last turn has left unchanged. None means that there has been no complete turn."""
    views: tuple[DomainView, ...] = ()
    """Last observations of each domain, in the order of the domains."""
    observed: DomainView | None = None
    """Observations of all domains, merged. None means that the last turn could not read the cgroups."""
    settled: Settled | None = None
    """Last turn, if it left nothing to do. None means that the last turn left something to do."""
    poll_seconds: float = POLL_SECONDS
    """Seconds until the next check for changes that send no notification. The interval grows while nothing changes."""

    @property
    def decided_state(self) -> NodeState:
        """Return the state, including the requests that are refused only because the decision on them could not be saved."""
        return _with_entries(self.state, self.unsaved)

    @property
    def shown_state(self) -> NodeState:
        """Return the state for users, including the requests that wait for a device plugin's answer."""
        return _with_entries(self.decided_state, self.postponed)


def _with_entries(state: NodeState, others: tuple[PodEntry, ...]) -> NodeState:
    if not others:
        return state
    entries = {entry.pod.uid: entry for entry in (*state.entries, *others)}
    return replace(state, entries=tuple(entries.values()))
