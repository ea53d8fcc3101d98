"""The same kind of outcome has the same exit status in all commands: each kind is brought about in each command that has it."""

import json
import shlex
from pathlib import Path

import pytest

from nodeagent.cli.main import main
from nodeagent.cli.parser import build_parser, build_parsers
from nodeagent.cli.support.definitions import Command, extract_command
from nodeagent.cli.support.exit_status import EXIT_USAGE
from scripts.reference import exit_statuses

COMMANDS = build_parsers([])[1]
AWAY, UNKNOWN, REFUSED, WRONG, NOT_STARTED = 3, 1, 4, 2, 125
"""The agent doesn't answer; not found out; refused; something is not as it should be; and for commands with a status of their own."""
HERE = "--config c.yaml --socket s"
DESCRIBED = "--topology 4c --config c.yaml"
WITHOUT_ANYTHING = {
    "inspect": "inspect", "interference": "interference", "probe": "probe web", "capture": "capture", "cpus": "cpus web",
    "unpin": "unpin db", "apply": "apply ok.json", "diff": "diff ok.json", "delete": "delete web", "release": "release web",
    "explain": "explain -f ok.json", "simulate": "simulate -f ok.json",
}  # fmt: skip
"""A line for each command that asks the agent, or else reads the configuration."""
SWEEP = {
    AWAY: (
        f"inspect {HERE}", f"inspect web {HERE}", f"interference {HERE}", f"interference web {HERE}", f"probe web {HERE}",
        "config validate --running c.yaml --socket s", "capture --config c.yaml --socket s", f"cpus web {HERE}",
        "config reload c.yaml --socket s", f"config show {HERE}", "config show --config none --socket s",
        "queue --socket s", "reserve --list --socket s", "reserve --cpus 2 --for 1h --socket s", f"apply ok.json --wait {HERE}",
        f"delete web --wait {HERE}", f"unpin db --wait {HERE}", "retry web --socket s", f"release web {HERE}",
        "explain web --socket s", "explain -f ok.json --socket s", "simulate -f ok.json --socket s",
        *(
            f"{line} --config {config} --socket s"
            for line in WITHOUT_ANYTHING.values()
            for config in ("none", "bad.yaml")
        ),
    ),
    UNKNOWN: (
        "inspect --machine none", "topology --machine none", "capture --out none/file", "check --machine none",
        "config validate none", "config validate --running none --socket s", "config show none",
        "config migrate-from-kubelet none", "config show bad.yaml", "report compare none none",
        f"apply none {HERE}", f"diff none {HERE}", f"delete web {HERE}", f"unpin db {HERE}", "checkpoint verify none",
        "checkpoint show none", "checkpoint convert none --to cpu-v2", "checkpoint verify ok.json", f"explain -f none {DESCRIBED}",
        f"explain web {DESCRIBED}", "simulate none", f"simulate -f none {DESCRIBED}", "fleet inspect none", "fleet diff none none",
        "fleet capacity -f ok.json none", "probe --cpus 0 --compare none",
        *(
            f"topology --topology 4c -o {form} --config {config}"
            for form in ("text", "json", "yaml", "svg", "hwloc-xml", "nrt", "resourceslice")
            for config in ("none", "bad.yaml", "unsuitable.yaml", "memory.yaml")
        ),
    ),
    REFUSED: (
        f"apply huge.json {HERE}", f"explain -f huge.json {DESCRIBED}", f"explain -f ok.json -f huge.json {DESCRIBED}",
        f"simulate -f huge.json {DESCRIBED}", f"simulate --capacity -f huge.json {DESCRIBED}",
        "explain -f huge.json --empty --config c.yaml",
    ),
    WRONG: (
        "config validate bad.yaml", "config validate --alone bad.yaml", "check --config bad.yaml", f"diff ok.json {HERE}",
        f"diff huge.json {HERE}", "checkpoint verify damaged", "simulate --compare c.yaml none.yaml -f some.json --topology 4c",
    ),
    NOT_STARTED: (
        f"exec {HERE} web app -- true", "job --cpus 1 --memory 64Mi --socket s -- true",
    ),
    EXIT_USAGE: (
        *(f"{command} --no-such-option" for command in COMMANDS), "", "no-such-command", "exec web app --socket s -- true",
        "job --cpus 1 --memory 64Mi --max-time soon -- true", "topology --topology nonsense",
        "explain -f ok.json --topology 0c --config c.yaml",
        *(
            f"{command} {amounts} {rest}"
            for command, rest in (("job", "-- true"), ("pin", "db.service"))
            for amounts in (
                "--cpus two --memory 64Mi", "--cpus 2 --memory much", "--cpus 0 --memory 64Mi", "--cpus 2 --memory 64MB",
                "--cpus 2 --memory 64",
                "--cpus=-1 --memory 64Mi", "--cpus 2 --memory 64Mi --hugepages-2Mi x", "--cpus 2 --memory 64Mi --numa first",
                "--cpus 2m5 --memory 64Mi",
            )
        ),
        *(
            f"{command} --cpus 2 --memory 1Gi {wrong} --socket s {rest}"
            for command, rest in (("job", "-- true"), ("job --wait", "-- true"), ("pin db", "--config c.yaml"))
            for wrong in ("--near a/b", "--device =2", "--device example.com/nic=two")
        ),
        "job --cpus 2 --memory 1Gi --name One --socket s -- true",
        "job --cpus 2 --memory 1Gi --idle-latency 5 --socket s -- true", "job --cpus 2 --memory 1Gi --threads-per-core 2 -- true",
        "job --cpus 2 --memory 1Gi --sched fifo:50 -- true", "job --cpus 2 --memory 1Gi --nice 20 -- true",
        "job --cpus 2 --memory 1Gi --max-frequency 2400 --socket s -- true",
        f"pin x@.service --cpus 2 --memory 1Gi {HERE}", f"pin a/b --cpus 2 --memory 1Gi {HERE}",
    ),
}  # fmt: skip


