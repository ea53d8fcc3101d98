import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.processes.host_processes import (
    ProcessAffinity,
    describe_threads,
    find_processes_on,
    find_runnable_threads,
)

ALL = CpuSet.from_ids(os.sched_getaffinity(0))
FIRST, LAST = min(ALL), max(ALL)
two_cpus = pytest.mark.skipif(len(ALL) < 2, reason="needs two CPUs")


@pytest.fixture
def start() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start Python processes that say when they are ready and stay."""
    started = []

    def start_one(script: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", f"import os, threading\n{script}\nprint('ready', flush=True)\ninput()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def only(*pids: int) -> Callable[[int], bool]:
    return lambda pid: pid not in pids


def scan(cpus: CpuSet, *pids: int) -> tuple[ProcessAffinity, ...]:
    return find_processes_on(cpus, excluding=only(*pids)).found


def test_a_process_is_described(start: Callable[[str], subprocess.Popen[str]]) -> None:
    pid = start("open('/proc/self/comm', 'w').write('a) (b c')").pid
    (found,) = scan(ALL, pid)
    unified = [line[3:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::")]
    assert found == ProcessAffinity(pid, "a) (b c", ALL, unified[0] if unified else None, is_kernel_thread=False)


def test_a_name_that_the_kernel_has_cut_is_completed(tmp_path: Path) -> None:
    program = tmp_path / "a-program-with-a-long-name"
    program.symlink_to("/bin/cat")
    with subprocess.Popen([program], stdin=subprocess.PIPE) as process:  # it has been started when this returns
        assert [found.name for found in scan(ALL, process.pid)] == [program.name]


@two_cpus
def test_only_processes_that_may_run_there_are_listed(start: Callable[[str], subprocess.Popen[str]]) -> None:
    here = start(f"os.sched_setaffinity(0, {{{FIRST}}})").pid
    there = start(f"os.sched_setaffinity(0, {{{LAST}}})").pid
    assert [p.pid for p in scan(CpuSet.of(FIRST), here, there)] == [here]
    assert [p.pid for p in scan(CpuSet.of(LAST), here, there)] == [there]
    assert [p.pid for p in scan(ALL, here, there)] == sorted([here, there])
    assert scan(CpuSet(), here, there) == ()


@two_cpus
def test_a_thread_elsewhere_counts(start: Callable[[str], subprocess.Popen[str]]) -> None:
    pid = start(
        f"""
pinned = threading.Event()
def stray():
    os.sched_setaffinity(threading.get_native_id(), {{{LAST}}}); pinned.set(); threading.Event().wait()
