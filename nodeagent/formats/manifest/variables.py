"""Replacement of Kubernetes' `$(NAME)` references in the command, args and environment of a container's process. The size of the result is
limited.

The rules are kubelet's (k8s.io/kubernetes third_party/forked/golang/expansion). A variable can refer to earlier variables, and command
and args can refer to all variables. `$$` means `$`, and an unknown reference stays unchanged.
"""

import json
import re
from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.pod import Container

MAX_PROCESS_BYTES = 128 * 1024
"""Maximum size of all strings together, as JSON, because a start request must fit into one packet to the launcher. The kernel limits each
string, too.
"""
RESERVED_PREFIX = "NODEAGENT_"
"""Prefix of the variables that only the agent sets (placement_variables.py). A manifest can't set such a variable: the agent's value would
overwrite the manifest's."""

_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")


class Process(Struct, frozen=True):
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    """Variables added by the agent, then the manifest's in their order. If two variables have the same name, the later one takes effect.
    """


def expand_process(container: Container, given: tuple[tuple[str, str], ...] = ()) -> Process | None:
    """Replace the references in a container's command, args and env. None means that the result is longer than `MAX_PROCESS_BYTES`. The
    `given` variables precede the manifest's, and don't count towards the limit.

    Processing stops at the limit, because values that contain several references could grow exponentially.
    """
    left = MAX_PROCESS_BYTES
    variables = dict(given)
    env: list[tuple[str, str]] = []
    for name, text in container.env:
        value = expand(text, variables, left)
        if value is None:
            return None
        left -= len(value)
        variables[name] = value
        env.append((name, value))
    argv: list[str] = []
    for text in (*container.command, *container.args):
        argument = expand(text, variables, left)
        if argument is None:
            return None
        left -= len(argument)
        argv.append(argument)
    if len(json.dumps([argv, env])) > MAX_PROCESS_BYTES:
        return None
    return Process(tuple(argv), (*given, *env))


def expand(text: str, variables: Mapping[str, str], most: int) -> str | None:
    """Replace the references in a text. None means that the result has more than `most` characters."""
    end = text.rfind(")") + 1
    pieces: list[str] = []
    done = 0
    for found in _REFERENCE.finditer(text, 0, end):
        pieces += (text[done : found.start()], "$" if found[1] else variables.get(found[2], found[0]))
        most -= len(pieces[-1]) + len(pieces[-2])
        done = found.end()
        if most < 0:
            return None
    # no reference can end after the last ")", and searching the end of every later "$(" would take quadratic time
    pieces += (text[done:end], text[end:].replace("$$", "$"))
    return None if most < len(pieces[-1]) + len(pieces[-2]) else "".join(pieces)
