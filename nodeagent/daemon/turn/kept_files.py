"""Files of the runtime directory that are kept as something in the state is: written only when different, gone with it."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.files.placement_files import PlacementFileError, PlacementFiles

T = TypeVar("T")


def keep_files(
    files: PlacementFiles,
    held: dict[str, T | None],
    wanted: Mapping[str, T | None],
    text: Callable[[T], bytes],
    alive: Callable[[], None],
) -> tuple[Problem, ...]:
    """Make the files as they are wanted.

    Args:
        files: where they are.
        held: what each file says, None: something else. It is brought up to date.
        wanted: by name. None: the file, if any, stays as it is.
        text: what is written.
        alive: called before each file that is written or removed.

    Returns:
        What could not be done, once for each reason: to be tried again in the next turn.
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
