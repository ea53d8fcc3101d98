"""A configuration file that is not in use: what the agent goes on with, and where that is told."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from nodeagent.core.model.config import Config
from nodeagent.core.model.problem_kinds import ProblemKind
from nodeagent.daemon.reports.status import format_status, report_readiness
from nodeagent.daemon.start import config_file
from nodeagent.daemon.start.config_file import ConfigFile
from nodeagent.daemon.start.node_builder import build_node
from nodeagent.daemon.start.startup import LAST_CONFIG, StartError
from tests.support.daemon_model import Daemon, at_rest
from tests.support.machine_tree import Machine as Tree
from tests.support.world import SMALL, node

FOUR = Tree(("0", "1", "2", "3"), ("0-3",), ((0, "0-3"),))
VALID = "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n"


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """An agent at rest, on whose disk a machine of four CPUs is described."""
    monkeypatch.setattr(config_file, "build_node", partial(build_node, root=str(FOUR.grow(tmp_path / "root"))))
    with at_rest(monkeypatch, tmp_path, node(SMALL)) as daemon:
        yield daemon


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(f"{VALID}stateDirectory: {tmp_path}\n")
    return path


def started(daemon: Daemon, path: Path) -> ConfigFile:
    """The file as an agent starts with it."""
    file = ConfigFile(str(path), daemon.agent.edges.log)
    node = file.load()
    file.keep(node.config)
    return file


def told(daemon: Daemon, file: ConfigFile) -> tuple[str, str, str, dict[str, int]]:
    """What `systemctl status`, `/readyz`, `inspect` and the metrics say after a sync."""
    daemon.standing = () if file.problem is None else (file.problem,)
    daemon.agent.metrics.config_refused_at_seconds = file.refused_at_seconds
    daemon.turn()
    view = daemon.agent.view
    lines = daemon.agent.metrics.exposition.text().decode().splitlines()
    found = {
        line.split()[0]: int(float(line.split()[1])) for line in lines if line.startswith("nodeagent_config_refused")
    }
    return format_status(view), report_readiness(view)[1], "\n".join(view.problems), found


def test_a_start_with_an_invalid_file_goes_on_with_the_last_valid_one_and_says_so_everywhere(
    daemon: Daemon, path: Path
) -> None:
    started(daemon, path)
    path.write_text(f"maxPods: many\nstateDirectory: {path.parent}\n")
    again = ConfigFile(str(path), daemon.agent.edges.log)
    assert again.load().config.placement.cpu_manager_policy == "static"
    status, ready, shown, metrics = told(daemon, again)
    reason = f'the configuration is refused, the last valid one is in use: {path}:1: maxPods: "many"'
    assert all(reason in text for text in (status, ready, shown))
    assert metrics["nodeagent_config_refused"] == 1
    assert metrics["nodeagent_config_refused_timestamp_seconds"] > 0
    assert [line["event"] for line in daemon.said()].count("configuration_refused") == 1
    assert (
        status.count("\n"),
        status.startswith("0 pods, 0 exclusive CPUs, 1 problem (configuration_refused), 0 refused: "),
    ) == (0, True)


@pytest.mark.parametrize(
    "content",
    [None, "kind: [", "- no fields\n", "", "# a comment\n---\n"],
    ids=["gone", "no YAML", "no fields", "empty", "a comment"],
)
def test_a_file_from_which_nothing_can_be_read_is_none_either(
    daemon: Daemon, path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    """Then the default state directory is where the last valid one is looked for."""
    monkeypatch.setattr(config_file, "Config", lambda: Config(state_directory=str(path.parent)))
    started(daemon, path)
    path.unlink()
    if content is not None:
        path.write_text(content)
    again = ConfigFile(str(path), daemon.agent.edges.log)
    assert again.load().config.placement.cpu_manager_policy == "static"
    assert again.problem is not None
    assert str(path) in again.problem


@pytest.mark.parametrize(
    "line", ["\tmaxPods: 7", 'maxPods: "7', "maxPods 7", "# \N{LATIN SMALL LETTER A WITH DIAERESIS}"]
)
@pytest.mark.parametrize("directory", ["{}", '"{}"  # of this node', "'{}'"])
def test_the_state_directory_is_found_in_a_file_that_is_no_yaml(
    daemon: Daemon, path: Path, line: str, directory: str
) -> None:
    started(daemon, path)
    text = f"{VALID}stateDirectory: {directory.format(path.parent)}\n{line}\n"
    path.write_bytes(text.encode("latin-1"))
    again = ConfigFile(str(path), daemon.agent.edges.log)
    assert again.load().config.placement.cpu_manager_policy == "static"
    assert again.problem is not None


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        (None, "there is none"),
        ("# last valid configuration of /another/config.yaml\n" + VALID, "it is of another file"),
        ("{header}maxPods: many\n", "it is invalid, too"),
        ("{header}cpuManagerPolicy: static\nreservedSystemCPUs: '77'\n", "it doesn't fit the machine any more"),
    ],
)
def test_without_a_last_valid_one_the_start_is_refused_with_the_reason_of_the_file(
    daemon: Daemon, path: Path, kept: str | None, why: str
) -> None:
    if kept is not None:
        text = kept.replace("{header}", f"# last valid configuration of {path}\n")
        (path.parent / LAST_CONFIG).write_text(text)
    path.write_text(f"maxPods: few\nstateDirectory: {path.parent}\n")
    with pytest.raises(StartError, match='maxPods: "few"'):
        ConfigFile(str(path), daemon.agent.edges.log).load()


def test_a_changed_file_is_told_until_it_is_reloaded_or_changed_back(
    daemon: Daemon, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = started(daemon, path)
    text = path.read_text()
    file.look(daemon.agent)
    assert file.problem is None
    monkeypatch.setattr(config_file, "check_takeover", lambda *_: None)
    path.write_text(text + "maxPods: 7\n")
    for _ in range(2):
        file.look(daemon.agent)
        assert file.problem is not None
        assert file.problem.kind is ProblemKind.CONFIGURATION_CHANGED
    status, ready, _, metrics = told(daemon, file)
    assert f"{path} has changed, and the change is not in effect yet (nodeagent config reload)" in status
    assert ready.startswith("ready, but something needs attention\n")
    assert metrics["nodeagent_config_refused"] == 0
    path.write_text(text)
    file.look(daemon.agent)
    assert told(daemon, file)[:3] == ("0 pods, 0 exclusive CPUs, 0 problems, 0 refused", "ok", "")
    logged = [line["event"] for line in daemon.said() if line["event"].startswith("configuration_")]
    assert logged == ["configuration_changed", "configuration_mended"]


def test_a_refused_reload_changes_nothing_and_is_told_until_one_is_applied(
    daemon: Daemon, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, before = started(daemon, path), daemon.agent.node
    path.write_text("cpuManagerPolicy: dynamic\n")
    file.reload(daemon.agent)
    assert daemon.agent.node is before
    assert [line["event"] for line in daemon.said()][-2:] == ["reload_refused", "configuration_refused"]
    assert "the previous one stays in effect" in told(daemon, file)[0]
    since = file.refused_at_seconds
    file.look(daemon.agent)
    assert file.refused_at_seconds == since > 0
    path.write_text(f"{VALID}stateDirectory: {path.parent}\nmetricsBindAddress: '[::]:9753'\n")
    monkeypatch.setattr(daemon.agent, "change_node", lambda _: None)
    file.reload(daemon.agent)
    assert (file.problem, file.refused_at_seconds) == (None, 0.0)
    notes = [line["problem"] for line in daemon.said() if line["event"] == "configuration_note"]
    assert "is not a loopback address" in notes[0]


def test_what_only_a_restart_can_apply_is_told_with_that_step(daemon: Daemon, path: Path) -> None:
    file = started(daemon, path)
    path.write_text(path.read_text() + "staticPodPath: /elsewhere\n")
    file.look(daemon.agent)
    assert file.problem is not None
    assert "changed fields need a restart" in file.problem
    assert "systemctl restart nodeagent" in file.problem
    again = started(daemon, path)
    assert again.problem is None
    assert again.load().config.static_pod_path == "/elsewhere"