def pod(name: str, cpu: str) -> str:
    amounts = {"resources": {"limits": {"cpu": cpu, "memory": "64Mi"}}}
    containers = [{"name": "app", "image": "x", **amounts}]
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers}}
    )


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with the files of a node whose agent has never run."""
    monkeypatch.chdir(tmp_path)
    places = {"stateDirectory": "state", "runtimeDirectory": "run", "manifestDirectory": "m"}
    own = {key: f"{tmp_path}/{name}" for key, name in places.items()}
    (tmp_path / "m").mkdir()
    static = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
    reserved = {"memoryManagerPolicy": "Static", "reservedMemory": [{"numaNode": 9, "limits": {"memory": "1Gi"}}]}
    files = {
        "c.yaml": json.dumps(own | static),
        "none.yaml": json.dumps(own),
        "bad.yaml": "maxPods: many\n",
        "unsuitable.yaml": json.dumps(static | {"reservedSystemCPUs": "0,99"}),
        "memory.yaml": json.dumps(static | reserved),
        "ok.json": pod("ok", "1m"),
        "some.json": pod("some", "2"),
        "huge.json": pod("huge", "9999"),
        "damaged": '{"policyName":"none","defaultCpuSet":"","checksum":1}',
    }
    for name, text in files.items():
        Path(name).write_text(text)


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(("status", "line"), [(status, line) for status, lines in SWEEP.items() for line in lines])
def test_each_kind_of_outcome_has_its_status(status: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        found = main(shlex.split(line))
    except SystemExit as end:
        found = int(end.code or 0)
    told = capsys.readouterr()
    assert found == status, told.err
    if status != WRONG:
        assert "hint: " in told.err or status == REFUSED, "stderr has the next step"


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize("command", ["explain", "simulate"])
def test_a_node_without_a_configuration_is_decided_for_as_its_hint_says(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = [command, "-f", "huge.json", "--config", "c.yaml", "--socket", "s"]
    assert main(attempt) == AWAY
    hint = capsys.readouterr().err.partition("hint: ")[2]
    assert "--config" not in hint, "it is named already"
    assert "or leave its pods out with --empty" in hint
    assert main([*attempt, "--empty"]) == REFUSED


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize("config", ["none", "bad.yaml", "unsuitable.yaml"])
@pytest.mark.parametrize("command", ["explain", "simulate"])
def test_a_configuration_for_another_machine_is_to_be_corrected_with_and_without_its_pods(
    command: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topology", "--topology", "4c", "-o", "json"]) == 0
    Path("m.json").write_text(capsys.readouterr().out)
    attempt = [command, "-f", "ok.json", "--machine", "m.json", "--config"]
    for pods in ([], ["--empty"]):
        assert main([*attempt, config, *pods]) == UNKNOWN
        assert "--empty" not in capsys.readouterr().err
    assert main([*attempt, "c.yaml"]) == 0


ELSEWHERE = {
    "run": {78: "daemon/test_second_agent.py::test_a_second_agent_is_refused_and_touches_nothing"},
    "inspect": {
        2: "cli/test_cli_inspect.py::test_a_difference_is_exit_status_2",
        4: "cli/test_cli_inspect.py::test_a_refused_pod_is_something_wrong_and_the_answer_of_one_who_asks_for_it",
    },
    "interference": {
        1: "cli/test_cli_inspect.py::test_a_pod_without_exclusive_cpus_is_an_error_if_it_is_named",
        2: "../integration/test_interference.py::test_one_that_never_lets_go_of_a_cpu_is_named_too",
    },
    "probe": {2: "tools/probe/test_probe.py::test_a_page_elsewhere_is_a_difference_and_never_rounded_away"},
    "fleet": {
        2: "cli/test_fleet.py::test_what_is_not_as_promised_is_status_2",
        3: "cli/test_fleet.py::test_a_node_whose_agent_was_away_is_status_3",
        4: "cli/test_fleet.py::test_pods_that_fit_nowhere_are_status_4",
    },
    "exec": {
        126: "cli/test_cli_inspect.py::test_a_command_that_cannot_be_run_is_126",
        127: "cli/test_cli_inspect.py::test_a_command_that_is_not_there_is_127",
    },
    "cpus": {1: "cli/test_cpus.py::test_no_answer_is_an_error_that_says_why"},
    "job": {
        123: "cli/test_run_report.py::test_a_run_that_is_not_clean_has_a_status_of_its_own_only_if_it_succeeded",
        124: "cli/test_job.py::test_a_job_with_a_longest_time_says_whether_it_was_over",
        126: "cli/test_job.py::test_its_status_is_the_commands",
        127: "cli/test_job.py::test_its_status_is_the_commands",
    },
    "queue": {1: "cli/test_reserve.py::test_an_error_of_the_agent_is_status_1"},
    "reserve": {
        1: "cli/test_reserve.py::test_an_error_of_the_agent_is_status_1",
        4: "cli/test_reserve.py::test_a_refusal_has_its_own_status",
    },
    "pin": {
        1: "cli/test_pin.py::test_who_waits_does_so_until_the_unit_has_its_cpus",
        3: "cli/test_pin.py::test_nobody_decides_where_the_agent_is_away",
        4: "cli/test_pin.py::test_one_that_does_not_fit_is_not_pinned",
    },
    "retry": {
        1: "cli/test_cli_inspect.py::test_retry_passes_on_what_the_agent_says",
        4: "cli/test_cli_inspect.py::test_retry_reports_that_it_is_refused_again_and_what_to_do",
    },
    "release": {1: "cli/test_release.py::test_what_does_not_end_in_time_is_named"},
}
"""Tests that bring about the statuses of a command which the sweep can't: those that need an agent, systemd or a kernel."""
UNPRODUCED = {"run": {1}}
"""Any error that has no status of its own."""


