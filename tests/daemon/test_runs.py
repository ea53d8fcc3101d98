"""From a manifest to the process that the launcher starts: ids, strings and output, with a launcher of the test's own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.model.config import Config
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import qos_class
from nodeagent.core.model.quiet import ProcessSettings
from nodeagent.core.model.state import ContainerStatus, Origin, PodEntry, run_id
from nodeagent.core.turn.actions import Launch, find_process_settings
from nodeagent.core.turn.lifecycle import Run
from nodeagent.daemon.turn.problem import Problem
from nodeagent.daemon.turn.runs import Runner
from nodeagent.formats.manifest.pod_manifest import ManifestPod, parse_manifest
from nodeagent.formats.manifest.variables import MAX_PROCESS_BYTES
from nodeagent.formats.wire.launcher_protocol import DEFAULT_PATH
from nodeagent.launcher.order import ID
from tests.support.launcher_process import LauncherProcess
from tests.support.protos import generated

MESSAGES = generated("device_plugins")[0]

PLACEMENT = ContainerPlacement(CpuSet.parse("2-3,10-11"), CpuSet(), NumaSet.of(1))
LAST_MOMENT_MS = 16**11 - 1
"""In the year 2527: the last one of 11 hexadecimal digits."""


@dataclass
class Host:
    """What the deciding thread has at hand: a launcher that serves directories for cgroups, and no journal."""

    launcher: LauncherProcess
    logs: Path

    def launched(self, manifest: str) -> tuple[Launch, Runner]:
        """Start the manifest's only container."""
        launch = first_attempt(manifest)
        cgroup = self.launcher.directory / "cgroup" / launch.path / "payload"
        cgroup.mkdir(parents=True)
        (cgroup / "cgroup.procs").touch()
        runner = Runner(self.launcher.client)
        assert runner.launch(launch, Config(log_directory=str(self.logs)), str(self.launcher.root)) is None
        return launch, runner

    def output(self) -> str:
        [log] = self.logs.rglob("*.log")
        return log.read_text()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    launcher = LauncherProcess(tmp_path, tmp_path / "cgroup")
    launcher.run()
    yield Host(launcher, tmp_path / "logs" / "pods")
    launcher.clean_up()


def first_attempt(manifest: str, attempt: int = 1) -> Launch:
    [result] = parse_manifest(manifest.encode(), "pod.yaml")
    assert isinstance(result, ManifestPod), result
    [container] = result.pod.containers
    status = ContainerStatus(container.name, attempt=attempt)
    qos = qos_class(result.pod, pod_level_resources=False)
    entry = PodEntry(result.pod, qos, Origin("pod.yaml"), LAST_MOMENT_MS, containers=(status,))
    return Launch(run_id(entry, status), entry, container, entry.container_path(container.name), PLACEMENT)


def pod_with(container: str, *, name: str = "web", namespace: str = "default", uid: str = "0c5d7a52") -> str:
    metadata = f"{{name: {name}, namespace: {namespace}, uid: {uid}}}"
    return f"apiVersion: v1\nkind: Pod\nmetadata: {metadata}\nspec:\n  containers: [{container}]\n"


LONGEST = pod_with(
    f"{{name: {'c' * 63}, command: [echo, hello]}}",
    uid="U" * 128,
    name=".".join(["n" * 62] * 4),
    namespace="s" * 63,
)


def test_the_longest_legal_names_are_started_and_found_again(host: Host) -> None:
    launch, runner = host.launched(LONGEST)
    end = host.launcher.end_of(launch.run_id)
    assert end.exit_code == 0
    runs = runner.look()
    assert isinstance(runs, Mapping)
    assert set(runs) == {launch.run_id}
    assert host.output() == "hello\n"
    assert runner.forget((launch.run_id,)) is None
    assert runner.look() == {}


@pytest.mark.parametrize("uid", ["U" * 128, "U" * 37, "U" * 36, "0c5d7a52-1111-2222-3333-444455556666"])
def test_every_legal_id_is_one_that_the_launcher_takes(uid: str) -> None:
    launch = first_attempt(pod_with(f"{{name: {'c' * 63}, command: [x]}}", uid=uid), attempt=9_999_999)
    assert ID.fullmatch(launch.run_id), f"{len(launch.run_id)} characters"


