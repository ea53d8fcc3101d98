"""The agent's own domain: pods from manifests, in the cgroups below the pods' unit. The launcher starts and ends their processes."""

from collections.abc import Sequence
from typing import Protocol

from nodeagent.core.cgroups.write_order import Change
from nodeagent.core.domains.domain import DomainInput, DomainView
from nodeagent.core.model.cgroup_layout import OWN_DIRECTORIES, is_pinned
from nodeagent.core.model.config import Config
from nodeagent.core.model.pod import OWN
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.daemon.domains.passive_domain import PassiveDomain
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree


class SourceReader(Protocol):
    """A source of pods that wakes the deciding thread when its pods change."""

    def look(self, *, rescan: bool) -> PodSource:
        """Return the pods: with `rescan` as of now, otherwise as of the last read."""
        ...

    def follow(self, config: Config) -> None:
        """Apply another configuration."""
        ...


class OwnDomain(PassiveDomain):
    """The agent's own domain. The turn itself starts and signals its processes."""

    name = OWN

    def __init__(self, tree: CgroupTree, readers: Sequence[SourceReader]) -> None:
        self._tree, self._readers = tree, readers

    def follow(self, config: Config, /) -> None:
        for reader in self._readers:
            reader.follow(config)

    def bring(self, *, rescan: bool) -> tuple[PodSource, ...]:
        return tuple(reader.look(rescan=rescan) for reader in self._readers)

    def observe(self, _look: DomainInput, /) -> DomainView:
        return DomainView(self._tree.read(OWN_DIRECTORIES) | self._tree.read_above())

    def owns(self, path: str, /) -> bool:
        return not is_pinned(path)

    def apply(self, change: Change, /) -> None:
        self._tree.apply(change)
