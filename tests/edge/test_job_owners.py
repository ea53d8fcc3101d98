"""Owners of jobs are real processes here: held, found again, told from others, and waited for."""

import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nodeagent.edge.processes.job_owners import Owner, OwnerError, OwnerWatch, open_caller, reopen_owner


def process() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "infinity"])


def ended(running: subprocess.Popen[bytes]) -> None:
    running.kill()
    running.wait()


def test_an_owner_is_found_again_while_it_lives() -> None:
    running = process()
    owner = open_caller(running.pid, os.getuid())
    again = reopen_owner(running.pid, owner.start_ticks)
    assert isinstance(again, Owner)
    assert (owner.is_alive(), again.is_alive()) == (True, True)
    assert reopen_owner(running.pid, owner.start_ticks + 1) is None, "another process has its number"
    ended(running)
    assert (owner.is_alive(), again.is_alive()) == (False, False)
    assert reopen_owner(running.pid, owner.start_ticks) is None
    owner.close()
    again.close()


def test_one_that_has_ended_and_was_not_waited_for_is_no_owner() -> None:
    running = process()
    start_ticks = open_caller(running.pid, os.getuid()).start_ticks
    running.kill()
    os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
    assert reopen_owner(running.pid, start_ticks) is None
    with pytest.raises(OwnerError, match=f"process {running.pid}, which asks for a job, has ended"):
        open_caller(running.pid, os.getuid())
    running.wait()
    with pytest.raises(OwnerError, match="has ended"):
        open_caller(running.pid, os.getuid())


def test_an_owner_whose_main_thread_has_ended_lives_until_its_last_thread_ends() -> None:
    code = """
import ctypes, os, threading
threading.Thread(target=os.read, args=(0, 1)).start()
print(flush=True)
ctypes.CDLL(None).syscall(EXIT, 0)
"""
    code = code.replace("EXIT", str({"x86_64": 60, "aarch64": 93}[os.uname().machine]))
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as running:
        assert running.stdout is not None
        assert running.stdin is not None
        owner = open_caller(running.pid, os.getuid())
        running.stdout.readline()
        while "State:\tZ" not in Path(f"/proc/{running.pid}/status").read_text():
            os.sched_yield()
        asking = open_caller(running.pid, os.getuid())
        again = reopen_owner(running.pid, owner.start_ticks)
        assert again is not None
        assert (owner.is_alive(), asking.is_alive(), again.is_alive()) == (True, True, True)
        running.stdin.close()
    assert (owner.is_alive(), reopen_owner(running.pid, owner.start_ticks)) == (False, None)


EXECUTING = """
import os, sys, threading
left = int(sys.argv[2])
if left == 0:
    print(flush=True)
    os.read(0, 1)
    sys.exit()
again = [sys.executable, "-S", "-c", "import sys; exec(sys.argv[1])", sys.argv[1], str(left - 1)]
threading.Thread(target=os.execv, args=(again[0], again)).start()
threading.Event().wait()
"""


def test_an_owner_is_the_same_while_a_thread_of_it_executes_another_program() -> None:
    """As an interpreter with threads does that becomes a command, at any moment of the agent's looks."""
    words = [sys.executable, "-S", "-c", "import sys; exec(sys.argv[1])", EXECUTING, "20"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdin is not None
        owner = open_caller(running.pid, os.getuid())
        looks = []
        while not select.select([running.stdout], [], [], 0)[0]:
            again = reopen_owner(running.pid, owner.start_ticks)
            looks.append(again is not None and owner.is_alive())
            if again is not None:
                again.close()
        assert all(looks)
        assert len(looks) > 20
        assert running.stdout.readline() == b"\n"
        running.stdin.close()


def test_a_process_of_another_user_is_no_owner() -> None:
    """Whose connection it is, the kernel said when it was made; whose number that is now, has to be looked at."""
    running = process()
    with pytest.raises(OwnerError) as caught:
        open_caller(running.pid, os.getuid() + 1)
    assert str(running.pid) in caught.value.message
    ended(running)


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1])
def test_what_is_no_process_is_no_owner(pid: int) -> None:
    with pytest.raises(OwnerError):
        open_caller(pid, os.getuid())
    assert reopen_owner(pid, 1) is None


def test_an_end_is_told_once_and_a_closed_one_not_at_all() -> None:
    told = threading.Semaphore(0)
    watch = OwnerWatch(told.release)
    threading.Thread(target=watch.follow, daemon=True).start()
    first, second, third = process(), process(), process()
    owners = [open_caller(one.pid, os.getuid()) for one in (first, second, third)]
    for owner in owners:
        watch.add(owner)
    ended(first)
    assert told.acquire(timeout=60)
    owners[1].close()
    ended(second)
    ended(third)
    assert told.acquire(timeout=60)
    assert not told.acquire(blocking=False)


def test_a_time_that_passes_is_told_also_if_it_is_set_while_the_watch_sleeps() -> None:
    told, asked = threading.Semaphore(0), threading.Semaphore(0)
    left: list[float | None] = [None]

    def seconds_left() -> float | None:
        asked.release()
        return left[0]

    watch = OwnerWatch(told.release, seconds_left)
    threading.Thread(target=watch.follow, daemon=True).start()
    assert asked.acquire(timeout=60)
    left[0] = 0.001
    watch.renew_time()
    assert told.acquire(timeout=60)


def test_a_time_that_has_passed_is_told_also_if_the_watch_is_renewed_at_that_moment() -> None:
    told = threading.Semaphore(0)
    left: list[float | None] = [0, None]
    watch = OwnerWatch(told.release, lambda: left.pop(0) if len(left) > 1 else None)
    watch.renew_time()
    threading.Thread(target=watch.follow, daemon=True).start()
    assert told.acquire(timeout=60)
