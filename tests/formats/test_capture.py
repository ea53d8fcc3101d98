"""A node in a file: the same answers as the node itself gave, no secret, the same text for the same node, and no trust in what it says."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.cli.commands import capture as capture_command
from nodeagent.cli.main import main
from nodeagent.cli.support.exit_status import EXIT_AWAY
from nodeagent.cli.support.node import copied_node, observation, selected_machine
from nodeagent.core.admission.node_rules import read_node_of
from nodeagent.core.model.cgroup import Attribute, UnitSettings
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod, Resources
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.state import ContainerStatus, RefusedChange
from nodeagent.core.model.waiting import Waiting
from nodeagent.daemon.start import node_builder
from nodeagent.daemon.turn import machine as daemon_machine
from nodeagent.edge.kernel.sysfs import read_machine
from nodeagent.errors import NodeAgentError
from nodeagent.formats.capture import (
    Capture,
    CaptureError,
    decode_capture,
    encode_capture,
    without_secrets,
)
from nodeagent.formats.checkpoint.node_state import policies_of
from nodeagent.formats.kernel.settings import KERNEL_PARAMETERS, remove_unknown_parameters
from nodeagent.formats.kernel.sysfs import topology_of
from tests.cli.test_cli_inspect import Host
from tests.cli.test_selected_node import root as root  # noqa: PLC0414 - a fixture
from tests.support import json_schema
from tests.support.inspected_nodes import everything, running
from tests.support.pods import app, pod, unit

SECRET = "hunter2-the-secret"


def with_secret() -> Pod:
    hiding = replace(
        app("hiding"),
        command=("run", f"--password={SECRET}"),
        args=(SECRET,),
        env=(("TOKEN", SECRET), (SECRET, "x")),
    )
    return pod("keeper", hiding, app("slot", command=()))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A node whose clock stands still, so that ages do not differ; its machine is read once, as a virtual one's memory changes."""
    machine = read_machine()
    for reader in (capture_command, selected_machine, copied_node, node_builder, daemon_machine):
        monkeypatch.setattr(reader, "read_machine", lambda root="/": machine if root == "/" else read_machine(root))
    now = time.time_ns()
    monkeypatch.setattr(observation.time, "time_ns", lambda: now)
    made = Host(tmp_path)
    made.world.add(with_secret(), running("hiding"), running("slot"))
    made.write_cgroups(made.world.observed())
    yield made
    made.stop()
    assert made.bugs == []


def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(list(words))
    out, err = capfd.readouterr()
    return status, out, err


