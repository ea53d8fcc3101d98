"""The agent's own domain: pods from manifests, in the cgroups below the pods' unit. The launcher starts and ends their processes."""

from nodeagent.core.cgroups.write_order import Change
from nodeagent.core.domains.domain import DomainCounts, DomainInput, DomainView, TakenBack, TurnDone
from nodeagent.core.model.cgroup import DesiredCgroup, ObservedCgroups
from nodeagent.core.model.cgroup_layout import OWN_DIRECTORIES, is_pinned
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import OWN
from nodeagent.core.model.state import NodeState
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.core.turn.world import Turn, World
from nodeagent.daemon.domains.source_reader import SourceReader
from nodeagent.edge.cgroups.cgroupfs import CgroupTree


class OwnDomain:
    """The agent's own domain. The turn itself starts and signals its processes."""

    name = OWN
    is_unsettled = False

    def __init__(self, tree: CgroupTree, manifests: SourceReader | None) -> None:
        self._tree, self._manifests = tree, manifests

    def follow(self, config: Config, /) -> None:
        if self._manifests is not None:
            self._manifests.follow(config)

    def bring(self, *, rescan: bool) -> tuple[PodSource, ...]:
        return () if self._manifests is None else (self._manifests.look(rescan=rescan),)

    def observe(self, _look: DomainInput, /) -> DomainView:
        return DomainView(self._tree.read(OWN_DIRECTORIES) | self._tree.read_above())

    def decide(self, decided: Turn, _world: World, /) -> Turn:
        return decided

    def withdraw(self, why: str, /) -> None: ...

    def record(self, _state: NodeState, _observed: ObservedCgroups, /) -> tuple[str, ...]:
        return ()

    def desired(self, _observed: ObservedCgroups, /) -> tuple[DesiredCgroup, ...]:
        return ()

    def occupied(self, _state: NodeState, /) -> CpuSet:
        return CpuSet()

    def owns(self, path: str, /) -> bool:
        return not is_pinned(path)

    def apply(self, change: Change, /) -> None:
        self._tree.apply(change)

    def take_back(self, _state: NodeState, /) -> TakenBack:
        return TakenBack({})

    def finish(self, _done: TurnDone, /) -> tuple[str, ...]:
        return ()

    def standing_problem(self) -> None:
        return None

    def count(self) -> DomainCounts:
        return DomainCounts()
