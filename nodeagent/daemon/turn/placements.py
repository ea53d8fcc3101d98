"""Keeps every container's placement file as its cgroup is: written only when different, gone with the pod."""

from collections.abc import Callable, Mapping

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.model.config import Config
from nodeagent.core.model.state import NodeState
from nodeagent.daemon.turn.kept_files import keep_files
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.files.placement_files import PlacementFileError, PlacementFiles
from nodeagent.formats.manifest.placement_variables import placement_text


def placement_directory(config: Config) -> str:
    """Return the directory of all placement files."""
    return f"{config.runtime_directory}/placement"


def placement_name(uid: str, container: str) -> str:
    """Return a container's file, relative to that directory. Legal UIDs and names are names of files, too."""
    return f"{uid}/{container}"


class Placements:
    """The files of all containers."""

    def __init__(self, files: PlacementFiles) -> None:
        self._files = files
        self._held: dict[str, ContainerPlacement | None] | None = None
        """What each file tells. None: something that it is not to tell, or no file; instead of all: not read yet."""

    def keep(
        self,
        state: NodeState,
        placed: Mapping[str, ContainerPlacement],
        *,
        rescan: bool,
        alive: Callable[[], None] = lambda: None,
    ) -> tuple[Problem, ...]:
        """Make the files as the cgroups are.

        Args:
            state: whose containers have files.
            placed: by the paths of their cgroups. The file of a container that is not among them stays as it is.
            rescan: look whether somebody else has changed files.
            alive: called before each file.

        Returns:
            What could not be done, once for each reason. It is tried again in the next turn.
        """
        wanted = {
            placement_name(entry.pod.uid, container.name): placed.get(entry.container_path(container.name))
            for entry in state.entries
            if entry.is_active
            for container in entry.pod.containers
        }
        if rescan or self._held is None:
            self._held = None
            try:
                self._held = self._read(wanted)
            except PlacementFileError as err:
                return (Problem.from_error(err),)
        return keep_files(self._files, self._held, wanted, placement_text, alive)

    def _read(self, wanted: Mapping[str, ContainerPlacement | None]) -> dict[str, ContainerPlacement | None]:
        found: dict[str, ContainerPlacement | None] = {}
        for name, content in self._files.read().items():
            placement = wanted.get(name)
            found[name] = placement if placement is not None and content == placement_text(placement) else None
        return found
