"""contrib/benchmark/certified adds the verdict to the results of real benchmark tools, where each keeps what it knows of the machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyperf
import pytest
import yaml

from integration.contrib import CONTRIB
from nodeagent.formats.wire.exchange import Peer
from tests.support.installed_command import install_command
from tests.support.job_agent import admit_job, answer_jobs

CERTIFIED = str(CONTRIB / "benchmark/certified")


class Runs:
    """A directory with runs of a job on CPU 0, which all other programs share."""

    def __init__(self, directory: Path, socket: str, programs: str, log: Path) -> None:
        self.directory, self.socket, self.programs, self.log = directory, socket, programs, log
        self.results = directory / "results.json"

    def run(self, *command: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        options = ("--socket", self.socket, "--cpus", "1", "--memory", "1Gi", *options)
        # pytest-benchmark measures nothing in a worker of xdist, which this test may run in
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        return subprocess.run(
            [sys.executable, CERTIFIED, str(self.results), *options, "--", *command],
            cwd=self.directory,
            env={**environment, "PATH": f"{self.programs}:{environment['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )

    def refused(self, *words: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, CERTIFIED, *words], capture_output=True, text=True, check=False)
        return done.returncode, done.stderr.partition(":")[0]

    def check(self, done: subprocess.CompletedProcess[str], found: Mapping[str, Any]) -> None:
        """Compare what the results say with the report."""
        report = json.loads((self.directory / "results.report.json").read_text())
        assert done.returncode == 0, done.stderr
        assert found == {
            "verdict": report["verdict"],
            "disturbances": [one["name"] for one in report["disturbances"]],
            "cpus": "0",
            "report": "results.report.json",
        }


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    (tmp_path / "cpu.stat").write_text("usage_usec 10\n")
    log = tmp_path / "log"

    def answer(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        log.write_text("admitted\n")
        return {**admit_job(arguments, peer), "cgroup": str(tmp_path), "numaNodes": "0", "configurationHash": "abc"}

    with answer_jobs(answer) as socket:
        yield Runs(tmp_path, socket, str(Path(install_command(tmp_path / "prefix")).parent), log)


def test_pyperf_has_it_in_its_metadata(runs: Runs) -> None:
    words = ("timeit", "--fast", "--processes", "1", "--values", "1", "--warmups", "0", "--loops", "1", "pass")
    done = runs.run(sys.executable, "-m", "pyperf", *words, "-o", str(runs.results))
    found = pyperf.BenchmarkSuite.load(str(runs.results)).get_metadata()
    of_run = {name.removeprefix("nodeagent_"): value for name, value in found.items() if name.startswith("nodeagent_")}
    runs.check(done, of_run | {"disturbances": [one for one in of_run["disturbances"].split(", ") if one]})


def test_pytest_benchmark_has_it_in_its_machine(runs: Runs) -> None:
    (runs.directory / "test_it.py").write_text("def test_it(benchmark):\n    benchmark.pedantic(int)\n")
    words = ("-p", "no:cacheprovider", f"--benchmark-json={runs.results}", "test_it.py")
    done = runs.run(sys.executable, "-m", "pytest", "-q", *words)
    runs.check(done, json.loads(runs.results.read_text())["machine_info"]["nodeagent"])


@pytest.mark.parametrize(
    ("results", "place"),
    [({"context": {"num_cpus": 4}, "benchmarks": []}, ("context",)), ({"results": [{"command": "true"}]}, ())],
    ids=["Google Benchmark", "hyperfine"],
)
def test_others_have_it_in_their_context(runs: Runs, results: Mapping[str, Any], place: tuple[str, ...]) -> None:
    done = runs.run("sh", "-c", f"echo '{json.dumps(results)}' >results.json")
    found = written = json.loads(runs.results.read_text())
    for name in place:
        found = found[name]
    runs.check(done, found.pop("nodeagent"))
    assert written == results, "the rest is as it was"


def test_a_failed_command_keeps_its_status_and_old_results_get_no_verdict(runs: Runs) -> None:
    runs.results.write_text("{}")
    assert runs.run("sh", "-c", "exit 9").returncode == 9
    done = runs.run("true")
    assert (done.returncode, runs.results.read_text()) == (1, "{}")
    assert "certified: the command has not written" in done.stderr
    assert runs.run("sh", "-c", "kill -9 $$").returncode == 128 + 9


@pytest.mark.parametrize("option", [("--repe", "2"), ("--repo", "other.json")])
def test_a_run_without_report_fails(runs: Runs, option: tuple[str, ...]) -> None:
    done = runs.run("sh", "-c", "echo '{}' >results.json", options=option)
    assert (done.returncode, runs.results.read_text()) == (1, "{}\n")
    assert "certified: the job has not written" in done.stderr


@pytest.mark.parametrize(
    "results",
    ["[1, 2]", '{"a": ' * 200_000 + "1" + "}" * 200_000, "no JSON"],
    ids=["list", "nested", "text"],
)
@pytest.mark.parametrize(("status", "told"), [(0, 1), (9, 9)])
def test_results_without_place_for_a_verdict_are_left_alone(runs: Runs, results: str, status: int, told: int) -> None:
    (runs.directory / "given").write_text(results)
    done = runs.run("sh", "-c", f"cp given results.json; exit {status}")
    assert (done.returncode, runs.results.read_text()) == (told, results)
    assert "so it has no verdict" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_cannot_be_is_refused_before_anything_runs(runs: Runs) -> None:
    assert runs.refused("results.json", "--cpus", "1") == (64, "usage")
    assert runs.refused("results.json", "--repeat", "3", "--", "true") == (64, "certified")


def test_the_clock_of_rebench_starts_when_the_job_has_its_cpus(runs: Runs) -> None:
    conf = yaml.safe_load((CONTRIB / "benchmark/rebench.conf").read_text())
    suite, executor = conf["benchmark_suites"]["loops"], conf["executors"]["exclusive"]
    (benchmark,) = suite["benchmarks"]
    command = f"{executor['executable']} {suite['command']}" % {
        "benchmark": benchmark["sum"]["command"],
        "invocation": 1,
    }
    if suite["gauge_adapter"] == "Time":  # which puts the clock before the whole command
        command = f"/usr/bin/time -p {command}"
    clock = runs.directory / "clock"
    clock.write_text(f'#!/bin/sh\necho clock "$@" >>{runs.log}\n')
    clock.chmod(0o755)
    command = command.replace("/usr/bin/time", str(clock)).replace(
        "nodeagent job", f"nodeagent job --socket {runs.socket}"
    )
    environment = {**os.environ, "PATH": f"{runs.programs}:{os.environ['PATH']}"}
    subprocess.run(command, shell=True, cwd=runs.directory, env=environment, check=False)
    assert runs.log.read_text() == "admitted\nclock -p python3 -c sum(range(10_000_000))\n"
