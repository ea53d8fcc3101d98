"""Client of the launcher for the deciding thread. It starts and signals processes, and reads the launcher's runs.

If the launcher doesn't answer, the methods return a problem instead of raising an exception, because the turn goes on.
"""

import errno
import time
from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Struct, to_builtins

from nodeagent.core.model.cgroup_layout import payload_path
from nodeagent.core.model.config import Config
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.state import Exit
from nodeagent.core.turn.actions import Launch, find_process_settings
from nodeagent.core.turn.lifecycle import Run
from nodeagent.daemon.reports.logs import pod_fields
from nodeagent.daemon.turn.placements import placement_file
from nodeagent.daemon.turn.problem import Problem, problem_if_failed
from nodeagent.edge.processes.launcher import LauncherClient, LauncherError
from nodeagent.formats.manifest.placement_variables import PLACEMENT_FILE, placement_variables
from nodeagent.formats.manifest.variables import expand_process
from nodeagent.formats.wire.launcher_protocol import (
    DEFAULT_PATH,
    MAX_REQUEST_BYTES,
    Exited,
    Killed,
    Returned,
    RunStatus,
    StartFailed,
    StartRequest,
    StartStage,
    encode_start,
)

START_ERROR_CODE = 128
"""Exit code of a container whose process could not be started, as in container runtimes (kubelet: StartError)."""
_SIGTERM = 15
_SIGKILL = 9


class Unprepared(Struct, frozen=True):
    """Reason why device plugins have not prepared a container's devices."""

    why: str
    is_postponed: bool = False
    """Whether a plugin just hasn't answered yet. Its answer will wake the agent. Otherwise, the preparation has failed."""


class Runner:
    """Client of the launcher. Methods that change something return a problem, or None after success."""

    def __init__(
        self, client: LauncherClient, prepare: Callable[[tuple[HeldDevice, ...]], Unprepared | None] = lambda _: None
    ) -> None:
        self._client = client
        self._prepare = prepare
        """Function that has the device plugins prepare a container's devices. Its result is None if they are ready."""
        self._token = ""
        """Token from the launcher's last answer. The agent sends it back, so that the launcher answers with the changes since then."""
        self._listed: Mapping[str, Run] = {}
        """Runs as listed by the launcher, by run ID. The mapping stays the same object until a run changes."""
        self._started: dict[str, Run] = {}
        """Runs that were started after the launcher's last list."""
        self._failed: dict[str, Run] = {}
        """Runs whose start failed, by run ID. They are kept here because the launcher doesn't record failed starts."""

    def look(self) -> Mapping[str, Run] | Problem:
        """Return all runs by run ID, or a problem if the launcher doesn't answer."""
        try:
            changes = self._client.list_changes(self._token)
        except LauncherError as err:
            return Problem.from_error(err)
        changed = {status.id: _run_of_status(status) for status in changes.statuses}
        if changes.is_whole or changes.gone or not changed.items() <= self._listed.items():
            listed = {} if changes.is_whole else dict(self._listed)
            for run_id in changes.gone:
                listed.pop(run_id, None)
            self._listed = listed | changed
        self._token, self._started = changes.token, {}
        self._failed = {id_: run for id_, run in self._failed.items() if id_ not in self._listed}
        return self._list_all()

    def list_with_started(self) -> Mapping[str, Run] | None:
        """Return the runs of the launcher's last list, and those started since then. None means that none were started."""
        if not self._started:
            return None
        self._listed, self._started = {**self._listed, **self._started}, {}
        return self._list_all()

    def _list_all(self) -> Mapping[str, Run]:
        return {**self._listed, **self._failed} if self._failed else self._listed

    def launch(self, launch: Launch, config: Config, cgroup_root: str) -> Problem | None:
        pod, container = launch.entry.pod, launch.container
        file = placement_file(config, launch.entry, container.name)
        unprepared = self._prepare(launch.placement.devices) if launch.placement.devices else None
        if unprepared is not None and unprepared.is_postponed:
            return None
        if unprepared is not None:
            self._fail(launch.run_id, unprepared.why)
            return None
        plugin_variables = _find_plugin_variables(launch)
        if isinstance(plugin_variables, str):
            self._fail(launch.run_id, plugin_variables)
            return None
        process = expand_process(
            container, (*plugin_variables, *placement_variables(launch.placement), (PLACEMENT_FILE, file))
        )
        if process is None:  # Manifests with longer values are refused, so only a pod from an old state can have them.
            self._fail(launch.run_id, "command, args and env are too long: change the manifest")
            return None
        # each part of the path is a valid file name
        log_file = f"{config.log_directory}/{pod.namespace}/{pod.name}/{pod.uid}/{container.name}.log"
        request = StartRequest(
            id=launch.run_id,
            cgroup=f"{cgroup_root}/{payload_path(launch.path)}",
            argv=process.argv,
            env=process.env,
            cwd=container.working_dir or "/",
            uid=container.run_as_user,
            gid=container.run_as_group,
            identifier=f"{pod.name}/{container.name}",
            log_file=log_file,
            grace_seconds=pod.termination_grace_seconds,
            settings=tuple(to_builtins(find_process_settings(launch, config)).items()),
        )
        size = len(encode_start(request))
        if size > MAX_REQUEST_BYTES:
            resources = ", ".join(sorted({device.resource for device in launch.placement.devices}))
            why = f"its start request of {size} bytes exceeds the limit of {MAX_REQUEST_BYTES}: the variables of its devices are too long"
            self._fail(launch.run_id, f"{why} ({resources})")
            return None
        try:
            answer = self._client.start(request)
        except LauncherError as err:
            return Problem.from_error(err)
        if isinstance(answer, StartFailed) and answer.stage is StartStage.CGROUP:
            # The failure isn't specific to the container, so the container waits until its cgroup is ready.
            why = f"cannot start {pod.full_name} {container.name} in {request.cgroup}: {answer.message}"
            advice = "another program may have changed or removed that cgroup: see cgroup.type and cpuset.cpus.effective there"
            return Problem(f"{why} ({advice})", pod_fields(pod, container.name))
        if isinstance(answer, StartFailed):
            self._fail(launch.run_id, _describe_failure(answer, request))
        else:
            self._started[answer.id] = _run_of_status(answer)
        return None

    def _fail(self, run_id: str, why: str) -> None:
        now_ms = time.time_ns() // 1_000_000
        self._failed[run_id] = Run(run_id, now_ms, exit=Exit(now_ms, code=START_ERROR_CODE, start_error=why))

    def terminate(self, run_id: str) -> Problem | None:
        return problem_if_failed(partial(self._client.signal, run_id, _SIGTERM))

    def kill(self, run_id: str) -> Problem | None:
        return problem_if_failed(partial(self._client.signal, run_id, _SIGKILL))

    def forget(self, run_ids: tuple[str, ...]) -> Problem | None:
        for run_id in run_ids:
            self._failed.pop(run_id, None)
        return problem_if_failed(partial(self._client.ack, run_ids))


