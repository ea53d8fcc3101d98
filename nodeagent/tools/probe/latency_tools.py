"""Runner of the programs of rt-tests, with a time limit for each program."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.kernel_limits import MOST_CPUS
from nodeagent.errors import NodeAgentError

_MOST_REPORT_BYTES = 64 * 2**20
_SHOWN_BYTES = 2000
_MORE_SECONDS = 120.0
"""Default time limit in addition to the test's duration, in seconds. The program first calibrates itself, which takes longer on busy CPUs.
"""
_STACK_BYTES = 2**18
"""Size of each thread's stack. rt-tests lock the stacks in memory, where they count as the container's memory."""
# setpriv(1) has the kernel kill the program when this process ends, and prlimit(1) limits the stacks
_CHILD = ("setpriv", "--pdeathsig", "KILL", "prlimit", f"--stack={_STACK_BYTES}:")


class LatencyToolError(NodeAgentError):
    """Latency cannot be measured with this program."""


def check_installed(programs: Sequence[str]) -> None:
    """Check that programs of rt-tests are installed.

    Raises:
        LatencyToolError: a program is missing.
    """
    missing = next((program for program in programs if shutil.which(program) is None), None)
    if missing is not None:
        raise LatencyToolError(
            f"rt-tests is not installed: there is no {missing}", hint="install it: `apt install rt-tests`"
        )


def widen_affinity() -> CpuSet:
    """Clear the CPU affinity that this process has inherited, and return the CPUs of its cgroup."""
    os.sched_setaffinity(0, range(MOST_CPUS))
    return CpuSet.from_ids(os.sched_getaffinity(0))


def set_timer_slack() -> None:
    """Minimize the timer slack of this process and its children (prctl(2)). By default, sleeping threads may wake up to 50 microseconds
    late.
    """
    Path("/proc/self/timerslack_ns").write_text("1", encoding="ascii")


def run_tool(
    program: Sequence[str], *, entering: Sequence[str] = (), seconds: float, more_seconds: float = _MORE_SECONDS
) -> bytes:
    """Run a program that writes its report to the file named by `--json`, and return the report.

    Args:
        program: program with its arguments.
        entering: arguments of nodeagent that run the program in a container. Empty means to run the program here.
        seconds: duration of the measurement.
        more_seconds: additional time before the program is killed.

    Raises:
        LatencyToolError: the program failed, or ended too early or too late.
    """
    report, output_fd = os.memfd_create("report"), os.memfd_create("said")
    try:
        os.set_inheritable(report, True)
        # with -P, Python doesn't import modules from the working directory
        elsewhere = (sys.executable, "-I", "-m", "nodeagent", *entering) if entering else ()
        command = (*elsewhere, *_CHILD, *program, f"--json=/proc/self/fd/{report}")
        began = time.monotonic()
        status = _run(command, report, output_fd, seconds + more_seconds, program[0])
        if status != 0 or time.monotonic() - began < seconds:
            how = "ended too early"  # rt-tests' programs also write a report after SIGTERM
            if status != 0:
                how = f"was killed by signal {-status}" if status < 0 else f"failed with status {status}"
                how += _read_last_output(output_fd)
            raise LatencyToolError(
                f"{program[0]} {how}",
                hint="did the pod end meanwhile? see `nodeagent inspect`; or run the program by hand: "
                + " ".join(program),
            )
        return os.pread(report, min(os.fstat(report).st_size, _MOST_REPORT_BYTES), 0)
    finally:
        os.close(report)
        os.close(output_fd)


def _run(command: Sequence[str], report: int, output_fd: int, seconds: float, name: str) -> int:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output_fd, stderr=output_fd, pass_fds=(report,)
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired as err:
        raise LatencyToolError(
            f"{name} has not ended after {seconds:g} s{_read_last_output(output_fd)}",
            hint="does the container get CPU time? see `nodeagent inspect`, and cpu.max and cgroup.freeze of its cgroup",
        ) from err
    finally:
        process.kill()
        process.wait()


def _read_last_output(output_fd: int) -> str:
    size = os.fstat(output_fd).st_size
    text = os.pread(output_fd, _SHOWN_BYTES, max(0, size - _SHOWN_BYTES)).decode(errors="backslashreplace").strip()
    return f": {text}" if text else ""
