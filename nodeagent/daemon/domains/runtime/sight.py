"""The cgroups of a container runtime's containers, as read in one turn."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.cgroup import ObservedCgroup
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.runtime_containers import MadeContainer, Registry, Stage
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.cgroups.cgroupfs import CgroupError, CgroupTree


class Sight(Struct, frozen=True):
    seen: Mapping[str, ObservedCgroup] = MappingProxyType({})
    """By id, the cgroups that exist."""
    looked: frozenset[str] = frozenset()
    """Ids of the containers whose cgroups were read, whether they exist or not."""
    problem: Problem | None = None
    """Why a cgroup can't be read: the containers may be on any CPU then. None means that all could be read."""

    @property
    def populated(self) -> frozenset[str]:
        return frozenset(id_ for id_, there in self.seen.items() if there.is_populated)

    def cpus_of(self, container_id: str) -> CpuSet | None:
        """Return the CPUs that a container's processes may run on. None means that it has no cgroup."""
        there = self.seen.get(container_id)
        return None if there is None else there.cpus_effective or CpuSet()


def look(tree: CgroupTree, registry: Registry, before: Sight, *, again: bool) -> Sight:
    """Read the cgroups of the runtime's containers, each once a turn.

    It is done after the calls that the turn answers have been taken, so a container that is about to begin is in its cgroup. Nothing is
    pushed from then on, and the runtime waits, or asks in the next turn.

    Args:
        tree: for the cgroups.
        registry: whose containers.
        before: what was read earlier.
        again: read all of them. Otherwise those that were not read yet.
    """
    seen: dict[str, ObservedCgroup] = {} if again else dict(before.seen)
    looked = set[str]() if again else set(before.looked)
    try:
        for entry in registry.entries:
            for made in entry.made:
                if made.id in looked or not made.cgroup:
                    continue
                looked.add(made.id)
                there = tree.read_of_others(made.cgroup)
                if there is not None:
                    seen[made.id] = there
    except CgroupError as err:
        return replace(before, problem=Problem.from_error(err))
    return Sight(MappingProxyType(seen), frozenset(looked), None if again else before.problem)


def maybe_running(tree: CgroupTree, registry: Registry, sight: Sight) -> frozenset[str]:
    """Return the ids of the containers that may have processes. A container without a known cgroup may have some for ever."""
    made = (made for entry in registry.entries for made in entry.made)
    populated = sight.populated
    return frozenset(one.id for one in made if not one.cgroup or one.id in populated or _may_begin(tree, one, sight))


def _may_begin(tree: CgroupTree, one: MadeContainer, sight: Sight) -> bool:
    """Whether a container that was created, and has no cgroup yet, may begin: as long as there is a process of its pod."""
    if one.stage is not Stage.CREATED or one.id in sight.seen:
        return False
    try:
        pod = tree.read_of_others(str(Path(one.cgroup).parent))
    except CgroupError:
        return True
    return pod is not None and pod.is_populated
