"""Memory of the deciding thread between turns. It is one value, and empty after a restart of the agent."""

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
    """Problems that were logged and still exist. They are remembered, so that each is logged only once."""

    problems: frozenset[Problem] = frozenset()
    manifests: tuple[ManifestProblem, ...] = ()
    """Problems with manifests that have been logged."""
    duplicates: tuple[tuple[str, str], ...] = ()
    """Manifest files that are ignored because of a duplicate name or UID, each with the reason."""
    shortfalls: Mapping[Shortfall, Mapping[str, str]] = field(default_factory=dict)
    """Shortfalls that were logged and still exist, each with the log fields of its container."""


class Settled(Struct, frozen=True):
    """Record of a turn after which nothing is left to do, until an input changes or a certain time is reached."""

    inputs: tuple[object, ...]
    """Everything that determines the result of a turn, except for the time and requests."""
    host: WantedSettings
    wake_at_ms: int | None
    """Wall-clock time at which the result would change although all inputs are the same. None means never."""


class TurnMemory(Struct, frozen=True):
    """Everything that a turn needs from earlier turns.

    The agent replaces this value once, at the end of a turn. A turn that ends early keeps the parts that it hasn't computed.
    """

    node: NodeSetup
    state: NodeState
    """State as saved, plus ends of pods that take effect without being saved."""
    full_topology: Topology
    """Topology of the machine, including the CPUs that cgroups above the pods' cgroup withhold."""
    lead_ms: int
    """Wall-clock time minus time since boot, in milliseconds (see daemon/turn/clock.py)."""
    adapted_to: Managers
    """Managers to which the state's promises were last adapted."""
    slept_ms: int = 0
    """Total time that the machine has slept since boot, in milliseconds."""
    is_saved: bool = True
    """Whether the state is saved on disk. Confirmed starts don't count, because they needn't be saved."""
    save_failed: bool = False
    """Whether the last turn failed to save its decision."""
    unsaved: tuple[PodEntry, ...] = ()
    """Pods whose requests were granted by a decision that couldn't be saved. Each has a refusal instead."""
    postponed: tuple[PodEntry, ...] = ()
    """Pods that wait for a decision until device plugins have answered."""
    ancestor_cpus: tuple[tuple[str, CpuSet], ...] = ()
    """Effective CPUs of the pods' cgroup and the cgroups above it, each with its path."""
    unit_cgroups: Mapping[str, str] = field(default_factory=dict)
    """Cgroup of each pinned unit, as a path below the cgroup root, from the last reading."""
    withheld_problem: str = ""
    """Text about CPUs that a cgroup above the pods' cgroup withholds. Empty means that none are withheld."""
    machine_problems: tuple[Problem, ...] = ()
    devices: "PlacedDevices | None" = None
    """Devices found by the last scan. None means that no scan has been needed yet."""
    seen_room: SeenRoom = field(default_factory=dict)
    """CPUs and memory that were free when each waiting request was last decided. The value isn't saved, so after a restart the agent
    decides on all waiting requests again.
    """
    in_sync: Mapping[str, DesiredCgroup] = field(default_factory=dict)
    """Cgroups that had their desired values after the last turn, by path."""
    in_place: InPlace = MappingProxyType({})
    """Cgroups in which the last turn had nothing to change, by path."""
    pod_cgroups: PodCgroups = PodCgroups()
    placements: ContainerPlacements = ContainerPlacements()
    quiet_cores: QuietCores = QuietCores()
    """Core settings that pods request for their exclusive CPUs."""
    refused_partitions: CpuSet | None = None
    """CPUs of partitions that couldn't be created. None means that no turn has tried to create partitions yet."""
    failures: FailureResponse = FailureResponse()
    """Response to the last turn's failed cgroup writes."""
    signalled: frozenset[str] = frozenset()
    """IDs of the runs that are being stopped and whose processes have received SIGTERM."""
    asked: frozenset[str] = frozenset()
    """IDs of the runs that are being stopped and to which SIGTERM was sent, successfully or not. After the
    grace period, they get SIGKILL.
    """
    conditions: tuple[str, ...] = ()
    """Texts about problems that the last complete turn found, except for failed operations."""
    misplaced_problem: str = ""
    """Text about main processes that are outside their containers' cgroups. Empty means that there are none."""
    has_reconciled: bool = False
    """Whether the agent has made a complete turn, even if its decision could not be saved."""
    reported: Reported = Reported()
    left_alone: LeftAlone | None = None
    """Pods that the last turn left as they were, with what it knew about them. None means that the last turn's decision wasn't saved, or
    that there was no turn.
    """
    views: tuple[DomainView, ...] = ()
    """Latest observations by each domain, in the order of the domains."""
    observed: DomainView | None = None
    """Latest observations of all domains, merged. None means that the last turn could not read the cgroups."""
    settled: Settled | None = None
    """Last turn, if nothing was left to do after it. None means that something was."""
    poll_seconds: float = POLL_SECONDS
    """Seconds until the next turn if a change is expected that no event reports. They increase with each turn in a row that waits in this
    way.
    """

    @property
    def decided_state(self) -> NodeState:
        """Return the state, with refusals for the pods whose decision couldn't be saved."""
        return _with_entries(self.state, self.unsaved)

    @property
    def shown_state(self) -> NodeState:
        """Return the state that users see. It includes the pods that wait for answers from device plugins."""
        return _with_entries(self.decided_state, self.postponed)


def _with_entries(state: NodeState, others: tuple[PodEntry, ...]) -> NodeState:
    if not others:
        return state
    entries = {entry.pod.uid: entry for entry in (*state.entries, *others)}
    return replace(state, entries=tuple(entries.values()))
