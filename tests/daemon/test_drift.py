"""What others do to the pods' cgroups and processes is put right, told and counted; what the agent itself could not do is not theirs."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.core.metrics.agent_metrics import DRIFT_CORRECTED
from nodeagent.core.model.cgroup import MEMBER, Attribute
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.resources.cpu.holdings import CpuBooks
from nodeagent.daemon.start.startup import CPU_CHECKPOINT, MEMORY_CHECKPOINT
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.cgroups.cgroupfs import processes
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree
from nodeagent.formats.checkpoint.cpu_checkpoint import encode_cpu_state
from tests.daemon.test_write_failures import failure
from tests.support.daemon_model import Daemon, Steps, at_rest, watched
from tests.support.node_model import Machine
from tests.support.pods import app, cgroup_only, pod
from tests.support.world import SMALL, node

BUSY = 16


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    with at_rest(
        monkeypatch, tmp_path, node(SMALL), (pod("a", app(cpu="2")), pod("slot", cgroup_only("slot", "1")))
    ) as daemon:
        daemon.log.truncate(0)
        daemon.log.seek(0)
        yield daemon


def path_of(daemon: Daemon, end: str) -> str:
    return next(path for path in daemon.machine.groups if path.endswith(end))


def counted(daemon: Daemon) -> dict[str, int]:
    lines = [
        line
        for line in daemon.agent.metrics.exposition.text().decode().splitlines()
        if line.startswith(DRIFT_CORRECTED)
    ]
    found = {line.partition('"')[2].partition('"')[0]: int(float(line.rpartition(" ")[2])) for line in lines}
    return {what: count for what, count in found.items() if count}


def reported(daemon: Daemon, event: str) -> list[dict[str, Any]]:
    return [line for line in daemon.said() if line["event"] == event]


def about_whom(line: dict[str, Any]) -> tuple[str | None, str | None, str | None]:
    return line.get("pod"), line.get("pod_uid"), line.get("container")


def test_a_removed_cgroup_is_made_again_as_it_was(daemon: Daemon) -> None:
    path = path_of(daemon, "slot/slot")
    values = dict(daemon.machine.groups.pop(path).values)
    daemon.turn(WakeUpReason.CGROUPS)
    assert daemon.machine.groups[path].values == values
    assert counted(daemon)["cgroup"] == 1
    (line,) = reported(daemon, "cgroup_drift_corrected")
    assert line["cgroup"] == path
    assert about_whom(line) == ("default/slot", "uid-slot", "slot")
    daemon.rest()
    assert counted(daemon)["cgroup"] == 1


def test_a_rewritten_file_is_put_back_and_counted(daemon: Daemon) -> None:
    group = daemon.machine.groups[path_of(daemon, "a/app")]
    before = group.values[Attribute.CPU_WEIGHT]
    group.values[Attribute.CPU_WEIGHT] = 9999
    daemon.turn(WakeUpReason.CGROUPS)
    assert group.values[Attribute.CPU_WEIGHT] == before
    assert counted(daemon) == {"cpu.weight": 1}


@pytest.mark.parametrize(
    ("end", "whom"),
    [
        ("uid-a/app", ("default/a", "uid-a", "app")),
        ("poduid-a", ("default/a", "uid-a", None)),
        ("burstable", (None, None, None)),
    ],
)
def test_a_correction_names_whose_cgroup_it_was(
    daemon: Daemon, end: str, whom: tuple[str | None, str | None, str | None]
) -> None:
    daemon.machine.groups[path_of(daemon, end)].values[Attribute.CPU_WEIGHT] = 9999
    daemon.turn(WakeUpReason.CGROUPS)
    (line,) = reported(daemon, "cgroup_drift_corrected")
    assert about_whom(line) == whom
    assert (line["file"], line["found"]) == ("cpu.weight", "9999")


def test_what_the_agent_could_not_write_at_first_is_nobodys_change(daemon: Daemon) -> None:
    daemon.files.pods = (*daemon.files.pods, pod("late", app(cpu="1")))
    failed: list[str] = []

    def denies(name: str) -> CgroupError | None:
        if "late" in name and "CPUSET_CPUS" in name and len(failed) < 2:
            failed.append(name)
            return failure(name, BUSY)
        return None

    daemon.steps.denies = denies
    daemon.rest()
    daemon.turn(WakeUpReason.TIMER)
    assert len(failed) == 2
    assert counted(daemon) == {}
    assert reported(daemon, "cgroup_drift_corrected") == []


def test_a_partition_that_is_refused_is_nobodys_change_and_keeps_nobody_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(node(SMALL, config={"host_isolation": "partition"}))
    daemon = Daemon(machine, tmp_path, steps=Steps())
    mixed = pod("a", app("own", cpu="2"), app("beside", cpu="100m"))
    with watched(monkeypatch, machine, daemon.steps):
        machine.broken["poduid-a/own", Attribute.CPUSET_CPUS_PARTITION] = "Enable partition not permitted"
        daemon.files.pods = (mixed,)
        daemon.start()
        daemon.rest()
        assert machine.running_containers() == ("poduid-a/beside", "poduid-a/own")
        assert machine.partitions() == ()
        assert "not permitted" in " ".join(daemon.agent.view.problems)
        machine.broken.clear()
        daemon.rest()
        assert machine.partitions() == ("poduid-a/own",)
        assert daemon.agent.view.problems == ()
        assert reported(daemon, "cgroup_drift_corrected") == []
        machine.write("poduid-a/own", Attribute.CPUSET_CPUS_PARTITION, MEMBER)
        daemon.turn(WakeUpReason.CGROUPS)
        assert machine.partitions() == ("poduid-a/own",)
        assert [line["file"] for line in reported(daemon, "cgroup_drift_corrected")] == ["cpuset.cpus.partition"]


@pytest.mark.parametrize("more", [(), (pod("b", app(cpu="1")),)], ids=["alone", "in a turn that starts a pod"])
def test_processes_that_the_kernel_drove_elsewhere_are_gathered_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[Pod, ...]
) -> None:
    machine = Machine(node(SMALL, config={"host_isolation": "partition"}))
    daemon = Daemon(machine, tmp_path, steps=Steps())
    with watched(monkeypatch, machine, daemon.steps):
        daemon.files.pods = (pod("a", app(cpu="1")),)
        daemon.start()
        daemon.rest()
        machine.groups["poduid-a/app"].elsewhere = CpuSet.of(0)
        daemon.files.pods += more
        daemon.turn(WakeUpReason.TIMER, WakeUpReason.MANIFESTS)
        assert not machine.groups["poduid-a/app"].elsewhere
        (line,) = reported(daemon, "processes_gathered")
        assert about_whom(line) == ("default/a", "uid-a", "app")
        assert (line["found"], line["cpus"]) == ("0", str(machine.effective("poduid-a/app")))
        daemon.rest()
        assert len(reported(daemon, "processes_gathered")) == 1
        assert reported(daemon, "cgroup_drift_corrected") == [], "nobody has changed anything"


@pytest.mark.parametrize("reason", [WakeUpReason.TIMER, WakeUpReason.CGROUPS, WakeUpReason.START])
def test_a_main_process_that_left_is_brought_back(daemon: Daemon, reason: WakeUpReason) -> None:
    run, path = daemon.machine.run_of("app"), path_of(daemon, "a/app")
    daemon.machine.stray(run)
    daemon.turn(reason)
    assert [p.run_id for p in daemon.machine.groups[path].processes] == [run]
    assert counted(daemon) == {"cgroup.procs": 1}
    (line,) = reported(daemon, "process_brought_back")
    assert line["cgroup"] == path
    assert about_whom(line) == ("default/a", "uid-a", "app")
    daemon.rest()
    assert counted(daemon) == {"cgroup.procs": 1}
    assert daemon.machine.starts == [run], "nobody is started in its place"


def test_whom_the_kernel_lets_nobody_move_is_shown_as_long_as_it_is_away(daemon: Daemon) -> None:
    daemon.machine.stray(daemon.machine.run_of("app"))
    daemon.steps.denies = lambda name: failure(name, BUSY) if name.startswith("return ") else None
    daemon.turn(WakeUpReason.TIMER)
    daemon.turn(WakeUpReason.MANIFESTS)
    (problem,) = daemon.agent.view.problems
    assert "the main process of default/a app is outside its cgroup" in problem
    daemon.steps.denies = lambda _name: None
    daemon.turn(WakeUpReason.TIMER)
    assert daemon.agent.view.problems == ()
    assert counted(daemon) == {"cgroup.procs": 1}


def test_who_is_to_end_is_not_brought_back(daemon: Daemon) -> None:
    run = daemon.machine.run_of("app")
    daemon.machine.stubborn.add("app")
    daemon.machine.stray(run)
    daemon.machine.strays[0].is_stubborn = True
    daemon.files.pods = daemon.files.pods[1:]
    daemon.turn()
    daemon.turn(WakeUpReason.TIMER)
    assert [p.run_id for p in daemon.machine.strays] == [run]


@pytest.mark.parametrize("name", [CPU_CHECKPOINT, MEMORY_CHECKPOINT])
def test_kubelets_files_are_made_anew_when_others_change_them_and_that_is_reported(daemon: Daemon, name: str) -> None:
    """They are projections of the truth (D3): what others write there is nobody's promise."""
    path, state = daemon.directory / name, daemon.agent.state
    content = path.read_bytes()
    path.write_bytes(content.replace(b"0", b"1"))
    daemon.turn(WakeUpReason.TIMER)
    assert path.read_bytes() == content
    assert daemon.agent.state == state
    path.unlink()
    daemon.turn(WakeUpReason.TIMER)
    assert path.read_bytes() == content
    assert [line["file"] for line in reported(daemon, "checkpoint_changed_by_others")] == [str(path)] * 2


