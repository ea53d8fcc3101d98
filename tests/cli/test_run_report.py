"""`nodeagent job --report FILE`: what the document has of a run, and which disturbance it names first."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cli.main import main
from nodeagent.cli.support.run_report import begin_others
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.formats.wire.exchange import Peer
from nodeagent.views.certificate.comparison import describe_comparison, read_report
from nodeagent.views.certificate.run_report import OtherTasks
from nodeagent.views.certificate.words import summarise_run
from nodeagent.views.job_report import JobLocation
from tests.support import json_schema
from tests.support.job_agent import admit_job, answer_jobs
from tests.support.run_tree import JOB, MIB, RESULT, UNCOUNTED, RunTree


@pytest.fixture
def tree(tmp_path: Path) -> RunTree:
    return RunTree(tmp_path)


def task(name: str, microseconds: int, *, movable: bool) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "process" if movable else "bound-kernel-thread",
        "of": "/user.slice" if movable else None,
        "movable": movable,
        "tasks": 1,
        "cpus": "3",
        "times": 17,
        "microseconds": microseconds,
        "atMostMicroseconds": microseconds,
    }


def check_schema(document: Mapping[str, Any]) -> None:
    rules = json_schema.schema("run-report")
    assert list(json_schema.faults(json.loads(json.dumps(document)), rules, rules)) == []


def test_an_undisturbed_run_is_clean_and_the_report_has_what_it_used(tree: RunTree) -> None:
    found = tree.report(lambda: tree.run(5), lambda: tree.run(5))
    check_schema(found)
    assert (found["verdict"], found["disturbances"]) == ("clean", [])
    assert {one["name"]: one["value"] for one in found["measures"]} == dict.fromkeys(
        (
            "other-tasks",
            "sibling",
            "remote-memory",
            "throttling",
            "thermal-throttling",
            "steal",
            "interrupts",
            "frequency",
            "frequency-limit",
            "memory-pressure",
        ),
        0,
    )
    assert (found["microseconds"], found["cgroup"]["cpuMicroseconds"]) == (10_000_000, 20_000_000)
    assert found["siblings"] == {"cpus": "6-7", "busyMicroseconds": 0}
    assert found["mainThread"] == {"migrations": 2, "voluntarySwitches": 4, "involuntarySwitches": 5}
    assert found["idleStates"] == [{"name": "C1", "microseconds": 20_000, "times": 20}]
    node = found["node"]
    assert (node["kernel"], node["model"], node["microcode"]) == ("6.12.0", "A CPU", "0x1f")
    assert node["bootParameters"] == "nohz_full=2-3", "the others may be secret"
    assert node["mitigations"] == {"meltdown": "Not affected"}
    assert summarise_run(found) == "jobs/one: clean"


def test_what_cannot_be_read_is_null_with_a_reason(tree: RunTree) -> None:
    (tree.root / "proc/cpuinfo").unlink()
    tree.missing = frozenset({f"{JOB}/cpu.stat", f"{JOB}/memory.peak", "proc/schedstat", "proc/stat"})
    found = tree.report(lambda: tree.run(10))
    check_schema(found)
    assert (found["cgroup"]["cpuMicroseconds"], found["others"]["microseconds"]) == (None, None)
    reasons = {one["field"]: one["reason"] for one in found["unknown"]}
    assert reasons["cgroup.peakBytes"] == f"cannot read {tree.root}/{JOB}/memory.peak: No such file or directory"
    assert {"cgroup.cpuMicroseconds", "others.microseconds", "stealMicroseconds", "node.microcode"} <= reasons.keys()
    assert reasons["others.tasks"] == "not root"
    assert found["verdict"] == "unknown"


def put_task(tree: RunTree) -> None:
    tree.used -= 4
    tree.others = OtherTasks([task("stress", 5_000_000, movable=True)], is_complete=True, counted_us=12_500_000)


def use_sibling(tree: RunTree) -> None:
    tree.ran[6] += 3.1


def be_remote(tree: RunTree) -> None:
    tree.memory = (60 * MIB, 40 * MIB)


def throttle(tree: RunTree) -> None:
    tree.throttled += 2


def throttle_all_pods(tree: RunTree) -> None:
    tree.pods_throttled += 2
    tree.used -= 2
    for cpu in tree.ran:
        tree.ran[cpu] = max(0, tree.ran[cpu] - 1)


def test_what_a_quota_above_costs_others_is_not_counted_for_a_job_that_ran_all_the_time(tree: RunTree) -> None:
    def run() -> None:
        tree.run(10)
        tree.pods_throttled += 9

    assert tree.report(run)["verdict"] == "clean"


def overheat(tree: RunTree) -> None:
    tree.hot += 3


def steal(tree: RunTree) -> None:
    tree.steal += 1
    tree.used -= 2


def interrupt(tree: RunTree) -> None:
    tree.irqs[3] += 20_000


def slow_down(tree: RunTree) -> None:
    tree.khz = 1_500_000


def lower_limit(tree: RunTree) -> None:
    tree.limit_khz = 2_000_000


def stall(tree: RunTree) -> None:
    tree.stalled += 1


@pytest.mark.parametrize(
    ("disturb", "name", "said"),
    [
        (put_task, "other-tasks", "other tasks ran on its CPUs 40 % of the time (mostly stress)"),
        (use_sibling, "sibling", "the sibling was busy 31 % of the time"),
        (be_remote, "remote-memory", "40 % of its memory was remote"),
        (throttle, "throttling", "a quota kept it off the CPUs 20 % of the time"),
        (throttle_all_pods, "throttling", "a quota kept it off the CPUs 20 % of the time (mostly /pods.slice)"),
        (overheat, "thermal-throttling", "heat slowed its CPUs 3 times"),
        (steal, "steal", "the hypervisor took 9.9 % of the time of one of its CPUs"),
        (interrupt, "interrupts", "devices interrupted one of its CPUs 2000 times a second (mostly IRQ 40 eth0-rx)"),
        (slow_down, "frequency", "the frequency of its busy CPUs fell by 50 %"),
        (lower_limit, "frequency-limit", "the frequency limit of its CPUs fell by 43 %"),
        (stall, "memory-pressure", "all its tasks waited for memory 10 % of the time"),
    ],
)
def test_a_disturbance_turns_the_verdict_and_is_named_first(
    tree: RunTree, disturb: Callable[[RunTree], None], name: str, said: str
) -> None:
    def change() -> None:
        tree.run(5)
        disturb(tree)

    found = tree.report(lambda: tree.run(5), change)
    check_schema(found)
    assert (found["verdict"], found["disturbances"][0]["name"]) == ("disturbed", name)
    assert summarise_run(found).startswith(f"jobs/one: disturbed: {said}")
    assert found["disturbances"][0]["remedy"]


def test_a_task_that_never_left_a_cpu_is_noticed_although_the_scheduler_has_not_counted_it(tree: RunTree) -> None:
    def change() -> None:
        tree.run(10)
        tree.used -= 5
        tree.running[3] = 5

    found = tree.report(change)
    assert found["others"]["microseconds"] == 4_960_000, "by the idle time, less its error"
    assert found["disturbances"][0]["name"] == "other-tasks"


def test_interrupts_of_an_idle_sibling_hide_no_task_that_ran_there(tree: RunTree) -> None:
    def change() -> None:
        tree.run(10)
        tree.ran[6] += 0.5
        tree.idle_interrupted[6] += 0.6

    found = tree.report(change)
    assert found["siblings"]["busyMicroseconds"] == 1_080_000, "less the error of the idle time"
    assert found["disturbances"][0]["name"] == "sibling"


@pytest.mark.parametrize(("seconds", "verdict"), [((0.08, 0.08), "clean"), ((0.16, 0.0), "disturbed")])
def test_the_busiest_sibling_decides_however_many_there_are(
    tree: RunTree, seconds: tuple[float, float], verdict: str
) -> None:
    def run() -> None:
        tree.run(10)
        tree.ran[6], tree.ran[7] = seconds
        tree.others = OtherTasks([], is_complete=True, counted_us=10_000_000)

    found = tree.report(run)
    assert (found["verdict"], found["siblings"]["busyMicroseconds"]) == (verdict, 160_000)
    most = round(max(seconds) * 100)
    assert {one["name"]: one["value"] for one in found["measures"]}["sibling"] == most
    timeline = found["timeline"][0]["measures"]
    assert {one["name"]: one["value"] for one in timeline}["sibling"] == most - 2, "minus the counters' error"


def test_what_was_quiet_and_what_could_not_be_is_in_the_report(tree: RunTree) -> None:
    assert tree.report(tree.run)["quiet"] is None, "nobody asked"
    quiet = {
        "profile": "",
        "applied": {"idle latency of CPU 2": "5"},
        "missing": {"idle latency of CPU 3": "this kernel doesn't have it"},
    }
    tree.answer = {**tree.answer, "quiet": quiet}
    found = tree.report(tree.run)
    check_schema(found)
    assert found["quiet"] == {
        "profile": None,
        "applied": [{"setting": "idle latency of CPU 2", "value": "5"}],
        "missing": [{"setting": "idle latency of CPU 3", "reason": "this kernel doesn't have it"}],
    }


def test_the_thresholds_of_the_configuration_decide_and_are_those_of_the_comparison(
    tree: RunTree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change() -> None:
        tree.run()
        tree.ran[6] += 4

    paths = [str(tmp_path / f"{name}.json") for name in ("good", "bad")]
    tree.answer = {**tree.answer, "runThresholds": {"sibling": 500}}
    Path(paths[0]).write_text(json.dumps(tree.report(tree.run)))
    found = tree.report(change)
    check_schema(found)
    assert found["verdict"] == "clean"
    assert [one["threshold"] for one in found["measures"] if one["name"] == "sibling"] == [500]
    Path(paths[1]).write_text(json.dumps(found))
    assert main(["report", "compare", *paths]) == 0
    assert "no difference in other-tasks, " in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "verdict"), [(0.11, "disturbed"), (0.1, "clean")])
def test_a_task_that_takes_one_cpu_is_not_hidden_by_the_others(tree: RunTree, seconds: float, verdict: str) -> None:
    def run() -> None:
        tree.run(10)
        tree.used -= seconds
        stress = task("stress", round(seconds * 1e6), movable=True)
        tree.others = OtherTasks([stress], is_complete=True, counted_us=10_000_000)

    assert tree.report(run)["verdict"] == verdict


@pytest.mark.parametrize(("seconds", "verdict"), [(0.15, "disturbed"), (0.1, "clean")])
def test_a_cpu_that_loses_time_alone_is_not_hidden_by_the_others(tree: RunTree, seconds: float, verdict: str) -> None:
    def run() -> None:
        tree.run(10)
        tree.stolen_alone, tree.used = seconds, tree.used - seconds
        tree.others = OtherTasks([], is_complete=True, counted_us=10_000_000)

    found = tree.report(run)
    assert (found["verdict"], found["stealMicroseconds"]) == (verdict, round(seconds * 1e6))
    assert found["timeline"][0]["measures"][-1] == {"name": "steal", "value": round(seconds * 100)}


def test_steal_is_unknown_where_a_cpu_has_no_times(tree: RunTree) -> None:
    """As of one that was offline at the end."""

    def lose_times() -> None:
        tree.run()
        del tree.ran[3]

    found = tree.report(lose_times)
    check_schema(found)
    assert (found["stealMicroseconds"], found["interruptMicroseconds"]) == (None, None)
    assert {"stealMicroseconds", "interruptMicroseconds"} <= {one["field"] for one in found["unknown"]}
    assert "steal" in [one["name"] for one in found["measures"] if one["value"] is None]


def test_a_frequency_that_is_still_rising_at_the_start_does_not_disturb(tree: RunTree) -> None:
    tree.khz = 800_000

    def change() -> None:
        tree.run(10)
        tree.khz = 3_000_000

    found = tree.report(lambda: tree.run(0.02), lambda: tree.run(0.04), change)
    assert (found["frequency"]["lowestKilohertz"], found["verdict"]) == (3_000_000, "clean")


def test_the_frequency_of_each_cpu_is_compared_with_its_own(tree: RunTree) -> None:
    """As where a job has cores of two kinds."""
    tree.slower_khz = 1_000_000
    found = tree.report(lambda: tree.run(5), lambda: tree.run(5))
    assert (found["verdict"], found["frequency"]["highestKilohertz"]) == ("clean", 3_000_000)
    assert found["frequency"]["lowestKilohertz"] == 2_000_000

    def lower_faster() -> None:
        tree.run(5)
        tree.limit_khz, tree.slower_khz = 2_800_000, 300_000

    found = tree.report(lambda: tree.run(5), lower_faster)
    assert found["frequency"]["limitAtStartKilohertz"] == found["frequency"]["limitAtEndKilohertz"] == 2_500_000
    assert summarise_run(found).startswith("jobs/one: disturbed: the frequency limit of its CPUs fell by 20 %; ")


def test_tasks_that_cannot_run_elsewhere_do_not_disturb_if_the_kernel_counted_all(tree: RunTree) -> None:
    tree.others = OtherTasks([task("migration/3", 4_000_000, movable=False)], is_complete=True, counted_us=10_000_000)

    def change() -> None:
        tree.run(10)
        tree.used -= 4

    found = tree.report(change)
    assert (found["others"]["microseconds"], found["verdict"]) == (4_000_000, "clean")
    assert found["others"]["longestAtMostMicroseconds"] == 4_000_000
    tree.others = UNCOUNTED
    assert tree.report(lambda: tree.run(10))["others"]["longestAtMostMicroseconds"] is None, "others may have left"


def test_interrupts_of_the_jobs_own_device_do_not_disturb(tree: RunTree) -> None:
    device = tree.root / "sys/bus/pci/devices/0000:01:00.0/msi_irqs"
    device.mkdir(parents=True)
    (device / "40").write_text("msix\n")
    tree.answer = {"environment": {"NODEAGENT_DEVICES": "0000:01:00.0"}}

    def change() -> None:
        tree.run(10)
        interrupt(tree)

    found = tree.report(change)
    assert (found["interrupts"][0]["kind"], found["verdict"]) == ("claimed", "clean")


SPINNING = f"spin{os.getpid()}"
"""Other test runs on the machine have other names."""
SPIN = """
import sys, time
open("/proc/self/comm", "w").write(sys.argv[1])
for line in sys.stdin:
    until = time.process_time() + 0.06
    while time.process_time() < until:
        pass
    print(flush=True)