def _find_plugin_variables(launch: Launch) -> tuple[tuple[str, str], ...] | str:
    """Return the environment variables that device plugins request for a container. If an answer can't be decoded, return a text that says
    so.
    """
    if not launch.placement.device_answers:
        return ()
    from nodeagent.formats.wire.device_plugins import container_variables  # noqa: PLC0415 - few containers have such devices
    from nodeagent.formats.wire.protobuf import ProtobufError  # noqa: PLC0415 - as above

    try:
        return container_variables(launch.placement.device_answers, {name for name, _ in launch.container.env})
    # the plugin's answer was checked when it was received, but this copy was read from a file
    except ProtobufError as err:
        return f"invalid answer of a device plugin: {err}"


def _describe_failure(failed: StartFailed, request: StartRequest) -> str:
    """Describe which step of a start failed and why, with the program, and the PATH if the program wasn't found there."""
    match failed.stage:
        case StartStage.EXEC if failed.errno == errno.ENOENT and "/" not in request.argv[0]:
            # variables of a container are confidential, even its PATH, so their values aren't shown
            path = "the PATH from its env" if "PATH" in dict(request.env) else f"PATH {DEFAULT_PATH}"
            return f"{failed.stage}: there is no program '{request.argv[0]}' in {path}"
        case StartStage.EXEC:
            return f"{failed.stage}: cannot run '{request.argv[0]}': {failed.message}"
        case StartStage.CWD:
            return f"{failed.stage}: cannot enter '{request.cwd}': {failed.message}"
        case StartStage.SETTINGS:
            settings = ", ".join(f"{name}={str(value).lower()}" for name, value in request.settings)
            return f"{failed.stage}: the process cannot get {settings}: {failed.message}"
        case stage:
            return f"{stage}: {failed.message}"


def _run_of_status(status: RunStatus) -> Run:
    if not isinstance(status, Exited):
        return Run(status.id, status.started_at_ms, pid=status.pid, start_ticks=status.start_ticks)
    match status.end:
        case Returned(code):
            ended = Exit(status.finished_at_ms, code=code)
        case Killed(signal):
            ended = Exit(status.finished_at_ms, signal=signal)
        case _:
            ended = Exit(status.finished_at_ms)
    return Run(status.id, status.started_at_ms, exit=ended)