def files_of(daemon: Daemon) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in daemon.directory.iterdir() if path.is_file()}


@pytest.mark.parametrize("name", [CPU_CHECKPOINT, MEMORY_CHECKPOINT])
def test_one_that_is_damaged_while_the_agent_is_away_is_set_aside(daemon: Daemon, name: str) -> None:
    files = files_of(daemon)
    damaged = files[name][:-9]
    for _ in range(2):
        (daemon.directory / name).write_bytes(damaged)
        daemon.start()
        daemon.rest()
        assert set(reported(daemon, "state_set_aside")[-1].items()) >= {("file", name), ("level", "warning")}
    found = files_of(daemon)
    assert [found.pop(f"{name}.aside-{number}") for number in (1, 2)] == [damaged] * 2
    assert found == files
    daemon.start()
    daemon.rest()
    assert len(reported(daemon, "state_set_aside")) == 2


def test_dying_before_a_damaged_one_is_replaced_makes_no_third_name_of_it(daemon: Daemon) -> None:
    files = files_of(daemon)
    (daemon.directory / CPU_CHECKPOINT).write_bytes(b"{")
    daemon.steps.fails = lambda _number, call: errno.ENOSPC if call == "open" else None
    for _ in range(2):
        daemon.start()
        daemon.rest()
        assert files_of(daemon) == files | {CPU_CHECKPOINT: b"{", f"{CPU_CHECKPOINT}.aside-1": b"{"}
    daemon.steps.fails = lambda _number, _call: None
    daemon.rest()
    assert files_of(daemon) == files | {f"{CPU_CHECKPOINT}.aside-1": b"{"}
    assert len(reported(daemon, "state_set_aside")) == 2, "once by each of the two processes"


