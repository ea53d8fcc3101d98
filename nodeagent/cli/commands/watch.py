"""`nodeagent inspect --watch`: refreshes the inspection continuously on the terminal, or prints a number of frames."""

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext

from msgspec.structs import replace

from nodeagent.cli.support.counting import LiveCount
from nodeagent.cli.support.node.observation import add_observation
from nodeagent.cli.support.node.this_node import read_this_node_for_display
from nodeagent.cli.support.terminal import Terminal
from nodeagent.edge.kernel.usage import read_cpu_times_us, read_usage
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.usage import UsageSample, compute_rates, parse_container_usage, times_by_cpu
from nodeagent.formats.node_view import NodeView, ViewReader
from nodeagent.views.inspect.document import inspect_node
from nodeagent.views.inspect.watch_text import JUST_BEGUN, SORTS, DisplaySettings, Poll, render_frame

_PLAIN_WIDTH = 120
_INTERVAL_SECONDS = 1.0
_FIRST_SECONDS = 0.25
"""Time, in seconds, over which the rates of the first frame are measured. It must be much longer than the kernel's unit of CPU time, a
hundredth of a second.
"""
_LEAST_PAUSE_SECONDS = 0.1
"""Shortest pause between two refreshes, in seconds. Keys are read only during the pause, so there is a pause even if refreshes are slow."""


class WatchError(NodeAgentError):
    """The live display needs a terminal, but stdout or stdin isn't one."""


def watch(options: argparse.Namespace) -> int:
    """Refresh the display until the user presses `q` or Ctrl-C, or print the requested number of frames.

    Raises:
        NodeAgentError: the first observation failed, or there is no terminal. Later failures are only shown, and the observation is
            repeated.
    """
    if options.frames is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise WatchError(
            "--watch needs a terminal, but the output of this command isn't one",
            hint="`nodeagent inspect --watch --frames 10` prints frames; for programs, use `nodeagent inspect -o json`",
        )
    interval = _INTERVAL_SECONDS if options.interval is None else options.interval
    try:
        with LiveCount() if options.interference else nullcontext() as count:
            watcher = Watcher(lambda read: read_this_node_for_display(options.config, options.socket, read), count)
            watcher.look()
            time.sleep(_FIRST_SECONDS)
            poll = watcher.look()
            if options.frames is None:
                return _draw_until_quit(watcher, poll, interval)
            view = DisplaySettings(_PLAIN_WIDTH, is_utf8=_is_utf8())
            for number in range(options.frames):
                if number:
                    print()
                    time.sleep(interval)
                    poll = watcher.try_again()
                print("\n".join(render_frame(poll, view).lines), flush=True)
            return 0
    except KeyboardInterrupt:
        return 0


class Watcher:
    """Observer of the node, which computes rates since its previous observation. On request, it also counts the interference between two
    observations.
    """

    def __init__(self, known: Callable[[ViewReader], NodeView], count: LiveCount | None = None) -> None:
        self._known = known
        self._count = count
        self._read = ViewReader()
        self._last: Poll | None = None

    def look(self) -> Poll:
        """Observe the node, and compute rates since the previous observation.

        Raises:
            NodeAgentError: the node can't be read.
        """
        began = time.monotonic()
        counted = None if self._count is None else self._count.end()
        known = add_observation(self._known(self._read), host_processes=False)
        document = inspect_node(known)
        paths = [entry.container_path(c.name) for entry in known.state.entries for c in entry.containers]
        places = {path: known.cgroup_of(path) for path in paths}
        texts = {} if known.cgroup_root is None else read_usage(known.cgroup_root, places)
        sample = UsageSample(
            time.monotonic_ns() // 1000,
            times_by_cpu(read_cpu_times_us(), known.node.topology.online),
            {path: parse_container_usage(text.cpu_stat, text.numa_stat) for path, text in texts.items()},
        )
        since = None if self._last is None else compute_rates(self._last.sample, sample)
        poll = Poll(document, known.node.topology, sample)
        if self._count is not None:
            found = self._count.begin(known, counted)
            poll = replace(poll, interference=JUST_BEGUN if found is None else found)
        poll = replace(
            poll, rates=poll.rates if since is None else since, cost_ms=round(1000 * (time.monotonic() - began))
        )
        self._last = poll
        return poll

    def try_again(self) -> Poll:
        """Observe the node. If this fails, return the last successful observation, together with the reason of the failure."""
        assert self._last is not None
        try:
            return self.look()
        except NodeAgentError as err:
            return replace(self._last, problem=f"{err.message} ({err.hint})")


def _draw_until_quit(watcher: Watcher, poll: Poll, interval: float) -> int:
    with Terminal() as terminal:
        view = DisplaySettings(*terminal.size(), is_utf8=_is_utf8())
        due = time.monotonic() + interval
        while True:
            width, height = terminal.size()
            shown = render_frame(poll, replace(view, width=width, height=height))
            terminal.draw(shown.lines, shown.heading)
            key = terminal.key(due - time.monotonic())
            if key == "q":
                return 0
            if key in SORTS:
                view = replace(view, sort=SORTS[key], offset=0)
            else:
                moves = {"up": -1, "down": 1, "page up": -shown.page, "page down": shown.page}
                view = replace(view, offset=max(0, shown.offset + moves.get(key or "", 0)))
            if time.monotonic() >= due:
                poll = watcher.try_again()
                due = max(due + interval, time.monotonic() + _LEAST_PAUSE_SECONDS)


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
