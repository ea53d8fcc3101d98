"""Report of a job. A process outside of the job, the observer, observes it, so that only the command runs on the job's CPUs.

The calling process is the job's owner, and sleeps until its child, the command, has ended. As a job ends with its owner, the job's cgroup
exists until the report is written.

The owner sends the agent's answer to the observer, and then the result of each run. The observer sends a byte once the counters are
running, and after each run the first letter of the run's verdict, or LOST. An observer that writes only a line to stderr sends nothing, but
closes its pipe.
"""

import hashlib
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from nodeagent.cli.support.child_command import (
    PASSED_ON,
    block_signals,
    close_input_and_output,
    end_as,
    fork_child,
    wait_for_end,
)
from nodeagent.cli.support.standard_streams import write_error
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.edge.kernel.usage import read_job_usage
from nodeagent.formats.kernel.usage import JobUsage, parse_job_usage
from nodeagent.views.job_report import JobLocation, format_report, measure_remote_bytes

_INTERVAL_SECONDS = 1.0


class RunPlan(NamedTuple):
    """Options of the command line that say how often the command runs and how its runs are reported."""

    path: str | None = None
    """Path of the report file (JSON). None means that the report is a line on stderr."""
    repeats: int = 1
    """Maximum number of runs."""
    clean: int | None = None
    """Number of clean runs after which no further run is made. None means that all runs are made."""
    requires_clean: bool = False
    """Whether the exit status is EXIT_DISTURBED if too few runs were clean."""


