"""`nodeagent fleet`: files and hosts side by side. The ssh here is a script: a host's capture is the file of that name."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from integration.pages import blocks_of, is_untyped
from nodeagent.cli.main import main
from nodeagent.cli.support.named_files import NamedFile
from nodeagent.core.model.config import Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.kernel.sysfs import read_machine
from nodeagent.formats.capture import encode_capture
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.topology.topology_json import topology_document
from nodeagent.formats.topology.topology_spec import topology_from_spec
from nodeagent.tools.fleet.reached_nodes import is_host
from tests.support.described_nodes import golden
from tests.support.fleets import node
from tests.support.inspected_nodes import World
from tests.support.machine_tree import Machine
from tests.support.pods import app, pod

MANIFEST = str(Path(__file__).parents[2] / "examples" / "guaranteed.yaml")
MACHINE = Machine(("0,4", "1,5", "2,6", "3,7"), ("0-1,4-5", "2-3,6-7"), ((0, "0-1,4-5"), (1, "2-3,6-7")))
SSH = """\
#!/bin/sh
while [ "$1" != -- ]; do shift; done
echo "$2: $3" >>asked
case ${2#*@} in
down) echo "ssh: connect to host $2 port 22: Connection refused" >&2; exit 255 ;;
bare) echo "sh: 1: nodeagent: not found" >&2; exit 127 ;;
hangs) exec sleep 1000 ;;
*) exec cat "hosts/${2#*@}" ;;
esac
"""

RunCommand = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> RunCommand:
    """Run it where node01.json to node04.json are files, and node01 to node07, down, bare and hangs are hosts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    for directory in ("hosts", "captures"):
        (tmp_path / directory).mkdir()
    sample = read_machine(str(MACHINE.grow(tmp_path / "root")))
    topology = topology_of(sample)
    for number in range(1, 8):
        name = f"node{number:02}"
        placement = Placement("static", reserved_system_cpus=CpuSet.parse("0,4" if number == 3 else "0"))
        world = World(topology, placement).add(pod(f"web-{number}", app("app", cpu="2", memory="1Gi")))
        if number == 2:
            world.add(pod("too-big", app("app", cpu="7", memory="1Gi"))).add(pod("log", app("log")))
        made = node(name, world=world, kernel="6.12.9" if number == 4 else "6.1.0-28-amd64")
        assert made.capture is not None
        text = encode_capture(replace(made.capture, sample=sample))
        for place in (f"hosts/{name}", *((f"{name}.json", f"captures/{name}.json") if number < 5 else ())):
            (tmp_path / place).write_text(text)

    def run_one(*words: str) -> tuple[int, str, str]:
        try:
            status = main(["fleet", *words])
        except SystemExit as ended:
            status = int(ended.code or 0)
        out, err = capfd.readouterr()
        return status, out, err

    return run_one


FILES = ("node01.json", "node02.json", "node03.json", "node04.json")


@pytest.mark.parametrize(
    ("action", "words", "status"), [("inspect", (), 2), ("capacity", ("-f", MANIFEST), 0), ("diff", (), 2)]
)
def test_its_text(action: str, words: tuple[str, ...], status: int, run: RunCommand) -> None:
    got, out, err = run(action, *words, *FILES)
    assert (got, err) == (status, "")
    golden(f"fleet-{action}.txt", out)
    assert all(len(line) <= 80 for line in out.splitlines())


def test_files_and_hosts_are_shown_in_the_order_in_which_they_are_named(run: RunCommand) -> None:
    status, out, err = run("inspect", "node07", "node01.json", "admin@node05", "node02.json", "-o", "json")
    assert (status, err) == (2, "")
    named = [(one["name"], one["source"]) for one in json.loads(out)["nodes"]]
    assert named == [
        ("node07", "node07"),
        ("node01", "node01.json"),
        ("node05", "admin@node05"),
        ("node02", "node02.json"),
    ]
    assert sorted(Path("asked").read_text().splitlines()) == [
        "admin@node05: nodeagent capture",
        "node07: nodeagent capture",
    ]


def test_another_command_can_be_run_on_hosts(run: RunCommand) -> None:
    assert run("inspect", "node05", "--remote", "sudo -n nodeagent capture")[0] == 0
    assert Path("asked").read_text() == "node05: sudo -n nodeagent capture\n"


def test_a_node_that_fails_is_a_line_and_stops_no_other(run: RunCommand) -> None:
    status, out, err = run("diff", "down", "node05", "bare", "none.json", "node01.json")
    assert status == 1
    assert out.startswith("2 nodes are alike in all of ")
    assert err.splitlines()[::2] == [
        "nodeagent: not read: ssh: connect to host down port 22: Connection refused",
        "nodeagent: not read: bare: `nodeagent capture` ended with status 127: sh: 1: nodeagent: not found",
        "nodeagent: not read: none.json: there is no such file",
    ]
    assert [line.startswith("hint: ") for line in err.splitlines()[1::2]] == [True] * 3