threading.Thread(target=stray, daemon=True).start()
pinned.wait()
os.sched_setaffinity(0, {{{FIRST}}})
"""
    ).pid
    assert scan(CpuSet.of(LAST), pid)[0].cpus == CpuSet.of(FIRST, LAST)


def test_those_excluded_are_not_looked_at(start: Callable[[str], subprocess.Popen[str]]) -> None:
    pid = start("").pid
    everything = find_processes_on(ALL, excluding=lambda _: False)
    assert pid in {p.pid for p in everything.found}
    assert os.getpid() in {p.pid for p in everything.found}
    assert everything.hidden == ()
    assert pid not in {p.pid for p in find_processes_on(ALL, excluding=lambda candidate: candidate == pid).found}


CALLED = """
from nodeagent.edge.processes.host_processes import find_caller_pids
import os
print(os.getpid(), *sorted(find_caller_pids() - {os.getpid()}))
"""


def test_the_caller_is_what_goes_when_it_is_done(start: Callable[[str], subprocess.Popen[str]]) -> None:
    bystander = start("os.setsid()").pid
    shell = subprocess.Popen(
        ["sh", "-c", 'exec 3>&1; sh -c \'"$0" -c "$1" >&3; :\' "$0" "$1" | cat; :', sys.executable, CALLED],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    out, _ = shell.communicate()
    itself, *others = map(int, out.split())
    assert itself not in others
    assert {shell.pid, os.getpid()} <= set(others), "the shell, and what it was called from"
    assert len(set(others) - {shell.pid, os.getpid()}) >= 2, "the inner shell, and `cat` at the other end of the pipe"
    assert bystander not in others
    assert 1 not in others


def test_a_zombie_and_one_that_has_just_ended_are_left_out(start: Callable[[str], subprocess.Popen[str]]) -> None:
    process = start("")
    asked = []

    def end_it_when_asked(pid: int) -> bool:
        """It is in the list of pids already, and gone before it is looked at."""
        if pid == process.pid:
            asked.append(pid)
            process.kill()
            process.wait()
        return pid != process.pid

    scanned = find_processes_on(ALL, excluding=end_it_when_asked)
    assert asked == [process.pid]
    assert scanned.found == ()
    assert scanned.hidden == ()
    zombie = start("")
    zombie.kill()
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert scan(ALL, zombie.pid) == ()


def test_kernel_threads_are_told_from_processes() -> None:
    """By the kernel's own flag; a machine's kthreadd has pid 2, a container may see none."""
    listed = {p.pid: p for p in find_processes_on(ALL, excluding=lambda _: False).found}
    has_kthreadd = Path("/proc/2/comm").exists() and Path("/proc/2/comm").read_text() == "kthreadd\n"
    assert (2 in listed and listed[2].is_kernel_thread) == has_kthreadd
    assert not listed[os.getpid()].is_kernel_thread


HIDDEN = """
import os, sys
from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.processes import host_processes as processes
from nodeagent.edge.processes.host_processes import find_processes_on
pid = int(sys.argv[1])
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
print(find_processes_on(CpuSet.from_ids(range(1024)), excluding=lambda one: one != pid))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a /proc that hides processes")
def test_a_process_that_is_hidden_is_reported_not_forgotten(start: Callable[[str], subprocess.Popen[str]]) -> None:
    """With hidepid=noaccess a stranger sees that a process is there and may not look into it (proc(5))."""
    pid = start("").pid
    inside = f"mount -t proc -o hidepid=noaccess proc /proc || exit 99; exec {sys.executable} - {pid}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", inside], input=HIDDEN, capture_output=True, text=True, check=False
    )
    if done.returncode == 99:
        pytest.skip(f"no /proc of one's own here: {done.stderr.strip()}")
    assert done.stdout == f"ProcessScan(found=(), hidden=({pid},))\n"


def test_a_thread_is_described_by_its_own_id(start: Callable[[str], subprocess.Popen[str]]) -> None:
    pid = start("threading.Thread(target=threading.Event().wait, daemon=True).start()").pid
    (thread,) = {int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()} - {pid}
    found = describe_threads([pid, thread, 2**22 + 1])
    assert found.keys() == {pid, thread}, "one that isn't there is left out"
    assert (found[thread].pid, found[thread].is_kernel_thread, found[thread].is_bound) == (pid, False, False)


def test_a_process_on_one_cpu_is_not_bound_to_it(start: Callable[[str], subprocess.Popen[str]]) -> None:
    """It, or anybody with the right to, can change that."""
    pid = start(f"os.sched_setaffinity(0, {{{FIRST}}})").pid
    assert not describe_threads([pid])[pid].is_bound


def test_what_runs_on_a_cpu_at_this_moment(start: Callable[[str], subprocess.Popen[str]]) -> None:
    idle = start(f"os.sched_setaffinity(0, {{{LAST}}})").pid
    busy = start(
        f"""
os.sched_setaffinity(0, {{{LAST}}})
def work():
    while True: pass
threading.Thread(target=work, daemon=True).start()
"""
    ).pid
    (worker,) = {int(path.name) for path in Path(f"/proc/{busy}/task").iterdir()} - {busy}
    there = find_runnable_threads(CpuSet.of(LAST))[LAST]
    assert worker in there
    assert idle not in there
    assert find_runnable_threads(CpuSet()) == {}


@two_cpus
def test_this_process_stays_off_cpus_if_there_are_others() -> None:
    script = f"""
import os
from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.processes.host_processes import leave_cpus
leave_cpus(CpuSet.of({FIRST}))
print({FIRST} in os.sched_getaffinity(0))
leave_cpus(CpuSet.from_ids(os.sched_getaffinity(0)))
print(len(os.sched_getaffinity(0)) > 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
