"""Device plugins, with kubelet's protocol. A plugin registers at a socket and reports its devices; the agent calls the plugin when it
allocates devices.

One thread per resource follows the plugin's list of devices. The deciding thread uses the latest list, and the answers that have arrived so
far (questions.py). A plugin that takes longer than `CALL_SECONDS` for an answer is disconnected. Its devices count as unhealthy until it
registers again.
"""

import enum
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from nodeagent.core.model.device_pools import (
    DevicePluginFailedError,
    DevicePluginPostponedError,
    DevicePool,
    PoolDevice,
)
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.daemon.plugins.questions import Questions
from nodeagent.daemon.reports.logs import Log
from nodeagent.daemon.turn.runs import Unprepared
from nodeagent.edge.transport.grpc_client import GrpcClient, GrpcError, GrpcServerKind
from nodeagent.edge.transport.grpc_server import GrpcServer, Method
from nodeagent.edge.transport.serving import Dialogue
from nodeagent.formats.syntax.resource_names import is_extended_resource
from nodeagent.formats.wire import device_plugins as wire
from nodeagent.formats.wire.grpc_messages import CallError, Status
from nodeagent.formats.wire.protobuf import ProtobufError

T = TypeVar("T")

DEVICE_PLUGIN = GrpcServerKind(
    "the device plugin",
    hint="see the plugin's log (`journalctl`), and restart it: it registers again then",
)
MAX_MESSAGE_BYTES = 4 << 20
"""Maximum size of a received message, as in kubelet (gRPC's default)."""
CALL_SECONDS = 5.0
CONNECT_SECONDS = 10.0
"""Seconds to wait for the first connection, because a plugin may register before it listens (kubelet: dial)."""
GRACE_SECONDS = 300.0
"""Seconds after which a disconnected plugin's resource is removed (kubelet: endpointStopGracePeriod)."""
_RETRY_SECONDS = 0.1
_REST_PER_LIST = 9.0
"""Pause after each list of devices, as a multiple of the CPU time spent on that list. Because of this pause, even a plugin that sends lists
all the time uses only a tenth of a CPU.
"""
AGAIN_SECONDS = 1.0
MOST_PLUGINS = 64


class _Lane(enum.Enum):
    """Purpose of a call to a plugin. A plugin gets only one call at a time for each purpose."""

    DECISION = "decision"
    START = "start"


class _Plugin:
    """Registered plugin, with its latest list of devices."""

    def __init__(self, resource: str, path: Path, questions: Questions) -> None:
        self.resource = resource
        self.path = path
        self._questions = questions
        self._lock = threading.Lock()
        self.options = wire.PluginOptions()
        self.devices: tuple[PoolDevice, ...] = ()
        self.ended_at: float | None = None
        """Monotonic time at which the plugin was disconnected. None means that the plugin is connected."""
        self.has_ended = threading.Event()
        self.why_ended = ""
        self._connection: GrpcClient | None = None
        self.has_reported = threading.Event()

    # Methods for the deciding thread (interface of core/resources/devices/plugins.py)

    def describe_wait(self, pod_uid: str) -> str:
        is_free = self._questions.is_free((self, _Lane.DECISION), pod_uid)
        return "" if is_free else f"the device plugin of {self.resource} has not answered about another pod yet"

    def preferred(self, pod_uid: str, available: tuple[str, ...], must: tuple[str, ...], size: int) -> tuple[str, ...]:
        if not self.options.has_preferences:
            return ()
        message = wire.encode_preferred_request(available, must, size)
        return self.ask(pod_uid, _Lane.DECISION, wire.GET_PREFERRED, message, wire.decode_preferred)

    def allocate(self, pod_uid: str, ids: tuple[str, ...]) -> bytes:
        message = wire.encode_allocate_request(ids)
        answer = self.ask(pod_uid, _Lane.DECISION, wire.ALLOCATE, message, wire.decode_allocated)
        if answer is None:
            raise DevicePluginFailedError("no containers return in allocation response")
        return answer

    def ask(self, asker: str, lane: _Lane, method: str, message: bytes, read: Callable[[bytes], T]) -> T:
        """Return the plugin's answer, if it has arrived. Otherwise, send the question.

        Raises:
            DevicePluginPostponedError: the plugin hasn't answered yet.
            DevicePluginFailedError: the plugin failed to answer.
        """
        try:
            return self._questions.find_answer(
                asker, (self, lane), (self, method, message), partial(self._call, method, message, read)
            )
        except DevicePluginFailedError as err:
            raise type(err)(f"the device plugin of {self.resource}: {err}") from err

    def _call(self, method: str, message: bytes, read: Callable[[bytes], T]) -> T:
        if self.is_over():
            raise DevicePluginFailedError("it has ended or lost its connection")
        try:
            with GrpcClient(DEVICE_PLUGIN, self.path, time.monotonic() + CALL_SECONDS, MAX_MESSAGE_BYTES) as client:
                return read(client.call(method, message))
        except GrpcError as err:
            if err.status is None:
                self.end(err.what)
            raise DevicePluginFailedError(err.what) from err
        except ProtobufError as err:
            raise DevicePluginFailedError(str(err)) from err

    # Methods for the thread that follows the plugin

    @contextmanager
    def connect(self, until: float | None) -> Iterator[GrpcClient]:
        """Connect to the plugin for the duration of the `with` block. A call of `end` interrupts the connection.

        Raises:
            GrpcError: the connection failed, or the monotonic time `until` has passed.
        """
        with GrpcClient(DEVICE_PLUGIN, self.path, until, MAX_MESSAGE_BYTES) as client:
            self._connection = client
            if self.is_over():
                client.interrupt()
            yield client

    def report(self, devices: tuple[PoolDevice, ...]) -> bool:
        """Replace the list of devices. Return whether it is the plugin's first list, or differs from the list before."""
        with self._lock:
            is_new = not self.is_over() and (devices != self.devices or not self.has_reported.is_set())
            if is_new:
                self.devices = devices
                self.has_reported.set()
        return is_new

    def is_over(self) -> bool:
        return self.ended_at is not None

    def end(self, why: str) -> None:
        """Disconnect the plugin, and mark its devices unhealthy. If this was done before, the first reason is kept."""
        with self._lock:
            if self.ended_at is None:
                self.why_ended, self.ended_at = why, time.monotonic()
            self.mark_unhealthy()
        self.has_ended.set()
        if self._connection is not None:
            self._connection.interrupt()

    def mark_unhealthy(self) -> None:
        self.devices = tuple(replace(device, is_healthy=False) for device in self.devices)


