"""CPU plugins in the running agent: whose turn it is, who is refused, what is noted, and that what runs stays."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.core.model.config import RETRY_FOR_ROOM, CpuPlugin
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.resources.cpu.holdings import exclusive_sets
from nodeagent.core.resources.cpu.points import PluginFailedError, Point, Question, ReturnedCpus
from nodeagent.daemon.start.config_file import ConfigFile
from nodeagent.daemon.turn.wakeups import WakeUpReason
from tests.support.daemon_model import Daemon, Steps, at_rest, watched
from tests.support.node_model import Machine
from tests.support.pods import app, pod
from tests.support.world import SMALL, node


class Code:
    """The last name first, CPUs from the top, one pod that can't be placed, and a word about each that goes."""

    points = frozenset({"Sort", "Select", "Deallocate"})
    held_off = ""

    def begin_turn(self, alive: Callable[[], None]) -> None:
        pass

    def ask(self, point: str, *question: object) -> object:
        match question[0]:
            case Pod() as waiting:
                return -ord(waiting.name[0])
            case Question() as asked:
                if asked.pod.uid == "uid-x":
                    raise PluginFailedError("mine", Point(point), "it raises RuntimeError: no idea")
                return CpuSet.from_ids(sorted(asked.free)[-asked.count :])
            case ReturnedCpus(cpus=cpus):
                return f"{cpus} rest now"
        raise AssertionError


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    pods = tuple(pod(name, app(cpu="2", memory="64Mi")) for name in ("a", "x", "c"))
    with at_rest(monkeypatch, tmp_path, node(SMALL, cpu_plugins=(CpuPlugin("mine", code=Code()),)), pods) as daemon:
        yield daemon


def held(daemon: Daemon) -> dict[str, str]:
    return {uid: str(cpus) for uid, _, cpus in exclusive_sets(daemon.agent.state.promises)}


def events(daemon: Daemon, event: str) -> list[dict[str, Any]]:
    return [line for line in daemon.said() if line["event"] == event]


def test_they_sort_and_select_and_who_fails_refuses_one_pod(daemon: Daemon) -> None:
    assert [entry.pod.name for entry in daemon.agent.state.entries] == ["x", "c", "a"]
    assert held(daemon) == {"uid-c": "6-7", "uid-a": "4-5"}
    (refused,) = events(daemon, "pod_refused")
    assert refused["reason"] == "CPUPluginFailed"
    assert refused["message"] == "CPU plugin mine, Select: it raises RuntimeError: no idea"


def test_they_sort_refused_pods_that_are_decided_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(node(SMALL, cpu_plugins=(CpuPlugin("mine", code=Code()),)))
    daemon = Daemon(machine, tmp_path, steps=Steps(), config={"retry_refused": RETRY_FOR_ROOM})
    big, a, c = (pod(name, app(cpu=cpus)) for name, cpus in (("big", "6"), ("a", "4"), ("c", "4")))
    with watched(monkeypatch, machine, daemon.steps):
        daemon.files.pods = (big,)
        daemon.start()
        daemon.rest()
        daemon.files.pods = (big, a)
        daemon.rest()
        daemon.files.pods = (big, a, c)
        daemon.rest()
        daemon.files.pods = (a, c)
        daemon.rest()
        assert {uid for uid, _, _ in exclusive_sets(daemon.agent.state.promises)} == {"uid-c"}


def test_what_is_given_back_is_noted_once(daemon: Daemon) -> None:
    daemon.files.pods = daemon.files.pods[:2]
    daemon.rest()
    assert held(daemon) == {"uid-a": "4-5"}
    (note,) = events(daemon, "cpus_returned")
    assert (note["plugin"], note["pod"], note["note"]) == ("mine", "default/c", "6-7 rest now")


def test_a_failure_about_what_is_given_back_is_a_warning(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Code.ask

    def ask(self: Code, point: str, *question: object) -> object:
        if point == "Deallocate":
            raise PluginFailedError("mine", Point(point), "it raises")
        return asked(self, point, *question)

    monkeypatch.setattr(Code, "ask", ask)
    daemon.files.pods = daemon.files.pods[:2]
    daemon.rest()
    (note,) = events(daemon, "cpus_returned")
    assert (note["level"], note["note"]) == ("warning", "CPU plugin mine, Deallocate: it raises")


def test_who_is_not_asked_any_more_is_a_problem_of_the_node(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    assert daemon.agent.view.problems == ()
    monkeypatch.setattr(Code, "held_off", "it has not answered within 1 s (Sort)")
    daemon.turn()
    (problem,) = daemon.agent.view.problems
    assert problem == (
        "pods that need a CPU plugin that was too late are refused until nodeagent is restarted (systemctl restart nodeagent): "
        "mine: it has not answered within 1 s (Sort)"
    )
    monkeypatch.setattr(Code, "held_off", "")
    daemon.turn()
    assert daemon.agent.view.problems == ()


def test_each_turn_has_its_time_and_each_answer_is_a_sign_of_life(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Callable[[], None]] = []
    monkeypatch.setattr(Code, "begin_turn", lambda _self, alive: begun.append(alive))
    daemon.turn(WakeUpReason.START)
    daemon.turn(WakeUpReason.START)
    assert begun == [daemon.agent.edges.alive] * 2
    daemon.start()
    assert len(begun) == 3, "a recovery may ask, too"


def test_a_restart_asks_nobody_about_what_runs(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    before = held(daemon)

    def never(self: Code, point: str, *_question: object) -> object:
        raise PluginFailedError("mine", Point(point), "nobody is to be asked")

    monkeypatch.setattr(Code, "ask", never)
    daemon.start()
    daemon.rest()
    assert held(daemon) == before


def test_a_reload_with_a_plugin_that_is_not_there_changes_nothing(daemon: Daemon, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        'cpuManagerPolicy: static\nreservedSystemCPUs: "0"\ncpuManagerPlugins: [{name: kept-elsewhere}]\n'
    )
    before = daemon.agent.node
    file = ConfigFile(str(config), daemon.agent.edges.log)
    file.reload(daemon.agent)
    assert file.problem is not None
    problem = str(file.problem)
    assert f"{config}:3: cpuManagerPlugins[0]: CPU plugin kept-elsewhere is not installed" in problem
    assert daemon.agent.node is before
