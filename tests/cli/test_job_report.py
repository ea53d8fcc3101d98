"""`nodeagent job --report`: who waits for the command and passes on what is sent, what is looked at, and what the line says."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cli.support.job_report import watch_job
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.formats.kernel.usage import JobUsage, parse_job_usage
from nodeagent.formats.wire.exchange import Peer
from nodeagent.views.job_report import JobLocation, format_report
from tests.support.job_agent import admit_job, answer_jobs

MIB = 2**20


def schedstat(**ran_ns: int) -> str:
    """As kernel 6.12 writes it, with domains between the CPUs."""
    lines = "".join(f"{cpu} 0 0 0 0 0 0 {ns} 17 4\ndomain0 MC 3 1 2 3\n" for cpu, ns in ran_ns.items())
    return f"version 17\ntimestamp 4295034291\n{lines}"


def numa_stat(*pages: int) -> str:
    anon = " ".join(f"N{node}={size}" for node, size in enumerate(pages))
    return f"anon {anon}\nfile N0=0 N1=0\nkernel_stack N0=4096 N1=4096\n"


def cpu_stat(usage_us: int, throttled_us: int = 0) -> str:
    return f"usage_usec {usage_us}\nuser_usec 1\nsystem_usec 2\nnr_periods 9\nnr_throttled 3\nthrottled_usec {throttled_us}\n"


class Cgroup:
    """Plain files, as the kernel's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "pod"
        self.directory.mkdir()
        (root / "proc").mkdir()

    @property
    def place(self) -> JobLocation:
        return JobLocation("jobs/one", str(self.directory), CpuSet.parse("2-3"), CpuSet(), NumaSet.of(1))

    def holds(self, **texts: str) -> None:
        for name, text in texts.items():
            path = self.root / "proc" / name if name == "schedstat" else self.directory / name.replace("_", ".", 1)
            path.write_text(text)

    def report(self, *looks: Callable[[], None]) -> str:
        """Return the report of a command during which the files changed so."""
        left = iter(looks)

        def is_over() -> bool:
            change = next(left)
            change()
            return change is looks[-1]

        return watch_job(self.place, begun=lambda: None, is_over=is_over, root=str(self.root))


@pytest.fixture
def cgroup(tmp_path: Path) -> Cgroup:
    return Cgroup(tmp_path)


def test_the_line_says_what_the_kernel_has_counted(cgroup: Cgroup) -> None:
    cgroup.holds(
        cpu_stat=cpu_stat(500), schedstat=schedstat(cpu1=9, cpu2=10**9, cpu3=0), memory_numa_stat=numa_stat(0, 0)
    )
    said = cgroup.report(
        lambda: cgroup.holds(memory_numa_stat=numa_stat(3 * MIB, 512 * MIB)),
        lambda: cgroup.holds(memory_numa_stat=numa_stat(MIB, 512 * MIB)),
        lambda: cgroup.holds(
            cpu_stat=cpu_stat(4_000_500, 250_000),
            schedstat=schedstat(cpu1=10**12, cpu2=4 * 10**9, cpu3=1_030_000_000),
            memory_numa_stat=numa_stat(0, 0),
            memory_peak=f"{600 * MIB}\n",
        ),
    )
    who, used, memory, others = said.removesuffix("\n").split("; ")
    assert who.startswith("nodeagent: jobs/one: 0.")
    assert who.endswith(" s on CPUs 2-3 of NUMA 1")
    assert used == "4.00 s of CPU time, throttled for 0.25 s"
    assert memory == "memory: at most 600Mi, 3Mi on other nodes", "what was seen while it ran"
    assert others == "others ran there for 0.03 s (`nodeagent interference` tells which tasks)"


def test_a_job_that_the_oom_killer_ended_says_so_beside_its_peak(cgroup: Cgroup) -> None:
    cgroup.holds(memory_events="low 0\noom 1\noom_kill 0\n")

    def end() -> None:
        cgroup.holds(memory_events="low 0\noom 1\noom_kill 2\n", memory_peak=f"{64 * MIB}\n")

    assert "memory: at most 64Mi, unknown on other nodes; the OOM killer has ended processes of it; " in (
        cgroup.report(end)
    )