class DevicePlugins:
    """Registry of all device plugins.

    Args:
        path: path of the registration socket. The plugins' own sockets are in the same directory.
        wake: function that is called whenever a list of devices has changed.
        log: the log.
        clock: monotonic clock.
    """

    def __init__(
        self, path: Path, wake: Callable[[], None], log: Log, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = path.parent
        self._wake = wake
        self.configured: Callable[[], frozenset[str]] = frozenset
        """Function that returns the resources whose devices are configured. A plugin's registration for such a resource is refused."""
        self._log = log
        self._lock = threading.Lock()
        self._plugins: dict[str, _Plugin] = {}
        """Registered plugins by resource."""
        self._followed: set[str] = set()
        """Resources with a thread that follows the current plugin."""
        self._is_closed = False
        self._questions = Questions(wake, clock)
        self.begin_turn = self._questions.begin_turn

    def dialogue(self, on_bug: Callable[[Exception], None]) -> Dialogue:
        """Return the registration service as a gRPC dialogue. `on_bug` is called with each unexpected exception."""
        return Dialogue(GrpcServer.bounds, GrpcServer(self.methods(), on_bug).attend)

    def methods(self) -> dict[str, Method]:
        return {wire.REGISTER: self._register}

    def pools(self) -> tuple[DevicePool, ...]:
        """Return the devices of all plugins, as a pool for each resource. Plugins disconnected for more than GRACE_SECONDS are dropped."""
        now = time.monotonic()
        with self._lock:
            gone = [
                resource
                for resource, plugin in self._plugins.items()
                if plugin.ended_at is not None and now - plugin.ended_at > GRACE_SECONDS
            ]
            for resource in gone:
                del self._plugins[resource]
            plugins = sorted(self._plugins.items())
        return tuple(DevicePool(resource, plugin.devices, plugin) for resource, plugin in plugins)

    def prepare(self, held: tuple[HeldDevice, ...]) -> Unprepared | None:
        """Call PreStartContainer for the devices of a container, on each plugin that requires this call. None means that all devices are
        ready.
        """
        ids: dict[str, tuple[str, ...]] = {}
        for device in held:
            ids[device.resource] = (*ids.get(device.resource, ()), device.id)
        with self._lock:
            # Devices are left out if they have no plugin, or if the plugin's options aren't known yet after a restart (as in kubelet).
            known = [plugin for resource in ids if (plugin := self._plugins.get(resource)) is not None]
        start = f"start with {ids}"
        try:
            for plugin in known:
                if plugin.options.pre_start_required:
                    message = wire.encode_pre_start_request(ids[plugin.resource])
                    plugin.ask(start, _Lane.START, wire.PRE_START, message, bytes)
        except DevicePluginFailedError as err:
            return Unprepared(f"PreStartContainer: {err}", isinstance(err, DevicePluginPostponedError))
        return None

    def problems(self) -> tuple[str, ...]:
        """Describe each disconnected plugin, with the reason."""
        with self._lock:
            gone = sorted(
                (plugin.resource, plugin.why_ended) for plugin in self._plugins.values() if plugin.ended_at is not None
            )
        return tuple(
            f"the device plugin of {resource} is gone ({why}): no pod gets its devices until it registers again (see its log)"
            for resource, why in gone
        )

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            plugins = tuple(self._plugins.values())
        for plugin in plugins:
            plugin.end("the agent stops")

    def _register(self, message: bytes) -> bytes:
        try:
            asked = wire.decode_registration(message)
        except ProtobufError as err:
            raise CallError(Status.INVALID_ARGUMENT, str(err)) from err
        why = self._find_refusal(asked)
        if why:
            self._log.warning("device_plugin_refused", resource=asked.resource, problem=why)
            raise CallError(Status.UNKNOWN, why)
        plugin = _Plugin(asked.resource, self._directory / asked.endpoint, self._questions)
        with self._lock:
            before = self._plugins.get(asked.resource)
            if before is not None:
                before.end("it has registered again")
                # until the new plugin has reported its list, the devices are kept as unhealthy
                plugin.devices = before.devices
            self._plugins[asked.resource] = plugin
            is_followed = asked.resource in self._followed
            self._followed.add(asked.resource)
        self._log.info("device_plugin_registered", resource=asked.resource, endpoint=asked.endpoint)
        if not is_followed:
            name = f"devices {asked.resource}"[:15]
            threading.Thread(target=self._follow, args=(asked.resource,), name=name, daemon=True).start()
        return wire.encode_empty()

    def _find_refusal(self, asked: wire.Registration) -> str:
        """Return the reason to refuse a registration. If kubelet makes the same check, the wording is kubelet's. Empty means that the
        registration is accepted.
        """
        if asked.version != wire.VERSION:
            return f'requested API version "{asked.version}" is not supported by kubelet. Supported version is "{wire.VERSION}"'
        if not is_extended_resource(asked.resource):
            return f'the ResourceName "{asked.resource}" is invalid'
        if "/" in asked.endpoint or asked.endpoint in {"", ".", ".."} or "\0" in asked.endpoint:
            return f'the endpoint "{asked.endpoint}" is not the name of a socket in this directory'
        if asked.resource in self.configured():
            return f"{asked.resource} is given by the configuration (devices)"
        with self._lock:
            if asked.resource not in self._plugins and len(self._plugins) >= MOST_PLUGINS:
                return f"{MOST_PLUGINS} device plugins have registered, and no more are accepted"
        return ""

    def _follow(self, resource: str) -> None:
        """Follow a resource's plugin, and after its end the plugin that has registered since, if there is one. This method runs in a
        separate thread.
        """
        followed = None
        while True:
            with self._lock:
                plugin = self._plugins.get(resource)
                if plugin is None or plugin is followed:
                    self._followed.remove(resource)
                    return
            self._follow_plugin(plugin)
            followed = plugin

    def _follow_plugin(self, plugin: _Plugin) -> None:
        """Follow a plugin's list of devices until the plugin ends or is disconnected."""
        why = ""
        while not why:
            try:
                self._watch(plugin)
                why = "it has ended the stream of its lists"
            except GrpcError as err:
                why = err.what
            except ProtobufError as err:
                why = str(err)
            except Exception as err:  # noqa: BLE001 - the plugin isn't at fault, and nobody else would follow it
                problem = f"reading its lists has failed, and is tried again: {type(err).__name__}: {err}"
                self._log.warning("device_plugin_gone", resource=plugin.resource, problem=problem)
                plugin.mark_unhealthy()
                self._wake()
                plugin.has_ended.wait(AGAIN_SECONDS)
        plugin.end(why)
        plugin.has_reported.set()
        with self._lock:
            is_current = self._plugins.get(plugin.resource) is plugin and not self._is_closed
        if is_current:
            self._log.warning("device_plugin_gone", resource=plugin.resource, problem=plugin.why_ended)
            self._wake()

    def _watch(self, plugin: _Plugin) -> None:
        until = time.monotonic() + CONNECT_SECONDS
        plugin.options = wire.decode_options(self._fetch_options(plugin, until))
        with plugin.connect(None) as client:
            used = time.thread_time()
            for message in client.watch(wire.LIST_AND_WATCH, wire.encode_empty()):
                if plugin.report(wire.decode_devices(message)):
                    self._wake()
                plugin.has_ended.wait(_REST_PER_LIST * (time.thread_time() - used))
                used = time.thread_time()

    def _fetch_options(self, plugin: _Plugin, until: float) -> bytes:
        """Return the plugin's encoded options. Retry until the plugin listens.

        Raises:
            GrpcError: the call failed, or the plugin didn't listen before the monotonic time `until`.
        """
        while True:
            try:
                with plugin.connect(until) as client:
                    return client.call(wire.GET_OPTIONS, wire.encode_empty())
            except GrpcError as err:
                if err.status is not None or time.monotonic() + _RETRY_SECONDS > until or plugin.is_over():
                    raise
                plugin.has_ended.wait(_RETRY_SECONDS)
