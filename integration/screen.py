"""A terminal on the node, as a user sees it: keys go in, what is shown comes out. It is tmux in the guest."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from integration.node import Node

Shown = TypeVar("Shown", str, list[str])

_ARGV = ("tmux", "-L", "screen", "-f", "/dev/null")
_TMUX = shlex.join(_ARGV)
_PROMPT = "node# "


@dataclass(frozen=True)
class Screen:
    """Created by `screen_of`."""

    node: Node

    def type(self, line: str) -> None:
        """Type a command and Enter."""
        self._tmux("send-keys", "-l", line)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Press keys, named as tmux names them: `q`, `Down`, `C-c`."""
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def lines(self) -> list[str]:
        """What is shown, without the empty lines at the end."""
        return self._tmux("capture-pane", "-p").rstrip("\n").splitlines()

    def coloured(self) -> str:
        """What is shown, with the escape sequences that make it so."""
        return self._tmux("capture-pane", "-p", "-e").rstrip("\n")

    def wait(self, holds: Callable[[list[str]], bool], what: str) -> list[str]:
        """Wait until a condition holds for what is shown: no lines at all, while a program clears the screen."""
        return self._until(self.lines, holds, what)

    def coloured_when(self, holds: Callable[[str], bool], what: str) -> str:
        """Wait until a condition holds for what is shown, and return just that: a program may draw the next frame meanwhile."""
        return self._until(self.coloured, holds, what)

    def run(self, line: str) -> list[str]:
        """Type a command on a blank screen; wait for the next prompt, and return what is shown before it."""
        self.type("clear")
        self.wait(_is_prompt_alone, "a blank screen")
        self.type(line)
        shown = self.wait(lambda lines: len(lines) > 1 and lines[-1] == _PROMPT.rstrip(), f"{line} to end")
        return shown[1:-1]

    def _until(self, capture: Callable[[], Shown], holds: Callable[[Shown], bool], what: str) -> Shown:
        def look() -> Shown | None:
            shown = capture()
            return shown if holds(shown) else None

        return self.node.until(look, lambda: f"waited in vain for {what}:\n" + "\n".join(self.lines()))

    def _tmux(self, *arguments: str) -> str:
        return self.node.guest.run([*_ARGV, *arguments]).stdout


@contextmanager
def screen_of(node: Node, *, columns: int = 80, lines: int = 24) -> Iterator[Screen]:
    """A shell in a terminal of that size, until the end of the `with` block."""
    shell = f"env PS1={shlex.quote(_PROMPT)} LANG=C.UTF-8 bash --norc --noprofile"
    node.run(f"{_TMUX} new-session -d -x {columns} -y {lines} {shlex.quote(shell)}; {_TMUX} set -g status off")
    try:
        screen = Screen(node)
        screen.resize(columns, lines)
        screen.wait(_is_prompt_alone, "a prompt")
        yield screen
    finally:
        node.run(f"{_TMUX} kill-server", check=False)


def last_line_has(lines: list[str], text: str) -> bool:
    """Whether what is shown ends with a line that has the text: the live view's keys, a shell's prompt."""
    return bool(lines) and text in lines[-1]


def _is_prompt_alone(lines: list[str]) -> bool:
    return lines == [_PROMPT.rstrip()]
