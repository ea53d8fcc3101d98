"""What the deciding thread keeps from one turn to the next, as one value. A restart begins without it, and misses nothing."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from nodeagent.core.admission.managers import Managers
from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.cgroups.container_placement import ContainerPlacements
from nodeagent.core.cgroups.desired_cgroups import PodCgroups
from nodeagent.core.model.cgroup import DesiredCgroup
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.model.topology import Topology
from nodeagent.core.model.violations import Shortfall
from nodeagent.core.turn.pod_sources import ManifestProblem
from nodeagent.daemon.turn.execution import FailureResponse
from nodeagent.daemon.turn.problem import Problem

if TYPE_CHECKING:
    from nodeagent.core.model.devices import PlacedDevices

POLL_SECONDS = 0.05


class Reported(Struct, frozen=True):
    """Problems that are in the log and still last."""

    problems: frozenset[Problem] = frozenset()
    manifests: tuple[ManifestProblem, ...] = ()
    """Problems with manifests."""
    duplicates: tuple[tuple[str, str], ...] = ()
    """Files whose pods don't count, because of a pod of the same name or UID, and why."""
    shortfalls: Mapping[Shortfall, Mapping[str, str]] = field(default_factory=dict)
    """Promises that the machine can't keep, with the log fields of each."""


class TurnMemory(Struct, frozen=True):
    """Everything that a turn needs of the turns before it. A turn makes the next value, and the agent replaces it once, at the turn's end.

    So a turn that ends early has changed nothing but what it says here.
    """

    node: NodeSetup
    state: NodeState
    """The state as saved, or with endings that need not be saved."""
    whole: Topology
    """The machine, including the CPUs that cgroups above the pods' cgroup withhold."""
    lead_ms: int
    """How much the wall clock is ahead of the time since boot."""
    adapted_to: Managers
    """The managers whose machine the promises of the state match."""
    is_saved: bool = True
    """Whether the state on disk is the current one."""
    save_failed: bool = False
    """Whether the last turn could not save its decision."""
    unsaved: tuple[PodEntry, ...] = ()
    """Pods that could have been admitted if the decision had been saved, each refused for that."""
    chain: tuple[tuple[str, CpuSet], ...] = ()
    """The CPUs of the pods' cgroup and of all cgroups above it."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Where the cgroups of what pods pin are, below the root of all cgroups, by its name; as of the last look."""
    withheld: str = ""
    """The problem with CPUs that one of these cgroups withholds. Empty means that none does."""
    machine_problems: tuple[Problem, ...] = ()
    devices: "PlacedDevices | None" = None
    """Devices as of the last scan. None means that none was needed yet."""
    given: frozenset[str] = frozenset()
    """Resources of which device plugins had healthy devices at the last decision."""
    due: frozenset[str] = frozenset()
    """UIDs of refused pods to decide again, until a turn has done so and has saved that."""
    has_room: bool = True
    """Whether a domain has released resources after the last turn's decision, or no turn has decided yet."""
    in_sync: Mapping[str, DesiredCgroup] = field(default_factory=dict)
    """The cgroups that had their desired values when the last turn ended."""
    pod_cgroups: PodCgroups = PodCgroups()
    placements: ContainerPlacements = ContainerPlacements()
    refused_partitions: CpuSet | None = None
    """CPUs of partitions that could not be created. None means that no turn has tried yet."""
    failures: FailureResponse = FailureResponse()
    """Response to failed cgroup writes."""
    signalled: frozenset[str] = frozenset()
    """Ids of the runs that are being stopped and whose processes got their SIGTERM."""
    asked: frozenset[str] = frozenset()
    """Those, and the runs to which SIGTERM could not be sent. That is tried again, but puts off no SIGKILL."""
    conditions: tuple[str, ...] = ()
    """Problems that the last whole turn has left, and that are no failures."""
    misplaced: str = ""
    """The problem with main processes that are outside their cgroup, as of the last look. Empty means that all are inside."""
    has_reconciled: bool = False
    """Whether a turn has been done from its beginning to its end, if only without being saved."""
    reported: Reported = Reported()
    poll_seconds: float = POLL_SECONDS
    """Time until the next look at what sends no notification. It grows each time that nothing has changed."""

    @property
    def shown_state(self) -> NodeState:
        """The state with the pods that are refused only because they could not be saved."""
        if not self.unsaved:
            return self.state
        entries = (*self.state.entries, *self.unsaved)
        return NodeState(self.state.promises, entries, self.state.generation, self.state.runtime)
