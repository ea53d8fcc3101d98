"""What an agent and its commands cost beside many pods, and what of that is counted.

Time is noise where it is short, and counts aren't. `make bench` measures both and keeps them in benchmarks/results/costs.json. `make test`
counts again (tests/project/test_costs.py): it fails where a count has grown by more than a tenth of the kept one.

To add rows, write a generator of `Row`, here or in a module of its own, and name it in COUNTERS or TIMERS. The rows of a counter have no
unit, and the same count in every run. `make test` runs all counters, so each takes a second or two at most. `compared` is the former
figure. `python -m benchmarks --costs NAME` measures the rows of that generator and keeps them with the others. `make bench-docs` then
writes all of them into docs/performance.md.
"""

import compileall
import cProfile
import gc
import os
import subprocess
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from benchmarks import ROOT, agent_costs, turn_costs
from benchmarks.goals import Row, timed
from benchmarks.inspected import rest_agent, serve_node
from benchmarks.timing import Clock
from nodeagent.cli.main import main as run_command_line
from nodeagent.cli.support.run_report import ReportedRuns
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.views.certificate.run_report import OtherTasks
from nodeagent.views.job_report import JobLocation
from tests.support.installed_command import install_command
from tests.support.job_agent import admit_job, answer_jobs

AT_START = "from nodeagent.cli.parser import build_parser; build_parser(['run']); import nodeagent.daemon.service"


def counted(name: str, count: int, goal: int | None = None, compared: str = "") -> Row:
    return Row("counts", name, count, count, goal, compared, unit="")


@contextmanager
def installed() -> Iterator[tuple[str, str, str]]:
    """The command as it is installed, in the words that the kernel makes of its first line: a Python, options, and the script."""
    compileall.compile_dir(ROOT / "nodeagent", quiet=1)  # as pip does
    with tempfile.TemporaryDirectory() as directory:
        script = install_command(Path(directory, "prefix"))
        python, options = Path(script).read_text().partition("\n")[0].removeprefix("#!").split()
        yield python, options, script