def test_what_cannot_be_read_is_said(cgroup: Cgroup) -> None:
    said = cgroup.report(lambda: None).removesuffix("\n").partition("; ")[2]
    assert said == (
        "its CPU time is unknown; memory: unknown, unknown on other nodes; unknown how long others ran there"
    )


def test_who_shares_cpus_is_never_alone() -> None:
    usage = parse_job_usage(cpu_stat(1), numa_stat(0, 0), "0\n", schedstat(cpu0=5))
    place = JobLocation("jobs/one", "", CpuSet(), CpuSet.parse("0-7"), NumaSet.of(0, 1))
    said = format_report(place, 1_000_000, usage, usage, 0)
    assert said.startswith("nodeagent: jobs/one: 1.00 s on shared CPUs 0-7 of NUMA 0-1; ")
    assert said.endswith("; memory: at most 0, 0 on other nodes; others share these CPUs\n")


@pytest.mark.parametrize(
    "text", ["", "version 17\n", "cpu0 1 2\n", "cpu0 0 0 0 0 0 0 x 1 1\n", "cpu0 0 0 0 0 0 0 -1 1 1\n", "cpux 1\n"]
)
def test_what_is_no_schedstat_is_unknown(text: str) -> None:
    assert parse_job_usage(None, None, "max\n", text) == JobUsage(
        parse_job_usage(None, None, None, None).usage, None, None
    )


# from the outside


@contextmanager
def node(cgroup: Cgroup) -> Iterator[str]:
    cgroup.holds(cpu_stat=cpu_stat(10_000), memory_numa_stat=numa_stat(0, 4096), memory_peak="4096\n")

    def answer(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        return {**admit_job(arguments, peer), "cgroup": str(cgroup.directory), "numaNodes": "0"}

    with answer_jobs(answer) as socket:
        yield socket


def job(socket: str, *words: str) -> tuple[str, ...]:
    asked = ("job", "--socket", socket, "--cpus", "2", "--memory", "1Gi", "--report", *words)
    return (sys.executable, "-m", "nodeagent", *asked)


def run(socket: str, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(job(socket, *words), capture_output=True, text=True, check=False, **more)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (("sh", "-c", "cat; echo error >&2; exit 9"), 9),
        (("sh", "-c", "cat; echo error >&2; kill -TERM $$"), -signal.SIGTERM),
    ],
)
def test_the_command_has_all_but_the_last_line(command: tuple[str, ...], status: int, cgroup: Cgroup) -> None:
    with node(cgroup) as socket:
        done = run(socket, "--", *command, input="in\n")
    assert (done.returncode, done.stdout) == (status, "in\n")
    error, report = done.stderr.splitlines()
    assert (error, report[:20]) == ("error", "nodeagent: jobs/one:")
    assert " on shared CPUs 0 of NUMA 0; 0.01 s of CPU time, " in report
    assert "; memory: at most 4Ki, 4Ki on other nodes; " in report


def test_a_command_that_cannot_be_run_keeps_its_status(cgroup: Cgroup) -> None:
    with node(cgroup) as socket:
        done = run(socket, "--", "no-such")
    assert done.returncode == 127
    assert done.stderr.startswith("nodeagent: cannot run 'no-such': not found")


def test_what_is_refused_has_no_report() -> None:
    def refuse(_arguments: Mapping[str, Any], _peer: Peer) -> Mapping[str, object]:
        return {"refused": {"reason": "OutOfcpu", "message": "not enough"}}

    with answer_jobs(refuse) as socket:
        done = run(socket, "--", "true")
    assert (done.returncode, done.stderr.count("nodeagent: jobs/")) == (125, 1)
    with answer_jobs(admit_job) as socket:
        older = run(socket, "--", "true")
    assert older.returncode == 125
    assert "the agent doesn't support --report" in older.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_what_is_sent_to_who_waits_is_passed_on(cgroup: Cgroup, number: signal.Signals) -> None:
    shell = "trap 'echo usr1' USR1; trap 'exit 3' TERM INT QUIT; echo up; while :; do read line; done"
    with node(cgroup) as socket:
        # whoever runs the tests may ignore them, as a shell lets what it starts in the background
        words = ("env", "--default-signal=INT,QUIT", *job(socket, "--", "sh", "-c", shell))
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waits:
            assert waits.stdout is not None
            assert waits.stdin is not None
            assert waits.stderr is not None
            assert waits.stdout.readline() == b"up\n"
            waits.send_signal(signal.SIGUSR1)
            waits.stdin.write(b"\n")
            waits.stdin.flush()
            assert waits.stdout.readline() == b"usr1\n"
            waits.send_signal(number)
            assert waits.wait() == 3
            assert b"jobs/one" in waits.stderr.read()


