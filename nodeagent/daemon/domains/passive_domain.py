"""Base class for domains that take part in only some of a turn's steps."""

from nodeagent.core.cgroups.write_order import Change
from nodeagent.core.domains.domain import DeviceWithdrawal, DomainCounts, DomainInput, DomainView, TurnDone
from nodeagent.core.model.cgroup import DesiredCgroup, ObservedCgroups
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import NodeState
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.core.turn.world import Turn, World


class PassiveDomain:
    """Domain that does nothing in any step. Subclasses override the methods of the steps in which they take part (see
    core/domains/domain.py).
    """

    @property
    def needs_every_turn(self) -> bool:
        return False

    @property
    def is_unsettled(self) -> bool:
        return False

    def follow(self, _config: Config, /) -> None: ...

    def bring(self, *, rescan: bool, part: float = 1.0) -> tuple[PodSource, ...]:  # noqa: ARG002 - without pods of its own
        return ()

    def observe(self, _look: DomainInput, /) -> DomainView:
        return DomainView({})

    def decide(self, decided: Turn, _world: World, /) -> Turn:
        return decided

    def withdraw(self, _why: str, /) -> None: ...

    def record(self, _state: NodeState, _observed: ObservedCgroups, /) -> tuple[str, ...]:
        return ()

    def desired(self, _observed: ObservedCgroups, /) -> tuple[DesiredCgroup, ...]:
        return ()

    def occupied(self, _state: NodeState, /) -> CpuSet:
        return CpuSet()

    def owns(self, _path: str, /) -> bool:
        return False

    def apply(self, change: Change, /) -> None:
        raise AssertionError(f"{change.path} belongs to another domain")

    def take_back(self, _state: NodeState, /) -> DeviceWithdrawal:
        return DeviceWithdrawal({})

    def finish(self, _done: TurnDone, /) -> tuple[str, ...]:
        return ()

    def standing_problem(self) -> str | None:
        return None

    def count(self) -> DomainCounts:
        return DomainCounts()