def imports(python: str, *arguments: str) -> int:
    """Run a Python that tells of its imports on stderr, until it ends or becomes another program; its own first ones are among them."""
    command = (python, "-X", "importtime", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return sum(line.startswith("import time:") for line in done.stderr.splitlines()) - 1  # the line of titles


def modules() -> Iterator[Row]:
    """Each costs a fraction of a millisecond, and some KiB."""
    with installed() as nodeagent, answer_jobs(admit_job) as socket:
        yield counted("modules that `job` loads", imports(*nodeagent, *job_words(socket)), compared="160")
        missing = str(Path(socket).with_name("agent.sock"))
        inspect = ("inspect", "--socket", missing, "--config", missing)
        yield counted("modules that `inspect` loads", imports(*nodeagent, *inspect), compared="259")
        yield counted("modules that an agent loads", imports(nodeagent[0], "-I", "-c", AT_START), compared="699")


def job_words(socket: str) -> tuple[str, ...]:
    return ("job", "--socket", socket, "--cpus", "2", "--memory", "1Gi", "--", "true")


def client(clock: Clock) -> Iterator[Row]:
    """The processor time of the command alone, and of `true`, which it becomes."""
    with installed() as nodeagent, answer_jobs(admit_job) as socket:
        words = (*nodeagent, *job_words(socket))
        taken = clock.time_runs(partial(child_times, words), 7)
        yield timed("client", "`job --cpus 2 -- true`: the client", taken, 25, "70 ms")


def observer(clock: Clock) -> Iterator[Row]:
    """The processor time of the process that observes a run for its report, from the first to the last instruction of the command. It
    observes as often as in 10 s, without the pauses in between, and doesn't count tasks.

    It runs on other CPUs than the job's. Even on the same CPU, it could slow the run by no more than this: 50 ms are 0.5 %.
    """
    location = JobLocation("jobs/one", "/sys/fs/cgroup", CpuSet.of(0), CpuSet(), NumaSet.of(0))
    nobody = OtherTasks(None, is_complete=False)
    passed = PassedTime()
    runs = ReportedRuns({"environment": {}}, location, lambda _: lambda: nobody, clock=lambda: passed.ns)
    taken = clock.time_runs(partial(observed_run_ms, runs, passed), 7)
    yield timed(
        "client",
        "`--report FILE`: all observations of a run of 10 s, without the pauses and without a count of tasks (0.5 % of it are 50 ms)",
        taken,
        50,
    )


@dataclass
class PassedTime:
    ns: int = 0


def observed_run_ms(runs: ReportedRuns, passed: PassedTime) -> list[float]:
    """Observe a run without waiting for it, and return the processor time meanwhile."""
    seconds_left, started_ms, taken_ms = 10.0, 0.0, 0.0

    def begin() -> None:
        nonlocal started_ms
        started_ms = time.process_time() * 1000

    def pass_time(seconds: float) -> Mapping[str, Any] | None:
        nonlocal seconds_left, taken_ms
        seconds_left -= seconds
        passed.ns += round(seconds * 1e9)
        taken_ms = time.process_time() * 1000 - started_ms
        return None if seconds_left > 0 else {}

    runs.observe(begun=begin, await_end=pass_time)
    return [taken_ms]


def inspection_calls() -> Iterator[Row]:
    """What a command does once it is loaded, in this process. Host processes are left out, as each machine has others."""
    few, many = (dict(calls_of_inspection(pods)) for pods in (10, 40))
    yield counted("functions that `inspect POD` calls beside 40 pods", many["POD"], compared="140,740")
    yield counted("functions that `inspect` calls for each of 40 pods", (many[""] - few[""]) // 30, compared="4,266")


def calls_of_inspection(pods: int) -> Iterator[tuple[str, int]]:
    with serve_node(pods) as socket:
        for name, words in (("POD", ("p0000",)), ("", ())):
            inspect = ["inspect", *words, "--no-host-processes", "--socket", socket]
            with redirect_stdout(StringIO()):
                assert run_command_line(inspect) == 0, "loads what it needs"
                calls = cProfile.Profile()
                calls.runcall(run_command_line, inspect)
            yield name, sum(each.callcount for each in calls.getstats())


def inspection(clock: Clock) -> Iterator[Row]:
    """The client's processor time. It compares all cgroups, and looks at the host's processes if it shows all pods."""
    former = {"POD": ("142 ms", "235 ms", "475 ms"), "": ("142 ms", "310 ms", "909 ms")}
    goals = {"POD": 120, "": 250}
    with installed() as nodeagent:
        for number, pods in enumerate((0, 100, 400)):
            with serve_node(pods) as socket:
                for name, words in (("POD", ("p0000",)), ("", ())) if pods else (("", ()),):
                    command = (*nodeagent, "inspect", *words, "--socket", socket)
                    taken = clock.time_runs(partial(child_times, command), 3)
                    shown = f"`inspect{name and f' {name}'}` beside {pods} pods: the client"
                    yield timed("inspection", shown, taken, goals[name], former[name][number])


def memory(_: Clock) -> Iterator[Row]:
    """The memory of an agent's process with all that it loads, and what its values take beside pods, without those of the models here."""
    with installed() as nodeagent:
        program = f"{AT_START}, psutil; print(psutil.Process().memory_info().rss / 2**20)"
        done = subprocess.run((nodeagent[0], "-I", "-c", program), capture_output=True, text=True, check=True)
        loaded = float(done.stdout)
    yield Row("memory", "memory of an agent that has loaded its modules", loaded, loaded, 40, "41.6 MiB", unit="MiB")
    for pods in (100, 400):
        taken = values_mib(pods)
        yield Row("memory", f"memory of an agent's values beside {pods} pods", taken, taken, unit="MiB")


def values_mib(pods: int) -> float:
    """What an agent keeps in memory for pods: all that was allocated in its modules, after it has come to rest."""
    tracemalloc.start()
    try:
        with rest_agent(pods):
            gc.collect()
            own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, str(ROOT / "nodeagent" / "*"))])
    finally:
        tracemalloc.stop()
    return sum(each.size for each in own.traces) / 2**20


def child_times(command: Sequence[str]) -> list[float]:
    """The best of some: what else runs only adds to the time of so short a process."""
    return [min(child_ms(command) for _ in range(5))]


def child_ms(command: Sequence[str]) -> float:
    """Run a command that succeeds, and return its processor time."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return (used.ru_utime + used.ru_stime) * 1000


COUNTERS: tuple[Callable[[], Iterator[Row]], ...] = (
    modules,
    inspection_calls,
    *agent_costs.COUNTERS,
    turn_costs.turn_calls,
)
TIMERS: tuple[Callable[[Clock], Iterator[Row]], ...] = (client, observer, inspection, memory, turn_costs.turns)


def costs(clock: Clock, only: str = "") -> Iterator[Row]:
    """Measure all rows, or those of one generator."""
    for counter in COUNTERS:
        if only in {"", counter.__name__}:
            yield from counter()
    for timer in TIMERS:
        if only in {"", timer.__name__}:
            yield from timer(clock)