def test_ids_of_long_uids_differ_where_the_uids_do() -> None:
    ids = {
        first_attempt(pod_with("{name: c, command: [x]}", uid=uid)).run_id for uid in ("U" * 127 + "1", "U" * 127 + "2")
    }
    assert len(ids) == 2


def test_references_are_replaced_in_what_is_started(host: Host) -> None:
    container = """{name: c, command: [printf, "%s|"], args: [$(HELLO), $(WHOLE), $$(HELLO), $(NOPE)],
      env: [{name: HELLO, value: hi}, {name: WHOLE, value: "$(HELLO) you"}]}"""
    launch, _ = host.launched(pod_with(container))
    assert host.launcher.end_of(launch.run_id).exit_code == 0
    assert host.output() == "hi|hi you|$(HELLO)|$(NOPE)|"


def test_where_it_runs_is_in_its_environment_beside_the_manifests(host: Host) -> None:
    told = 'command: [sh, -c, "env | sort | grep -v ^PWD; echo $0", $(NODEAGENT_EXCLUSIVE_CPUS)]'
    container = f"{{name: c, {told}, env: [{{name: A, value: b}}]}}"
    launch, _ = host.launched(pod_with(container))
    assert host.launcher.end_of(launch.run_id).exit_code == 0
    assert host.output().splitlines() == [
        "A=b",
        "NODEAGENT_EXCLUSIVE_CPUS=2-3,10-11",
        "NODEAGENT_MEMORY_NODES=1",
        "NODEAGENT_PLACEMENT_FILE=/run/nodeagent/placement/0c5d7a52/c",
        "NODEAGENT_SHARED_CPUS=",
        "2-3,10-11",
    ]


def test_a_start_that_fails_is_a_run_that_ended(host: Host) -> None:
    launch, runner = host.launched(pod_with("{name: c, command: [/nonexistent/program]}"))
    runs = runner.look()
    assert isinstance(runs, Mapping)
    assert reason(runs[launch.run_id]) == "exec: cannot run '/nonexistent/program': No such file or directory"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            "command: [no-such-program]",
            f"exec: there is no program 'no-such-program' in PATH {DEFAULT_PATH}",
        ),
        (
            "command: [sh], env: [{name: PATH, value: /nonexistent}]",
            "exec: there is no program 'sh' in the PATH from its env",
        ),
        ("command: [sh], workingDir: /nonexistent", "cwd: cannot enter '/nonexistent': No such file or directory"),
    ],
)
def test_what_is_missing_for_a_start_is_named(host: Host, fields: str, why: str) -> None:
    launch, runner = host.launched(pod_with(f"{{name: c, {fields}}}"))
    runs = runner.look()
    assert isinstance(runs, Mapping)
    assert reason(runs[launch.run_id]) == why


def test_a_start_whose_cgroup_is_not_fit_for_it_is_a_problem_and_tried_again(host: Host) -> None:
    launch = first_attempt(pod_with("{name: c, command: [echo, hello]}"))
    runner, config = Runner(host.launcher.client), Config(log_directory=str(host.logs))
    problem = runner.launch(launch, config, str(host.launcher.root))
    assert problem is not None
    assert problem.log_fields == {"pod": "default/web", "pod_uid": launch.entry.pod.uid, "container": "c"}
    assert problem.startswith(f"cannot start default/web c in {host.launcher.root}/{launch.path}/payload: No such file")
    assert runner.look() == {}, "it is no end of the container's: nothing was started"
    cgroup = host.launcher.directory / "cgroup" / launch.path / "payload"
    cgroup.mkdir(parents=True)
    (cgroup / "cgroup.procs").touch()
    assert runner.launch(launch, config, str(host.launcher.root)) is None
    assert host.launcher.end_of(launch.run_id).exit_code == 0


def test_a_setting_that_the_kernel_refuses_is_named(host: Host) -> None:
    launch = first_attempt(pod_with("{name: c, command: [x]}"))
    asked = replace(launch.entry.pod, process=ProcessSettings(scheduler="fifo:100", nice=19))
    launch = replace(launch, entry=replace(launch.entry, pod=asked))
    cgroup = host.launcher.directory / "cgroup" / launch.path / "payload"
    cgroup.mkdir(parents=True)
    (cgroup / "cgroup.procs").touch()
    runner = Runner(host.launcher.client)
    assert runner.launch(launch, Config(log_directory=str(host.logs)), str(host.launcher.root)) is None
    runs = runner.look()
    assert isinstance(runs, Mapping)
    why = "settings: the process cannot get scheduler=fifo:100, nice=19: Invalid argument"
    assert reason(runs[launch.run_id]) == why


