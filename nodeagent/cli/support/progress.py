"""A progress bar for commands that take more than a second, on a terminal only: files, pipes and programs never get one."""

import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from tqdm import tqdm

_DELAY_SECONDS = 1.0
_COLUMNS, _LINES = 79, 24
BEGUN = time.monotonic()
"""When the command began. It may have several parts of less than a second each: its total time counts."""


class Progress:
    """Counts steps while the `with` block runs; the bar disappears at its end."""

    def __init__(self, what: str, total: int | None = None, *, beside_output: bool = False) -> None:
        """Return what is counted, in the plural.

        Args:
            what: as in `37 scenarios`.
            total: how many there will be at most; None: unknown.
            beside_output: stdout is written at the same time, so both must not be the same terminal.
        """
        self._what = what
        self._total = total
        self._is_wanted = _is_terminal() and not (beside_output and sys.stdout.isatty())
        self._count = 0
        self._shown_from = BEGUN + _DELAY_SECONDS
        self._redrawn = 0.0
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def step(self) -> None:
        """Count one more."""
        self._count += 1
        if self._bar is not None:
            self._bar.update()
        else:
            self._begin()

    def tick(self) -> None:
        """Show that work continues, though no step is finished."""
        if self._bar is None:
            self._begin()
        elif time.monotonic() >= self._redrawn + self._bar.mininterval:
            self._redrawn = time.monotonic()
            self._bar.refresh()

    def _begin(self) -> None:
        if self._is_wanted and time.monotonic() >= self._shown_from:
            from tqdm import tqdm  # work of less than a second doesn't need to wait for it

            # a serial console reports 0 lines of 0 columns, and tqdm then draws nothing
            is_sized = _has_size()
            self._bar = tqdm(
                desc=self._what,
                total=self._total,
                initial=self._count,
                leave=False,
                dynamic_ncols=is_sized,
                ncols=None if is_sized else _COLUMNS,
                nrows=None if is_sized else _LINES,
                file=sys.stderr,
            )


def _has_size() -> bool:
    try:
        return 0 not in os.get_terminal_size(sys.stderr.fileno())
    except OSError:
        return False


def _is_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
