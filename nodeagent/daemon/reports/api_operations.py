"""Operations of the agent's API: read the state, check a configuration, retry or release pods. They run in the serving thread."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import Any

from nodeagent.daemon.start.node_builder import load_node
from nodeagent.daemon.start.reloading import check_takeover
from nodeagent.daemon.turn.agent import Agent
from nodeagent.daemon.turn.requests import TurnRequest
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.transport.local_api import LocalApi
from nodeagent.errors import NodeAgentError
from nodeagent.formats.manifest.pod_names import find_pod
from nodeagent.formats.node_view import NodeView, view_document
from nodeagent.formats.wire.api_messages import MAX_TURN_SECONDS

_MAX_WAITING = LocalApi.bounds.connections // 2
"""Maximum number of clients that wait for a turn. The other connections remain free for operations that don't wait."""


class ApiOperations:
    """Operations of the agent's API. Each is a method that gets the arguments of a request."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._encoded: tuple[NodeView, dict[str, object]] | None = None
        """Last encoded view, with the resulting document."""
        self._waiting = 0
        """Number of clients that wait for a turn."""

    def read_state(self, _: Mapping[str, Any]) -> dict[str, object]:
        """Return the state as a document. Each view is encoded only once, so that frequent requests take little CPU time from the deciding
        thread.
        """
        view = self._agent.view
        if self._encoded is None or self._encoded[0] is not view:
            self._encoded = view, view_document(view)
        return self._encoded[1]

    async def check_config(self, arguments: Mapping[str, Any]) -> dict[str, object]:
        """Check whether the agent could switch to this configuration now.

        If the argument `apply` is true, also make the agent reload its configuration file, and wait for the turn that does so.
        """
        view, path = self._agent.view, str(arguments.get("config"))
        try:
            await asyncio.to_thread(lambda: check_takeover(view.node, view.state, load_node(path)))
        except NodeAgentError:
            # if the agent's own file is invalid, the next turn shows the problem in the status line
            self._agent.wakeups.wake(WakeUpReason.CONFIGURATION)
            raise
        if arguments.get("apply") is True:
            await self._wait_for_turn(TurnRequest(), why=WakeUpReason.RELOAD)
        return {"config": path}

    async def retry(self, arguments: Mapping[str, Any]) -> dict[str, object]:
        """Have a refused pod, or the refused change of a running pod, decided again. `pod` is a UID, namespace/name or name."""
        entry = find_pod(self._agent.view.state, str(arguments.get("pod")))
        refusal = entry.refusal or entry.change_refusal
        of_containers = self._agent.view.state.runtime.refused_of(entry.pod.uid)
        if refusal is not None:
            reason = refusal.reason
        elif of_containers:
            reason = of_containers[0].reason.partition(":")[0]
        else:
            raise NodeAgentError(f"pod {entry.pod.full_name} is not refused", hint="see `nodeagent inspect`")
        await self._wait_for_turn(TurnRequest(retried=frozenset({entry.pod.uid})))
        return {"pod": entry.pod.full_name, "uid": entry.pod.uid, "refusedBefore": reason}

    async def release(self, arguments: Mapping[str, Any]) -> dict[str, object]:
        """End the named pods, or all pods, and keep their manifests. Each name is a UID, namespace/name or name."""
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
                f"{', '.join(others)}: only the container runtime can end its pods", hint="use `kubectl delete pod`"
            )
        released = [entry.pod.uid for entry in entries if entry.is_active]
        wait = arguments.get("waitSeconds")
        if released:
            await self._wait_for_turn(
                TurnRequest(released=frozenset(released)), wait if isinstance(wait, int | float) else inf
            )
        return {"released": released}

    async def _wait_for_turn(
        self, request: TurnRequest, wait_seconds: float = inf, why: WakeUpReason = WakeUpReason.REQUEST
    ) -> None:
        """Queue a request for the next turn, and wait until a turn has handled it. After a timeout, the request stays queued."""
        if self._waiting >= _MAX_WAITING:
            raise NodeAgentError(
                f"{self._waiting} requests already wait for the agent's next turn, so this request was not accepted",
                hint="try again in a second; `journalctl -u nodeagent` shows what delays the agent",
            )
        self._agent.requests.put(request)
        self._agent.wakeups.wake(why)
        self._waiting += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait_seconds, MAX_TURN_SECONDS)):
                    await asyncio.wrap_future(request.answer)
        finally:
            self._waiting -= 1
