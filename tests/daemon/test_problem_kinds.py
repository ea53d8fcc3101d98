"""Each kind of problem, produced in the way it happens: a script learns of it from one metric, from STATUS=, /readyz and inspect."""

import errno
import re
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from integration.contrib import rules
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.problem_kinds import EXPLAINED, ProblemKind
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.daemon.reports.publisher import Publisher
from nodeagent.daemon.reports.status import format_status, report_readiness
from nodeagent.daemon.sources.manifest_list import ManifestList
from nodeagent.daemon.start import config_file as config_files
from nodeagent.daemon.start.config_file import ConfigFile
from nodeagent.daemon.start.node_builder import build_node
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.files.manifest_watch import ManifestWatch
from nodeagent.edge.processes.launcher import LauncherError
from nodeagent.formats.node_view import Observation
from nodeagent.views.inspect.document import NodeVerdict, inspect_node
from tests.support.daemon_model import Client, Daemon, Steps, watched
from tests.support.machine_tree import Machine as Tree
from tests.support.node_model import Group, Machine, Process
from tests.support.pods import app, pod
from tests.support.status_line import named_kinds
from tests.support.world import PAGE, SMALL, node

Mend = Callable[[], None]
Way = Callable[[Daemon, pytest.MonkeyPatch], Mend]
"""Does something wrong to a node, and returns what mends it."""
WAYS: dict[ProblemKind, Way] = {}


def way(kind: ProblemKind) -> Callable[[Way], Way]:
    def add(function: Way) -> Way:
        WAYS[kind] = function
        return function

    return add


def with_pods(daemon: Daemon, *pods: Any) -> Mend:
    daemon.files.pods = pods
    return lambda: setattr(daemon.files, "pods", ())


@way(ProblemKind.SYNC)
@way(ProblemKind.LAUNCHER)
def the_launcher_is_killed(_: Daemon, monkeypatch: pytest.MonkeyPatch) -> Mend:
    def refused(_client: Client, _since: str) -> Any:
        raise LauncherError("/run/launcher.sock", "Connection refused")

    monkeypatch.setattr(Client, "list_changes", refused)
    return monkeypatch.undo


@way(ProblemKind.STATE)
def the_disk_is_full(daemon: Daemon, _: pytest.MonkeyPatch) -> Mend:
    daemon.files.pods = (pod("late", app(cpu="1")),)
    daemon.steps.fails = lambda _number, _call: errno.ENOSPC
    return lambda: setattr(daemon.steps, "fails", lambda _number, _call: None)


@way(ProblemKind.CGROUP)
def the_kernel_denies_a_write(daemon: Daemon, _: pytest.MonkeyPatch) -> Mend:
    daemon.files.pods = (pod("late", app(cpu="1")),)
    denied = CgroupError("cannot write it", path="/pods", error=errno.EBUSY, hint="see dmesg")
    daemon.steps.denies = lambda name: denied if name.startswith("cgroup ") else None
    return lambda: setattr(daemon.steps, "denies", lambda _name: None)


@way(ProblemKind.SERVICE)
def the_metrics_port_is_taken(daemon: Daemon, _: pytest.MonkeyPatch) -> Mend:
    taken = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{taken.getsockname()[1]}"
    config: Any = SimpleNamespace(
        runtime_directory=str(daemon.directory), metrics_bind_address=address, pod_resources_socket=""
    )
    publisher = Publisher(daemon.agent, config, daemon.agent.edges.log)
    publisher.__enter__()
    daemon.standing = publisher.listen()

    def mend() -> None:
        taken.close()
        daemon.standing = publisher.listen()
        publisher.__exit__(None, None, None)

    return mend


