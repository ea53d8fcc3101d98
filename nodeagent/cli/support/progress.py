"""Progress bar for commands that take more than a second. It is shown only on a terminal."""

import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from nodeagent.cli.support.printable_output import find_raw_errors

if TYPE_CHECKING:
    from tqdm import tqdm

_DELAY_SECONDS = 1.0
_COLUMNS, _LINES = 79, 24
_BAR, _COUNT = (
    "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]",
    "{desc}: {n_fmt} [{elapsed}]",
)
"""Formats of the bar with and without a known total. They replace tqdm's default format, which always counts in "it"."""
BEGUN = time.monotonic()
"""Time on the monotonic clock when the command started. Bars are shown only after the command's first second, because each part of a longer
command may take less than a second.
"""


class Progress:
    """Progress bar that counts steps while the `with` block runs, and disappears when the block ends."""

    def __init__(self, what: str, total: int | None = None, *, beside_output: bool = False) -> None:
        """Prepare the bar, which is shown only after the command's first second.

        Args:
            what: the name of the steps in the plural, such as `scenarios`.
            total: the largest number of steps. None means that it is unknown.
            beside_output: whether the command also prints to stdout while the bar is shown. In this case, no bar is shown if stdout and
                stderr are both terminals.
        """
        self._what = what
        self._total = total
        is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._is_wanted = is_terminal and not (beside_output and sys.stdout.isatty())
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
        """Count one more completed step."""
        self._count += 1
        if self._bar is not None:
            self._bar.update()
        else:
            self._begin()

    def tick(self) -> None:
        """Redraw the bar, which shows that work continues within a step."""
        if self._bar is None:
            self._begin()
        elif time.monotonic() >= self._redrawn + self._bar.mininterval:
            self._redrawn = time.monotonic()
            self._bar.refresh()

    def _begin(self) -> None:
        if self._is_wanted and time.monotonic() >= self._shown_from:
            from tqdm import tqdm  # tqdm is imported late, so that work of less than a second doesn't wait for it

            # A serial console reports 0 lines of 0 columns, for which tqdm draws nothing.
            try:
                is_sized = 0 not in os.get_terminal_size(sys.stderr.fileno())
            except OSError:
                is_sized = False
            self._bar = tqdm(
                desc=self._what,
                total=self._total,
                initial=self._count,
                leave=False,
                bar_format=_BAR if self._total else _COUNT,
                dynamic_ncols=is_sized,
                ncols=None if is_sized else _COLUMNS,
                nrows=None if is_sized else _LINES,
                file=find_raw_errors(),
            )