"""


@pytest.fixture
def spinner() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs for a moment, for each line that it reads, on the first CPU that the tests may use."""
    cpus = os.sched_getaffinity(0)
    words = ("taskset", "-c", str(min(cpus)), sys.executable, "-c", SPIN, SPINNING)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        yield child
        child.communicate()
    os.sched_setaffinity(0, cpus)


@pytest.mark.parametrize("is_own", [False, True])
def test_without_the_kernels_counts_those_that_ran_last_are_named(
    spinner: subprocess.Popen[bytes], *, is_own: bool
) -> None:
    assert spinner.stdin is not None
    assert spinner.stdout is not None
    cgroup = Path(f"/proc/{spinner.pid}/cgroup").read_text().rpartition("0::")[2].strip()
    cpus = CpuSet.of(min(os.sched_getaffinity(0)))
    location = JobLocation("jobs/one", f"/sys/fs/cgroup{cgroup}" if is_own else "/none", CpuSet(), cpus, NumaSet.of(0))
    with ExitStack() as counting:
        find = begin_others(location, "/none/agent.sock", counting)
        spinner.stdin.write(b"\n")
        spinner.stdin.flush()
        assert spinner.stdout.readline() == b"\n"
        found = find()
    named = [one for one in found.tasks or () if one["name"] == SPINNING and one["atMostMicroseconds"] >= 50_000]
    assert not found.is_complete
    assert "others share these CPUs" in found.reasons["others.tasks"]
    assert [(one["of"], one["movable"], one["microseconds"]) for one in named] == (
        [] if is_own else [(cgroup, True, None)]
    )


