"""Which node a command is about: this one, a copied root, or a capture; and whose configuration counts."""

import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.cli.main import main
from nodeagent.cli.support.node.arguments import add_node_arguments
from nodeagent.cli.support.node.selected import read_node
from nodeagent.cli.support.node.selected_machine import SourceError, read_topology
from nodeagent.core.model.config import Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.resources.cpu.holdings import exclusive_cpus
from nodeagent.daemon.start.startup import STATE_FILE, StartError
from nodeagent.edge.kernel.sysfs import read_machine
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.node_state import encode_state, policies_of
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.topology.topology_json import topology_document
from tests.support.inspected_nodes import World, running
from tests.support.machine_tree import Machine
from tests.support.pods import app, pod

MACHINE = Machine(("0,4", "1,5", "2,6", "3,7"), ("0-1,4-5", "2-3,6-7"), ((0, "0-1,4-5"), (1, "2-3,6-7")))
STATIC = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
SAVED_AT_S = 1_700_000_000


def options(*words: str) -> Namespace:
    parser = ArgumentParser(exit_on_error=False)
    add_node_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node that was copied with its configuration and its state: one pod with CPUs of its own."""
    root = MACHINE.grow(tmp_path / "root")
    (root / "etc/nodeagent").mkdir(parents=True)
    (root / "etc/nodeagent/config.yaml").write_text(json.dumps(STATIC))
    world = World(topology_of(read_machine(str(root))), Placement("static", reserved_system_cpus=CpuSet.of(0)))
    world.add(pod("web", app("app", cpu="2", memory="64Mi")), running("app"))
    state = root / "var/lib/nodeagent" / STATE_FILE
    state.parent.mkdir(parents=True)
    state.write_bytes(encode_state(world.state, policies_of(world.config.placement)))
    os.utime(state, (SAVED_AT_S, SAVED_AT_S))
    return root


@pytest.fixture
def described(root: Path, tmp_path: Path) -> Path:
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(topology_document(read_topology(options("--root", str(root))))))
    return path


def test_a_copy_has_the_name_of_its_node(root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert read_node(options("--root", str(root))).hostname == ""
    (root / "etc/hostname").write_text("far-away\n")
    assert read_node(options("--root", str(root))).hostname == "far-away"
    taken = tmp_path / "node.json"
    assert main(["capture", "--root", str(root), "--out", str(taken)]) == 0
    assert main(["inspect", "--machine", str(taken), "-o", "json"]) == 3
    assert json.loads(capfd.readouterr().out)["node"]["hostname"] == "far-away"


def test_without_options_it_is_this_machine() -> None:
    assert read_topology(options()) == topology_of(read_machine())


def test_a_copied_root_brings_machine_configuration_and_state(root: Path) -> None:
    known = read_node(options("--root", str(root)))
    assert known.node.config.placement.cpu_manager_policy == "static"
    assert exclusive_cpus(known.state.promises) == CpuSet.parse("1,5")
    assert (known.is_here, known.is_live, known.at_ms, known.problems) == (False, False, SAVED_AT_S * 1000, ())


def test_the_configuration_given_counts_before_the_copied_one(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(json.dumps(STATIC | {"reservedSystemCPUs": "1"}))
    known = read_node(options("--root", str(root), "--config", str(other)))
    assert known.node.reserved == CpuSet.of(1)
    assert any("does not fit" in problem for problem in known.problems)
    assert read_node(options("--root", str(root))).node.reserved == CpuSet.of(0)


def test_inspect_of_a_copy_says_so_shows_what_was_promised_and_advises_nothing(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capture = tmp_path / "node.json"
    assert main(["capture", "--root", str(root), "--out", str(capture)]) == 0
    for words in (["--root", str(root)], ["--machine", str(capture)]):
        assert main(["inspect", *words]) == 3
        out, err = capfd.readouterr()
        assert err == ""
        assert "agent      this is a copy of its saved state of 2023-11-14 22:13:20 UTC\n" in out
        assert "cgroups: the copy has no cgroups, so nothing was compared: CPUS and MEMS show" in out
        (row,) = [line.split() for line in out.splitlines() if line.startswith("  app ")]
        assert "1,5" in row
        assert "systemctl" not in out


@pytest.mark.parametrize("command", ["explain", "release --dry-run", "inspect"])
def test_a_pod_that_a_copy_has_not_is_looked_for_in_the_copy(
    command: str, root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "nope", "--root", str(root)]) == 1
    assert f"`nodeagent inspect --root {root}` lists the pods\n" in capfd.readouterr().err


def test_a_root_without_a_state_is_a_node_without_pods(root: Path) -> None:
    (root / "var/lib/nodeagent" / STATE_FILE).unlink()
    known = read_node(options("--root", str(root)))
    assert known.state.entries == ()
    assert known.problems == (f"there is no saved state in {root}/var/lib/nodeagent",)


def test_a_root_without_a_configuration_says_which_file_is_missing(root: Path) -> None:
    (root / "etc/nodeagent/config.yaml").unlink()
    with pytest.raises(NodeAgentError, match=f"no configuration at {root}/etc/nodeagent/config.yaml"):
        read_node(options("--root", str(root)))


@pytest.mark.parametrize("read", [read_topology, read_node])
def test_a_root_that_is_not_there_is_named(read: Callable[[Namespace], object], tmp_path: Path) -> None:
    with pytest.raises(NodeAgentError, match=f"{tmp_path}/nope: there is no such directory"):
        read(options("--root", f"{tmp_path}/nope/"))


def test_a_described_machine_is_a_node_without_pods(root: Path, described: Path) -> None:
    config = str(root / "etc/nodeagent/config.yaml")
    known = read_node(options("--machine", str(described), "--config", config))
    assert known.node.topology == topology_of(read_machine(str(root)))
    assert known.state.entries == ()
    assert known.problems == (f"{described} contains no pods",)


def test_a_configuration_that_does_not_suit_the_machine_is_named(
    root: Path, described: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, own = tmp_path / "restricted.yaml", root / "etc/nodeagent/config.yaml"
    other.write_text(json.dumps(STATIC | {"reservedSystemCPUs": "99"}))
    taken = tmp_path / "node.json"
    assert main(["capture", "--root", str(root), "--out", str(taken)]) == 0
    elsewhere = ("--root", str(root)), ("--machine", str(described)), ("--machine", str(taken))
    for which in elsewhere:
        with pytest.raises(StartError) as refused:
            read_node(options(*which, "--config", str(other)))
        assert refused.value.hint.startswith(
            f"correct reservedSystemCPUs in {other}, or the file or plugin that it names; "
        )
    assert main(["topology", "--topology", "2c", "--config", str(other)]) == 1
    assert f"correct reservedSystemCPUs in {other}," in capsys.readouterr().err
    own.write_text(other.read_text())
    with pytest.raises(StartError) as refused:
        read_node(options("--root", str(root)))
    assert refused.value.hint.startswith(f"correct reservedSystemCPUs in {own}, or the file or plugin that it names; ")


def test_a_described_machine_alone_has_no_managers(described: Path) -> None:
    with pytest.raises(SourceError, match="contains no configuration"):
        read_node(options("--machine", str(described)))


def test_one_node_at_a_time() -> None:
    with pytest.raises(Exception, match="not allowed with argument"):
        options("--root", "/copy", "--machine", "node.json")