def own_definition(name: str) -> Command:
    (found,) = [one for one in extract_command(build_parser([name])).subcommands if one.name == name]
    return extract_command(found.parser)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_status_of_a_command_is_brought_about(name: str) -> None:
    told = {int(status) for status in exit_statuses(own_definition(name)) if status.isdigit()} - {0}
    swept = {status for status, lines in SWEEP.items() if any(line.partition(" ")[0] == name for line in lines)}
    elsewhere = ELSEWHERE.get(name, {})
    assert told == swept | elsewhere.keys() | UNPRODUCED.get(name, set())
    for test in elsewhere.values():
        file, _, function = test.partition("::")
        assert f"\ndef {function}(" in (Path(__file__).parents[1] / file).read_text()


def test_every_command_is_swept() -> None:
    swept = {line.partition(" ")[0] for status, lines in SWEEP.items() if status != EXIT_USAGE for line in lines}
    assert set(COMMANDS) - swept == {"run", "completion", "pin"}, (
        "run and pin need systemd: integration/test_service.py, tests/cli/test_pin.py; completion only prints"
    )


def test_every_command_is_tried_without_agent_and_configuration() -> None:
    both = {
        name for name in COMMANDS if {"config", "socket"} <= {option.dest for option in own_definition(name).options}
    }
    assert both - WITHOUT_ANYTHING.keys() == {"check", "exec", "pin", "topology"}, (
        "check tells it as a failed check, exec has one status for all that it can't do, test_pin.py tries pin, and "
        "topology never asks the agent for the configuration"
    )
