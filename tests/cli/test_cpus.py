"""`nodeagent cpus` from the outside: each form of the answer, and why there is none."""

import json
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from nodeagent.cli.commands import cpus
from nodeagent.cli.main import main
from nodeagent.core.model.cgroup import Attribute
from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.node_view import NodeView
from tests.cli.test_cli_inspect import Host, host, live
from tests.support import json_schema
from tests.support.inspected_nodes import NOW_MS, World, changed
from tests.support.pods import app, cgroup_only, mixed, pod

__all__ = ["host", "live"]
RunCommand = Callable[..., tuple[int, str, str]]


def world(**more: str) -> World:
    """Pods on a machine of 8 CPUs, of which 0 is reserved, and c and c + 4 are siblings."""
    made = World(**more)
    made.add(pod("own", app("app", cpu="2")))
    made.add(pod("both", mixed("app", "1500m", own=1)))
    return made.add(pod("two", cgroup_only("slot"), app("app")))


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    def run_one(view: NodeView, *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(cpus, "read_this_node_for_display", lambda *_: view)
        try:
            status = main(["cpus", *words])
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capfd.readouterr()

    return run_one


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("own",), "1,5"),
        (("default/own", "app"), "1,5"),
        (("own", "--exclusive"), "1,5"),
        (("own", "--format", "list"), "1,5"),
        (("own", "--format", "mask"), "0x22"),
        (("own", "--mems"), "0-1"),
        (("own", "--mems", "--format", "mask"), "0x3"),
        (("both",), "0,2-4,6-7"),
        (("both", "--exclusive"), "4"),
        (("both", "--shared"), "0,2-3,6-7"),
        (("both", "--shared", "--format", "mask"), "0xcd"),
        (("two", "slot"), "0,2-3,6-7"),
    ],
)
def test_one_line_in_each_form(words: tuple[str, ...], said: str, run: RunCommand) -> None:
    assert run(world().view(), *words) == (0, f"{said}\n", "")


def test_a_document_has_all_forms(run: RunCommand) -> None:
    status, out, err = run(world().view(), "both", "-o", "json")
    document = json.loads(out)
    json_schema.check(document, "cpus")
    assert (status, err) == (0, "")
    for field, mask in document["masks"].items():
        assert CpuSet.parse(document[field]).bits == int(mask, 16)
    assert list(document) == sorted(document)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("owm",), "no pod is named 'owm'\nhint: did you mean own"),
        (
            ("two",),
            ("pod default/two has 2 containers\nhint: name one of them: `nodeagent cpus default/two slot`; the pod's containers are "
            "slot, app\n"),
        ),
        (("two", "sl"), "pod default/two has no container 'sl'\nhint: the pod's containers are slot, app"),
        (("two", "slot", "--exclusive"), "container slot of pod default/two has no exclusive CPUs\nhint: `nodeagent explain"),
        (("own", "--shared"), "container app of pod default/own has no shared CPUs\nhint: "),
        (("big",), "pod default/big was refused: UnexpectedAdmissionError: "),
        (("over",), "pod default/over is being ended\nhint: "),
    ],
)  # fmt: skip
def test_no_answer_is_an_error_that_says_why(words: tuple[str, ...], said: str, run: RunCommand) -> None:
    node = world().add(pod("big", app(cpu="7"))).add(pod("over", app()), deleting_since_ms=NOW_MS)
    status, out, err = run(node.view(), *words)
    assert (status, out) == (1, "")
    assert err.startswith(f"nodeagent: {said}")


def test_cpus_that_others_have_not_left_are_not_printed(run: RunCommand) -> None:
    node = world()
    there = node.observed()
    path = "shared/pool"
    there[path] = replace(there[path], is_populated=True, cpus_effective=CpuSet.parse("0-7"))
    status, out, err = run(node.view(cgroups=there), "own")
    assert (status, out) == (1, "")
    assert "processes of another cgroup (shared/pool) may run on its exclusive CPUs 1,5" in err
    there = node.observed()
    there["poduid-own/app"] = changed(there["poduid-own/app"], Attribute.CPUSET_CPUS, CpuSet.of(0))
    assert "instead of the allocated '1,5'" in run(node.view(cgroups=there), "own")[2]


def test_a_process_elsewhere_is_told_that_it_cannot_get_there(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    view = world(host_isolation="partition").view()
    monkeypatch.setattr(cpus, "read_own_cpus", lambda: "0,2-4,6-7")
    said = (
        "nodeagent: note: CPUs 1,5 can be used only from inside the container's cgroup (hostIsolation)\n"
        "hint: start the program there: nodeagent exec default/own app -- COMMAND\n"
    )
    assert run(view, "own") == (0, "1,5\n", said)
    assert run(view, "own", "--mems") == (0, "0-1\n", "")
    assert run(view, "two", "slot") == (0, "0,2-3,6-7\n", "")
    assert json.loads(run(view, "own", "-o", "json")[1])["closed"] is True
    monkeypatch.setattr(cpus, "read_own_cpus", lambda: "1,5")
    assert run(view, "own") == (0, "1,5\n", ""), "asked from inside"


@pytest.mark.parametrize("words", [(), ("own", "-o", "json", "--mems"), ("own", "-o", "yaml", "--format", "mask")])
def test_arguments_that_do_not_go_together(words: tuple[str, ...], run: RunCommand) -> None:
    status, out, err = run(world().view(), *words)
    assert (status, out) == (64, "")
    assert err.startswith("usage: nodeagent cpus")


def test_it_asks_the_running_agent(live: Host, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["cpus", "web", "slot", *live.options]) == 0
    assert CpuSet.parse(capfd.readouterr().out.strip()) == live.world.node.topology.online
