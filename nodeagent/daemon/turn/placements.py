"""Placement files, which tell each container its CPUs, memory and devices. They are removed with the pod.

All containers of the shared pool have the same file, so that a change of the pool needs only one write.
"""

from collections.abc import Callable, Mapping

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.model.cgroup_layout import POOL
from nodeagent.core.model.config import Config
from nodeagent.core.model.rotation import Rotation
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.daemon.turn.problem import Problem
from nodeagent.daemon.turn.synced_files import sync_files
from nodeagent.edge.files.placement_files import PlacementFileError, PlacementFiles
from nodeagent.formats.manifest.placement_variables import placement_text

_POOL_FILE = "_shared/pool"
"""Path of the shared pool's file below the placement directory. It can't be a pod's file, because no UID begins with `_`."""


def placement_directory(config: Config) -> str:
    """Return the directory of the placement files."""
    return f"{config.runtime_directory}/placement"


def placement_file(config: Config, entry: PodEntry, container: str) -> str:
    """Return the path of the placement file that a container's processes read. UIDs and names need no escaping, as valid ones are valid
    file names.
    """
    return f"{placement_directory(config)}/{_POOL_FILE if entry.is_placed_as_pool else f'{entry.pod.uid}/{container}'}"


class Placements:
    """Writer of the placement files of all containers."""

    def __init__(self, files: PlacementFiles) -> None:
        self._files = files
        self._rotation = Rotation()
        self._known: dict[str, ContainerPlacement | None] | None = None
        """Known content of each file, as a placement. None means that the file has another content.

        The attribute itself is None until the files have been read.
        """
        self._by_pod: dict[str, list[str]] | None = None
        """Names of the known files by pod. None means that they must be computed again, because files may have been added or removed."""

    def check(self, part: float) -> bool:
        """Return whether the placement files are as the agent wrote them, with none missing or added. `part` is the fraction, from 0 to 1,
        of the pods whose files are read.
        """
        known = self._known or {}
        if self._by_pod is None:
            self._by_pod = {}
            for name in known:
                self._by_pod.setdefault(name.partition("/")[0], []).append(name)
        try:
            if self._files.list_pods() != self._by_pod.keys():
                return False
            checked = self._rotation.take(self._by_pod, part)
            files = self._files.read(checked)
        except PlacementFileError:
            return False
        wanted = {name: known[name] for pod in checked for name in self._by_pod[pod]}
        return files.keys() == wanted.keys() and all(
            held is not None and files[name] == placement_text(held) for name, held in wanted.items()
        )

    def keep(
        self,
        state: NodeState,
        placed: Mapping[str, ContainerPlacement],
        *,
        rescan: bool,
        alive: Callable[[], None] = lambda: None,
    ) -> tuple[Problem, ...]:
        """Write the placement file of each container, and remove all other files. A container that isn't in `placed` keeps its file.

        Returns:
            Problems, one for each cause. The next turn tries the failed files again.
        """
        self._by_pod = None
        wanted: dict[str, ContainerPlacement | None] = {}
        for entry in [entry for entry in state.entries if entry.is_active]:
            if entry.is_placed_as_pool:
                wanted[_POOL_FILE] = placed.get(POOL)
                continue
            for name, path in entry.container_paths.items():
                wanted[f"{entry.pod.uid}/{name}"] = placed.get(path)
        if rescan or self._known is None:
            self._known = None
            try:
                files = self._files.read()
            except PlacementFileError as err:
                return (Problem.from_error(err),)
            self._known = {}
            for name, content in files.items():
                placement = wanted.get(name)
                is_current = placement is not None and content == placement_text(placement)
                self._known[name] = placement if is_current else None
        return sync_files(self._files, self._known, wanted, placement_text, alive)