def test_nodes_that_fail_for_one_reason_are_one_line(run: RunCommand) -> None:
    status, out, err = run("inspect", "hangs", "u@hangs", "--timeout", "1")
    assert (status, out) == (1, "")
    assert err == (
        "nodeagent: not read: hangs, u@hangs: no complete answer within 1 s\n"
        "hint: to see how long the answer takes and how large it is: time ssh HOST nodeagent capture | wc -c\n"
    )


def test_what_could_not_be_read_is_in_the_document(run: RunCommand) -> None:
    status, out, _ = run("inspect", "down", "node01.json", "-o", "json")
    assert status == 1
    (unread,) = json.loads(out)["unread"]
    assert (unread["source"], unread["why"]) == ("down", "ssh: connect to host down port 22: Connection refused")


def test_no_more_hosts_are_asked_at_once_than_told(run: RunCommand, tmp_path: Path) -> None:
    counting = SSH.replace(
        "case ", 'touch "running.$$"; ls running.* | wc -l >>together; trap "rm running.$$" EXIT\ncase '
    )
    (tmp_path / "ssh").write_text(counting.replace("exec cat", "cat"))
    assert run("inspect", *(f"u{number}@node05" for number in range(6)), "--parallel", "2")[0] == 0
    seen = [int(line) for line in Path("together").read_text().split()]
    assert len(seen) == 6
    assert max(seen) <= 2


def test_what_is_not_as_promised_is_status_2(run: RunCommand) -> None:
    document = json.loads(Path("node01.json").read_text())
    path = next(name for name in document["cgroups"] if name.endswith("/app"))
    document["cgroups"][path] |= {"cpuset.cpus": "0-7", "cpuset.cpus.effective": "0-7"}
    Path("node01.json").write_text(json.dumps(document))
    status, out, _ = run("inspect", "node01.json")
    assert status == 2
    assert "NOT healthy: " in out


def test_a_node_whose_agent_was_away_is_status_3(run: RunCommand) -> None:
    document = json.loads(Path("node01.json").read_text())
    document["agent"]["live"] = False
    Path("node01.json").write_text(json.dumps(document))
    status, out, _ = run("inspect", "node01.json", "node03.json")
    assert status == 3
    assert "agent" in out


def test_pods_that_fit_nowhere_are_status_4(run: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "big.yaml").write_text(Path(MANIFEST).read_text().replace('cpu: "2"', 'cpu: "99"'))
    status, out, err = run("capacity", "-f", "big.yaml", *FILES)
    assert (status, err) == (4, "")
    assert out.startswith("default/guaranteed: the pod would fit on 0 of 4 nodes; 0 copies in all\n")


def test_a_described_machine_needs_a_configuration(run: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "new.json").write_text(json.dumps(topology_document(topology_from_spec("2s.4c.2t"))))
    status, out, err = run("capacity", "-f", MANIFEST, "new.json", "node01.json")
    assert status == 1
    assert "node01" in out
    assert err.startswith(
        "nodeagent: not read: new.json: its file contains no configuration\nhint: name one with --config"
    )
    (tmp_path / "config.yaml").write_text("cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n")
    status, out, err = run("capacity", "-f", MANIFEST, "new.json", "--config", "config.yaml")
    assert (status, err) == (0, "")
    assert "new" in out


def test_one_node_alone_differs_from_none(run: RunCommand) -> None:
    status, _, err = run("diff", "node01.json")
    assert status == 64
    assert "name at least two" in err


@pytest.mark.parametrize(
    ("word", "host"),
    [
        ("node07", True),
        ("admin@node07.example.com", True),
        ("ssh://node07:2222", True),
        ("-", False),
        ("there", False),
        ("./node07", False),
        ("missing.json", False),
        ("captures/node07", False),
    ],
)
def test_a_word_is_a_file_or_a_host(word: str, host: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").touch()
    monkeypatch.chdir(tmp_path)
    assert is_host(NamedFile(word)) is host


def test_the_page_is_typed_where_hosts_are_known(run: RunCommand, tmp_path: Path) -> None:
    """What no guest can type, and before a pipe."""
    blocks = [block for block in blocks_of("how-to/fleet.md") if is_untyped("how-to/fleet.md", block)]
    lines = [line.partition(" | ")[0] for block in blocks for line in block.text.splitlines()]
    assert len(lines) == 4
    programs = f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin"
    for line in lines:
        done = subprocess.run(["sh", "-c", line], env={"PATH": programs}, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0 if " capacity " in line else 2, ""), line
        assert "node01" in done.stdout
    assert Path("asked").read_text().count("sudo -n nodeagent capture") == 2
