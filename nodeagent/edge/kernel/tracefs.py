"""Counters of the tasks and interrupts on some CPUs, which the kernel keeps in a tracefs instance (histogram triggers; see
`Documentation/trace/histogram.rst` and `ftrace.rst`).

An instance of its own, in which events are counted but not recorded, doesn't disturb other users of tracing. The kernel doesn't remove the
instance when this process ends. Therefore, a shell process waits for this and removes the instance. If that fails, the next run removes the
instance, because the instance's name shows that its process has ended.
"""

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nodeagent.core.model.idset import CpuSet
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.cpu_use import Counted, CpuHistograms, cpu_filter
from nodeagent.formats.kernel.task_stat import parse_task_stat

TRACEFS = Path("/sys/kernel/tracing")
_PREFIX = "nodeagent-"
_EXITS = "sched/sched_process_exit"
_EXITS_COUNTED = "hist:keys=pid:size=8192"
_FORKS = "sched/sched_process_fork"
_JOINS = "cgroup/cgroup_attach_task"
_SWITCHES = "sched/sched_switch"
_INTERRUPT_ENTRIES, _INTERRUPT_EXITS = "irq/irq_handler_entry", "irq/irq_handler_exit"
_SOFTIRQ_ENTRIES, _SOFTIRQ_EXITS = "irq/softirq_entry", "irq/softirq_exit"
# formats/kernel/cpu_use.py computes durations from sums of timestamps. `common_pid` is the task that the CPU switches away from.
_TIMES = "vals=common_timestamp:clock=mono"
_COUNTED = {
    # the triggers for exits are set first, so that every counted entry has a counted exit
    _INTERRUPT_EXITS: f"hist:keys=common_cpu,irq:{_TIMES}:size=2048",
    _INTERRUPT_ENTRIES: f"hist:keys=common_cpu,irq:{_TIMES}:size=2048",
    _SOFTIRQ_EXITS: f"hist:keys=common_cpu,vec:{_TIMES}:size=2048",
    _SOFTIRQ_ENTRIES: f"hist:keys=common_cpu,vec:{_TIMES}:size=2048",
    _SWITCHES: f"hist:keys=common_cpu,common_pid.execname,next_pid:{_TIMES}:size=16384",
}
_REMOVES = 'trap "" HUP INT TERM; read -r _; for _ in 1 2 3 4 5 6 7 8 9; do rmdir -- "$0" && exit; test -d "$0" || exit; sleep 0.2; done'
"""Shell script that waits for the end of its input, and then removes a directory.

It ignores SIGTERM, because systemd sends SIGTERM to all processes of a unit, and the script must do its work after that. It tries several
times to remove the directory, because the ending process may keep files in it open for a moment.
"""
_HINTS = {
    errno.EACCES: "run this as root",
    errno.EPERM: "run this as root; with secure boot the kernel may be locked down (see /sys/kernel/security/lockdown)",
    errno.ENOMEM: "the kernel needs about 1.5 MiB per CPU for a moment: free some memory",
    errno.EROFS: "tracefs is mounted read-only: `mount -o remount,rw /sys/kernel/tracing`",
}


class TracefsError(NodeAgentError):
    """The kernel doesn't support tracing, or refuses access to its tracing files."""


class CpuRecording:
    """Counters in a tracefs instance that `record` has created."""

    def __init__(self, instance: Path, cpus: CpuSet) -> None:
        self._instance = instance
        self._condition = f"if {cpu_filter(cpus)}"
        self._began: dict[str, tuple[int, int]] = {}
        self._exits = b""

    def prepare(self) -> None:
        """Start counting exits, forks and moves between cgroups. Set up the other counters without starting them.

        Raises:
            TracefsError: the kernel refuses a counter.
        """
        self._write("buffer_size_kb", "1")  # the buffer stays empty, because events are only counted
        self._trigger(_EXITS, _EXITS_COUNTED)
        self._trigger(_FORKS, f"hist:keys=parent_pid,child_pid:size=8192 {self._condition}")
        self._trigger(_JOINS, "hist:keys=pid,dst_id:size=2048")
        for event, histogram in _COUNTED.items():
            self._trigger(event, f"{histogram}:pause {self._condition}")

    def begin(self) -> None:
        """Start the other counters, and stop counting exits. The exits counted until now tell which tasks ended while the counters were
        being set up.
        """
        self._exits = self._read(_EXITS)
        self._trigger(_EXITS, f"{_EXITS_COUNTED}:pause")
        for event, histogram in _COUNTED.items():
            from_ns = time.monotonic_ns()
            self._trigger(event, f"{histogram}:cont {self._condition}")
            self._began[event] = from_ns, time.monotonic_ns()

    def end(self) -> CpuHistograms:
        """Stop all counters at the same time, and read them.

        Raises:
            TracefsError: a counter can't be read.
        """
        ended_ns = time.monotonic_ns()
        # this ends the count, because from here on, only events of this process reach the triggers
        self._write("set_event_pid", str(os.getpid()))
        counted = {event: Counted(self._read(event), *began) for event, began in self._began.items()}
        return CpuHistograms(
            switches=counted[_SWITCHES],
            interrupt_entries=counted[_INTERRUPT_ENTRIES],
            interrupt_exits=counted[_INTERRUPT_EXITS],
            softirq_entries=counted[_SOFTIRQ_ENTRIES],
            softirq_exits=counted[_SOFTIRQ_EXITS],
            forks=self._read(_FORKS),
            joins=self._read(_JOINS),
            exits=self._exits,
            ended_ns=ended_ns,
        )

    def _trigger(self, event: str, text: str) -> None:
        self._write(f"events/{event}/trigger", text)

    def _write(self, name: str, text: str) -> None:
        path = self._instance / name
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)  # O_TRUNC would remove triggers
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
        except OSError as err:
            raise _make_error(f"write '{text}' to {path}", err) from err

    def _read(self, event: str) -> bytes:
        path = self._instance / "events" / event / "hist"
        try:
            return path.read_bytes()
        except OSError as err:
            raise _make_error(f"read {path}", err) from err


