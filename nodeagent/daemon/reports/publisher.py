"""What clients can query from the running agent: its own API, the metrics and PodResources, served beside the deciding thread."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from nodeagent.core.model.config import Config
from nodeagent.daemon.domains.jobs.job_requests import JobRequests
from nodeagent.daemon.domains.jobs.jobs import Jobs
from nodeagent.daemon.reports.logs import Log
from nodeagent.daemon.start.reloading import check_takeover
from nodeagent.daemon.start.startup import load_node
from nodeagent.daemon.turn.agent import Agent
from nodeagent.daemon.turn.requests import TurnRequest
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.observability.metrics import CONTENT_TYPE
from nodeagent.edge.observability.metrics_http import MetricsPages
from nodeagent.edge.processes.user_database import find_group_id
from nodeagent.edge.transport.listening import ListenError, listen
from nodeagent.edge.transport.local_api import LocalApi
from nodeagent.edge.transport.serving import Dialogue, Service, ServingThread
from nodeagent.errors import NodeAgentError
from nodeagent.formats.manifest.pod_names import find_pod
from nodeagent.formats.node_view import NodeView, view_document
from nodeagent.formats.syntax.bind_address import BindAddress, UnixAddress, parse_bind_address
from nodeagent.formats.wire.api_messages import MAX_TURN_SECONDS

API_SOCKET = "agent.sock"
JOB_SOCKET = "jobs.sock"
if TYPE_CHECKING:
    from nodeagent.daemon.plugins.device_plugins import DevicePlugins

GROUP = "nodeagent"
_MOST_ASKING = LocalApi.bounds.connections // 2
"""Clients that wait for a turn. The other places stay for those who are answered at once."""


class _Unheard(NamedTuple):
    """A socket that could not be opened yet."""

    address: BindAddress
    service: Service | Dialogue
    field: str
    """The configuration's, for another address."""
    group: int | None
    """Whose members may connect besides the owner; None: nobody else."""
    problem: str = ""
    """Why it could not be opened the last time. Empty means that it was not tried yet."""


def unready(view: NodeView) -> str | None:
    """Return why `/readyz` answers no; None: it answers yes."""
    return None if view.is_ready else "; ".join(view.problems) or "the first reconcile is not finished"


