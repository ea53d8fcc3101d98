"""The kernel's record of a set of processes and all their descendants, in a trace instance of its own. Runs in the guest.

Pages are taken out as they are; what they mean is read on the host.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

TRACEFS = Path("/sys/kernel/tracing")
INSTANCE = TRACEFS / "instances/overlap"
EVENTS = (
    "sched/sched_switch",
    "sched/sched_process_fork",
    "sched/sched_process_exec",
    "sched/sched_process_exit",
    "cgroup/cgroup_attach_task",
)
MARKER = "ftrace/print"
_BUFFER_KIB = 4096
"""For each CPU: minutes of a busy one, so that a reader which has to wait for its own CPU loses nothing."""
_PAGE_BYTES = 4096
_LOSSES = ("overrun", "commit overrun", "dropped events")
_SETTLING_SECONDS = 2


class Trace:
    """Made by `start`: nothing that the given processes' future children do is missing from it."""

    def __init__(self) -> None:
        self._pipes: dict[int, int] = {}

    def start(self, ancestors: Iterable[int]) -> None:
        """Record every switch to and from the given processes, and to whatever they fork from now on (`event-fork`)."""
        self.discard()
        INSTANCE.mkdir()
        _write("tracing_on", "0")
        # one clock for all CPUs, whose value this program can ask for too
        _write("trace_clock", "mono")
        _write("buffer_size_kb", str(_BUFFER_KIB))
        # when the buffer is full, keep what is there: either way the loss is counted
        _write("options/overwrite", "0")
        _write("options/event-fork", "1")
        _write("set_event_pid", " ".join(map(str, ancestors)))
        for event in EVENTS:
            _write(f"events/{event}/enable", "1")
        for directory in (INSTANCE / "per_cpu").iterdir():
            pipe = os.open(directory / "trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._pipes[int(directory.name.removeprefix("cpu"))] = pipe
        _write("tracing_on", "1")

    def formats(self) -> dict[str, str]:
        return {name: (TRACEFS / "events" / name / "format").read_text() for name in (*EVENTS, MARKER)}

    def pages(self) -> Iterator[tuple[int, bytes]]:
        """Take out what is there now: CPU and page."""
        for cpu, pipe in self._pipes.items():
            with contextlib.suppress(BlockingIOError):
                while page := os.read(pipe, _PAGE_BYTES):
                    yield cpu, page

    def stop(self) -> Iterator[tuple[int, bytes]]:
        """End the record and take out the rest."""
        _write("tracing_on", "0")
        # a CPU that was about to write an event is done with it by then; what came later would be seen (see Merge)
        time.sleep(_SETTLING_SECONDS)
        yield from self.pages()

    def losses(self) -> dict[str, int]:
        """Events that the kernel counted as lost, by kind, over all CPUs; and those that nobody has read."""
        total = dict.fromkeys((*_LOSSES, "entries"), 0)
        for cpu in self._pipes:
            for line in (INSTANCE / f"per_cpu/cpu{cpu}/stats").read_text().splitlines():
                kind, _, value = line.partition(": ")
                if kind in total:
                    total[kind] += int(value)
        return total

    def discard(self) -> None:
        for pipe in self._pipes.values():
            os.close(pipe)
        self._pipes = {}
        with contextlib.suppress(FileNotFoundError):
            INSTANCE.rmdir()


def _write(name: str, value: str) -> None:
    (INSTANCE / name).write_text(value)