@pytest.mark.parametrize(
    ("exclusive", "shared", "scheduler"), [("2-3", "", "rr:1"), ("2-3", "0-1", None), ("", "0-1", None)]
)
def test_only_a_container_that_has_no_other_cpus_than_its_own_has_a_real_time_policy(
    exclusive: str, shared: str, scheduler: str | None
) -> None:
    launch = first_attempt(pod_with("{name: c, command: [x]}"))
    asked = replace(launch.entry.pod, process=ProcessSettings(scheduler="rr:1", nice=5))
    placement = ContainerPlacement(CpuSet.parse(exclusive), CpuSet.parse(shared), NumaSet.of(0))
    launch = replace(launch, entry=replace(launch.entry, pod=asked), placement=placement)
    assert find_process_settings(launch, Config()) == ProcessSettings(scheduler=scheduler, nice=5)


def test_a_pod_of_before_the_bound_on_its_strings_fails_to_start(host: Host) -> None:
    launch = first_attempt(pod_with("{name: c, command: [x]}"))
    launch = replace(launch, container=replace(launch.container, args=("x" * MAX_PROCESS_BYTES,)))
    runner = Runner(host.launcher.client)
    assert runner.launch(launch, Config(), "/sys/fs/cgroup") is None
    runs = runner.look()
    assert isinstance(runs, Mapping)
    assert reason(runs[launch.run_id]) == "command, args and env are too long: change the manifest"


def test_a_container_whose_plugins_answer_is_damaged_fails_to_start(host: Host) -> None:
    """As one that was read from another program's file when the state was lost."""
    launch = first_attempt(pod_with("{name: c, command: [x]}"))
    launch = replace(launch, placement=replace(PLACEMENT, device_answers=(("example.com/gpu", b"\x0a\x7f"),)))
    runner = Runner(host.launcher.client)
    assert runner.launch(launch, Config(), "/sys/fs/cgroup") is None
    runs = runner.look()
    assert isinstance(runs, Mapping)
    assert (reason(runs[launch.run_id]) or "").startswith("invalid answer of a device plugin: ")


def test_runs_are_one_value_until_one_of_them_changes(host: Host) -> None:
    runner, client = Runner(host.launcher.client), host.launcher.client
    host.launcher.start("uid/a/1", "sleep", "1000")
    runs = runner.look()
    assert isinstance(runs, Mapping)
    assert runner.look() is runs
    host.launcher.start("uid/b/1", "true")
    host.launcher.end_of("uid/b/1")
    more = runner.look()
    assert isinstance(more, Mapping)
    assert more.keys() == {"uid/a/1", "uid/b/1"}
    assert more["uid/a/1"] is runs["uid/a/1"]
    assert client.ack(("uid/b/1",)) == ("uid/b/1",)
    assert runner.look() == runs
    host.launcher.kill()
    assert isinstance(runner.look(), Problem)
    host.launcher.run()
    assert runner.look() == runs


def test_variables_of_devices_that_the_launcher_cannot_take_fail_the_start_and_are_named(host: Host) -> None:
    launch = first_attempt(pod_with("{name: c, command: [x]}"))
    resources = [f"example.com/gpu{n}" for n in range(8)]
    answers = tuple(
        (resource, MESSAGES.ContainerAllocateResponse(envs={f"V{n}": "x" * 30_000}).SerializeToString())
        for n, resource in enumerate(resources)
    )
    devices = tuple(HeldDevice(resource, "a") for resource in resources)
    launch = replace(launch, placement=replace(PLACEMENT, device_answers=answers, devices=devices))
    runner = Runner(host.launcher.client)
    assert runner.launch(launch, Config(), "/sys/fs/cgroup") is None
    runs = runner.look()
    assert isinstance(runs, Mapping)
    why = reason(runs[launch.run_id]) or ""
    assert why.endswith(f"the variables of its devices are too long ({', '.join(resources)})"), why


def reason(run: Run) -> str | None:
    assert run.exit is not None
    return run.exit.start_error
