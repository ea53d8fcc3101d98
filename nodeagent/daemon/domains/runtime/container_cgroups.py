"""Cgroups of a container runtime's containers, read once per turn."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.cgroup import ObservedCgroup
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.runtime_containers import MadeContainer, Registry, Stage
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree


class ContainerCgroups(Struct, frozen=True):
    by_id: Mapping[str, ObservedCgroup] = MappingProxyType({})
    """Existing cgroups by container ID."""
    read_ids: frozenset[str] = frozenset()
    """IDs of the containers whose cgroups the agent has tried to read, including those without a cgroup."""
    problem: Problem | None = None
    """Reason why a container's cgroup can't be read. Such a container must be assumed to run on any CPU. None means that
    all cgroups could be read.
    """

    @property
    def populated(self) -> frozenset[str]:
        return frozenset(id_ for id_, cgroup in self.by_id.items() if cgroup.is_populated)

    def cpus_of(self, container_id: str) -> CpuSet | None:
        """Return the container's effective CPUs. None means that the container has no cgroup."""
        cgroup = self.by_id.get(container_id)
        return None if cgroup is None else cgroup.cpus_effective or CpuSet()


def read_container_cgroups(
    tree: CgroupTree, registry: Registry, before: ContainerCgroups, *, again: bool
) -> ContainerCgroups:
    """Read the cgroup of each container of the runtime.

    A container's cgroup exists before the runtime calls the agent for its start. A turn that handles this call therefore finds the cgroup.

    Args:
        tree: the node's cgroups.
        registry: the containers.
        before: the cgroups that were read last.
        again: whether to read all cgroups again. Otherwise, only the cgroups missing from `before` are read.
    """
    by_id: dict[str, ObservedCgroup] = {} if again else dict(before.by_id)
    read_ids = set[str]() if again else set(before.read_ids)
    try:
        for entry in registry.entries:
            for made in entry.made:
                if made.id in read_ids or not made.cgroup:
                    continue
                read_ids.add(made.id)
                cgroup = tree.read_foreign(made.cgroup)
                if cgroup is not None:
                    by_id[made.id] = cgroup
    except CgroupError as err:
        return replace(before, problem=Problem.from_error(err))
    return ContainerCgroups(MappingProxyType(by_id), frozenset(read_ids), None if again else before.problem)


def maybe_running(tree: CgroupTree, registry: Registry, cgroups: ContainerCgroups) -> frozenset[str]:
    """Return the IDs of the containers that may have processes. A container whose cgroup path is unknown counts as running."""
    populated = cgroups.populated

    def may_run(made: MadeContainer) -> bool:
        if not made.cgroup or made.id in populated:
            return True
        if made.stage is not Stage.CREATED or made.id in cgroups.by_id:
            return False
        try:  # while the pod has processes, a created container without a cgroup may still start
            pod = tree.read_foreign(str(Path(made.cgroup).parent))
        except CgroupError:
            return True
        return pod is not None and pod.is_populated

    return frozenset(made.id for entry in registry.entries for made in entry.made if may_run(made))
