"""What containers' processes are told about where they run: in their environment when they start, and in a file from then on."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.daemon.turn.placements import placement_directory
from nodeagent.daemon.turn.problem import Problem
from nodeagent.daemon.turn.records import Recorder
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.files.placement_files import MAX_BYTES
from nodeagent.formats.manifest.placement_variables import PLACEMENT_FILE, placement_text
from tests.daemon.test_write_failures import failure
from tests.support.daemon_model import Daemon, Files, Steps, watched
from tests.support.node_model import Machine
from tests.support.pods import app, burstable, cgroup_only, job, pod
from tests.support.world import SMALL, node

ALONE, SHARES = pod("alone", app(cpu="2")), pod("shares", app(resources=burstable()))
SLOT = pod("slot", cgroup_only("slot", "1"))
OTHER = pod("other", app(cpu="1"))


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    daemon = Daemon(Machine(node(SMALL)), tmp_path, Files((ALONE, SHARES, SLOT)), Steps())
    with watched(monkeypatch, daemon.machine, daemon.steps):
        daemon.start()
        daemon.rest()
        daemon.steps.done.clear()
        yield daemon


def directory(daemon: Daemon) -> Path:
    return Path(placement_directory(daemon.agent.node.config))


def files(daemon: Daemon) -> dict[str, str]:
    """Every file, hidden ones included."""
    base = directory(daemon)
    return {str(path.relative_to(base)): path.read_text() for path in base.rglob("*") if path.is_file()}


def told(daemon: Daemon) -> dict[str, tuple[str, str]]:
    """(exclusive CPUs, shared CPUs) by file."""
    lines = {name: [line.partition("=") for line in text.splitlines()] for name, text in files(daemon).items()}
    for name, found in lines.items():
        assert [key for key, _, _ in found] == [
            "NODEAGENT_EXCLUSIVE_CPUS",
            "NODEAGENT_SHARED_CPUS",
            "NODEAGENT_MEMORY_NODES",
        ], name
        assert found[2][2] == "0", "the machine has one node"
    return {name: (found[0][2], found[1][2]) for name, found in lines.items()}


def environment(daemon: Daemon, container: str) -> dict[str, str]:
    """What `POD/CONTAINER` was started with."""
    (request,) = [request for request in daemon.requests if request.identifier == container]
    return dict(request.env)


def written(daemon: Daemon) -> list[str]:
    return [step for step in daemon.steps.done if " placement " in step]


def test_a_process_is_told_where_it_runs_and_a_file_repeats_it(daemon: Daemon) -> None:
    assert told(daemon) == {
        "uid-alone/app": ("1,5", ""),
        "_shared/pool": ("", "0,2-3,6-7"),
        "uid-slot/slot": ("4", ""),
    }
    for name, file in (("alone", "uid-alone/app"), ("shares", "_shared/pool")):
        given = environment(daemon, f"{name}/app")
        path = Path(given.pop(PLACEMENT_FILE))
        assert path == directory(daemon) / file
        assert "".join(f"{key}={value}\n" for key, value in given.items()) == path.read_text()


def test_the_file_is_there_before_the_process_and_after_its_cgroup(daemon: Daemon) -> None:
    daemon.files.pods += (OTHER,)
    daemon.rest()
    steps = daemon.steps.done
    [placed] = [number for number, step in enumerate(steps) if step == "write placement uid-other/app"]
    cgroup = [number for number, step in enumerate(steps) if step.startswith("cgroup SetAttribute poduid-other/app ")]
    [start] = [number for number, step in enumerate(steps) if step.startswith("start ")]
    assert max(cgroup) < placed < start


def test_a_check_follows_pods_that_come_and_go_and_finds_a_foreign_text(daemon: Daemon) -> None:
    placements = daemon.agent.edges.placements
    for pods in (daemon.files.pods, (*daemon.files.pods, OTHER), (ALONE,)):
        daemon.files.pods = pods
        daemon.rest()
        assert placements.check(1.0)
    (directory(daemon) / "uid-alone/app").write_text("foreign")
    assert not placements.check(1.0)


def test_the_file_follows_the_shared_pool_and_nobody_is_started_again(daemon: Daemon) -> None:
    starts = list(daemon.machine.starts)
    daemon.files.pods += (OTHER,)
    daemon.rest()
    assert told(daemon)["_shared/pool"] == ("", "0,3,6-7")
    assert written(daemon) == ["write placement _shared/pool", "write placement uid-other/app"]
    assert [start for start in daemon.machine.starts if start in starts] == starts
    assert len(daemon.machine.starts) == len(starts) + 1
    daemon.steps.done.clear()
    daemon.files.pods = daemon.files.pods[:-1]
    daemon.rest()
    assert told(daemon)["_shared/pool"] == ("", "0,2-3,6-7")
    assert not (directory(daemon) / "uid-other").exists()


def test_all_that_share_the_pool_read_one_file_which_goes_with_the_last_of_them(daemon: Daemon) -> None:
    second = pod("second", app("x"), cgroup_only("y"))
    daemon.files.pods += (second,)
    daemon.rest()
    assert written(daemon) == []
    assert environment(daemon, "second/x")[PLACEMENT_FILE] == str(directory(daemon) / "_shared/pool")
    daemon.files.pods = (ALONE, SLOT, second)
    daemon.rest()
    assert set(told(daemon)) == {"_shared/pool", "uid-alone/app", "uid-slot/slot"}
    daemon.files.pods = (ALONE, SLOT)
    daemon.rest()
    assert set(told(daemon)) == {"uid-alone/app", "uid-slot/slot"}
    assert not (directory(daemon) / "_shared").exists()


def test_who_shares_and_cannot_be_below_the_pool_has_a_file_of_its_own(daemon: Daemon) -> None:
    """A Guaranteed pod may have memory nodes of its own."""
    daemon.files.pods += (pod("part", app(cpu="500m")),)
    daemon.rest()
    assert told(daemon)["uid-part/app"] == told(daemon)["_shared/pool"]
    assert environment(daemon, "part/app")[PLACEMENT_FILE] == str(directory(daemon) / "uid-part/app")


def test_nothing_is_written_where_nothing_has_changed(daemon: Daemon) -> None:
    for reason in (WakeUpReason.TIMER, WakeUpReason.CGROUPS, WakeUpReason.RUNS):
        daemon.turn(reason)
    daemon.start()
    daemon.rest()
    assert written(daemon) == []


def test_without_a_cpu_of_its_own_it_is_told_of_the_pool_until_that_is_back(daemon: Daemon) -> None:
    whole = daemon.hardware.topology
    change_online(daemon, CpuSet.parse("0-3,5-7"))
    assert told(daemon)["uid-slot/slot"] == ("", "0,2-3,6-7")
    change_online(daemon, CpuSet.parse("0,2-7"))
    assert told(daemon)["uid-slot/slot"] == ("4", "")
    assert told(daemon)["uid-alone/app"] == ("5", ""), "it keeps the other one"
    change_online(daemon, whole.online)
    assert told(daemon)["uid-alone/app"] == ("1,5", "")


def change_online(daemon: Daemon, online: CpuSet) -> None:
    daemon.machine.withheld = daemon.machine.node.kernel.online - online
    daemon.turn(WakeUpReason.HOTPLUG)
    daemon.rest()


def test_a_cgroup_that_could_not_be_written_is_not_told_of(daemon: Daemon) -> None:
    before = told(daemon)
    daemon.steps.denies = lambda name: failure(name, errno.EBUSY) if "SetAttribute shared/pool" in name else None
    daemon.files.pods += (OTHER,)
    daemon.turn()
    assert told(daemon) == before, "one still runs where the other may not start yet"
    daemon.steps.denies = lambda _name: None
    daemon.rest()
    assert told(daemon) == before | {"_shared/pool": ("", "0,3,6-7"), "uid-other/app": ("2", "")}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_file_that_cannot_be_written_keeps_nobody_from_starting(daemon: Daemon, number: int) -> None:
    before = files(daemon)
    daemon.steps.fails = lambda _number, call: number if call == "write" else None
    recorder: Any = Unwatched(daemon.agent.edges.recorder, daemon.steps)
    daemon.agent.edges = replace(daemon.agent.edges, recorder=recorder)
    daemon.files.pods += (OTHER, pod("more", app(cpu="1")))
    for _ in range(3):
        assert daemon.turn() <= 1.0, "it is tried again soon"
    assert "poduid-other/app" in daemon.machine.running_containers()
    assert files(daemon) == before
    said = [line["problem"] for line in daemon.said() if line["event"] == "trouble"]
    assert len(said) == 1, "told once, not for each file, nor each time it is tried"
    assert said[0] in daemon.agent.view.problems
    assert os.strerror(number) in said[0]
    daemon.steps.fails = lambda _number, _call: None
    daemon.rest()
    assert set(told(daemon)) == {*before, "uid-other/app", "uid-more/app"}
    assert daemon.agent.view.problems == ()


class Unwatched:
    """The recorder, whose disk is another one: what it does never fails."""

    def __init__(self, recorder: Recorder, steps: Steps) -> None:
        self._recorder, self._steps = recorder, steps

    def __getattr__(self, name: str) -> Any:
        def called(*arguments: Any, **named: Any) -> Any:
            fails, self._steps.fails = self._steps.fails, lambda _number, _call: None
            try:
                return getattr(self._recorder, name)(*arguments, **named)
            finally:
                self._steps.fails = fails

        return called


def test_leftovers_are_removed_at_the_start(daemon: Daemon) -> None:
    before, base = files(daemon), directory(daemon)
    for name in ("uid-gone/app", "uid-alone/.app.new", "uid-alone/gone", "loose"):
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text("NODEAGENT_EXCLUSIVE_CPUS=0")
    (base / "uid-empty").mkdir()
    daemon.start()
    daemon.turn(WakeUpReason.START)
    assert files(daemon) == before
    assert {path.name for path in base.iterdir()} == {"_shared", "uid-alone", "uid-slot"}


def test_what_others_do_to_a_file_is_put_right_when_everything_is_looked_at(daemon: Daemon) -> None:
    before, base = files(daemon), directory(daemon)
    (base / "uid-alone" / "app").write_text("NODEAGENT_EXCLUSIVE_CPUS=0-7\n")
    (base / "_shared" / "pool").unlink()
    (base / "uid-slot" / "slot").chmod(0o600)
    daemon.turn(WakeUpReason.TIMER)
    assert files(daemon) == before
    assert (base / "uid-slot" / "slot").stat().st_mode & 0o777 == 0o644


def test_a_directory_that_cannot_be_read_is_a_problem_and_nothing_else(daemon: Daemon) -> None:
    base = directory(daemon)
    shutil.rmtree(base)
    base.write_text("in the way")
    daemon.files.pods += (OTHER,)
    daemon.turn(WakeUpReason.TIMER)
    assert "poduid-other/app" in daemon.machine.running_containers()
    (problem,) = daemon.agent.view.problems
    assert problem.startswith(f"cannot read {base}: Not a directory (something other than the expected")
    base.unlink()
    daemon.rest()
    assert set(told(daemon)) == {"_shared/pool", "uid-alone/app", "uid-slot/slot", "uid-other/app"}


def test_a_pod_that_has_finished_has_no_file(daemon: Daemon) -> None:
    daemon.files.pods += (job("job", app(cpu="1")),)
    daemon.rest()
    assert told(daemon)["uid-job/app"] == ("2", "")
    [run] = [run for run in daemon.machine.running() if daemon.machine.path_of(run) == "poduid-job/app"]
    daemon.machine.exit(run)
    daemon.rest()
    assert "uid-job/app" not in told(daemon)


def test_another_pod_under_the_same_uid_has_the_files_of_its_own_containers(daemon: Daemon) -> None:
    daemon.files.pods = (pod("alone", app("first", cpu="1"), app("second", cpu="1"), uid="uid-alone"), SHARES, SLOT)
    daemon.rest()
    assert {name for name in told(daemon) if name.startswith("uid-alone/")} == {"uid-alone/first", "uid-alone/second"}
    given = [environment(daemon, f"alone/{name}")["NODEAGENT_EXCLUSIVE_CPUS"] for name in ("first", "second")]
    assert given == [told(daemon)[f"uid-alone/{name}"][0] for name in ("first", "second")]
    assert sorted(given) == ["1", "5"]


def test_without_a_launcher_the_files_stay(daemon: Daemon) -> None:
    before = files(daemon)
    runner: Any = SimpleNamespace(look=lambda: Problem("no launcher"), list_with_started=lambda: None)
    daemon.agent.edges = replace(daemon.agent.edges, runner=runner)
    daemon.turn(WakeUpReason.TIMER)
    assert files(daemon) == before
    assert written(daemon) == []


def test_the_largest_machines_fit_a_file() -> None:
    """The kernel's most CPUs and nodes, no two of them beside each other."""
    every_other = ContainerPlacement(
        CpuSet.from_ids(range(0, 8192, 2)), CpuSet.from_ids(range(1, 8192, 2)), NumaSet.from_ids(range(0, 1024, 2))
    )
    assert len(placement_text(every_other)) <= MAX_BYTES