def test_one_that_is_another_while_the_agent_is_away_is_made_anew_and_that_is_reported(daemon: Daemon) -> None:
    files = files_of(daemon)
    other = encode_cpu_state("static", Promises().having(CpuBooks(default=CpuSet.parse("0-2"))), pod_level=False)
    (daemon.directory / CPU_CHECKPOINT).write_text(other)
    state = daemon.agent.state
    daemon.start()
    daemon.rest()
    assert files_of(daemon) == files
    assert daemon.agent.state == state
    assert [line["file"] for line in reported(daemon, "checkpoint_differed")] == [
        str(daemon.directory / CPU_CHECKPOINT)
    ]
    assert reported(daemon, "state_set_aside") == []


def test_one_that_is_as_the_agent_left_it_is_none_that_differed_whoever_comes_and_goes_meanwhile(
    daemon: Daemon,
) -> None:
    daemon.files.pods = (*daemon.files.pods[1:], pod("another", app(cpu="1")))
    daemon.start()
    daemon.rest()
    assert reported(daemon, "checkpoint_differed") == []


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process
        process.kill()


def ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def own_directories(base: Path, pid: int) -> tuple[Path, str]:
    """A tree in whose image a process's real cgroup is, and its path there."""
    where = next(line[3:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::"))
    (base / "cgroup.controllers").touch()
    root = base / "pods"
    root.mkdir()
    (root / "cgroup.controllers").touch()
    return root, where


def test_another_cgroup_is_seen_and_written_to(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    root, _ = own_directories(tmp_path, process.pid)
    (root / "c" / "payload").mkdir(parents=True)
    (root / "c" / "payload" / "cgroup.procs").touch()
    tree, since = CgroupTree(str(root)), ticks(process.pid)
    assert tree.processes.has_left("c", process.pid, since)
    tree.processes.bring_back("c", process.pid, since)
    assert (root / "c" / "payload" / "cgroup.procs").read_text() == str(process.pid)


def test_another_process_of_that_pid_is_left_alone(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    root, _ = own_directories(tmp_path, process.pid)
    tree = CgroupTree(str(root))
    assert not tree.processes.has_left("c", process.pid, ticks(process.pid) + 1)
    tree.processes.bring_back("c", process.pid, ticks(process.pid) + 1)
    assert not (root / "c").exists()


def test_one_that_has_ended_has_not_left(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    root, _ = own_directories(tmp_path, process.pid)
    since = ticks(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    tree = CgroupTree(str(root))
    assert not tree.processes.has_left("c", process.pid, since), "a zombie"
    process.wait()
    assert not tree.processes.has_left("c", process.pid, since)


def test_a_cgroup_below_is_home_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, _ = own_directories(tmp_path, os.getpid())
    tree, since = CgroupTree(str(root)), ticks(os.getpid())
    texts = {"/pods/c": False, "/pods/c/own": False, "/pods/cc": True, "/pods": True, "/": True}
    real = processes.read_of_process
    for where, left in texts.items():

        def read(pid: int, name: str, where: str = where) -> str:
            return f"1:name=x:/\n0::{where}\n" if name == "cgroup" else real(pid, name)

        monkeypatch.setattr(processes, "read_of_process", read)
        assert tree.processes.has_left("c", os.getpid(), since) is left, where


def test_a_refused_move_names_cgroup_and_reason(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    root, _ = own_directories(tmp_path, process.pid)
    with pytest.raises(
        CgroupError, match=r"cannot write '\d+' to .*pods/c/payload/cgroup.procs: No such file or directory"
    ):
        CgroupTree(str(root)).processes.bring_back("c", process.pid, ticks(process.pid))
