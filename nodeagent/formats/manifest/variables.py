"""What a container's process gets: command, args and env with Kubernetes' `$(NAME)` references replaced, within limits.

As in kubelet (k8s.io/kubernetes third_party/forked/golang/expansion): a variable sees those before it, command and args see all; `$$`
stands for `$`; an unknown reference stays as it is. Knows nothing of how it is started.
"""

import json
import re
from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.pod import Container

MAX_PROCESS_BYTES = 128 * 1024
"""For all strings as JSON: a start request has to fit into one packet to the launcher. The kernel accepts no longer single string."""
RESERVED_PREFIX = "NODEAGENT_"
"""Of the variables that only the agent sets (placement_variables.py): if a manifest had one, one of two values would not count."""

_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")


class Process(Struct, frozen=True):
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    """What is given, then the manifest's in its order; of two with one name the later counts."""


def process_of(container: Container, given: tuple[tuple[str, str], ...] = ()) -> Process | None:
    """Replace the references; None: the result is longer than `MAX_PROCESS_BYTES`.

    Each reference may name a value with two references to others, and so on: a result that is too long is never built.

    Args:
        container: its command, args and env.
        given: variables that come before its own, and don't count towards the limit.
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
        word = expand(text, variables, left)
        if word is None:
            return None
        left -= len(word)
        argv.append(word)
    if len(json.dumps([argv, env])) > MAX_PROCESS_BYTES:
        return None
    return Process(tuple(argv), (*given, *env))


def expand(text: str, variables: Mapping[str, str], most: int) -> str | None:
    """Replace the references in one text; None: the result has more than `most` characters."""
    end = text.rfind(")") + 1
    pieces: list[str] = []
    done = 0
    for found in _REFERENCE.finditer(text, 0, end):
        pieces += (text[done : found.start()], "$" if found[1] else variables.get(found[2], found[0]))
        most -= len(pieces[-1]) + len(pieces[-2])
        done = found.end()
        if most < 0:
            return None
    # Behind the last ")" no reference can end; searching for its end from every "$(" would take quadratic time.
    pieces += (text[done:end], text[end:].replace("$$", "$"))
    return None if most < len(pieces[-1]) + len(pieces[-2]) else "".join(pieces)
