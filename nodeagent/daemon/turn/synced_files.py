"""Files in the runtime directory that are derived from the state. They are written only if they differ, and removed with their pods."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.files.placement_files import PlacementFileError, PlacementFiles

T = TypeVar("T")


def sync_files(
    files: PlacementFiles,
    held: dict[str, T | None],
    wanted: Mapping[str, T | None],
    text: Callable[[T], bytes],
    alive: Callable[[], None],
) -> tuple[Problem, ...]:
    """Write and remove files until they match the wanted content.

    Args:
        files: directory of the files.
        held: known content by file, or None for a file with other content. The mapping is updated.
        wanted: wanted content by file. None means that the file isn't changed.
        text: function that encodes a content.
        alive: function called before each write and removal.

    Returns:
        Problems, one for each cause of failure. The next turn tries the failed files again.
    """
    failed: dict[int | None, Problem] = {}
    for name in sorted(held.keys() - wanted.keys()):
        alive()
        try:
            files.remove(name)
        except PlacementFileError as err:
            failed.setdefault(err.errno, Problem.from_error(err))
        else:
            del held[name]
    for name, content in wanted.items():
        if content is None or held.get(name) == content:
            continue
        alive()
        try:
            files.write(name, text(content))
        except PlacementFileError as err:
            failed.setdefault(err.errno, Problem.from_error(err))
        else:
            held[name] = content
    return tuple(failed.values())
