"""A job that is watched for its report: by a process that is not in it, so that nothing but the job runs on its CPUs meanwhile.

The process that asked stays the job's owner, and sleeps: what it waits for, its child, becomes the command. So the job's cgroup is there
until the report is written, and what ends the owner ends the job.
"""

import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from nodeagent.cli.support.standard_streams import write_error
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.edge.kernel.usage import read_job_usage
from nodeagent.formats.kernel.job_usage import JobUsage, job_usage
from nodeagent.views.job_report import JobPlace, remote_now, report_text

_LOOK_SECONDS = 1.0
_SENT = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are meant for the command. A terminal's go to it anyway: it is in the same process group."""
_TERMINALS = 0x80
"""SI_KERNEL: nobody has sent it."""


class ReportWriter:
    """The process that will write the report."""

    def __init__(self, pid: int, facts: int, ready: int) -> None:
        self._pid = pid
        self._facts = facts
        self._ready = ready

    @classmethod
    def start(cls) -> "ReportWriter":
        """Begin while this process is where its caller is: the watcher stays there."""
        (facts, to_facts), (ready, to_ready) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(to_facts)
            os.close(ready)
            _watch(facts, to_ready)
        os.close(facts)
        os.close(to_ready)
        return cls(pid, to_facts, ready)

    def attend(self, answer: Mapping[str, Any]) -> int | None:
        """Split up: the child returns None, and is to become the command; this process waits for it, and returns its status.

        A command that a signal ends ends this process by the same one.

        Args:
            answer: of the agent.
        """
        os.write(self._facts, json.dumps({name: answer[name] for name in _ASKED}).encode() + b"\n")
        os.read(self._ready, 1)  # the first look is over; or the watcher is, and there will be no report
        before = signal.signal(signal.SIGCHLD, signal.SIG_DFL), signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, before[0])
            signal.pthread_sigmask(signal.SIG_SETMASK, before[1])
            return None
        _let_go_of_input_and_output()
        status = _ended(child)
        os.close(self._facts)
        os.waitpid(self._pid, 0)
        if os.WIFSIGNALED(status):
            _end_by(os.WTERMSIG(status))
        return os.waitstatus_to_exitcode(status)


_ASKED = ("pod", "cgroup", "exclusiveCPUs", "sharedCPUs", "numaNodes")
_WAITED = frozenset({*_SENT, signal.SIGCHLD})


def _ended(child: int) -> int:
    """Wait for the child's end, and pass on what is sent to this process."""
    while True:
        got = signal.sigwaitinfo(_WAITED)
        if got.si_signo == signal.SIGCHLD:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid == child:
                return status
        elif got.si_code != _TERMINALS:
            os.kill(child, got.si_signo)


def _end_by(number: int) -> None:
    """End as the command did, but leave its core dump the only one."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


def _let_go_of_input_and_output() -> None:
    """Whoever reads what the command writes sees its end as if nobody stood beside it."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    os.close(nothing)


def _watch(facts: int, ready: int) -> NoReturn:
    """Look until the other end of the pipe is closed, and report. In a process of its own, which it ends."""
    try:
        for number in _SENT:
            signal.signal(number, signal.SIG_IGN)
        _let_go_of_input_and_output()
        with os.fdopen(facts, "rb", buffering=0) as pipe:
            line = pipe.readline()
            if line:  # else there is no job
                write_error(
                    watch_job(
                        _place(json.loads(line)),
                        begun=lambda: os.close(ready),
                        is_over=lambda: bool(select.select([pipe], [], [], _LOOK_SECONDS)[0]),
                    )
                )
    except Exception:  # noqa: BLE001 - a bug is to be seen, and this process to end here
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _place(answer: Mapping[str, Any]) -> JobPlace:
    return JobPlace(
        answer["pod"],
        answer["cgroup"],
        CpuSet.parse(answer["exclusiveCPUs"]),
        CpuSet.parse(answer["sharedCPUs"]),
        NumaSet.parse(answer["numaNodes"]),
    )


def watch_job(place: JobPlace, *, begun: Callable[[], None], is_over: Callable[[], bool], root: str = "") -> str:
    """Look at a job again and again, and return the report.

    Args:
        place: of the job.
        begun: called after the first look.
        is_over: waits a moment; whether the command has ended.
        root: where proc/ is.
    """

    def look() -> JobUsage:
        seen = read_job_usage(place.cgroup, root)
        return job_usage(seen.cgroup.cpu_stat, seen.cgroup.numa_stat, seen.memory_peak, seen.schedstat)

    first = look()
    begun()
    began_ns = time.monotonic_ns()
    remote = [remote_now(place, first)]
    while not is_over():
        remote.append(remote_now(place, look()))
    elapsed_us = (time.monotonic_ns() - began_ns) // 1000
    last = look()
    known = [one for one in (*remote, remote_now(place, last)) if one is not None]
    return report_text(place, elapsed_us, first, last, max(known, default=None))
