"""Each command from the outside, on one copied node: its text, its document against the shipped schema, and what it says when it fails."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from nodeagent.cli.main import main
from nodeagent.cli.parser import COMMANDS, build_parser
from nodeagent.cli.support.definitions import extract_command
from nodeagent.cli.support.exit_status import EXIT_AWAY, OUTCOMES
from nodeagent.core.model.config import Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.daemon.start.startup import EX_CONFIG, STATE_FILE
from nodeagent.formats.checkpoint.node_state import encode_state, policies_of
from scripts.reference import ANSWERS, exit_statuses
from tests.support import json_schema
from tests.support.described_nodes import golden
from tests.support.inspected_nodes import World
from tests.support.machine_tree import Machine
from tests.support.pods import app, pod

MACHINE = Machine(("0,4", "1,5", "2,6", "3,7"), ("0-1,4-5", "2-3,6-7"), ((0, "0-1,4-5"), (1, "2-3,6-7")))
CONFIG, STATE = "etc/nodeagent/config.yaml", f"var/lib/nodeagent/{STATE_FILE}"
MANIFEST = str(Path(__file__).parents[2] / "examples" / "guaranteed.yaml")
ON_IT = ("--root", "ROOT")
CAPTURED = "ROOT/node.json"
GIVEN: dict[str, tuple[str, ...]] = {
    "inspect": ON_IT,
    "topology": ON_IT,
    "check": ON_IT,
    "config validate": ON_IT,
    "config show": ON_IT,
    "release": ("--all", "--dry-run", *ON_IT),
    "checkpoint verify": (f"ROOT/{STATE}",),
    "checkpoint show": (f"ROOT/{STATE}",),
    "explain": ("-f", MANIFEST, *ON_IT),
    "simulate": ("-f", MANIFEST, *ON_IT),
    "fleet inspect": (CAPTURED,),
    "fleet capacity": (CAPTURED, "-f", MANIFEST),
    "fleet diff": (CAPTURED, CAPTURED),
}
ASKED_ELSEWHERE = {
    "apply",
    "diff",
    "delete",
    "capture",
    "interference",
    "probe",
    "cpus",
    "retry",
    "pin",
    "unpin",
    "job",
    "queue",
    "reserve",
    "report compare",
}
"""What a command is asked that has a document, and those of which there is more to it: a manifest directory (test_apply.py), an agent
(test_cli_inspect.py), a file that is written (test_capture.py), a kernel that counts (integration/test_interference.py),
memory in cgroups (test_probe.py), CPUs of a cgroup (test_cpus.py), jobs (test_queue.py, test_reserve.py), systemd (test_pin.py),
runs (test_run_report.py)."""
OWN_GOLDEN = {"inspect", "check", "explain", "simulate", "fleet inspect", "fleet capacity", "fleet diff"}
"""They have texts of their own in tests/golden, of more than this node shows."""
NOWHERE = "ROOT/none"
FAILING: dict[str, tuple[str, ...]] = {
    "inspect": ("--root", NOWHERE),
    "interference": ("--config", NOWHERE, "--socket", f"{NOWHERE}/s"),
    "probe": ("--config", NOWHERE, "--socket", f"{NOWHERE}/s"),
    "topology": ("--root", NOWHERE),
    "capture": ("--root", NOWHERE),
    "check": ("--root", NOWHERE),
    "config validate": (NOWHERE,),
    "config reload": ("--socket", f"{NOWHERE}/s"),
    "config show": (NOWHERE,),
    "config migrate-from-kubelet": (NOWHERE,),
    "exec": ("--config", NOWHERE, "--socket", f"{NOWHERE}/s", "web", "app", "--", "true"),
    "job": ("--cpus", "1", "--memory", "1Mi", "--socket", f"{NOWHERE}/s", "--", "true"),
    "queue": ("--socket", f"{NOWHERE}/s"),
    "reserve": ("--list", "--socket", f"{NOWHERE}/s"),
    "report compare": (NOWHERE, NOWHERE),
    "cpus": ("--config", NOWHERE, "--socket", f"{NOWHERE}/s", "web"),
    "apply": (NOWHERE,),
    "diff": (NOWHERE,),
    "delete": ("--config", NOWHERE, "--socket", f"{NOWHERE}/s", "web"),
    "unpin": ("--config", NOWHERE, "--socket", f"{NOWHERE}/s", "web"),
    "retry": ("--socket", f"{NOWHERE}/s", "web"),
    "release": ("--all", "--dry-run", "--root", NOWHERE),
    "checkpoint verify": (NOWHERE,),
    "checkpoint show": (NOWHERE,),
    "checkpoint convert": ("--to", "cpu-v2", NOWHERE),
    "explain": ("-f", NOWHERE, *ON_IT),
    "simulate": ("-f", NOWHERE, *ON_IT),
    "fleet inspect": (NOWHERE,),
    "fleet capacity": (NOWHERE, "-f", MANIFEST),
    "fleet diff": (NOWHERE, NOWHERE),
}
"""What a command is asked about something that is not there. `completion` reads nothing, `run` needs a process of its own."""

RunCommand = Callable[..., tuple[int, str, str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copied node with a pod that has CPUs of its own."""
    root = MACHINE.grow(tmp_path / "root")
    for path in (CONFIG, STATE):
        (root / path).parent.mkdir(parents=True)
    (root / CONFIG).write_text("cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n")
    world = World(placement=Placement("static", reserved_system_cpus=CpuSet.of(0)))
    world.add(pod("web", app("app", cpu="2", memory="1Gi")))
    (root / STATE).write_bytes(encode_state(world.state, policies_of(world.config.placement)))
    assert main(["capture", "--root", str(root), "--out", str(root / "node.json")]) == 0
    return root