class ReportWriter:
    """Connection to the observer, the process that writes the report."""

    def __init__(self, plan: RunPlan, pid: int, facts: int, ready: int) -> None:
        self._plan = plan
        self._pid = pid
        self._facts = facts
        self._ready = ready

    @classmethod
    def start(cls, plan: RunPlan) -> "ReportWriter":
        """Start the observer. It is forked before this process enters the job, so it stays in the caller's cgroup."""
        (facts, to_facts), (ready, to_ready) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(to_facts)
            os.close(ready)
            _observe_job(plan, facts, to_ready)
        os.close(facts)
        os.close(to_ready)
        return cls(plan, pid, to_facts, ready)

    def attend(self, answer: Mapping[str, Any], command: Sequence[str], socket: str) -> int | None:
        """Fork a process for the command, and wait until it ends. Return None in the child, and the exit status in the parent.

        The command is run as often as planned, unless a run fails. If a signal ends the command, the parent ends itself by the same signal.

        Args:
            answer: the agent's answer about the job.
            command: the command's words.
            socket: the agent's socket for jobs.
        """
        facts = {name: answer[name] for name in _FACTS if name in answer}
        self._send(
            {
                **facts,
                "commandSha256": hashlib.sha256(b"\0".join(map(os.fsencode, command))).hexdigest(),
                "socket": socket,
            }
        )
        clean = runs = status = lost = 0
        wanted = self._plan.clean or self._plan.repeats
        before = block_signals()
        while status == 0 and runs < self._plan.repeats and clean < wanted:
            # the read returns when the first observation is complete, or when the observer has ended without a report
            os.read(self._ready, 1)
            pending = [one for one in signal.sigpending() & {*PASSED_ON} if signal.getsignal(one) != signal.SIG_IGN]
            if runs and pending:
                status = min(pending)  # the exit status is the same as if this signal had ended the command
                break
            started_ms = time.time_ns() // 1_000_000
            child = fork_child(before)
            if child is None:
                return None
            runs += 1
            if runs == self._plan.repeats:
                close_input_and_output()
            status, result = _wait_for_result(child)
            self._send({**result, "startedAtMs": started_ms, "endedAtMs": time.time_ns() // 1_000_000})
            verdict = os.read(self._ready, 1)
            clean += verdict == CLEAN
            lost += self._plan.path is not None and verdict in {LOST, b""}
        os.close(self._facts)
        os.waitpid(self._pid, 0)
        if status == 0 and (lost or (self._plan.requires_clean and clean < wanted)):
            return EXIT_DISTURBED
        return end_as(status)

    def _send(self, message: Mapping[str, Any]) -> None:
        with suppress(BrokenPipeError):  # the observer has ended, and has printed the reason
            os.write(self._facts, json.dumps(message).encode() + b"\n")


CLEAN = b"c"
LOST = b"-"
"""Byte that the observer sends instead of a verdict's first letter if it could not write the run's report."""
EXIT_DISTURBED = 123
"""Exit status of a command that succeeded, if a report could not be written, or if `--require-clean` is given and too few
runs were clean.
"""
_FACTS = (
    "pod",
    "cgroup",
    "exclusiveCPUs",
    "sharedCPUs",
    "numaNodes",
    "configurationHash",
    "environment",
    "quiet",
    "runThresholds",
)


def _wait_for_result(child: int) -> tuple[int, Mapping[str, Any]]:
    """Wait until the child ends. Return its wait status, and the fields of the report that describe the end of the run."""
    wait_for_end(child)
    sched = ""
    with suppress(OSError):  # some kernels don't have this file
        sched = Path(f"/proc/{child}/sched").read_text(encoding="utf-8", errors="replace")
    _, status, used = os.wait4(child, 0)
    return status, {"sched": sched, **_describe_end(status, used)}


def _describe_end(status: int, used: resource.struct_rusage) -> Mapping[str, Any]:
    """Describe how the command ended, and its resource usage. The usage includes descendants that have been waited for (getrusage(2))."""
    is_signal = os.WIFSIGNALED(status)
    return {
        "exit": {
            "status": None if is_signal else os.WEXITSTATUS(status),
            "signal": os.WTERMSIG(status) if is_signal else None,
        },
        "resources": {
            "userMicroseconds": round(used.ru_utime * 1_000_000),
            "systemMicroseconds": round(used.ru_stime * 1_000_000),
            "maxResidentBytes": used.ru_maxrss * 1024,
            "minorPageFaults": used.ru_minflt,
            "majorPageFaults": used.ru_majflt,
            "voluntarySwitches": used.ru_nvcsw,
            "involuntarySwitches": used.ru_nivcsw,
        },
    }


def _observe_job(plan: RunPlan, facts: int, ready: int) -> NoReturn:
    """Observe the job until the owner closes the other end of the pipe, write the report, and exit."""
    try:
        for number in PASSED_ON:
            signal.signal(number, signal.SIG_IGN)
        close_input_and_output()
        with os.fdopen(facts, "rb", buffering=0) as pipe:
            line = pipe.readline()
            if line:  # an empty line from the observer means that there is no job
                answer = json.loads(line)
                if plan.path is None:
                    write_error(
                        watch_job(
                            _decode_location(answer),
                            begun=lambda: os.close(ready),
                            is_over=lambda: bool(select.select([pipe], [], [], _INTERVAL_SECONDS)[0]),
                        )
                    )
                else:
                    from nodeagent.cli.support.run_report import write_reports

                    write_reports(plan, answer, _decode_location(answer), pipe, ready)
    except Exception:  # noqa: BLE001 - a bug is to be seen, and this process to end here
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _decode_location(answer: Mapping[str, Any]) -> JobLocation:
    return JobLocation(
        answer["pod"],
        answer["cgroup"],
        CpuSet.parse(answer["exclusiveCPUs"]),
        CpuSet.parse(answer["sharedCPUs"]),
        NumaSet.parse(answer["numaNodes"]),
    )


def watch_job(place: JobLocation, *, begun: Callable[[], None], is_over: Callable[[], bool], root: str = "") -> str:
    """Observe a job again and again until its command has ended, and return the report line.

    Args:
        place: the job's cgroup, CPUs and memory nodes.
        begun: function that is called after the first observation.
        is_over: function that waits a moment, and returns whether the command has ended.
        root: directory that contains proc/.
    """

    def look() -> JobUsage:
        seen = read_job_usage(place.cgroup, root)
        texts = seen.cgroup.cpu_stat, seen.cgroup.numa_stat, seen.memory_peak, seen.schedstat, seen.memory_events
        return parse_job_usage(*texts)

    first = look()
    begun()
    began_ns = time.monotonic_ns()
    remote = [measure_remote_bytes(place, first)]
    while not is_over():
        remote.append(measure_remote_bytes(place, look()))
    elapsed_us = (time.monotonic_ns() - began_ns) // 1000
    last = look()
    known = [one for one in (*remote, measure_remote_bytes(place, last)) if one is not None]
    return format_report(place, elapsed_us, first, last, max(known, default=None))