class Publisher:
    """Serves while the `with` block runs."""

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
        """None: none may register."""
        self._jobs = jobs
        """None: nobody can ask for any."""
        self._config = config
        self._log = log
        self._thread = ServingThread(self._failed)
        self._group: int | None = None
        self._group_problem = ""
        """The problem with the group that may run jobs. Empty means that there is none."""
        self._unheard: dict[str, _Unheard] = {}
        """By what they serve."""
        self._spelt_of: NodeView | None = None
        self._spelt: dict[str, object] = {}
        """The last view asked for, in the serving thread."""
        self._asking = 0
        """Clients that wait for a turn, in the serving thread."""

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self._thread.stop)
            self._group = find_group_id(GROUP)
            api = LocalApi(
                reads={"state": self._state},
                writes={"retry": self._retry, "release": self._release, "judge": self._judge},
                owner=os.geteuid(),
                group=self._group,
            )
            address = UnixAddress(f"{self._config.runtime_directory}/{API_SOCKET}")
            self._unheard["the agent's socket"] = _Unheard(address, api, "runtimeDirectory", self._group)
            if self._jobs is not None:
                self._unheard["jobs"] = self._job_service(self._jobs)
            if self._config.metrics_bind_address:
                pages = MetricsPages(
                    metrics=self._agent.metrics.exposition.text,
                    content_type=CONTENT_TYPE,
                    checks={"/healthz": lambda: None, "/readyz": lambda: unready(self._agent.view)},
                )
                at = parse_bind_address(self._config.metrics_bind_address)
                self._unheard["metrics"] = _Unheard(at, pages, "metricsBindAddress", self._group)
            if self._config.pod_resources_socket:
                self._unheard["pod resources"] = self._pod_resources(self._config.pod_resources_socket)
            if self._plugins is not None:
                dialogue = self._plugins.dialogue(lambda err: self._failed("answering a device plugin", err))
                at = UnixAddress(self._config.device_plugin_socket)
                self._unheard["device plugins"] = _Unheard(at, dialogue, "devicePluginSocket", None)
                undo.callback(self._plugins.close)
            self._undo = undo.pop_all()
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._agent.requests.close()
        self._undo.close()

    def listen(self) -> tuple[str, ...]:
        """Serve what isn't served yet, and return the problems with that. An address that can't be bound is retried: pods come first."""
        for what, unheard in tuple(self._unheard.items()):
            try:
                listener = listen(unheard.address, group=unheard.group, field=unheard.field)
                server = self._thread.serve(listener, unheard.service)
            except ListenError as err:
                if not unheard.problem:
                    self._log.error("not_served", what=what, problem=err.message, hint=err.hint)
                self._unheard[what] = unheard._replace(problem=f"{what}: {err.message} ({err.hint})")
                continue
            self._undo.callback(server.close)
            del self._unheard[what]
            if unheard.problem:
                self._log.info("served_again", what=what)
        problems = (self._group_problem, *(unheard.problem for unheard in self._unheard.values()))
        return tuple(filter(None, problems))

    def _job_service(self, jobs: Jobs) -> _Unheard:
        """A socket of its own: who may run jobs need not see the node's state, and who sees it may run none."""
        configured = self._config.jobs
        group = None if configured is None else find_group_id(configured.group)
        if configured is not None and group is None:
            self._group_problem = f"there is no group {configured.group} (jobs.group): only root may run jobs"
        api = LocalApi(
            reads={},
            writes={},
            owner=os.geteuid(),
            group=group,
            open_to_all={"job": JobRequests(jobs, self._agent).answer},
        )
        address = UnixAddress(f"{self._config.runtime_directory}/{JOB_SOCKET}")
        return _Unheard(address, api, "runtimeDirectory", group)

    def _pod_resources(self, path: str) -> _Unheard:
        from nodeagent.daemon.reports.pod_resources import PodResources  # noqa: PLC0415 - megabytes that most agents need not have

        served = PodResources(lambda: self._agent.view, self._agent.metrics.served)
        dialogue = served.dialogue(lambda err: self._failed("answering a call", err))
        return _Unheard(UnixAddress(path), dialogue, "podResourcesSocket", self._group)

    def _failed(self, doing: str, err: BaseException | None) -> None:
        self._log.error("serving_failed", doing=doing, problem=str(err))

    def _state(self, _: Mapping[str, Any]) -> dict[str, object]:
        """Spell each view once: a flood of requests must not take the deciding thread's time."""
        view = self._agent.view
        if view is not self._spelt_of:
            self._spelt, self._spelt_of = view_document(view), view
        return self._spelt

    async def _judge(self, arguments: Mapping[str, Any]) -> dict[str, object]:
        """Say whether a configuration could be taken over now, with the pods there are; nothing is taken over."""
        view, path = self._agent.view, str(arguments.get("config"))
        await asyncio.to_thread(lambda: check_takeover(view.node, view.state, load_node(path)))
        return {"config": path}

    async def _retry(self, arguments: Mapping[str, Any]) -> dict[str, object]:
        """Decide again on a refused pod, or on a refused change of one, named by uid, namespace/name or name."""
        entry = find_pod(self._agent.view.state, str(arguments.get("pod")))
        refusal = entry.refusal or entry.change_refusal
        of_containers = self._agent.view.state.runtime.refused_of(entry.pod.uid)
        if refusal is not None:
            reason = refusal.reason
        elif of_containers:
            reason = of_containers[0].reason.partition(":")[0]
        else:
            raise NodeAgentError(f"pod {entry.pod.full_name} is not refused", hint="see `nodeagent inspect`")
        await self._ask(TurnRequest(retried=frozenset({entry.pod.uid})))
        return {"pod": entry.pod.full_name, "uid": entry.pod.uid, "refusedBefore": reason}

    async def _release(self, arguments: Mapping[str, Any]) -> dict[str, object]:
        """End pods, named by uid, namespace/name or name, or all there are, although their manifests are there."""
        state = self._agent.view.state
        names = arguments.get("pods")
        if arguments.get("all") is True:
            entries = list(state.own_entries())
        elif isinstance(names, list) and names:
            entries = [find_pod(state, str(name)) for name in names]
        else:
            raise NodeAgentError("no pods were named", hint="name them: `nodeagent release POD…`, or `--all`")
        if others := [entry.pod.full_name for entry in entries if entry.is_requested_per_container]:
            raise NodeAgentError(
                f"{', '.join(others)}: a container runtime's, which alone ends it", hint="`kubectl delete pod`"
            )
        released = [entry.pod.uid for entry in entries if entry.is_active]
        wait = arguments.get("waitSeconds")
        if released:
            await self._ask(TurnRequest(released=frozenset(released)), wait if isinstance(wait, int | float) else inf)
        return {"released": released}

    async def _ask(self, request: TurnRequest, wait_seconds: float = inf) -> None:
        """Have a turn take up a request, and wait for its end. If none comes in time, one will take it up later all the same."""
        if self._asking >= _MOST_ASKING:
            raise NodeAgentError(
                f"{self._asking} requests wait for the agent's next turn already, and nothing was noted",
                hint="try again in a second; `journalctl -u nodeagent` says what holds the agent up",
            )
        self._agent.requests.put(request)
        self._agent.wakeups.wake(WakeUpReason.REQUEST)
        self._asking += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait_seconds, MAX_TURN_SECONDS)):
                    await asyncio.wrap_future(request.answer)
        finally:
            self._asking -= 1
