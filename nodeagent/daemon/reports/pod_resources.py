"""kubelet's PodResources API. The serving thread answers the calls from the published view, with the same rate limit and metrics as
kubelet.
"""

import time
from collections.abc import Callable

from nodeagent.core.metrics import agent_metrics as names
from nodeagent.core.metrics.deltas import Series
from nodeagent.daemon.turn.machine import node_name
from nodeagent.edge.transport.grpc_server import GrpcServer, Method
from nodeagent.edge.transport.serving import Dialogue
from nodeagent.formats.node_view import NodeView
from nodeagent.formats.wire.grpc_messages import CallError, Status
from nodeagent.formats.wire.pod_resources import (
    ALLOCATABLE_REQUEST,
    ALLOCATABLE_RESPONSE,
    GET_REQUEST,
    GET_RESPONSE,
    LIST_REQUEST,
    LIST_RESPONSE,
    SERVICE,
    find_pod_message,
    list_allocatable,
    list_pods,
)
from nodeagent.formats.wire.protobuf import Message, MessageType, ProtobufError, decode, encode

_CALLS_PER_SECOND = 100
_CALLS_AT_ONCE = 10
"""Rate limit of kubelet: calls per second, and calls at once (podresources/grpc: DefaultQPS, DefaultBurstTokens)."""


class PodResources:
    """Methods of the PodResources API. They count their calls in `counts`, where the constructor adds all counters with the value 0."""

    def __init__(
        self, view: Callable[[], NodeView], counts: dict[Series, int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._view = view
        self._counts = counts
        self._clock = clock
        self._left = float(_CALLS_AT_ONCE)
        self._at = clock()
        self._list: tuple[NodeView, bytes] | None = None
        counts |= {_series(spec.name): 0 for spec in names.POD_RESOURCES_METRICS}

    def dialogue(self, on_bug: Callable[[Exception], None]) -> Dialogue:
        """Return the API as a gRPC dialogue. `on_bug` is called with each unexpected exception."""
        return Dialogue(GrpcServer.bounds, GrpcServer(self.methods(), on_bug).attend)

    def methods(self) -> dict[str, Method]:
        """Return the API's methods by gRPC path."""
        return {
            f"/{SERVICE}/List": self._method(LIST_REQUEST, names.LIST_REQUESTS, self._encode_list),
            f"/{SERVICE}/GetAllocatableResources": self._method(
                ALLOCATABLE_REQUEST, names.ALLOCATABLE_REQUESTS, self._encode_allocatable
            ),
            f"/{SERVICE}/Get": self._method(GET_REQUEST, names.GET_REQUESTS, self._encode_pod),
        }

    def _method(self, request: MessageType, counter: str, answer: Callable[[Message], bytes]) -> Method:
        def call(message: bytes) -> bytes:
            try:
                asked = decode(request, message)
            except ProtobufError as err:
                raise CallError(Status.INVALID_ARGUMENT, str(err)) from err
            now = self._clock()
            self._left = min(_CALLS_AT_ONCE, self._left + (now - self._at) * _CALLS_PER_SECOND)
            self._at = now
            if self._left < 1:
                raise CallError(Status.RESOURCE_EXHAUSTED, "rejected by rate limit")
            self._left -= 1
            self._count(names.REQUESTS)
            self._count(counter)
            return answer(asked)

        return call

    def _encode_list(self, _: Message) -> bytes:
        """Return the encoded list of pods. Each view is encoded only once, so that frequent calls take little CPU time from the deciding
        thread.
        """
        view = self._view()
        if self._list is None or self._list[0] is not view:
            self._list = view, encode(LIST_RESPONSE, list_pods(view.state, node_name()))
        return self._list[1]

    def _encode_allocatable(self, _: Message) -> bytes:
        view = self._view()
        return encode(ALLOCATABLE_RESPONSE, list_allocatable(view.node.rules, view.state.promises, view.pools))

    def _encode_pod(self, asked: Message) -> bytes:
        namespace, name = asked["pod_namespace"], asked["pod_name"]
        pod = find_pod_message(self._view().state, namespace, name, node_name())
        if pod is None:
            self._count(names.GET_ERRORS)
            raise CallError(Status.UNKNOWN, f"pod {name} in namespace {namespace} not found")
        return encode(GET_RESPONSE, pod)

    def _count(self, name: str) -> None:
        self._counts[_series(name)] += 1


def _series(name: str) -> Series:
    return Series(name, (("server_api_version", "v1"),))
