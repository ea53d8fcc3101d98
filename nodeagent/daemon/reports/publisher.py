"""Server of the agent's sockets, in a separate thread: API, jobs, metrics, PodResources and device plugins."""

import os
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from msgspec.structs import replace

from nodeagent.core.model.config import Config
from nodeagent.core.model.problem_kinds import ProblemKind
from nodeagent.daemon.domains.jobs.job_queue import JobQueue
from nodeagent.daemon.domains.jobs.job_requests import JobRequests
from nodeagent.daemon.domains.jobs.jobs import Jobs
from nodeagent.daemon.domains.jobs.reservation_requests import ReservationRequests
from nodeagent.daemon.reports.api_operations import ApiOperations
from nodeagent.daemon.reports.exposition import CONTENT_TYPE
from nodeagent.daemon.reports.logs import Log
from nodeagent.daemon.reports.status import report_readiness
from nodeagent.daemon.turn.agent import Agent
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.observability.metrics_http import MetricsPages
from nodeagent.edge.processes.user_database import find_group_id
from nodeagent.edge.transport.listening import ListenError, listen
from nodeagent.edge.transport.local_api import LocalApi
from nodeagent.edge.transport.serving import Dialogue, Service, ServingThread
from nodeagent.formats.syntax.bind_address import BindAddress, UnixAddress, parse_bind_address

if TYPE_CHECKING:
    from nodeagent.daemon.plugins.device_plugins import DevicePlugins

API_SOCKET = "agent.sock"
JOB_SOCKET = "jobs.sock"
GROUP = "nodeagent"


class _Unopened(NamedTuple):
    """Service whose socket isn't open yet."""

    address: BindAddress
    service: Service | Dialogue
    field: str
    """Name of the configuration field that contains the address."""
    group: int | None
    """ID of the group whose members may connect. None means that only the agent's user may connect."""
    problem: str = ""
    """Reason why the last attempt to open the socket failed. Empty means that there was no attempt."""


class _JobApi(LocalApi):
    """API that allows many connections, because each queued job keeps one open (`Limits.queued`)."""

    bounds = replace(LocalApi.bounds, connections=192)


class Publisher:
    """Context manager that serves all of the agent's sockets during the `with` block."""

    def __init__(
        self,
        agent: Agent,
        config: Config,
        log: Log,
        jobs: Jobs | None = None,
        plugins: "DevicePlugins | None" = None,
    ) -> None:
        self._agent = agent
        self._plugins = plugins
        """Registry of device plugins. None means that device plugins aren't configured."""
        self._jobs = jobs
        """Source of jobs. None means that nobody can request jobs."""
        self._queue = None if jobs is None else JobQueue(jobs, agent)
        self._config = config
        self._log = log
        self._thread = ServingThread(self._report_failure)
        self._group_problem = ""
        """Text about a missing group (`jobs.group`), whose members could run jobs. Empty means that the group exists or isn't configured.

        """
        self._unopened: dict[str, _Unopened] = {}
        """Services whose sockets aren't open yet, by name."""

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self._thread.stop)
            group, operations = find_group_id(GROUP), ApiOperations(self._agent)
            api = _JobApi(
                reads={"state": operations.read_state},
                writes={"retry": operations.retry, "release": operations.release, "judge": operations.check_config},
                owner=os.geteuid(),
                group=group,
            )
            address = UnixAddress(f"{self._config.runtime_directory}/{API_SOCKET}")
            self._unopened["the agent's socket"] = _Unopened(address, api, "runtimeDirectory", group)
            if self._jobs is not None and self._queue is not None:
                self._unopened["jobs"] = self._job_service(self._jobs, self._queue)
            if self._config.metrics_bind_address:
                pages = MetricsPages(
                    metrics=self._render_metrics,
                    content_type=CONTENT_TYPE,
                    checks={"/healthz": lambda: (True, "ok"), "/readyz": lambda: report_readiness(self._agent.view)},
                )
                at = parse_bind_address(self._config.metrics_bind_address)
                self._unopened["metrics"] = _Unopened(at, pages, "metricsBindAddress", group)
            if self._config.pod_resources_socket:
                from nodeagent.daemon.reports.pod_resources import PodResources  # noqa: PLC0415 - megabytes that most agents need not have

                served = PodResources(lambda: self._agent.view, self._agent.metrics.served)
                dialogue = served.dialogue(lambda err: self._report_failure("answering a call", err))
                at = UnixAddress(self._config.pod_resources_socket)
                self._unopened["pod resources"] = _Unopened(at, dialogue, "podResourcesSocket", group)
            if self._plugins is not None:
                dialogue = self._plugins.dialogue(lambda err: self._report_failure("answering a device plugin", err))
                at = UnixAddress(self._config.device_plugin_socket)
                self._unopened["device plugins"] = _Unopened(at, dialogue, "devicePluginSocket", None)
                undo.callback(self._plugins.close)
            self._undo = undo.pop_all()
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._agent.requests.close()
        self._undo.close()

    def listen(self) -> tuple[Problem, ...]:
        """Try to open each socket that isn't open yet, and return the problems. Each turn calls this method, so failures are retried."""
        for what, unopened in tuple(self._unopened.items()):
            try:
                listener = listen(unopened.address, group=unopened.group, field=unopened.field)
                server = self._thread.serve(listener, unopened.service)
            except ListenError as err:
                if not unopened.problem:
                    self._log.error("not_served", what=what, problem=err.message, hint=err.hint)
                self._unopened[what] = unopened._replace(problem=f"{what}: {err.message} ({err.hint})")
                continue
            self._undo.callback(server.close)
            del self._unopened[what]
            if unopened.problem:
                self._log.info("served_again", what=what)
        problems = (self._group_problem, *(unopened.problem for unopened in self._unopened.values()))
        return tuple(Problem(text, kind=ProblemKind.SERVICE) for text in problems if text)

    async def _render_metrics(self) -> bytes:
        metrics = self._agent.metrics
        if self._queue is not None:
            metrics.latest_starts = await self._queue.measure_starts()
        return metrics.exposition.text()

    def _job_service(self, jobs: Jobs, queue: JobQueue) -> _Unopened:
        """Create the service for jobs. Its socket isn't the API's, because users who may run jobs may not read the whole state."""
        configured, requests = self._config.jobs, JobRequests(jobs, self._agent)
        reserving = ReservationRequests(jobs.reservations, requests, queue)
        group = None if configured is None else find_group_id(configured.group)
        if configured is not None and group is None:
            self._group_problem = f"there is no group {configured.group} (jobs.group): only root may run jobs"
        api = LocalApi(
            reads={},
            writes={},
            owner=os.geteuid(),
            group=group,
            open_to_all={
                "job": requests.answer,
                "job-released": requests.answer_release,
                "queue": queue.answer,
                "reserve": reserving.answer,
                "cancel-reservation": reserving.answer_cancel,
            },
        )
        address = UnixAddress(f"{self._config.runtime_directory}/{JOB_SOCKET}")
        return _Unopened(address, api, "runtimeDirectory", group)

    def _report_failure(self, doing: str, err: BaseException | None) -> None:
        self._log.error("serving_failed", doing=doing, problem=str(err))
