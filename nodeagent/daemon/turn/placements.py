"""Placement files: the values of each container's cgroup, removed with the pod.

Containers of the shared pool have one common file, so that a change of the pool needs only one write.
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
"""Path of the shared pool's file below the placement directory. No UID begins with `_`."""


def placement_directory(config: Config) -> str:
    """Return the directory of the placement files."""
    return f"{config.runtime_directory}/placement"


def placement_file(config: Config, entry: PodEntry, container: str) -> str:
    """Return the path of the file that a container's processes read and watch. Valid UIDs and names are valid file names."""
    return f"{placement_directory(config)}/{_POOL_FILE if entry.is_placed_as_pool else f'{entry.pod.uid}/{container}'}"


class Placements:
    """Writer of the placement files of all containers."""

    def __init__(self, files: PlacementFiles) -> None:
        self._files = files
        self._rotation = Rotation()
        self._known: dict[str, ContainerPlacement | None] | None = None
        """Placement by file, or None for a file with other content. The attribute is None until the files have been read."""
        self._by_pod: dict[str, list[str]] | None = None
        """Names of the known files by pod. None means that the names may have changed since the last check."""

    def check(self, part: float) -> bool:
        """Return whether the placement files are as written, and no file is missing or foreign. `part` is the fraction of the pods to
        check, 0 to 1.
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
        """Write the placement files of all containers, and remove all other files.

        If `placed` has no placement for a container, its file isn't changed.

        Returns:
            Problems, one for each cause of failure. The next turn tries the failed files again.
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
