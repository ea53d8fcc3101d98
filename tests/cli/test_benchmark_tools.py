"""contrib/benchmark/certified adds the verdict to the results of real benchmark tools, where each keeps what it knows of the machine."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyperf
import pytest
import yaml

from integration.contrib import CONTRIB
from nodeagent.cli.support.numeric_arguments import time_span
from nodeagent.core.certificate.disturbances import THRESHOLDS
from nodeagent.formats.wire.exchange import Peer
from tests.support.installed_command import install_command
from tests.support.job_agent import admit_job, answer_jobs

HIGHEST = 2**31
"""A threshold that nothing exceeds: each run is clean, although all other programs share its CPUs."""
CERTIFIED = str(CONTRIB / "benchmark/certified")


class Runs:
    """A directory with runs of a job on CPU 0, which all other programs share."""

    def __init__(self, directory: Path, socket: str, programs: str, log: Path) -> None:
        self.directory, self.socket, self.programs, self.log = directory, socket, programs, log
        self.results = directory / "results.json"

    def start(self, *command: str) -> subprocess.CompletedProcess[str]:
        # pytest-benchmark measures nothing in a worker of xdist, which this test may run in
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        own = {"PATH": f"{self.programs}:{environment['PATH']}", "HOME": str(self.directory)}
        return subprocess.run(
            command,
            cwd=self.directory,
            env={**environment, **own},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def run(self, *command: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        options = ("--socket", self.socket, "--cpus", "1", "--memory", "1Gi", *options)
        return self.start(sys.executable, CERTIFIED, str(self.results), *options, "--", *command)

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
        with log.open("a") as file:
            file.write("admitted\n")
        place = {"cgroup": str(tmp_path), "numaNodes": "0", "configurationHash": "abc"}
        clean = (
            {"runThresholds": dict.fromkeys(THRESHOLDS, HIGHEST)} if "maxMs" in arguments or "wait" in arguments else {}
        )
        return {**admit_job(arguments, peer), **place, **clean, "endsAtMs": 2**50}

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


def test_google_benchmark_has_it_in_its_context(runs: Runs) -> None:
    program = "import google_benchmark as b\n@b.register\ndef empty(state):\n    while state: pass\nb.main()\n"
    (runs.directory / "benchmark.py").write_text(program)
    words = ("--benchmark_min_time=1x", f"--benchmark_out={runs.results}", "--benchmark_out_format=json")
    done = runs.run(sys.executable, "benchmark.py", *words)
    found = json.loads(runs.results.read_text())
    assert [one["name"] for one in found["benchmarks"]] == ["empty"]
    runs.check(done, found["context"]["nodeagent"])


def test_others_have_it_beside_their_results(runs: Runs) -> None:
    done = runs.run("sh", "-c", """echo '{"results": [{"command": "true"}]}' >results.json""")
    found = json.loads(runs.results.read_text())
    runs.check(done, found.pop("nodeagent"))
    assert found == {"results": [{"command": "true"}]}, "the rest is as it was"


def test_the_numbers_of_others_stay_as_they_were_written(runs: Runs) -> None:
    numbers = f"1e400, -1E+400, 1.10, 0.1000000000000000055511151231257827, {'7' * 5000}, NaN"
    done = runs.run("sh", "-c", f"""echo '{{"times": [{numbers}]}}' >results.json""")
    assert done.returncode == 0, done.stderr
    written = runs.results.read_text().partition("]")[0].partition("[")[2]
    assert ", ".join(one.strip() for one in written.split(",")) == numbers
    assert '"nodeagent": {' in runs.results.read_text()


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
    assert runs.refused("/", "--cpus", "1", "--", "true") == (64, "certified")
    assert runs.refused("", "--cpus", "1", "--", "true") == (64, "certified")
    (runs.directory / "old.report.json").mkdir()
    assert runs.refused(f"{runs.directory}/old.json", "--cpus", "1", "--", "true") == (64, "certified")


def test_a_link_a_mode_and_a_file_of_a_similar_name_stay(runs: Runs) -> None:
    mine = runs.directory / "results.new"
    mine.write_text("mine")
    runs.results.symlink_to("real.json")
    done = runs.run("sh", "-c", "echo '{}' >results.json; chmod 640 real.json")
    real = runs.directory / "real.json"
    runs.check(done, json.loads(real.read_text())["nodeagent"])
    assert (runs.results.is_symlink(), mine.read_text(), real.stat().st_mode & 0o777) == (True, "mine", 0o640)
    assert not list(runs.directory.glob(".certified-*"))


def test_a_pipe_in_place_of_results_is_not_waited_for(runs: Runs) -> None:
    done = runs.run("mkfifo", "results.json")
    assert done.returncode == 1
    assert "certified: the command has not written" in done.stderr


def test_rebench_measures_each_clean_invocation_from_when_the_job_has_its_cpus(runs: Runs) -> None:
    clock = runs.directory / "clock"  # the second run is disturbed: ReBench only sees the status
    clock.write_text(
        f"""#!/bin/sh
        echo clock >>{runs.log}
        [ $(grep -c clock {runs.log}) != 2 ] || exit 123
        exec /usr/bin/time "$@"
        """
    )
    clock.chmod(0o755)
    conf = (CONTRIB / "benchmark/rebench.conf").read_text()
    conf = conf.replace("nodeagent job", f"{runs.programs}/nodeagent job --socket {runs.socket}")
    (runs.directory / "rebench.conf").write_text(conf.replace("/usr/bin/time", str(clock)))
    (shown,) = re.findall(r"`rebench (.*)`", conf)
    done = runs.start(f"{Path(sys.executable).parent}/rebench", *shlex.split(shown))
    assert done.returncode == 0, done.stdout
    measured = [
        line.split("\t") for line in (runs.directory / "results.data").read_text().splitlines() if line[:1].isdigit()
    ]
    totals = {number: float(value) for number, _, value, unit, kind, *_ in measured if (unit, kind) == ("ms", "total")}
    assert totals.keys() == set("12345"), "the disturbed invocation was repeated"
    assert all(0 < total < 600_000 for total in totals.values())
    assert runs.log.read_text().split() == ["admitted", "clock"] * 6
    reports = [json.loads((runs.directory / f"rebench-{number}.json").read_text()) for number in totals]
    assert [report["exit"]["status"] for report in reports] == [0] * 5


def test_a_whole_run_of_asv_has_one_certificate_beside_its_results(runs: Runs) -> None:
    (runs.directory / "benchmarks").mkdir()
    (runs.directory / "benchmarks/__init__.py").write_text("")
    (runs.directory / "benchmarks/ids.py").write_text("import os\n\n\ndef track_parents():\n    return os.getsid(0)\n")
    conf = {"version": 1, "project": "ids", "repo": ".", "branches": ["main"], "environment_type": "existing"}
    (runs.directory / "asv.conf.json").write_text(json.dumps(conf))
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.com")
    for words in (("init", "-q", "-b", "main"), ("add", "asv.conf.json"), ("commit", "-qm", "first")):
        runs.start(*git, *words).check_returncode()
    asv = f"{Path(sys.executable).parent}/asv"
    runs.start(asv, "machine", "--yes").check_returncode()
    page = (CONTRIB.parent / "docs/how-to/benchmark-tools.md").read_text()
    (shown,) = re.findall(r"^nodeagent job (.* -- )asv (run .*)$", page, re.MULTILINE)
    job, words = map(shlex.split, shown)
    head = runs.start("git", "rev-parse", "HEAD").stdout.strip()
    own = ("--python=same", f"--set-commit-hash={head}")  # builds nothing
    done = runs.start("nodeagent", "job", "--socket", runs.socket, *job, asv, *words, *own)
    assert done.returncode == 0, done.stdout + done.stderr
    (results,) = (runs.directory / "results").glob(f"*/{head[:8]}-*.json")
    assert json.loads(results.read_text())["results"]["ids.track_parents"][0] == [os.getsid(0)]
    report = json.loads((runs.directory / job[job.index("--report") + 1]).read_text())
    assert (report["exit"]["status"], runs.log.read_text()) == (0, "admitted\n")


@pytest.mark.parametrize(
    ("file", "schema", "more"),
    [
        ("github.yml", "vendor.github-workflows", ()),
        ("gitlab.yml", "vendor.gitlab-ci", ("--data-transform", "gitlab-ci")),
    ],
)
def test_the_steps_of_runners_are_what_they_understand(
    runs: Runs, file: str, schema: str, more: tuple[str, ...]
) -> None:
    words = ("-m", "check_jsonschema", "--builtin-schema", schema, *more, str(CONTRIB / "benchmark" / file))
    done = runs.start(sys.executable, *words)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("file", ["github.yml", "gitlab.yml"])
def test_a_runner_waits_longer_than_its_job_and_keeps_each_certificate(runs: Runs, file: str) -> None:
    step = yaml.safe_load((CONTRIB / "benchmark" / file).read_text())
    if file == "github.yml":
        job = step["jobs"]["benchmark"]
        seconds, (command,) = job["timeout-minutes"] * 60, [one["run"] for one in job["steps"] if "run" in one]
        (kept,) = [one["with"]["path"] for one in job["steps"] if "upload-artifact" in one.get("uses", "")]
    else:
        job = step["benchmark"]
        seconds, (command,), (kept,) = time_span(job["timeout"]), job["script"], job["artifacts"]["paths"]
    spans = [time_span(text) for text in re.findall(r"(?:--wait=|--max-time )(\S+)", command)]
    assert len(spans) == 2
    assert sum(spans) < seconds
    benchmark = runs.directory / "benchmark"
    benchmark.write_text("#!/bin/sh\n")
    benchmark.chmod(0o755)
    done = runs.start(*shlex.split(command.replace("nodeagent job", f"nodeagent job --socket {runs.socket}")))
    assert done.returncode == 0, done.stderr
    assert [path.name for path in runs.directory.glob(kept)] == ["run-1.json"], "the first run is clean"
