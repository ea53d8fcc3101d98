"""The contract of a domain: an owner of containers' cgroups and processes (the agent, systemd, a container runtime, …).

A turn calls the methods in the order in which they stand here, all in the deciding thread: each for every domain, before the next. What a
domain keeps between turns is its own, and no other domain knows it. A domain's threads hand things over by queues and wake the agent.
Problems are returned as texts for people, with the next step; a `Problem` also names its pod.
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
    """What there is to observe."""

    state: NodeState
    """As the last turn has left it."""
    sources: tuple[PodSource, ...]
    """Of all domains."""
    rescan: bool
    """Whether to observe everything again, and not only what may change without waking the agent."""


class DomainView(Struct, frozen=True):
    """What a domain has observed for one turn."""

    cgroups: ObservedCgroups
    down: frozenset[str] = frozenset()
    """Paths of what pods pin that isn't running, and isn't being started."""
    is_all_told: bool = True
    """False means that the domain may have pods which it has not told yet."""
    problems: tuple[str, ...] = ()
    retries: bool = False
    """Looking again soon may solve the problems."""
    places: Mapping[str, str] = MappingProxyType({})
    """Where the cgroups of what pods pin really are, below the root of all cgroups, by its name."""


class TurnDone(Struct, frozen=True):
    """A turn that is saved and carried out."""

    state: NodeState
    """As it is saved, and with the pods that could not be saved as refused."""
    wanted: tuple[DesiredCgroup, ...]
    ready: frozenset[str]
    """Paths of the cgroups that hold what is promised, with nobody else on their exclusive CPUs."""
    unvacated: CpuSet
    """CPUs that processes could not be made to leave."""
    placed: Mapping[str, ContainerPlacement]
    """By cgroup path, what containers' processes are told."""
    files_in_use: Mapping[str, str]
    """Device files that could not be taken from their last user, each with that user's name."""


class TakenBack(Struct, frozen=True):
    """What came of taking devices back."""

    files_in_use: Mapping[str, str]
    problems: tuple[str, ...] = ()


class DomainCounts(Struct, frozen=True):
    """What has happened since the last time."""

    deltas: tuple[MetricDelta, ...] = ()
    durations: tuple[tuple[str, float], ...] = ()
    """Seconds, each with the name of its histogram."""


class Domain(Protocol):
    @property
    def name(self) -> str:
        """What its pods have as `PodEntry.domain`."""
        ...

    def follow(self, config: Config, /) -> None:
        """Apply another configuration. Called between turns."""
        ...

    def bring(self, *, rescan: bool) -> tuple[PodSource, ...]:
        """Return the pods that come from the domain itself; with `rescan` as they are now, otherwise as of the last look.

        Called first, before anything is observed. The origin of such a pod names the domain. If the domain only watches its processes, its
        containers pin units, whose names have the form of systemd's (`NAME.scope`). A domain whose pods come from another source, such as
        manifests, returns none.
        """
        ...

    def observe(self, look: DomainInput, /) -> DomainView:
        """Read the cgroups that the domain's pods have or will have, by the paths of `PodEntry.container_path`.

        Called before the turn is decided.

        Raises:
            CgroupError: one can't be read. The turn decides nothing then.
        """
        ...

    def decide(self, decided: Turn, world: World, /) -> Turn:
        """Decide on what the domain has been asked since the last turn. What it returns is saved with the rest of the turn.

        Called once the turn has decided on the pods of all sources. Nothing is answered yet.
        """
        ...

    def withdraw(self, why: str, /) -> None:
        """Answer those that wait that nothing was decided.

        Called instead of anything that follows from the decision, if the turn can't be saved. The later methods are called all the same,
        with the state of the last turn.
        """
        ...

    def record(self, state: NodeState, observed: ObservedCgroups, /) -> tuple[str, ...]:
        """Record what the domain's cgroups go back to, where it outlives a lost state. Returns the problems.

        Called once `state` is saved and before anything is written.
        """
        ...

    def desired(self, observed: ObservedCgroups, /) -> tuple[DesiredCgroup, ...]:
        """Return what cgroups of the domain should hold that no pod of the state has any more, such as those to give back."""
        ...

    def occupied(self, state: NodeState, /) -> CpuSet:
        """Return CPUs on which processes of the domain may be that no observed cgroup shows. The plan grants them to nobody.

        Called before the plan is carried out.
        """
        ...

    def owns(self, path: str, /) -> bool:
        """Return whether the domain carries out the plan's changes of this cgroup. Exactly one domain does."""
        ...

    def apply(self, change: Change, /) -> None:
        """Carry out one change, and return once it has its effect: processes have left the CPUs that it takes away.

        Raises:
            CgroupError: it failed, or its effect is not certain. The changes that depend on it are held back, and all is tried again.
        """
        ...

    def take_back(self, state: NodeState, /) -> TakenBack:
        """Take from the domain's processes the devices that are no longer theirs, and let them use those that are.

        Called once the plan is carried out, before any domain starts or answers something.
        """
        ...

    def finish(self, done: TurnDone, /) -> tuple[str, ...]:
        """Start or let in what is ready, answer who waits, and give back what is over. Returns the problems.

        Called last: everything is saved and written.
        """
        ...

    @property
    def is_unsettled(self) -> bool:
        """Whether something is to change that wakes nobody: the next turn follows soon."""
        ...

    def standing_problem(self) -> str | None:
        """Return what is wrong with the domain as a whole. None means that nothing is. Called after the turn, and after a failed one."""
        ...

    def count(self) -> DomainCounts:
        """Return what has happened since the last call, for the metrics."""
        ...