@way(ProblemKind.MANIFEST)
def a_manifest_is_misspelt(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Mend:
    manifests = daemon.directory / "manifests"
    manifests.mkdir()
    (manifests / "web.yaml").write_text("kind: [")
    read = ManifestList(str(manifests), ManifestWatch(str(manifests), lambda: None), 20)
    monkeypatch.setattr(daemon.files, "look", read.look)

    def mend() -> None:
        (manifests / "web.yaml").unlink()
        daemon.turn(WakeUpReason.MANIFESTS)
        read.close()
        monkeypatch.undo()

    return mend


@way(ProblemKind.PROMISE)
@way(ProblemKind.DEGRADED)
@way(ProblemKind.OTHER)
def a_cgroup_above_takes_cpus_of_a_pod(daemon: Daemon, _: pytest.MonkeyPatch) -> Mend:
    daemon.files.pods = (pod("held", app(cpu="2")),)
    daemon.rest()
    held = own_set_of(daemon.agent.state.promises, "uid-held", "app")
    assert held is not None
    daemon.machine.withheld = CpuSet.of(max(held))
    return lambda: setattr(daemon.machine, "withheld", CpuSet())


@way(ProblemKind.ORPHAN)
def somebody_runs_in_a_cgroup_of_their_own(daemon: Daemon, _: pytest.MonkeyPatch) -> Mend:
    daemon.machine.groups["poduid-mine"] = Group()
    daemon.machine.groups["poduid-mine/app"] = mine = Group(processes=[Process(None)])
    return mine.processes.clear


@way(ProblemKind.REFUSED)
def a_pod_asks_for_too_much(daemon: Daemon, _: pytest.MonkeyPatch) -> Mend:
    return with_pods(daemon, pod("huge", app(cpu="99")))


@way(ProblemKind.STARVED)
def exclusive_pods_take_all_cpus(daemon: Daemon, _: pytest.MonkeyPatch) -> Mend:
    free = str(len(SMALL.online) - 1)
    return with_pods(daemon, pod("shares", app("app")), pod("full", app(cpu=free)))


@way(ProblemKind.CRASH_LOOP)
def a_program_keeps_failing(daemon: Daemon, _: pytest.MonkeyPatch) -> Mend:
    mend = with_pods(daemon, pod("fails", app("app")))
    for _again in range(2):  # the first restart comes at once
        daemon.turn(WakeUpReason.RUNS)
        daemon.turn(WakeUpReason.RUNS)
        daemon.machine.exit(daemon.machine.run_of("app"), 1)
    return mend


def config_file(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> ConfigFile:
    """A file as the agent has started with it, on a machine of two CPUs."""
    root = Tree(("0", "1"), ("0-1",), ((0, "0-1"),)).grow(daemon.directory / "root")
    monkeypatch.setattr(config_files, "build_node", partial(build_node, root=str(root)))
    monkeypatch.setattr(config_files, "check_takeover", lambda *_: None)
    (daemon.directory / "config.yaml").write_text(f"stateDirectory: {daemon.directory}\n")
    file = ConfigFile(str(daemon.directory / "config.yaml"), daemon.agent.edges.log)
    file.load()
    return file


def edited(daemon: Daemon, file: ConfigFile, text: str) -> None:
    Path(file.path).write_text(text)
    file.look(daemon.agent)
    daemon.standing = () if file.problem is None else (file.problem,)


@way(ProblemKind.CONFIGURATION_REFUSED)
def the_configuration_is_misspelt(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Mend:
    file = config_file(daemon, monkeypatch)
    before = Path(file.path).read_text()
    edited(daemon, file, "maxPods: many\n")
    return lambda: edited(daemon, file, before)


@way(ProblemKind.CONFIGURATION_CHANGED)
def the_configuration_is_not_reloaded(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Mend:
    file = config_file(daemon, monkeypatch)
    before = Path(file.path).read_text()
    edited(daemon, file, f"{before}maxPods: 7\n")
    return lambda: edited(daemon, file, before)


def counted(daemon: Daemon) -> dict[str, int]:
    """What the one metric says that is wrong, by kind."""
    text = daemon.agent.metrics.exposition.text().decode()
    found = re.findall(r'^nodeagent_problems\{kind="(\w+)"\} (\d+)', text, re.MULTILINE)
    assert {kind for kind, _ in found} == {kind.value for kind in ProblemKind}
    return {kind: int(count) for kind, count in found if int(count)}


@pytest.mark.parametrize("kind", ProblemKind)
def test_what_is_wrong_is_told_by_any_one_of_four_and_is_over_once_it_is_mended(
    kind: ProblemKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strictly = (("strict-cpu-reservation", "true"),)  # only then shared containers starve
    machine = Machine(node(SMALL, cpu_manager_policy_options=strictly))
    daemon = Daemon(machine, tmp_path, steps=Steps())
    with watched(monkeypatch, machine, daemon.steps):
        daemon.start()
        daemon.rest()
        view = daemon.agent.view
        assert (counted(daemon), inspect_node(view)["verdict"], report_readiness(view)) == (
            {}, NodeVerdict.HEALTHY, (True, "ok"),
        )  # fmt: skip
        assert format_status(view) == "0 pods, 0 exclusive CPUs, 0 problems, 0 refused"
        with pytest.MonkeyPatch.context() as moment:
            mend = WAYS[kind](daemon, moment)
            for _ in range(4):
                daemon.turn(WakeUpReason.TIMER)
            view = daemon.agent.view
            assert counted(daemon)[kind.value] > 0
            assert not [problem for problem in view.problems if "None" in problem]
            assert inspect_node(replace(view, observation=machine_observed(daemon)))["verdict"] == NodeVerdict.WRONG
            assert report_readiness(view)[1] != "ok"
            assert not format_status(view).endswith(", 0 problems, 0 refused")
            assert named_kinds(format_status(view)) == set(counted(daemon))
            mend()
            daemon.files.pods = ()
            daemon.turn(WakeUpReason.TIMER)
        for _ in range(60):
            daemon.turn(WakeUpReason.TIMER)
            machine.now_ms += 1000
        assert (counted(daemon), report_readiness(daemon.agent.view)) == ({}, (True, "ok"))


def machine_observed(daemon: Daemon) -> Observation:
    """What a command sees of the machine's time."""
    return Observation(daemon.machine.now_ms, PAGE, daemon.machine.observed())


def test_each_kind_is_explained_with_an_alert_that_exists() -> None:
    assert EXPLAINED.keys() == WAYS.keys() == set(ProblemKind)
    alerts = {rule.name for rule in rules() if rule.is_alert}
    assert {explained.alert for explained in EXPLAINED.values()} <= alerts
