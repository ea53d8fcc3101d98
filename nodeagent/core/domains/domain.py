"""Contract of a domain: the program that owns certain containers' cgroups and processes, such as the agent, systemd or a container runtime.

A turn of the agent calls the methods in the order of this module, each method for all domains before the next. All calls come from the
deciding thread. Domains keep their own data from turn to turn, and can't access each other's data. The threads of a domain pass data to the
deciding thread in queues, and wake the agent. Problems that a method returns are texts for users, with the next step.
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
    """Inputs for a domain's observations in one turn of the agent."""

    state: NodeState
    """Node state after the last turn of the agent."""
    sources: tuple[PodSource, ...]
    """Pod sources of all domains."""
    rescan: bool
    """Whether the domain reads everything again. Otherwise it reads only values whose changes don't wake the agent."""
    part: float = 1.0
    """Fraction of the pods' cgroups (0 to 1) that is read again even if no event has reported a change."""
    runs: Runs | None = None
    """Runs that the launcher reports, each of which is one start of a container's command. None means that the launcher doesn't answer."""


class DomainView(Struct, frozen=True):
    """Observations of one domain in one turn of the agent."""

    cgroups: ObservedCgroups
    inactive_units: frozenset[str] = frozenset()
    """Paths of pinned units that are neither active nor starting."""
    has_reported_all: bool = True
    """Whether the domain has reported all its pods since the agent's start. Until it has, a missing pod doesn't count as ended."""
    problems: tuple[str, ...] = ()
    retries: bool = False
    """Whether the problems may disappear soon, so that the domain should be observed again."""
    places: Mapping[str, str] = MappingProxyType({})
    """Cgroup path of each pinned unit below the cgroup v2 root, by unit name."""
    strays: frozenset[str] = frozenset()
    """Run IDs of containers whose main process has left the container's cgroup."""


class TurnDone(Struct, frozen=True):
    """Result of a turn of the agent, after its decisions were saved and the cgroups were written."""

    state: NodeState
    """Saved node state. If the turn's decisions couldn't be saved, they appear as refusals here."""
    wanted: tuple[DesiredCgroup, ...]
    ready: frozenset[str]
    """Paths of the cgroups that have their allocated values, and on whose exclusive CPUs no other process can run."""
    unvacated: CpuSet
    """CPUs that some process hasn't left, although they are allocated to a container."""
    placed: Mapping[str, ContainerPlacement]
    """CPUs and memory nodes of each container, as written into its placement file, by cgroup path."""
    files_in_use: Mapping[str, str]
    """Device files that couldn't be withdrawn from running processes, by path. The value names the unit whose processes use the file, such
    as `unit db.service`.
    """


class DeviceWithdrawal(Struct, frozen=True):
    """Result of withdrawing released devices from running processes."""

    files_in_use: Mapping[str, str]
    problems: tuple[str, ...] = ()


class DomainCounts(Struct, frozen=True):
    """Numbers for the metrics, counted since the previous call of `count`."""

    deltas: tuple[MetricDelta, ...] = ()
    durations: tuple[tuple[str, float], ...] = ()
    """Durations in seconds, as pairs of histogram name and duration."""


class Domain(Protocol):
    @property
    def name(self) -> str:
        """Return the name of the domain, which is also in `PodEntry.domain` of its pods."""
        ...

    def follow(self, config: Config, /) -> None:
        """Apply a changed configuration. The agent calls this method between two turns."""
        ...

    def bring(self, *, rescan: bool, part: float = 1.0) -> tuple[PodSource, ...]:
        """Return the domain's own pods, in the form of pod sources. The result is empty if manifests define all pods of the domain.

        This method is called first in a turn, before any observation. The origin of each pod must name the domain. If the domain doesn't
        start the processes itself, the pod's containers must pin units, with names like those of systemd scopes (`NAME.scope`).

        Args:
            rescan: whether to read the pods again, instead of using the last reading.
            part: fraction of the pods' files (0 to 1) that is checked even if no event has reported a change.
        """
        ...

    def observe(self, look: DomainInput, /) -> DomainView:
        """Read the existing cgroups of the domain's pods. The result's keys are the paths of `PodEntry.container_path`.

        This method is called before the turn decides on any pod.

        Raises:
            CgroupError: a cgroup can't be read. The turn then decides on no pods.
        """
        ...

    def decide(self, decided: Turn, world: World, /) -> Turn:
        """Decide on the requests that the domain has received since the last turn. Return the turn with these decisions added.

        This method is called after the decisions on the pods of all sources. All decisions are saved together, before any request is
        answered.
        """
        ...

    def withdraw(self, why: str, /) -> None:
        """Tell all waiting callers that their requests weren't decided, for the reason in `why`.

        This method is called if the turn's decisions can't be saved, and are therefore not carried out. The later methods of the turn are
        still called, with the state of the last turn.
        """
        ...

    def record(self, state: NodeState, observed: ObservedCgroups, /) -> tuple[str, ...]:
        """Record the original settings of cgroups that the domain is about to change, so that they can be restored even if the state is
        lost. Return problems.

        This method is called after `state` is saved, and before any cgroup is written.
        """
        ...

    def desired(self, observed: ObservedCgroups, /) -> tuple[DesiredCgroup, ...]:
        """Return desired values of cgroups that no pod in the state determines, such as cgroups whose original settings are to be
        restored.
        """
        ...

    def occupied(self, state: NodeState, /) -> CpuSet:
        """Return CPUs on which the domain's processes may run, although no observed cgroup shows it. No container is granted these CPUs.

        This method is called before the plan is carried out.
        """
        ...

    def owns(self, path: str, /) -> bool:
        """Return whether this domain writes the cgroup at this path. Exactly one domain does."""
        ...

    def apply(self, change: Change, /) -> None:
        """Carry out one change of a cgroup. Return once the change is in effect, and no process uses the CPUs that it removes.

        Raises:
            CgroupError: the change failed, or its effect is uncertain. Changes that depend on it are deferred, and the next turn tries all
                again.
        """
        ...

    def take_back(self, state: NodeState, /) -> DeviceWithdrawal:
        """Withdraw released devices from the domain's processes, and give these processes access to the devices that are allocated to them.

        This method is called after the plan is carried out, and before any domain starts a container or answers a request.
        """
        ...

    def finish(self, done: TurnDone, /) -> tuple[str, ...]:
        """Start or attach containers that are ready, answer waiting callers, and restore the settings of ended pods. Return problems.

        This method is called last in a turn, after everything is saved and written.
        """
        ...

    @property
    def needs_every_turn(self) -> bool:
        """Whether the domain must be called even in turns in which neither pods nor observations have changed."""
        ...

    @property
    def is_unsettled(self) -> bool:
        """Whether the domain waits for a change that no event will report to the agent. If it does, the agent starts its next turn soon."""
        ...

    def standing_problem(self) -> str | None:
        """Return a problem that concerns the domain as a whole, such as a missing connection. None means that there is no such problem.
        This method is called after each turn, even after a failed turn.
        """
        ...

    def count(self) -> DomainCounts:
        """Return the numbers of events since the previous call."""
        ...