@pytest.mark.parametrize("is_live", [True, False], ids=["agent runs", "agent is down"])
@pytest.mark.parametrize("is_drifted", [False, True], ids=["as promised", "drifted"])
@pytest.mark.parametrize(
    "command",
    [
        ["inspect", "-o", "json"],
        ["inspect"],
        ["inspect", "web", "--no-host-processes"],
        ["topology"],
        ["topology", "-o", "json"],
        ["release", "--all", "--dry-run", "-o", "json"],
    ],
    ids=" ".join,
)
def test_a_capture_answers_as_the_node_did(
    host: Host, is_live: bool, is_drifted: bool, command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    if is_drifted:
        host.drift()
    host.save()
    if is_live:
        host.start_daemon()
    file = str(host.directory / "node.json")
    assert run(capfd, "capture", "--out", file, *host.options) == (0, "", "")
    answer = run(capfd, *command, *host.options)
    assert answer[1]
    status, out, err = run(capfd, *command, "--machine", file)
    assert (status, without_whose(out), err) == (answer[0], without_whose(answer[1]), answer[2])
    assert out == answer[1] or command[0] == "inspect"


def without_whose(text: str) -> str:
    """Leave out that it is a copy, and what to do on a node."""
    text = re.sub(r'(?m)^ +"copied(At)?": .*\n', "", text)
    text = re.sub(r"(?m)^agent  .*\n(  .*\n)*", "", text)
    text = re.sub(r"(?m)^  the agent corrects them (.*\n)*?(?=NOT healthy)", "", text)
    return text.replace("NOT healthy: the agent is not running, ", "NOT healthy: no agent is known to run, ")


def test_no_secret_of_a_container_is_in_it(host: Host, capfd: pytest.CaptureFixture[str]) -> None:
    *others, entry = host.world.state.entries
    change = RefusedChange(with_secret(), Waiting("OutOfpods", "too many", 1))
    host.world.state = replace(host.world.state, entries=(*others, replace(entry, refused_change=change)))
    host.start_daemon()
    _, text, _ = run(capfd, "capture", *host.options)
    assert "OutOfpods" in text
    assert SECRET not in text
    assert "--password" not in text
    assert "TOKEN" not in text
    json_schema.check(json.loads(text), "capture")
    assert SECRET.encode() in b"".join(p.read_bytes() for p in [saved(host)]), "else there was none to be left out"


def saved(host: Host) -> Path:
    host.save()
    return host.state / "nodeagent_state"


def test_of_the_kernels_command_line_only_known_parameters_are_kept() -> None:
    line = f"quiet isolcpus=managed_irq,2-3 luks.key={SECRET} nohz_full=2-3 systemd.setenv=A={SECRET} nosmt\n"
    assert remove_unknown_parameters(line) == "isolcpus=managed_irq,2-3 nohz_full=2-3 nosmt\n"
    assert {"isolcpus", "nohz_full", "nosmt"} <= KERNEL_PARAMETERS


def test_a_captured_root_is_the_same_text_each_time_and_once_more_captured(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    for path in (first, second):
        assert run(capfd, "capture", "--root", str(root), "--out", str(path)) == (0, "", "")
    assert first.read_bytes() == second.read_bytes()
    assert run(capfd, "capture", "--machine", str(first)) == (0, first.read_text(), "")
    for command in (["topology"], ["topology", "-o", "yaml"], ["inspect", "-o", "json"]):
        copied, captured = (run(capfd, *command, *node) for node in (["--root", str(root)], ["--machine", str(first)]))
        assert copied == captured
    assert "A  default/web app  1,5" in run(capfd, "topology", "--machine", str(first))[1]


def test_free_memory_does_not_change_it(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = run(capfd, "capture", "--root", str(root))
    (root / "proc/meminfo").write_text("MemTotal:       16777216 kB\nMemFree:  9 kB\nDirty: 3 kB\n")
    (root / "proc/cpuinfo").write_text((root / "proc/cpuinfo").read_text().replace("\n\n", "\ncpu MHz : 801.2\n\n"))
    assert run(capfd, "capture", "--root", str(root)) == before


def test_without_an_agent_the_machine_alone_is_taken_and_that_is_said(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (root / "etc/nodeagent/config.yaml").unlink()
    status, text, err = run(capfd, "capture", "--root", str(root))
    assert status == 0
    assert json.loads(text)["agent"] is None
    assert err.startswith(
        f"nodeagent: only the machine is captured: no configuration at {root}/etc/nodeagent/config.yaml\n"
    )
    (tmp_path / "node.json").write_text(text)
    assert run(capfd, "topology", "--machine", str(tmp_path / "node.json"))[0] == 0


@pytest.mark.parametrize("is_configured", [False, True])
def test_what_holds_no_machine_is_not_taken(
    root: Path, is_configured: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    there = root if is_configured else tmp_path / "empty"
    there.mkdir(exist_ok=True)
    if is_configured:
        (root / "sys").rename(root / "elsewhere")
    status, out, err = run(capfd, "capture", "--root", str(there), "--out", str(tmp_path / "node.json"))
    assert (status, out) == (1, "")
    assert err.startswith(f"nodeagent: cannot use {there}/sys/devices/system/cpu: found no online CPU")
    assert not (tmp_path / "node.json").exists()


def test_a_named_configuration_counts_without_an_agent_and_is_an_error_only_where_it_cannot_be_used(
    host: Host, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("capture", "--config", str(host.config))
    status, text, err = run(capfd, *words)
    assert (status, json.loads(text)["agent"]) == (0, None)
    assert err.startswith("nodeagent: only the machine is captured: the agent does not answer ")
    host.save()
    status, text, err = run(capfd, *words)
    assert (status, json.loads(text)["agent"] is None, err) == (0, False, "")
    for wrong in ('{"maxPods": "many"}', '{"cpuManagerPolicy": "static", "reservedSystemCPUs": "9999"}', None):
        if wrong is None:
            host.config.unlink()
        else:
            host.config.write_text(wrong)
        status, text, err = run(capfd, *words)
        assert (status, text, "only the machine" in err) == (EXIT_AWAY, "", False)
        assert str(host.config) in err


def test_where_a_named_agent_neither_answers_nor_saved_anything_nothing_is_taken(
    host: Host, capfd: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capfd, "capture", *host.options)
    assert (status, out) == (3, "")
    assert err.startswith(f"nodeagent: the agent does not answer (cannot reach the agent at {host.socket}: ")


def test_a_capture_that_cannot_be_read_is_complained_about_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(capfd, "capture", "--machine", str(tmp_path / "none")) == (
        1,
        "",
        f"nodeagent: there is no file {tmp_path}/none\nhint: make one with `nodeagent capture --out FILE`\n",
    )


def test_a_described_machine_is_not_captured(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.json").write_text('{"topology": {"cpus": [{"id": 0, "core": 0, "socket": 0, "numa": 0}]}}')
    status, out, err = run(capfd, "capture", "--machine", str(tmp_path / "m.json"))
    assert (status, out) == (1, "")
    assert "is the description of a machine, not a capture\nhint: take a capture on the node itself" in err


def test_a_directory_that_is_not_there_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capfd, "capture", "--out", str(tmp_path / "none" / "node.json"))
    assert status == 1
    assert f"{tmp_path}/none" in err
    assert "name another file with --out" in err
    assert "statedirectory" not in err.replace(str(tmp_path), "").lower()


# What a capture says is not trusted


@pytest.fixture
def document(root: Path, capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    captured: dict[str, Any] = json.loads(run(capfd, "capture", "--root", str(root))[1])
    captured["cgroups"] = {"": {"cgroup.controllers": "cpu", "cpuset.cpus.effective": "0-1", "cpu.max": "max 100000"}}
    captured["hostProcesses"] = {
        "processes": [{"pid": 1, "name": "init", "cpus": "0"}],
        "kernelThreads": 3,
        "kernelThreadCPUs": "0-1",
        "hidden": 0,
    }
    return captured


def decoded(document: dict[str, Any]) -> Capture:
    found = decode_capture(json.dumps(document).encode(), "node.json")
    assert isinstance(found, Capture)
    return found


def test_it_is_read_as_it_was_written(document: dict[str, Any]) -> None:
    capture = decoded(document)
    again = decoded(json.loads(encode_capture(capture)))
    assert again == capture
    assert topology_of(again.sample) == topology_of(capture.sample)


def test_it_is_of_printable_ascii_whatever_a_process_is_called(
    document: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    document["hostProcesses"]["processes"][0]["name"] = f"{HOSTILE}\x7f é \N{GRINNING FACE}"
    node = tmp_path / "node.json"
    node.write_text(json.dumps(document))
    out = run(capfd, "capture", "--machine", str(node))[1]
    assert set(out) <= {"\n", *map(chr, range(0x20, 0x7F))}
    assert decoded(json.loads(out)).observation == decoded(document).observation


def test_a_node_with_pods_in_every_state_is_read_as_it_was_written(document: dict[str, Any]) -> None:
    world, _, view = everything()
    with_kube_reserved = replace(world.config, kube_reserved=Resources.of({"cpu": Quantity.parse("1500m")}))
    agent = replace(
        view,
        node=read_node_of(with_kube_reserved, world.node.topology, world.node.topology, world.node.reserved),
        state=without_secrets(world.state),
        policies=policies_of(world.config.placement),
        observation=None,
        recovery={
            "adopted": ["x"],
            "differences": [
                {"pod": "a/b", "container": name, "resource": "cpu", "before": "1", "after": "2", "why": "z"}
                for name in ("c", None)
            ],
            "problems": ["y"],
            "refused": [{"pod": "a/b", "message": "m"}],
            "setAside": ["/x"],
        },
    )
    order, there = list(Attribute), view.observed
    # as they are read of a file system
    cgroups = {
        path: replace(observed, attributes=tuple(sorted(observed.attributes, key=lambda item: order.index(item[0]))))
        for path, observed in (there.cgroups or {}).items()
    }
    observation = replace(there, cgroups=cgroups, problems=("y",))
    capture = replace(decoded(document), agent=agent, observation=observation)
    text = encode_capture(capture)
    json_schema.check(json.loads(text), "capture")
    again = decoded(json.loads(text))
    assert again.agent == agent
    assert again.observation == observation
    assert encode_capture(again) == text


@pytest.mark.parametrize("told", [UnitSettings(), UnitSettings(CpuSet.parse("1,5"), NumaSet.of(1)), None])
def test_what_systemd_was_told_of_a_unit_is_read_as_it_was_written(
    document: dict[str, Any], told: UnitSettings | None
) -> None:
    world, _, view = everything()
    world.add(pod("db", unit(cpu="1")), ContainerStatus("db", unit_before=UnitSettings()))
    path = "units/poduid-db/db.service"
    (seen,) = (there for there in world.observed().values() if there.path == path)
    seen = replace(seen, attributes=(), unit=told)
    agent = replace(
        view,
        node=read_node_of(world.config, world.node.topology, world.node.topology, world.node.reserved),
        state=without_secrets(world.state),
        policies=policies_of(world.config.placement),
        observation=None,
        unit_cgroups={"db.service": "system.slice/db.service"},
    )
    capture = replace(decoded(document), agent=agent, observation=replace(view.observed, cgroups={path: seen}))
    text = encode_capture(capture)
    json_schema.check(json.loads(text), "capture")
    again = decoded(json.loads(text))
    assert again.observation is not None
    assert (again.observation.cgroups, again.agent) == ({path: seen}, agent)


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a document, of files and directories some only."""
    yield path
    if isinstance(value, dict):
        for number, (name, item) in enumerate(sorted(value.items())):
            if number < 3 or path not in {("machine", "files"), ("machine", "directories")}:
                yield from places(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value[:2]):
            yield from places(item, (*path, index))


def test_nothing_in_it_that_is_of_another_kind_is_more_than_an_error_that_names_the_file(
    document: dict[str, Any],
) -> None:
    strays, refused = [], 0
    for path in list(places(document))[1:]:
        parent: Any = document
        for step in path[:-1]:
            parent = parent[step]
        right = parent[path[-1]]
        for other in (None, True, -1, 1.5, "x", [], {}, [["x"]], {"x": None}):
            parent[path[-1]] = other
            try:
                found = decode_capture(json.dumps(document).encode(), "node.json")
                if isinstance(found, Capture):
                    topology_of(found.sample)
            except NodeAgentError as err:
                refused += 1
                strays += [] if "node.json" in err.message else [(path, err.message)]
        parent[path[-1]] = right
    assert strays == []
    assert refused > 500


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"atMs": -1}, "atMs: must be a whole number from 0, not -1"),
        ({"version": 2}, "format version 2 was written by a later nodeagent; this nodeagent reads versions up to 1"),
        ({"cgroups": {"a": {"cpu.weight": "heavy"}}}, "cpu.weight contains 'heavy'"),
        (
            {"cgroups": {"a": {"cpuset.cpus.effective": "1-"}}},
            "cgroups[a].cpuset.cpus.effective: must be a set of CPUs",
        ),
    ],
)
def test_what_does_not_fit_is_named(document: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(CaptureError) as caught:
        decoded(document | change)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("field", "allowed"),
    [
        ("cpuManagerPolicy", "none, static"),
        ("memoryManagerPolicy", "None, Static"),
        ("topologyManagerPolicy", "none, best-effort, restricted, single-numa-node"),
        ("topologyManagerScope", "container, pod"),
        ("isolatedCPUs", "ignore, prefer, only"),
        ("exclusiveCoreClass", "any, performance, efficiency"),
        ("sharedCoreClass", "any, performance, efficiency"),
        ("hostCoreClass", "any, performance, efficiency"),
    ],
)
def test_a_policy_that_is_none_is_refused(document: dict[str, Any], field: str, allowed: str) -> None:
    document["agent"]["config"][field] = "\x1b[2J"
    with pytest.raises(CaptureError) as caught:
        decoded(document)
    assert f'agent.config.{field}: must be one of {allowed}, not "\\u001b[2J"' in caught.value.message


def test_one_from_before_there_were_classes_of_cores_is_read(document: dict[str, Any]) -> None:
    expected = decoded(document)
    for field in ("exclusiveCoreClass", "sharedCoreClass", "hostCoreClass"):
        del document["agent"]["config"][field]
    assert decoded(document) == expected


HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x9b2J\u202e"


@pytest.mark.parametrize(
    "words",
    [
        "topology",
        "topology --color always",
        "inspect",
        "inspect -o wide",
        "inspect default/web",
        "release --all --dry-run",
        "explain default/web",
        "check",
        "config show",
    ],
)
def test_no_free_text_in_it_makes_a_terminal_act(
    words: str, document: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    agent = document["agent"]
    agent["problems"], agent["cgroupRoot"], document["kernel"] = [HOSTILE], HOSTILE, HOSTILE
    document["cgroupProblems"] = [HOSTILE]
    for entry in agent["state"]["entries"]:
        entry["source"] = HOSTILE
    hostile = tmp_path / f"{HOSTILE}.json"
    hostile.write_text(json.dumps(document))
    status = main([*words.split(), "--machine", str(hostile)])
    out, err = capfd.readouterr()
    assert (status in {0, 3}, err) == (True, "")
    assert not re.search("\x1b(?!\\[(0|3[0-9]|1;[39][0-9])m)|[\x07\x9b\u202e]", out + err)