@pytest.mark.parametrize(("key", "number"), [(b"\x03", signal.SIGINT), (b"\x1c", signal.SIGQUIT)])
def test_a_terminals_interrupt_ends_the_command_and_then_who_waits(
    cgroup: Cgroup, key: bytes, number: signal.Signals
) -> None:
    ours, terminal = os.openpty()
    try:
        with node(cgroup) as socket:
            # whoever runs the tests may ignore the signal, as a shell lets what it starts in the background
            heeding = ("prlimit", "--core=0", "env", "--default-signal=INT,QUIT", "setsid", "--ctty")
            words = (*heeding, *job(socket, "--", "sh", "-c", "echo up; exec sleep 1000"))
            with subprocess.Popen(words, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waits:
                assert waits.stdout is not None
                assert waits.stderr is not None
                assert waits.stdout.readline() == b"up\n"
                os.write(ours, key)
                assert waits.wait() == -number
                assert b"jobs/one" in waits.stderr.read()
    finally:
        os.close(ours)
        os.close(terminal)


BETWEEN_RUNS = """
import os, signal, sys
from nodeagent.cli.support.job_report import ReportWriter, RunPlan
signal.signal(signal.SIGHUP, signal.Handlers[sys.argv[1]])
(facts, to_facts), (ready, to_ready) = os.pipe(), os.pipe()
observer = os.fork()
if observer == 0:
    os.close(to_facts)
    os.write(to_ready, b"b")
    lines = os.fdopen(facts)
    next(lines)  # the agent's answer
    for number, _ in enumerate(lines, 1):
        if number == 1:
            os.kill(os.getppid(), signal.SIGHUP)
        os.write(to_ready, b"cb")
    print(number, flush=True)
    os._exit(0)
os.close(facts)
status = ReportWriter(RunPlan("run.json", 3), observer, to_facts, ready).attend({}, ("true",), "/none")
os._exit(0 if status is None else status)
"""


@pytest.mark.parametrize(("handler", "runs", "status"), [("SIG_DFL", 1, -signal.SIGHUP), ("SIG_IGN", 3, 0)])
def test_a_signal_between_two_runs_ends_who_waits_unless_it_is_ignored(handler: str, runs: int, status: int) -> None:
    words = (sys.executable, "-c", BETWEEN_RUNS, handler)
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.stdout, done.returncode) == (f"{runs}\n", status)


def test_output_that_the_command_has_closed_is_closed(cgroup: Cgroup) -> None:
    """Nobody who stands beside it holds it open."""
    with node(cgroup) as socket:
        words = job(socket, "--", "sh", "-c", "exec >&-; read line")
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waits:
            assert waits.stdout is not None
            assert waits.stdin is not None
            assert waits.stdout.read() == b""
            assert waits.poll() is None
            waits.stdin.close()
            assert waits.wait() == 1


def test_who_asks_owns_the_job_and_the_watcher_is_not_in_it(cgroup: Cgroup) -> None:
    asked: list[int] = []

    def answer(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        asked.append(peer.pid)
        return {**admit_job(arguments, peer), "cgroup": str(cgroup.directory), "numaNodes": "0"}

    with answer_jobs(answer) as socket:
        done = run(socket, "--", "sh", "-c", 'echo $PPID; ps -o pid= --ppid $PPID | grep -vc "^ *$$ *$"')
    owner, beside = done.stdout.split()
    assert [int(owner)] == asked
    assert beside == "1", "the watcher, which was there before the agent was asked"
    assert os.getpid() not in asked
