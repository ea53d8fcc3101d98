"""Contract of a domain: an owner of containers' cgroups and processes, such as the agent, systemd or a container runtime.

A turn calls the methods in the order of this module, all in the deciding thread. It calls a method of every domain before the next method.
Each domain keeps its own data between turns, and no other domain knows it. The threads of a domain hand over data by queues, and wake the
agent. Problems are texts for people, with the next step. A `Problem` also names its pod.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from msgspec import Struct

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.cgroups.write_order import Change
from nodeagent.core.metrics.deltas import MetricDelta
from nodeagent.core.model.cgroup import DesiredCgroup, ObservedCgroups
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import NodeState
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.core.turn.world import Turn, World


class DomainInput(Struct, frozen=True):
    """State and sources that a domain needs for its observations."""

    state: NodeState
    """State after the last turn."""
    sources: tuple[PodSource, ...]
    """Sources of all domains."""
    rescan: bool
    """Observe everything again, and not only what may change without waking the agent."""


class DomainView(Struct, frozen=True):
    """Observations of one domain in one turn."""

    cgroups: ObservedCgroups
    down: frozenset[str] = frozenset()
    """Paths of pinned units that neither run nor are being started."""
    has_reported_all: bool = True
    """False means that the domain may have pods that it hasn't reported yet."""
    problems: tuple[str, ...] = ()
    retries: bool = False
    """Another observation soon may solve the problems."""
    places: Mapping[str, str] = MappingProxyType({})
    """Path of each pinned unit's cgroup below the root of all cgroups, by the unit's name."""


class TurnDone(Struct, frozen=True):
    """Result of a turn that is saved and carried out."""

    state: NodeState
    """Saved state, with the pods that could not be saved as refused."""
    wanted: tuple[DesiredCgroup, ...]
    ready: frozenset[str]
    """Paths of the cgroups with the allocated values and no other processes on their exclusive CPUs."""
    unvacated: CpuSet
    """CPUs that processes could not be made to leave."""
    placed: Mapping[str, ContainerPlacement]
    """CPUs and memory nodes that each container is told, by cgroup path."""
    files_in_use: Mapping[str, str]
    """Name of the last user of each device file that could not be taken from it."""


class TakenBack(Struct, frozen=True):
    """Result of taking devices back."""

    files_in_use: Mapping[str, str]
    problems: tuple[str, ...] = ()


class DomainCounts(Struct, frozen=True):
    """Counts since the last call."""

    deltas: tuple[MetricDelta, ...] = ()
    durations: tuple[tuple[str, float], ...] = ()
    """Durations in seconds, each with the name of its histogram."""


class Domain(Protocol):
    @property
    def name(self) -> str:
        """`PodEntry.domain` of its pods."""
        ...

    def follow(self, config: Config, /) -> None:
        """Apply another configuration. Called between turns."""
        ...

    def bring(self, *, rescan: bool) -> tuple[PodSource, ...]:
        """Return the domain's own pods. With `rescan` they are read again, otherwise they are as of the last look.

        Called first, before any observation. The origin of such a pod names the domain. If the domain only watches its processes, its
        containers pin units with names in systemd's form (`NAME.scope`). A domain with pods from another source, such as manifests, returns
        none.
        """
        ...

    def observe(self, look: DomainInput, /) -> DomainView:
        """Read the existing cgroups of the domain's pods, by the paths of `PodEntry.container_path`.

        Called before the turn is decided.

        Raises:
            CgroupError: a cgroup can't be read. The turn decides nothing then.
        """
        ...

    def decide(self, decided: Turn, world: World, /) -> Turn:
        """Decide on the requests since the last turn. The result is saved with the rest of the turn.

        Called once the turn has decided on the pods of all sources. Nothing is answered yet.
        """
        ...

    def withdraw(self, why: str, /) -> None:
        """Answer all waiting callers that nothing was decided.

        Called if the turn can't be saved, in place of everything that follows from the decision. The later methods are called all the same,
        with the state of the last turn.
        """
        ...

    def record(self, state: NodeState, observed: ObservedCgroups, /) -> tuple[str, ...]:
        """Record the original settings of the domain's cgroups, if they outlive a lost state. Returns the problems.

        Called once `state` is saved and before anything is written.
        """
        ...

    def desired(self, observed: ObservedCgroups, /) -> tuple[DesiredCgroup, ...]:
        """Return the desired values of cgroups without a pod in the state, such as those to restore."""
        ...

    def occupied(self, state: NodeState, /) -> CpuSet:
        """Return CPUs with possible processes of the domain that no observed cgroup shows. The plan grants them to no container.

        Called before the plan is carried out.
        """
        ...

    def owns(self, path: str, /) -> bool:
        """Return whether the domain carries out the plan's changes of this cgroup. Exactly one domain does."""
        ...

    def apply(self, change: Change, /) -> None:
        """Carry out one change. It returns once the change has its effect and processes have left the CPUs that it removes.

        Raises:
            CgroupError: the change failed, or its effect isn't certain. Changes that depend on it are deferred, and all is tried again.
        """
        ...

    def take_back(self, state: NodeState, /) -> TakenBack:
        """Take released devices from the domain's processes, and let the processes use the allocated ones.

        Called once the plan is carried out, before any domain starts or answers something.
        """
        ...

    def finish(self, done: TurnDone, /) -> tuple[str, ...]:
        """Start or attach ready containers, answer waiting callers, and restore what has ended. Returns the problems.

        Called last: everything is saved and written.
        """
        ...

    @property
    def is_unsettled(self) -> bool:
        """Whether something will change without waking the agent. The next turn then follows soon."""
        ...

    def standing_problem(self) -> str | None:
        """Describe a problem of the domain as a whole. None means that there is none. Called after each turn, even a failed one."""
        ...

    def count(self) -> DomainCounts:
        """Return the counts since the last call, for the metrics."""
        ...
