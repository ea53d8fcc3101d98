"""What kubelet's PodResources API answers here: from the published state, counted and limited as in kubelet. Runs in the serving thread."""

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
"""kubelet's limits (podresources/grpc: DefaultQPS, DefaultBurstTokens)."""


class PodResources:
    """The three methods.

    Args:
        view: returns the node as it was published last.
        counts: the API's metrics, which begin with 0 here and are counted up in place.
        clock: in seconds.
    """

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
        """Return them as gRPC. `on_bug` is called with what one of them raised."""
        return Dialogue(GrpcServer.bounds, GrpcServer(self.methods(), on_bug).attend)

    def methods(self) -> dict[str, Method]:
        """Return them by their path."""
        return {
            f"/{SERVICE}/List": self._method(LIST_REQUEST, names.LIST_REQUESTS, self._listed),
            f"/{SERVICE}/GetAllocatableResources": self._method(
                ALLOCATABLE_REQUEST, names.ALLOCATABLE_REQUESTS, self._allocatable
            ),
            f"/{SERVICE}/Get": self._method(GET_REQUEST, names.GET_REQUESTS, self._found),
        }

    def _method(self, request: MessageType, counter: str, answer: Callable[[Message], bytes]) -> Method:
        def call(message: bytes) -> bytes:
            try:
                asked = decode(request, message)
            except ProtobufError as err:
                raise CallError(Status.INVALID_ARGUMENT, str(err)) from err
            self._limit()
            self._count(names.REQUESTS)
            self._count(counter)
            return answer(asked)

        return call

    def _listed(self, _: Message) -> bytes:
        """Spell each view once: a flood of calls must not take the deciding thread's time."""
        view = self._view()
        if self._list is None or self._list[0] is not view:
            self._list = view, encode(LIST_RESPONSE, list_pods(view.state, node_name()))
        return self._list[1]

    def _allocatable(self, _: Message) -> bytes:
        view = self._view()
        return encode(ALLOCATABLE_RESPONSE, list_allocatable(view.node.managers, view.state.promises, view.pools))

    def _found(self, asked: Message) -> bytes:
        namespace, name = asked["pod_namespace"], asked["pod_name"]
        pod = find_pod_message(self._view().state, namespace, name, node_name())
        if pod is None:
            self._count(names.GET_ERRORS)
            raise CallError(Status.UNKNOWN, f"pod {name} in namespace {namespace} not found")
        return encode(GET_RESPONSE, pod)

    def _limit(self) -> None:
        now = self._clock()
        self._left = min(_CALLS_AT_ONCE, self._left + (now - self._at) * _CALLS_PER_SECOND)
        self._at = now
        if self._left < 1:
            raise CallError(Status.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._left -= 1

    def _count(self, name: str) -> None:
        self._counts[_series(name)] += 1


def _series(name: str) -> Series:
    return Series(name, (("server_api_version", "v1"),))
