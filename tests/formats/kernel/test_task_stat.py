import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.task_stat import TaskStat, parse_allowed_cpus, parse_task_stat

PARENT, SESSION, FLAGS, THREADS, START, CPU = 4, 6, 9, 20, 22, 39
"""Numbers of fields (proc_pid_stat(5))."""


def text(name: str, state: str = "S", **fields: int) -> str:
    numbers = {FLAGS: fields.get("flags", 0), START: fields.get("start", 0), CPU: fields.get("cpu", 0)}
    numbers |= {PARENT: fields.get("parent", 1), SESSION: fields.get("session", 0), THREADS: fields.get("threads", 1)}
    return f"7 ({name}) {state} " + " ".join(str(numbers.get(field, -field)) for field in range(4, 53)) + "\n"


@pytest.mark.parametrize("name", ["sh", "a b", ") R 1 2", "((", ""])
def test_any_name_is_told_from_what_follows(name: str) -> None:
    assert parse_task_stat(text(name, "D", flags=5, start=99, cpu=3, parent=4)) == TaskStat(
        name, "D", 5, 99, 3, parent=4
    )


@pytest.mark.parametrize(
    ("flags", "is_kernel_thread", "is_bound"),
    [(0x0020_8040, True, False), (0x0420_8060, True, True), (0x0040_0100, False, False), (0x0400_0000, False, True)],
)
def test_flags(*, flags: int, is_kernel_thread: bool, is_bound: bool) -> None:
    stat = parse_task_stat(text("x", flags=flags))
    assert (stat.is_kernel_thread, stat.is_bound) == (is_kernel_thread, is_bound)


def test_the_session_is_that_of_its_leader() -> None:
    assert parse_task_stat(text("x", session=7)).session == 7
    stat = parse_task_stat(Path("/proc/self/stat").read_text(encoding="utf-8"))
    assert stat.session == os.getsid(0)


def test_states() -> None:
    assert [state for state in "RSDTtZXxI" if parse_task_stat(text("x", state)).is_dead] == ["Z", "X", "x"]
    assert not parse_task_stat(text("x", "Z", threads=2)).is_dead, "another thread lives"


def test_where_it_may_run() -> None:
    assert parse_allowed_cpus(
        "Name:\tx\nCpus_allowed:\tf5\nCpus_allowed_list:\t0,2,4-7\nMems_allowed:\t1\n"
    ) == CpuSet.parse("0,2,4-7")
    assert CpuSet.from_ids(os.sched_getaffinity(0)) <= parse_allowed_cpus(Path("/proc/self/status").read_text())


def test_our_own() -> None:
    stat = parse_task_stat(Path("/proc/self/stat").read_text())
    assert not stat.is_dead
    assert not stat.is_kernel_thread
    assert stat.start_ticks > 0
    assert stat.cpu in range(os.sysconf("SC_NPROCESSORS_CONF"))


def test_a_process_whose_main_thread_has_ended_lives_with_its_other_threads() -> None:
    program = "import ctypes, threading; threading.Thread(target=input).start(); ctypes.CDLL(None).pthread_exit(None)"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        path = Path(f"/proc/{process.pid}/stat")
        while (stat := parse_task_stat(path.read_text())).state != "Z":
            os.sched_yield()
        assert not stat.is_dead
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert parse_task_stat(path.read_text()).is_dead
