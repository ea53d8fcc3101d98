"""Domain of jobs: pods of processes that request CPUs and enter a cgroup of the agent once it is ready."""

from nodeagent.core.cgroups.write_order import Change
from nodeagent.core.domains.domain import DomainCounts, DomainInput, DomainView, TakenBack, TurnDone
from nodeagent.core.model.cgroup import DesiredCgroup, ObservedCgroups
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import JOBS, NodeState
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.core.turn.world import Turn, World
from nodeagent.daemon.domains.jobs.jobs import Jobs, ProcessTaker


class JobsDomain:
    """Domain that brings pods of jobs and moves their owners into cgroups. The agent's own domain has the cgroups.

    Args:
        jobs: source of the pods.
        tree: moves processes into cgroups.
    """

    name = JOBS
    is_unsettled = False

    def __init__(self, jobs: Jobs, tree: ProcessTaker) -> None:
        self._jobs, self._tree = jobs, tree

    def follow(self, config: Config, /) -> None: ...

    def bring(self, *, rescan: bool) -> tuple[PodSource, ...]:
        return (self._jobs.look(rescan=rescan),)

    def observe(self, _look: DomainInput, /) -> DomainView:
        return DomainView({})

    def decide(self, decided: Turn, _world: World, /) -> Turn:
        return decided

    def withdraw(self, why: str, /) -> None: ...

    def record(self, _state: NodeState, _observed: ObservedCgroups, /) -> tuple[str, ...]:
        return ()

    def desired(self, _observed: ObservedCgroups, /) -> tuple[DesiredCgroup, ...]:
        return ()

    def occupied(self, _state: NodeState, /) -> CpuSet:
        return CpuSet()

    def owns(self, _path: str, /) -> bool:
        return False

    def apply(self, change: Change, /) -> None:
        raise AssertionError(f"{change.path} is no cgroup of a job's alone")

    def take_back(self, _state: NodeState, /) -> TakenBack:
        return TakenBack({})

    def finish(self, done: TurnDone, /) -> tuple[str, ...]:
        self._jobs.attach_owners(done.state, done.ready, done.placed, self._tree)
        return ()

    def standing_problem(self) -> str | None:
        return None

    def count(self) -> DomainCounts:
        return DomainCounts()
