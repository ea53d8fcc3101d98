"""`nodeagent job` from the outside, with an agent that only answers: what it asks for, what the command is told, and every status."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from queue import Queue, SimpleQueue
from socket import AF_UNIX, socket
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.cli.commands import job
from nodeagent.cli.commands.job import read_plain_words
from nodeagent.cli.main import main
from nodeagent.cli.parser import build_parser
from nodeagent.cli.support.exit_status import EXIT_USAGE
from nodeagent.cli.support.node import this_node
from nodeagent.edge.cgroups.cgroup_entry import read_own_cpus
from nodeagent.errors import NodeAgentError
from nodeagent.formats.node_view import NodeView
from nodeagent.formats.wire.api_messages import format_result
from nodeagent.formats.wire.exchange import Peer
from nodeagent.views.wording.refusal_advice import advise_next_step
from tests.support.job_agent import admit_job, answer_jobs


def run(socket: str, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    asked = (sys.executable, "-m", "nodeagent", "job", "--socket", socket, "--cpus", "2", "--memory", "1Gi", *words)
    return subprocess.run(asked, capture_output=True, text=True, check=False, **more)


def test_what_is_asked_for_and_by_whom() -> None:
    asked: list[tuple[Mapping[str, Any], Peer]] = []

    def remember(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        asked.append((arguments, peer))
        return admit_job(arguments, peer)

    with answer_jobs(remember) as socket:
        done = run(socket, "--hugepages-2Mi", "4Mi", "--", "sh", "-c", "echo $$")
        run(socket, "--name", "mine", "--", "true")
        run(socket, "--", "/bin/./[")
    (first, peer), (second, _), (third, _) = asked
    pid = int(done.stdout)
    assert first["amounts"] == {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "4Mi"}
    assert (first["name"], peer.pid, peer.uid) == (f"sh-{pid}", pid, os.getuid()), "who asks becomes the command"
    assert second["name"] == "mine"
    assert third["name"].startswith("job-")


WORDS = st.sampled_from(
    ("--cpus", "--memory", "--numa", "--device", "--name", "--near", "--socket", "--hugepages-2Mi", "--report", "--cp")
)
VALUES = st.sampled_from(("2", "", "-1", "a=b", "--", "x.com/nic=2", "1Gi", "--memory"))


@given(st.lists(st.one_of(WORDS, VALUES, st.builds("{}={}".format, WORDS, VALUES)), max_size=6), st.lists(VALUES))
def test_plain_words_are_read_as_by_the_parser(words: list[str], command: list[str]) -> None:
    words = ["--cpus", "2", "--memory=1Gi", *words, "--", *command]
    plain = read_plain_words(words)
    if plain is None:
        return
    options, unknown = build_parser(["job"]).parse_known_args(["job", *words])
    assert not unknown
    assert ["--", *plain.argv] == options.argv
    for name in ("cpus", "memory", "hugepages_2Mi", "hugepages_1Gi", "numa", "near", "socket", "core_class", "device"):
        assert getattr(plain, name) == getattr(options, name), name
    assert plain.name == (options.name or "")
    assert not options.report
    assert options.user is None


def test_ordinary_words_are_plain() -> None:
    plain = read_plain_words(
        ["--cpus", "2", "--memory=1Gi", "--device", "a/b", "--device=c/d", "--", "make", "--", "-j"]
    )
    assert plain is not None
    assert (plain.cpus, plain.memory, plain.device) == ("2", "1Gi", ["a/b", "c/d"])
    assert plain.argv == ["make", "--", "-j"]


def test_a_numa_node_is_asked_for_and_checked() -> None:
    asked: list[Mapping[str, Any]] = []

    def remember(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        asked.append(arguments)
        return {**admit_job(arguments, peer), "environment": {"NODEAGENT_MEMORY_NODES": "1"}}

    with answer_jobs(remember) as socket:
        assert run(socket, "--numa", "1", "--", "true").returncode == 0
        older = run(socket, "--numa", "0", "--", "true")
    assert [one["numa"] for one in asked] == ["1", "0"]
    assert older.returncode == 125
    assert "memory is on NUMA nodes 1, not on 0\nhint: is the agent older" in older.stderr


def test_a_class_of_cores_is_asked_for_and_answered() -> None:
    asked: list[Mapping[str, Any]] = []

    def remember(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        asked.append(arguments)
        return {**admit_job(arguments, peer), "coreClass": "performance"}

    with answer_jobs(remember) as socket:
        assert run(socket, "--core-class", "performance", "--", "true").returncode == 0
    with answer_jobs(admit_job) as socket:
        older = run(socket, "--core-class", "performance", "--", "true")
    assert [one["coreClass"] for one in asked] == ["performance"]
    assert older.returncode == 125
    assert "the agent doesn't support --core-class\nhint: is the agent older" in older.stderr
    assert run("none", "--core-class", "fast", "--", "true").returncode == 64


def test_devices_are_asked_for_and_answered() -> None:
    asked: list[Mapping[str, Any]] = []

    def remember(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        asked.append(arguments)
        return {**admit_job(arguments, peer), "near": ["eth0", "nvme"]}

    with answer_jobs(remember) as socket:
        assert run(socket, "--near", "eth0, nvme", "--", "true").returncode == 0
    with answer_jobs(admit_job) as socket:
        older = run(socket, "--near", "eth0", "--", "true")
    assert [one["near"] for one in asked] == ["eth0, nvme"]
    assert older.returncode == 125
    assert "the agent doesn't support --near\nhint: is the agent older" in older.stderr


def test_what_is_not_quiet_is_said_before_the_command() -> None:
    asked: list[Mapping[str, Any]] = []
    missing = {
        **{f"idle latency of CPU {cpu}": "no such file" for cpu in range(2, 130)},
        "boost of CPU 2": "no such file",
        "boost of all CPUs (intel_pstate)": "no such file",
    }

    def remember(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        asked.append(arguments)
        of_own = {"exclusiveCPUs": read_own_cpus(), "sharedCPUs": ""}
        return {**admit_job(arguments, peer), **of_own, "quiet": {"applied": {}, "missing": missing}}

    with answer_jobs(remember) as socket:
        done = run(socket, "--quiet", "--", "sh", "-c", "echo command >&2")
        other = run(
            socket, "--quiet=fast", "--idle-latency", "2us", "--no-boost", "--threads-per-core=all", "--", "true"
        )
        none = run(socket, "--governor=powersave", "--min-frequency=1GHz", "--max-frequency", "2GHz", "--", "true")
    assert (other.returncode, none.returncode) == (0, 0)
    assert done.returncode == 0
    assert done.stderr == (
        "nodeagent: not quiet: boost of CPU 2, boost of all CPUs (intel_pstate), idle latency of CPUs 2-129: no such file\n"
        "command\n"
    )
    assert [one["quiet"] for one in asked] == [
        "quiet",
        "fast,idleLatency=2us,boost=false,idleSiblings=false",
        "governor=powersave,minFrequency=1GHz,maxFrequency=2GHz",
    ]
    with answer_jobs(admit_job) as socket:
        older = run(socket, "--quiet", "--", "true")
    assert older.returncode == 125
    assert "the agent supports neither --quiet nor settings of cores\nhint: is the agent older" in older.stderr


def test_the_command_has_the_settings_of_its_process_and_is_told_of_those_that_it_cannot_have() -> None:
    shown = "grep THP_enabled /proc/self/status; cat /proc/self/personality; nice; chrt -p $$"

    def answer(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        return {**admit_job(arguments, peer), "exclusiveCPUs": "", "sharedCPUs": "0"}

    with answer_jobs(answer) as socket:
        done = run(socket, "--nice", "5", "--sched=rr:3", "--no-aslr", "--no-thp", "--", "sh", "-c", shown)
        batch = run(socket, "--sched", "batch", "--nice=3", "--", "sh", "-c", shown)
    thp, personality, nice, policy, priority = done.stdout.splitlines()
    assert (thp.split()[1], personality, nice) == ("0", "00040000", "5")
    assert policy.endswith("SCHED_OTHER")
    assert priority.endswith(": 0")
    assert done.stderr == "nodeagent: not quiet: scheduler: the job has no exclusive CPUs\n"
    assert (batch.stderr, "SCHED_BATCH" in batch.stdout, "\n3\n" in batch.stdout) == ("", True, True)


def test_settings_of_the_process_come_with_the_profile_and_options_replace_them() -> None:
    def answer(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        process = {"aslr": False, "transparentHugePages": True, "nice": 3, "scheduler": "batch"}
        quiet = {"profile": "fast", "process": process, "applied": {}, "missing": {}}
        return {**admit_job(arguments, peer), "exclusiveCPUs": read_own_cpus(), "sharedCPUs": "", "quiet": quiet}

    with answer_jobs(answer) as socket:
        done = run(
            socket, "--quiet=fast", "--nice", "5", "--", "sh", "-c", "cat /proc/self/personality; nice; chrt -p $$"
        )
    personality, nice, policy, _ = done.stdout.splitlines()
    assert (personality, nice, done.stderr) == ("00040000", "5", "")
    assert policy.endswith("SCHED_BATCH")


def test_a_job_without_cpus_of_its_own_is_not_quiet() -> None:
    def share(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        of_pool = {"exclusiveCPUs": "", "sharedCPUs": "0", "quiet": {"applied": {}, "missing": {}}}
        return {**admit_job(arguments, peer), **of_pool}

    with answer_jobs(share) as socket:
        done = run(socket, "--quiet", "--", "true")
    assert done.returncode == 125
    assert "has no exclusive CPUs, so no settings of cores can be changed\nhint: ask for whole CPUs" in done.stderr


def test_devices_of_its_own_are_amounts() -> None:
    asked: list[Mapping[str, Any]] = []

    def remember(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        asked.append(arguments["amounts"])
        return admit_job(arguments, peer)

    with answer_jobs(remember) as socket:
        assert run(socket, "--device", "example.com/nic", "--device", "example.com/vf=2", "--", "true").returncode == 0
    assert [{name: one[name] for name in one if "/" in name} for one in asked] == [
        {"example.com/nic": "1", "example.com/vf": "2"}
    ]


def test_the_command_has_what_the_caller_has(tmp_path: Path) -> None:
    shell = 'echo "$NODEAGENT_EXCLUSIVE_CPUS $MINE $PWD $(umask)"; cat; echo error >&2; exit 9'
    words = ("--", "sh", "-c", shell)
    with answer_jobs(admit_job) as socket:
        done = run(socket, *words, input="in\n", cwd=tmp_path, env={**os.environ, "MINE": "x"}, umask=0o27)
    assert (done.returncode, done.stderr) == (9, "error\n")
    assert done.stdout == f"2-3 x {tmp_path} 0027\nin\n"


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (("sh", "-c", "kill -TERM $$"), -signal.SIGTERM),
        (("no-such",), 127),
        (("",), 127),
        (("/etc/passwd",), 126),
        (("true",), 0),
    ],
)
def test_its_status_is_the_commands(command: tuple[str, ...], status: int) -> None:
    with answer_jobs(admit_job) as socket:
        assert run(socket, "--", *command).returncode == status


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (("sh", "-c", "kill -TERM $$"), -signal.SIGTERM),
        (("no-such",), 127),
        (("",), 127),
        (("sh", "-c", "exit 7"), 7),
        (("true",), 0),
    ],
)
@pytest.mark.parametrize("options", [(), ("--report",)], ids=["alone", "report"])
def test_it_returns_when_its_cpus_are_free(
    tmp_path: Path, command: tuple[str, ...], status: int, options: tuple[str, ...]
) -> None:
    """The agent says so at its second answer. Until then the command has ended, and nodeagent has not."""
    asked: list[tuple[str, bool]] = []
    children: Queue[subprocess.Popen[bytes]] = Queue()

    def admit(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        return {**admit_job(arguments, peer), "cgroup": str(tmp_path), "numaNodes": "0"}

    def release(arguments: Mapping[str, Any], _peer: Peer) -> Mapping[str, object]:
        child = children.get(timeout=60)
        children.put(child)
        asked.append((arguments["uid"], child.poll() is not None))
        return {"isReleased": len(asked) > 1}

    with answer_jobs(admit, release) as socket:
        words = (sys.executable, "-m", "nodeagent", "job", "--socket", socket, "--cpus", "2", "--memory", "1Gi")
        child = subprocess.Popen([*words, "--until-free", *options, "--", *command], stderr=subprocess.DEVNULL)
        children.put(child)
        assert child.wait(60) == status
    assert asked == [("uid-one", False), ("uid-one", False)]


@pytest.mark.parametrize(("is_over", "ends", "status"), [(True, 3, 124), (False, 3, 3), (True, 0, 0)])
def test_a_job_with_a_longest_time_says_whether_it_was_over(*, is_over: bool, ends: int, status: int) -> None:
    """A command that succeeds was not cut short, however late that is noticed."""
    asked: list[Mapping[str, Any]] = []

    def admit(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        asked.append(arguments)
        now_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
        return {**admit_job(arguments, peer), "endsAtMs": now_ms if is_over else now_ms + 3_600_000}

    with answer_jobs(admit) as socket:
        done = run(socket, "--max-time", "1h", "--", "sh", "-c", f"exit {ends}")
    assert ([arguments["maxMs"] for arguments in asked], done.returncode) == ([3_600_000], status)
    said = "nodeagent: the job's time was over, so the agent has ended it\n"
    assert done.stderr == (said if status == 124 else "")


def test_an_agent_that_ends_no_job_by_its_time_starts_none() -> None:
    with answer_jobs(admit_job) as socket:
        done = run(socket, "--max-time", "1h", "--", "true")
        wrong = run(socket, "--max-time", "0s", "--", "true")
    assert (done.returncode, "the agent doesn't support --max-time" in done.stderr) == (125, True)
    assert (wrong.returncode, "'0s' is not a time from 1s to 168h" in wrong.stderr) == (64, True)


def test_signals_reach_the_command_of_a_job_that_is_waited_for() -> None:
    with answer_jobs(admit_job) as socket:
        words = (sys.executable, "-m", "nodeagent", "job", "--socket", socket, "--cpus", "2", "--memory", "1Gi")
        shell = "trap 'kill $!; exit 9' TERM; sleep 1e6 & echo up; wait"
        child = subprocess.Popen([*words, "--until-free", "--", "sh", "-c", shell], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        child.terminate()
        assert child.wait(60) == 9
        child.stdout.close()


def test_a_queued_job_ends_with_the_process_outside_that_waits_for_it() -> None:
    """Else it would stay in the queue and run later, with nobody to see its end."""
    asking, decided = SimpleQueue[int](), threading.Event()

    def hold(_arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        asking.put(os.pidfd_open(peer.pid))
        decided.wait(60)
        return {"refused": {"reason": "OutOfcpu", "message": "not enough"}}

    with answer_jobs(hold) as socket:
        words = (sys.executable, "-m", "nodeagent", "job", "--socket", socket, "--cpus", "2", "--memory", "1Gi")
        outside = subprocess.Popen([*words, "--wait=30m", "--max-time", "1h", "--", "true"])
        waiting = asking.get(timeout=60)
        outside.kill()
        outside.wait(60)
        has_ended = bool(select.select([waiting], [], [], 60)[0])
        os.close(waiting)
        decided.set()
    assert has_ended


def test_an_agent_that_cannot_tell_of_free_cpus_is_told_and_the_status_stays() -> None:
    def fail(_arguments: Mapping[str, Any], _peer: Peer) -> Mapping[str, object]:
        raise NodeAgentError("too many wait", hint="try again")

    with answer_jobs(admit_job, fail) as socket:
        done = run(socket, "--until-free", "--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    assert done.stderr == "nodeagent: the job's CPUs may not be free yet: too many wait\nhint: try again\n"
    older = {name: value for name, value in admit_job({}, Peer(0, 0, 0)).items() if name != "uid"}
    with answer_jobs(lambda _arguments, _peer: older) as socket:
        done = run(socket, "--until-free", "--", "true")
    assert (done.returncode, "the agent doesn't support --until-free" in done.stderr) == (125, True)


def test_a_refusal_is_told_and_nothing_runs(tmp_path: Path) -> None:
    def refuse(_arguments: Mapping[str, Any], _peer: Peer) -> Mapping[str, object]:
        return {"refused": {"reason": "OutOfcpu", "message": "not enough"}}

    with answer_jobs(refuse) as socket:
        done = run(socket, "--name", "one", "--", "touch", str(tmp_path / "never"))
    assert (done.returncode, done.stdout) == (125, "")
    assert "nodeagent: jobs/one: OutOfcpu: not enough\nhint: " in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("given", "asked"), [("jobs.sock", "agent.sock"), ("/run/a/jobs.sock", "/run/a/agent.sock")])
def test_a_refusal_is_explained_by_the_agent_whose_socket_is_beside_that_for_jobs(
    given: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sockets = []

    def read(_config: str, path: str) -> NodeView:
        sockets.append(path)
        raise NodeAgentError("it isn't there", hint="-")

    monkeypatch.setattr(this_node, "read_this_node", read)
    words = ["job", "--cpus", "2", "--memory", "1Mi", "--socket", given, "--", "true"]
    options = build_parser(words).parse_args(words)
    job.explain_failure(job.JobRefusedError("OutOfcpu", hint="-"), options)
    assert sockets == [asked]


@pytest.mark.parametrize(
    ("reason", "is_explained"), [("OutOfcpu", True), ("StateNotSaved", False), ("WaitingForJobs", False)]
)
def test_a_job_that_fits_is_not_explained_as_if_it_did_not(
    reason: str, is_explained: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job, "_explain_refusal", lambda _: "step by step\n")
    with answer_jobs(lambda *_: {"refused": {"reason": reason, "message": "so it is"}}) as path:
        words = ["job", "--cpus", "2", "--memory", "1Gi", "--name", "one", "--socket", path, "--", "true"]
        assert main(words) == 125
    before, found, _ = capsys.readouterr().err.partition(f"nodeagent: jobs/one: {reason}: so it is\nhint: ")
    assert (before, bool(found)) == ("step by step\n" if is_explained else "", True)


@pytest.mark.parametrize("message", ["reservation a has not begun", "reservation a needs until it ends"])
def test_an_end_before_the_reservation_is_advised_only_where_it_helps(message: str) -> None:
    hints = []
    for said in (message, "reservation a needs when it begins"):
        refused = {"refused": {"reason": "WaitingForReservation", "message": said}}
        with answer_jobs(lambda *_, refused=refused: refused) as path:
            hints.append(run(path, "--", "true").stderr.partition("hint: ")[2])
        advised = advise_next_step("WaitingForReservation", "jobs/one", said)
        assert ("--max-time" in hints[-1]) == ("--max-time" in advised)
    assert ["let the job end before" in hint for hint in hints] == [False, True]


def test_a_waiting_job_asks_a_restarted_agent_again_with_the_same_ticket(tmp_path: Path) -> None:
    path, asked = str(tmp_path / "jobs.sock"), list[dict[str, Any]]()
    words = ("--socket", path, "--cpus", "2", "--memory", "1Gi", "--wait=30m", "--", "sh", "-c", "exit 9")
    with socket(AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with subprocess.Popen((sys.executable, "-m", "nodeagent", "job", *words)) as job:
            for answer in (b"", b'{"resu', format_result(admit_job({}, Peer(0, frozenset())))):
                connection, _ = listener.accept()
                with connection, connection.makefile("rb") as lines:
                    asked.append(json.loads(lines.readline()))
                    connection.sendall(answer)
    assert job.returncode == 9
    assert len({one["ticket"] for one in asked}) == 1
    assert 1790 < asked[2]["wait"] <= asked[0]["wait"] == 1800


def test_a_wait_without_an_agent_or_with_no_time_fails_at_once(tmp_path: Path) -> None:
    absent = run(str(tmp_path / "none.sock"), "--wait", "--", "true")
    assert (absent.returncode, "is the daemon running?" in absent.stderr) == (125, True)
    for text in ("0s", "169h", "soon"):
        wrong = run(str(tmp_path / "none.sock"), f"--wait={text}", "--", "true")
        assert (wrong.returncode, "is not a time from 1s to 168h, such as 30m" in wrong.stderr) == (64, True)


def test_now_is_the_default_by_name_and_no_wait() -> None:
    asked: list[Mapping[str, Any]] = []

    def remember(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        asked.append({**arguments, "name": ""})
        return admit_job(arguments, peer)

    with answer_jobs(remember) as socket:
        assert [run(socket, *words, "--", "true").returncode for words in ((), ("--now",))] == [0, 0]
        both = run(socket, "--wait", "--now", "--", "true")
    assert asked[0] == asked[1]
    assert (both.returncode, "argument --now: not allowed with argument --wait" in both.stderr) == (64, True)


def test_a_wait_that_ends_while_the_agent_is_stopped_says_so(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.sock")
    words = ("--socket", path, "--cpus", "2", "--memory", "1Gi", "--wait=1s", "--", "true")
    with socket(AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        command = (sys.executable, "-m", "nodeagent", "job", *words)
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as job:
            connection, _ = listener.accept()
            connection.close()
            listener.close()
            _, said = job.communicate()
    assert job.returncode == 125
    assert said.startswith(
        "nodeagent: the agent was stopped while the job waited, and the time of --wait is over\nhint: "
    )


def test_an_error_of_the_agent_is_told() -> None:
    def fail(_arguments: Mapping[str, Any], _peer: Peer) -> Mapping[str, object]:
        raise NodeAgentError("only root may run jobs here", hint="see `jobs:`")

    with answer_jobs(fail) as socket:
        done = run(socket, "--", "true")
    assert (done.returncode, done.stderr) == (125, "nodeagent: only root may run jobs here\nhint: see `jobs:`\n")


def test_a_process_that_is_not_where_it_was_told_becomes_nothing() -> None:
    elsewhere = str(max(os.sched_getaffinity(0)) + 1)

    def astray(arguments: Mapping[str, Any], peer: Peer) -> Mapping[str, object]:
        return {**admit_job(arguments, peer), "exclusiveCPUs": elsewhere, "sharedCPUs": ""}

    with answer_jobs(astray) as socket:
        done = run(socket, "--", "true")
    assert done.returncode == 125
    assert f"not on {elsewhere}" in done.stderr


def test_without_a_command_nothing_is_asked() -> None:
    done = run("/nowhere/s", "--")
    assert (done.returncode, "name a command after --" in done.stderr) == (64, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--quiet=",), "argument --quiet: '' must be a name of at most 32"),
        (("--quiet=none",), "argument --quiet: 'none' must be a name of at most 32"),
        (("--reservation", "", "--max-time", "1h"), "argument --reservation: '' is not a reservation"),
    ],
)
def test_a_variable_that_is_not_set_does_not_run_the_command_without_what_was_asked_for(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["job", "--cpus", "1", "--memory", "1Gi", *words, "--", "true"])
    assert ended.value.code == EXIT_USAGE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--quiet", "--idle-latency", "--governor", "--min-frequency", "--max-frequency"])
def test_the_value_of_an_option_brings_no_other_setting(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["job", "--cpus", "1", "--memory", "1Gi", f"{option}=a,boost=false", "--", "true"])
    assert ended.value.code == EXIT_USAGE
    assert f"argument {option}: 'a,boost=false' must not contain a comma" in capsys.readouterr().err
