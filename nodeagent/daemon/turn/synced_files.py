"""Synchronization of files in the runtime directory with the state: write a file only if its content differs, and remove files of ended
pods.
"""

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
    """Write and remove files until the directory contains what is wanted.

    Args:
        files: access to the directory.
        held: known content by file name. None means an unknown content. The mapping is updated.
        wanted: wanted content by file name. None means that the file is left as it is.
        text: function that encodes a content.
        alive: function that is called before each write or removal.

    Returns:
        Problems, one for each cause. The next turn tries the failed files again.
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
