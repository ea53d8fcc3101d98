"""Full-screen terminal with an alternate screen, which reads single keys. The terminal is restored at the end, even after an error or a
signal.
"""

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from types import FrameType, TracebackType
from typing import Self

from nodeagent.cli.support.printable_output import find_raw_output

_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_MOST_KEY_BYTES = 64
_KEYS = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"k": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"j": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b" ": "page down",
}


class Terminal:
    """Terminal for drawing while the `with` block runs. Ctrl-C raises KeyboardInterrupt. SIGTERM and SIGHUP end the program."""

    def __init__(self) -> None:
        self._undo = ExitStack()
        self._wake, self._woken = -1, -1

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            before = termios.tcgetattr(sys.stdin)
            undo.callback(termios.tcsetattr, sys.stdin, termios.TCSADRAIN, before)
            self._wake, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            undo.callback(os.close, self._wake)
            undo.callback(os.close, self._woken)
            # a signal writes to this descriptor, which ends the wait for a key
            undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False))
            for number, handle in (
                (signal.SIGWINCH, _ignore),
                (signal.SIGCONT, self._resume),
                (signal.SIGTSTP, self._suspend),
                (signal.SIGTERM, _exit_by_signal),
                (signal.SIGHUP, _exit_by_signal),
            ):
                undo.callback(signal.signal, number, signal.signal(number, handle))
            undo.callback(_write, _LEAVE)
            self._resume()
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._undo.close()

    def size(self) -> tuple[int, int]:
        """Return the current numbers of columns and lines. A terminal that reports no size counts as 80 by 24."""
        size = os.get_terminal_size(sys.stdout.fileno())
        return size.columns or 80, size.lines or 24

    def draw(self, lines: Sequence[str], reverse: int | None = None) -> None:
        """Draw lines on the screen in one write, without clearing the screen first, so that it doesn't flicker. The line with the index
        `reverse` is shown in reverse video.
        """
        shown = [f"\x1b[7m{line}\x1b[m" if number == reverse else line for number, line in enumerate(lines)]
        _write("\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in shown) + "\x1b[J")

    def key(self, seconds: float) -> str | None:
        """Wait for a key. Return its letter, or `up`, `down`, `page up` or `page down`.

        None means that the time is over, or that a signal arrived, for instance because the terminal was resized.
        """
        deadline = time.monotonic() + seconds
        ready, _, _ = select.select([sys.stdin, self._wake], [], [], max(0.0, deadline - time.monotonic()))
        if self._wake in ready:
            with suppress(BlockingIOError):
                os.read(self._wake, _MOST_KEY_BYTES)
        if sys.stdin not in ready:
            return None
        pressed = os.read(sys.stdin.fileno(), _MOST_KEY_BYTES)
        return (
            _KEYS.get(pressed) or pressed[-1:].decode(errors="replace") or "q"
        )  # an empty read means that the terminal has gone

    def _suspend(self, _number: int, _frame: FrameType | None) -> None:
        _write_at_once(_LEAVE)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _resume(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        tty.setcbreak(sys.stdin, termios.TCSADRAIN)
        _write_at_once(_ENTER)


def _write(text: str) -> None:
    stream = find_raw_output()
    stream.write(text)
    stream.flush()


def _write_at_once(text: str) -> None:
    """Write to stdout without Python's buffer. A buffer whose write was interrupted by a signal refuses to be written to again by the
    signal's handler.
    """
    os.write(sys.stdout.fileno(), text.encode())


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. This handler is installed so that the signal ends the wait for a key."""


def _exit_by_signal(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