@contextmanager
def record(cpus: CpuSet, tracefs: Path = TRACEFS) -> Iterator[CpuRecording]:
    """Create a tracefs instance, and set up counters for these CPUs in it. Remove it after the `with` block.

    Raises:
        TracefsError: the kernel doesn't support tracing, or refuses it.
    """
    _check_tracefs(tracefs)
    remove_abandoned(tracefs)
    name = f"{_PREFIX}{os.getpid()}-{_read_start_ticks(os.getpid())}"
    with make_temporary_directory(tracefs / "instances" / name) as instance:
        counters = CpuRecording(instance, cpus)
        counters.prepare()
        yield counters


@contextmanager
def make_temporary_directory(path: Path) -> Iterator[Path]:
    """Create a directory, and remove it after the `with` block, or when this process is killed.

    Raises:
        TracefsError: the directory can't be created.
    """
    try:
        # the removing process has its own session, so that the terminal's signals to the command don't end it
        remover = subprocess.Popen(
            ["/bin/sh", "-c", _REMOVES, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as err:
        raise _make_error("start /bin/sh", err) from err
    with remover:
        try:
            path.mkdir()
        except OSError as err:
            raise _make_error(f"make {path}", err) from err
        try:
            yield path
        finally:
            with suppress(OSError):  # if another process has the instance open, the next run removes it
                path.rmdir()
            remover.kill()


def remove_abandoned(tracefs: Path = TRACEFS) -> None:
    """Remove the instances that processes left behind when they ended.

    Raises:
        TracefsError: the instances can't be listed.
    """
    try:
        found = sorted(path for path in (tracefs / "instances").iterdir() if path.name.startswith(_PREFIX))
    except OSError as err:
        raise _make_error(f"read {tracefs / 'instances'}", err) from err
    for instance in found:
        pid, _, start = instance.name.removeprefix(_PREFIX).partition("-")
        if pid.isdecimal() and start.isdecimal() and _read_start_ticks(int(pid)) != int(start):
            with suppress(OSError):  # another process may have the instance open
                instance.rmdir()


def _check_tracefs(tracefs: Path) -> None:
    try:
        if not _exists(tracefs / "instances"):
            raise TracefsError(
                f"there is no tracefs at {tracefs}",
                hint=f"mount it: `mount -t tracefs tracefs {tracefs}`; if that fails, the kernel is built without tracing (CONFIG_FTRACE)",
            )
        if not _exists(tracefs / "events" / _SWITCHES / "hist"):
            raise TracefsError(
                f"this kernel keeps no histograms: {tracefs}/events/{_SWITCHES} has no file hist",
                hint="use a kernel that is built with CONFIG_HIST_TRIGGERS=y, as those of Debian are: see `uname -r`",
            )
    except OSError as err:
        raise _make_error(f"read {tracefs}", err) from err


def _exists(path: Path) -> bool:
    """Return whether a path exists. Unlike Path.exists in some versions of Python, raise OSError if access is denied."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _read_start_ticks(pid: int) -> int | None:
    """Return the start time of a process, in clock ticks since boot. None means that the process has exited."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return parse_task_stat(stat).start_ticks


def _make_error(action: str, err: OSError) -> TracefsError:
    hint = _HINTS.get(err.errno or 0, "dmesg and /sys/kernel/tracing/error_log may have the kernel's reason")
    return TracefsError(f"cannot {action}: {os.strerror(err.errno or 0)}", hint=hint)