# from the outside


@contextmanager
def node(cgroup: Path) -> Iterator[str]:
    (cgroup / "cpu.stat").write_text("usage_usec 10\n")

    def answer(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        assert arguments["report"] is True
        of_report = {"numaNodes": "0", "configurationHash": "abc", "runThresholds": {"steal": 1234}}
        return {**admit_job(arguments, peer), "cgroup": str(cgroup), **of_report}

    with answer_jobs(answer) as socket:
        yield socket


def run(socket: str, *words: str) -> subprocess.CompletedProcess[str]:
    asked = ("job", "--socket", socket, "--cpus", "2", "--memory", "1Gi", *words)
    return subprocess.run((sys.executable, "-m", "nodeagent", *asked), capture_output=True, text=True, check=False)


def test_the_file_has_the_report_and_the_command_its_status(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    with node(tmp_path) as socket:
        done = run(socket, "--report", str(file), "--no-aslr", "--", "sh", "-c", "echo out; exit 9", "secret")
    assert (done.returncode, done.stdout) == (9, "out\n")
    document = json.loads(file.read_text())
    check_schema(document)
    assert document["exit"] == {"status": 9, "signal": None}
    assert document["node"]["configurationHash"] == "abc"
    applied = [{"setting": "address space randomization", "value": "off"}]
    assert document["quiet"] == {"profile": None, "applied": applied, "missing": []}
    assert {one["name"]: one["threshold"] for one in document["measures"]}["steal"] == 1234
    assert document["mainThread"]["voluntarySwitches"] is not None
    assert document["startedAtMs"] <= document["endedAtMs"]
    assert "secret" not in file.read_text()
    assert done.stderr == f"nodeagent: {summarise_run(document)}\n"


def test_a_run_that_is_not_clean_has_a_status_of_its_own_only_if_it_succeeded(tmp_path: Path) -> None:
    """CPU 0 is shared with all others here, who disturb by more than a hundredth."""
    hog = f"{sys.executable} -c 'import time; t = time.time() + 1\nwhile time.time() < t: pass'"
    with node(tmp_path) as socket:
        words = ("--report", str(tmp_path / "run.json"), "--require-clean", "--", "sh", "-c")
        done = run(socket, *words, f"taskset -c 0 {hog}")
        failed = run(socket, *words, f"taskset -c 0 {hog}; exit 9")
    assert (done.returncode, failed.returncode) == (123, 9)
    assert "jobs/one: disturbed: other tasks ran on its CPUs " in done.stderr


def test_a_report_that_is_lost_in_the_end_takes_the_success_from_the_command(tmp_path: Path) -> None:
    directory, asked = tmp_path / "reports", ("--report", str(tmp_path / "reports/run.json"))
    with node(tmp_path) as socket:
        for repeat in ((), ("--repeat", "2")):
            directory.mkdir()
            done = run(socket, *asked, *repeat, "--", "rm", "-rf", str(directory))
            assert (done.returncode, "run" in done.stderr) == (123, True), done.stderr
        directory.mkdir()
        failed = run(socket, *asked, "--", "sh", "-c", f"rm -r {directory}; exit 9")
    assert failed.returncode == 9
    assert f"cannot write {directory}/run.json" in failed.stderr


def test_runs_are_repeated_until_one_fails_and_each_has_its_report(tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("")
    with node(tmp_path) as socket:
        words = ("--report", str(tmp_path / "run.json"), "--repeat", "5", "--", "sh", "-c")
        done = run(socket, *words, f"echo x >>{count}; cat; test $(wc -l <{count}) -lt 3")
    assert (done.returncode, count.read_text()) == (1, "x\nx\nx\n")
    reports = sorted(path.name for path in tmp_path.glob("run*.json"))
    assert reports == ["run-1.json", "run-2.json", "run-3.json"]
    exits = [json.loads((tmp_path / name).read_text())["exit"]["status"] for name in reports]
    assert exits == [0, 0, 1]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--require-clean",), 64, "need --report FILE"),
        (("--report", "--require-clean"), 64, "need --report FILE"),
        (
            ("--report", "x", "--repeat", "10001"),
            64,
            "argument --repeat: '10001' is more than 10000: start several jobs",
        ),
        (("--report", "x", "--until-clean", "2"), 64, "--until-clean needs --repeat"),
        (("--report", "/nonexistent/x"), 125, "no file can be made in /nonexistent"),
        (("--report", "/tmp"), 125, "it is a directory, link, device, FIFO or socket"),
        (("--report", "/", "--repeat", "2"), 125, "cannot write /: it is a directory"),
        (("--report", "..", "--repeat", "2"), 125, "cannot write ..: it is a directory"),
        (("--report", "nowhere/"), 125, "cannot write nowhere/: it is a directory"),
        (("--report", "r" * 255), 125, "r.new: File name too long"),
        (("--report", "r" * 255, "--repeat", "2"), 125, "r-1: File name too long"),
        (("--report", "/dev/stdout"), 125, "it is a directory, link, device, FIFO or socket"),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(
    words: tuple[str, ...], status: int, said: str, tmp_path: Path
) -> None:
    done = run(str(tmp_path / "none.sock"), *words, "--", "touch", str(tmp_path / "ran"))
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_report_that_no_temporary_file_can_be_written_for_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".run-2.json.new").mkdir()
    done = run(str(tmp_path / "none.sock"), "--report", str(tmp_path / "run.json"), "--repeat", "2", "--", "true")
    assert (done.returncode, "/.run-2.json.new: it is a directory" in done.stderr) == (125, True), done.stderr


# comparison


@pytest.fixture
def reports(tmp_path: Path) -> dict[str, str]:
    """A clean run, one beside a busy sibling with remote memory, and one on another kernel."""
    found = {}
    for name in ("good", "bad", "other"):
        tree = RunTree(tmp_path / name)
        if name == "other":
            (tree.root / "proc/sys/kernel/osrelease").write_text("6.1.0\n")

        def change(tree: RunTree = tree, *, is_bad: bool = name == "bad") -> None:
            tree.run(13.1 if is_bad else 10)
            if is_bad:
                be_remote(tree)
                tree.ran[6] += 4.06

        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(tree.report(change)))
        found[name] = str(path)
    return found


def test_differences_are_ranked_in_words(reports: Mapping[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "compare", reports["good"], reports["bad"], reports["other"]]) == 0
    assert capsys.readouterr().out.replace(str(Path(reports["good"]).parent), "") == (
        "good: /good.json: 10.00 s, clean\n"
        "\n"
        "/bad.json: 13.10 s, disturbed, 31 % longer\n"
        "  1. the sibling was busy 31 % of the time; good: 0.0 %\n"
        "     remedy: request whole cores: the CPU manager's option full-pcpus-only, and an even number of `--cpus`\n"
        "  2. 40 % of its memory was remote; good: 0.0 %\n"
        "     remedy: bind the job to one NUMA node: `--numa N`, or memoryManagerPolicy Static\n"
        "\n"
        "/other.json: 10.00 s, clean, as long\n"
        "  other kernel: 6.1.0; good: 6.12.0\n"
    )


@pytest.mark.parametrize("columns", [80, 200])
def test_the_comparison_has_the_terminals_width(
    reports: Mapping[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    words = ["report", "compare", reports["good"], *[reports["bad"], reports["other"]] * 100]
    main(words)
    piped = capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    main(words)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    assert "".join(shown.split()) == "".join(piped.split()), "nothing is left out"


def test_a_cause_is_ranked_before_its_bigger_effects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = RunTree(tmp_path)
    (tmp_path / "good.json").write_text(json.dumps(tree.report(tree.run)))

    def change() -> None:
        tree.run()
        overheat(tree)
        slow_down(tree)

    (tmp_path / "bad.json").write_text(json.dumps(tree.report(tree.run, change)))
    assert main(["report", "compare", f"{tmp_path}/good.json", f"{tmp_path}/bad.json"]) == 0
    found = capsys.readouterr().out
    assert "  1. heat slowed its CPUs 3 times; " in found
    assert "  2. the frequency of its busy CPUs fell by 50 %; " in found


def test_a_page_has_the_timeline_of_what_disturbed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = RunTree(tmp_path)
    (tmp_path / "good.json").write_text(json.dumps(tree.report(lambda: tree.run(10))))

    def disturb() -> None:
        tree.run(5)
        tree.ran[6] += 4.02

    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.1.0\n")
    found = tree.report(lambda: tree.run(5), disturb, lambda: tree.run(5))
    (tmp_path / "<b>.json").write_text(json.dumps(found))
    busy = [{one["name"]: one["value"] for one in part["measures"]}["sibling"] for part in found["timeline"]]
    assert busy == [0, 800, 0]
    words = ("report", "compare", f"{tmp_path}/good.json", f"{tmp_path}/<b>.json", "--html", f"{tmp_path}/page.html")
    assert main(list(words)) == 0
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 1, "the good run has nothing to show"
    assert page.count("<rect") == 3
    assert "5.00 s: 80 %</title>" in page
    assert "<b>" not in page
    assert "15.00 s, 50 % longer" in page
    assert "15.00 s</text>" in page, "the end of its timeline"
    assert "<td>other kernel: 6.1.0<td>6.12.0<td>" in page
    assert "No timeline shows a disturbance" in page
    assert page.count("<table>") == 1, "none without rows"
    assert "an even number of <code>--cpus</code>" in page
    capsys.readouterr()


def test_the_page_says_what_was_equal_and_how_runs_ended_as_the_text_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = RunTree(tmp_path)
    report = tree.report(lambda: tree.run(10))
    for name, end in (("good", {}), ("failed", {"status": 3}), ("killed", {"status": None, "signal": "SIGKILL"})):
        (tmp_path / f"{name}.json").write_text(json.dumps({**report, "exit": {**report["exit"], **end}}))
    files = [f"{tmp_path}/{name}.json" for name in ("good", "failed", "killed")]
    assert main(["report", "compare", *files, "--html", f"{tmp_path}/page.html"]) == 0
    text, page = capsys.readouterr().out, unescape((tmp_path / "page.html").read_text())
    (equal,) = set(re.findall(r"^  (no difference in other-tasks, .* was measured)$", text, re.MULTILINE))
    assert page.count(equal) == 2, "the good run is compared with nothing"
    for end in (", exit status 3", ", ended by a signal"):
        assert (text.count(end), page.count(end)) == (1, 1)


def test_a_page_does_not_replace_a_report(
    reports: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    was = Path(reports["bad"]).read_bytes()
    words = ["report", "compare", reports["good"], reports["bad"], "--html"]
    assert main([*words, f"{tmp_path}/../{tmp_path.name}/bad.json"]) == 64
    told = capsys.readouterr()
    assert ("would replace one of the given reports" in told.err, told.out) == (True, "")
    assert Path(reports["bad"]).read_bytes() == was
    assert main([*words, f"{tmp_path}/runs.html"]) == 0, "as the hint says"


def test_the_page_of_a_short_and_a_long_run_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The times of the short run don't lie on each other, no name is wider than the page, and the text is light on a dark page."""
    tree = RunTree(tmp_path)

    def disturb() -> None:
        tree.run(0.2)
        tree.ran[6] += 0.15

    long = "n" * 200 + ".json"
    for name, report in (("short.json", tree.report(disturb)), (long, tree.report(lambda: tree.run(100), disturb))):
        (tmp_path / name).write_text(json.dumps(report))
    page = tmp_path / "page.html"
    assert main(["report", "compare", f"{tmp_path}/short.json", f"{tmp_path}/{long}", "--html", str(page)]) == 0
    capsys.readouterr()
    text = page.read_text()
    first, *_ = text.split("</svg>")
    times = [(float(x), anchor) for x, anchor in re.findall(r'<text x="([\d.]+)" y="51"( text-anchor="end")?>', first)]
    (begins, _), (ends, anchor) = times
    assert anchor
    assert ends - begins >= 80, "the room of both times at 12 pixels"
    assert "overflow-wrap: anywhere" in text
    assert "color-scheme: light dark" in text
    assert "svg text { fill: currentColor" in text


def test_memory_and_frequency_are_read_often_enough_in_a_run_of_a_second(tree: RunTree) -> None:
    """Memory of its last part is gone at its end. CPUs are busy for longer than from one look to the next."""
    looks = []

    def await_end(seconds: float) -> Mapping[str, Any] | None:
        looks.append(seconds)
        tree.run(min(seconds, 1.2 - tree.seconds))
        is_over = tree.seconds > 1.199
        tree.memory = (4 * MIB, 60 * MIB) if tree.seconds > 0.9 and not is_over else (64 * MIB, 0)
        return RESULT if is_over else None

    found = tree.observe(await_end)
    assert found["disturbances"][0]["name"] == "remote-memory"
    assert found["frequency"]["lowestKilohertz"] == 3_000_000
    assert len(looks) < 20


def test_the_timeline_of_a_long_run_is_bounded(tree: RunTree) -> None:
    found = tree.report(*(lambda: tree.run(1) for _ in range(200)))
    assert 64 <= len(found["timeline"]) <= 128
    assert sum(part["microseconds"] for part in found["timeline"]) == found["microseconds"] == 200_000_000


def test_the_comparison_is_a_document_too(reports: Mapping[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "compare", reports["good"], reports["bad"], "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rules = json_schema.schema("run-comparison")
    assert list(json_schema.faults(document, rules, rules)) == []
    (found,) = document["others"]
    assert [one["name"] for one in found["differences"]] == ["sibling", "remote-memory"]
    assert main(["report", "compare", reports["good"], reports["good"]]) == 0
    said = capsys.readouterr().out
    assert "no difference in other-tasks, sibling, " in said
    assert "microcode" in said, "what both reports have was compared"
    assert "no_turbo" not in said, "what none of them has was not"


def compare(tmp_path: Path, good: Mapping[str, Any], bad: Mapping[str, Any]) -> dict[str, tuple[object, object]]:
    """Return the properties that differ, with the good report's value and the other's."""
    for name, document in (("good", good), ("bad", bad)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    read = [read_report((tmp_path / f"{name}.json").read_bytes(), name) for name in ("good", "bad")]
    (found,) = describe_comparison(read[0], read[1:])["others"]
    return {one["name"]: (one["good"], one["value"]) for one in found["facts"]}


def test_a_slow_constant_frequency_and_quiet_settings_are_differences(tmp_path: Path) -> None:
    good, bad = RunTree(tmp_path / "a"), RunTree(tmp_path / "b")
    applied = {"idle latency of CPU 2": "5", "idle latency of CPU 3": "5"}
    quiet = {"profile": "quiet", "process": {}, "applied": applied, "missing": {"boost": "read-only"}}
    good.answer = {**good.answer, "quiet": quiet}
    good.khz, good.limit_khz, bad.khz, bad.limit_khz = 3_500_000, 3_500_000, 1_200_000, 3_450_000
    documents = [tree.report(lambda t=tree: t.run(5), lambda t=tree: t.run(5)) for tree in (good, bad)]
    documents[1]["frequency"]["drivers"] = ["acpi-cpufreq"]
    assert compare(tmp_path, *documents) == {
        "frequency drivers": ("", "acpi-cpufreq"),
        "lowest frequency in kHz": (3_500_000, 1_200_000),
        "highest frequency in kHz": (3_500_000, 1_200_000),
        "quiet profile": ("quiet", ""),
        "quiet settings": ("idle latency: 5", ""),
        "missing quiet settings": ("boost: read-only", ""),
    }, "limits differ by less than 2 %"


@pytest.mark.parametrize(("count", "differs"), [(29, True), (190, False), (250, True)])
def test_faults_and_migrations_differ_if_there_are_many_times_more(
    tree: RunTree, tmp_path: Path, count: int, *, differs: bool
) -> None:
    good = tree.report(tree.run)
    bad = json.loads(json.dumps(good))
    for document, times in ((good, 100), (bad, count)):
        document["cgroup"]["majorPageFaults"] = document["mainThread"]["migrations"] = times
    assert ("migrations a second" in compare(tmp_path, good, bad)) is differs
    assert ("major page faults a second" in compare(tmp_path, good, bad)) is differs


@pytest.mark.parametrize("text", ["", "{}", '{"kind": "Interference"}', '{"kind": "RunReport", "node": 1}'])
def test_what_is_no_report_is_refused(
    text: str, reports: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none").write_text(text)
    assert main(["report", "compare", reports["good"], str(tmp_path / "none")]) == 1
    assert f"{tmp_path}/none is not a report of a run: " in capsys.readouterr().err
