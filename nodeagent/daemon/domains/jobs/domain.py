"""The jobs' domain: pods of processes that ask for CPUs, and that enter a cgroup of the agent's own once it is ready."""

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
    """It brings pods and lets processes in. The cgroups are the agent's own.

    Args:
        jobs: what there is.
        tree: takes processes in.
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
        self._jobs.let_in(done.state, done.ready, done.placed, self._tree)
        return ()

    def standing_problem(self) -> str | None:
        return None

    def count(self) -> DomainCounts:
        return DomainCounts()