@pytest.fixture
def run(root: Path, capfd: pytest.CaptureFixture[str]) -> RunCommand:
    def run_one(command: str, *words: str) -> tuple[int, str, str]:
        status = main([*command.split(), *(word.replace("ROOT", str(root)) for word in words)])
        out, err = capfd.readouterr()
        return status, out.replace(str(root), "ROOT"), err.replace(str(root), "ROOT")

    return run_one


def test_every_command_that_has_a_document_is_asked() -> None:
    documented = {name for name, found in ANSWERS.items() if not isinstance(found, str)}
    assert {*GIVEN, *ASKED_ELSEWHERE} == documented
    asks_systemd_first = "pin"  # tests/cli/test_pin.py
    assert {*FAILING, asks_systemd_first, "completion", "run"} == ANSWERS.keys()


@pytest.mark.parametrize("command", [name for name in GIVEN if name not in OWN_GOLDEN])
def test_its_text(command: str, run: RunCommand) -> None:
    status, out, err = run(command, *GIVEN[command])
    assert (status, err) == (0, "")
    golden(f"{command.replace(' ', '-')}.txt", out)


@pytest.mark.parametrize(
    "command", ["inspect", "topology", "check", "explain", "simulate", "fleet inspect", "fleet capacity"]
)
def test_its_text_has_the_terminals_width(command: str, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    longest = []
    for columns in (60, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        longest.append(max(map(len, run(command, *GIVEN[command])[1].splitlines())))
    assert longest[0] < longest[1] <= 200


@pytest.mark.parametrize("command", GIVEN)
def test_its_document_is_as_its_schema_says_and_the_same_in_yaml(command: str, run: RunCommand) -> None:
    status, out, _ = run(command, *GIVEN[command], "-o", "json")
    document = json.loads(out)
    json_schema.check(document, ANSWERS[command][0])
    assert list(document) == sorted(document), "keys are sorted"
    again, as_yaml, _ = run(command, *GIVEN[command], "-o", "yaml")
    assert (again, yaml.safe_load(as_yaml)) == (status, document)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_status_that_a_command_tells_of_is_a_kind_of_outcome_that_all_share(name: str) -> None:
    (found,) = [one for one in extract_command(build_parser([name])).subcommands if one.name == name]
    told = exit_statuses(extract_command(found.parser))
    of_its_own = {
        "run": {str(EX_CONFIG)},
        "exec": {"own", "125", "126", "127"},
        "job": {"own", "123", "124", "125", "126", "127"},
    }
    assert told.keys() - of_its_own.get(name, set()) <= {str(status) for status in OUTCOMES}
    assert told["64"] == "wrong arguments"


@pytest.mark.parametrize("command", FAILING)
def test_what_is_not_there_is_named_with_the_next_step(
    command: str, run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    status, out, err = run(command, *FAILING[command])
    asked_of_the_agent = dict.fromkeys(
        ("interference", "probe", "cpus", "retry", "queue", "reserve", "config reload", "delete", "unpin"), EXIT_AWAY
    )
    assert (status, out) == ((asked_of_the_agent | {"exec": 125, "job": 125}).get(command, 1), "")
    assert NOWHERE in err
    assert "\nhint: " in err


def test_an_agent_without_a_configuration_says_so_and_what_to_do(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "nodeagent", "run", "--config", f"{tmp_path}/none"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    (line,) = [json.loads(line) for line in (done.stdout + done.stderr).splitlines()]
    assert (done.returncode, line["event"]) == (EX_CONFIG, "start_refused")
    assert line["problem"] == f"no configuration at {tmp_path}/none"
    assert "examples/config.yaml" in line["hint"]
