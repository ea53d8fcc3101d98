"""Contract of a domain: an owner of containers' cgroups and processes, such as the agent, systemd or a container runtime.

A turn calls the methods in the order of this module, all in the deciding thread. Each method is called for all domains before the next
method is called. Each domain keeps its own data between turns, which other domains can't access. A domain's threads pass data to the
deciding thread by queues, and wake the agent. Problems are texts for users that name the next step. A `Problem` also names its pod.
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
from nodeagent.core.turn.lifecycle import Runs
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.core.turn.world import Turn, World


class DomainInput(Struct, frozen=True):
    """State and sources that a domain needs for its observations."""

    state: NodeState
    """State after the last turn."""
    sources: tuple[PodSource, ...]
    """Sources of pods of all domains."""
    rescan: bool
    """Whether everything is observed again. Otherwise, only values are observed that may change without waking the agent."""
    part: float = 1.0
    """Fraction of the pods' cgroups, from 0 to 1, that is read again although no change was reported."""
    runs: Runs | None = None
    """Runs of the launcher (one run is one start of a container's command). None means that the launcher doesn't answer."""


class DomainView(Struct, frozen=True):
    """Observations of one domain in one turn."""

    cgroups: ObservedCgroups
    inactive_units: frozenset[str] = frozenset()
    """Paths of pinned units that are neither active nor being started."""
    has_reported_all: bool = True
    """Whether the domain has reported all its pods. Until then, missing pods don't count as ended."""
    problems: tuple[str, ...] = ()
    retries: bool = False
    """Whether the problems may be solved soon, so that another observation is worthwhile."""
    places: Mapping[str, str] = MappingProxyType({})
    """Path of each pinned unit's cgroup below the root of all cgroups, by unit name."""
    strays: frozenset[str] = frozenset()
    """IDs of the runs (starts of containers' commands) whose main process is outside of its container's cgroup."""


class TurnDone(Struct, frozen=True):
    """Result of a turn that was saved and carried out."""

    state: NodeState
    """Saved state, in which pods that couldn't be saved are refused."""
    wanted: tuple[DesiredCgroup, ...]
    ready: frozenset[str]
    """Paths of the cgroups that have the allocated values, and whose exclusive CPUs aren't used by other processes."""
    unvacated: CpuSet
    """CPUs that some processes could not be moved off."""
    placed: Mapping[str, ContainerPlacement]
    """CPUs and memory nodes that were reported to each container's processes, by cgroup path."""
    files_in_use: Mapping[str, str]
    """Paths of device files that couldn't be withdrawn, each with the name of its last user."""


class TakenBack(Struct, frozen=True):
    """Result of withdrawing released devices from processes."""

    files_in_use: Mapping[str, str]
    problems: tuple[str, ...] = ()


class DomainCounts(Struct, frozen=True):
    """Numbers of a domain's events since the previous call of `count`."""

    deltas: tuple[MetricDelta, ...] = ()
    durations: tuple[tuple[str, float], ...] = ()
    """Durations in seconds, each with the name of the histogram to which it belongs."""


class Domain(Protocol):
    @property
    def name(self) -> str:
        """Name of the domain, as in `PodEntry.domain` of its pods."""
        ...

    def follow(self, config: Config, /) -> None:
        """Apply another configuration. This method is called between turns."""
        ...

    def bring(self, *, rescan: bool, part: float = 1.0) -> tuple[PodSource, ...]:
        """Return the domain's own pods from the last read, or with `rescan` from a new read.

        `part` is the fraction of the pods' files, from 0 to 1, that is checked although no change was reported. This method is called
        first, before any observation. The origin of each pod names the domain. If the domain only watches its processes, its containers
        pin units with names in systemd's form (`NAME.scope`). If all of a domain's pods come from another source, such as manifests, the
        result is empty.
        """
        ...

    def observe(self, look: DomainInput, /) -> DomainView:
        """Read the existing cgroups of the domain's pods, by the paths of `PodEntry.container_path`.

        This method is called before the turn makes its decisions.

        Raises:
            CgroupError: a cgroup can't be read. The turn then makes no decisions.
        """
        ...

    def decide(self, decided: Turn, world: World, /) -> Turn:
        """Decide on the requests received since the last turn.

        This method is called once the turn has decided on the pods of all sources, before any request is answered. The result is saved
        with the rest of the turn.
        """
        ...

    def withdraw(self, why: str, /) -> None:
        """Tell all waiting callers that no decision was made.

        This method is called if the turn can't be saved. The decision is then not carried out. The later methods are still called, with
        the state of the last turn.
        """
        ...

    def record(self, state: NodeState, observed: ObservedCgroups, /) -> tuple[str, ...]:
        """Record the original settings of the domain's cgroups, so that they can be restored even after the state was lost. Return the
        problems.

        This method is called after `state` is saved, and before any cgroup is written.
        """
        ...

    def desired(self, observed: ObservedCgroups, /) -> tuple[DesiredCgroup, ...]:
        """Return the desired values of cgroups whose pods aren't in the state, such as cgroups to restore."""
        ...

    def occupied(self, state: NodeState, /) -> CpuSet:
        """Return CPUs that the domain's processes may use, although no observed cgroup shows this.

        The plan doesn't grant these CPUs to any container. This method is called before the plan is carried out.
        """
        ...

    def owns(self, path: str, /) -> bool:
        """Whether this domain carries out the plan's changes of the cgroup. Exactly one domain owns each cgroup."""
        ...

    def apply(self, change: Change, /) -> None:
        """Carry out one change. Return once the change is in effect and processes have left the CPUs that it removes.

        Raises:
            CgroupError: the change failed, or its effect isn't certain. Dependent changes are deferred, and all of them are tried again.
        """
        ...

    def take_back(self, state: NodeState, /) -> TakenBack:
        """Withdraw released devices from the domain's processes, and give the processes access to the allocated devices.

        This method is called after the plan is carried out, before any domain starts a container or answers a request.
        """
        ...

    def finish(self, done: TurnDone, /) -> tuple[str, ...]:
        """Start or attach ready containers, answer waiting callers, and restore the settings of ended pods. Return the problems.

        This method is called last, after everything is saved and written.
        """
        ...

    @property
    def needs_every_turn(self) -> bool:
        """Whether every turn calls the domain, even if observations and pods are unchanged since the last turn."""
        ...

    @property
    def is_unsettled(self) -> bool:
        """Whether the domain waits for a change that doesn't wake the agent. In that case, another turn follows soon."""
        ...

    def standing_problem(self) -> str | None:
        """Describe a problem of the domain as a whole. None means that there is no such problem. This method is called after each turn,
        even a failed turn.
        """
        ...

    def count(self) -> DomainCounts:
        """Return the numbers of events since the previous call, for the metrics."""
        ...
