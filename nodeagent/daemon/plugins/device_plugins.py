"""Device plugins, as kubelet has them: they register at a socket, report their devices, and are called when devices are allocated.

A thread follows each plugin's list of devices. The deciding thread uses the last list, and waits at most `CALL_SECONDS` for an answer.
A slower plugin is disconnected, and its devices are unhealthy until it registers again. Once all plugins together have taken
`TURN_SECONDS` of a turn, pods that need further answers wait for the next turn.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from nodeagent.core.resources.devices.holdings import HeldDevice
from nodeagent.core.resources.devices.plugins import DevicePluginFailedError, DevicePluginPostponedError
from nodeagent.core.resources.devices.pools import DevicePool, PoolDevice
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
"""gRPC's default limit on a received message, which kubelet uses, too."""
CALL_SECONDS = 5.0
TURN_SECONDS = 10.0
"""Limit on the time that a turn waits for all plugins together, except for a running call. The slowest allowed plugin can answer both
calls for a container in that time. The longest wait, 15 s, is a quarter of WatchdogSec= in systemd/nodeagent.service.
"""
CONNECT_SECONDS = 10.0
"""Time limit for the first connection. A plugin may register before it listens (kubelet: dial)."""
_KEPT_SECONDS = 60.0
"""Time after which the answers for a postponed pod are dropped. A container runtime asks again after some seconds."""
GRACE_SECONDS = 300.0
"""Time after which the resource of an ended plugin is forgotten (kubelet: endpointStopGracePeriod)."""
_RETRY_SECONDS = 0.1
MOST_PLUGINS = 64


class _Calls:
    """Calls of the current turn, made by the deciding thread.

    A postponed pod is decided again from the start in the next turn, with the same calls. It gets the earlier answers from here, so the
    decision is finished however many calls it needs.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._alive: Callable[[], None] = lambda: None
        self._waited = 0.0
        self._answers: dict[tuple[str, _Plugin, str, bytes], bytes] = {}
        """Answers by pod UID, plugin, method and message."""
        self._postponed: dict[str, float] = {}
        """Time of the last postponement of each pod whose last decision was postponed, by UID."""

    def begin_turn(self, alive: Callable[[], None]) -> None:
        self._alive, self._waited = alive, 0.0
        oldest = self._clock() - _KEPT_SECONDS
        self._postponed = {uid: since for uid, since in self._postponed.items() if since > oldest}
        self._answers = {asked: answer for asked, answer in self._answers.items() if asked[0] in self._postponed}

    def answer(self, pod_uid: str, plugin: "_Plugin", method: str, message: bytes) -> bytes:
        """Return the plugin's answer about the devices of a pod.

        Raises:
            DevicePluginFailedError: there is no answer.
        """
        asked = pod_uid, plugin, method, message
        self._postponed.pop(pod_uid, None)
        if asked not in self._answers:
            try:
                self.check_time(plugin.resource)
            except DevicePluginPostponedError:
                self._postponed[pod_uid] = self._clock()
                raise
            self._answers[asked] = self.call(plugin, method, message)
        return self._answers[asked]

    def check_time(self, resource: str) -> None:
        """Raise DevicePluginPostponedError if this turn may make no further call."""
        if self._waited >= TURN_SECONDS:
            raise DevicePluginPostponedError(
                f"device plugins have taken more than {TURN_SECONDS:g} s of a turn; the one of {resource} is asked in the next turn"
            )

    def call(self, plugin: "_Plugin", method: str, message: bytes) -> bytes:
        """Return the plugin's answer. Raises DevicePluginFailedError."""
        began = self._clock()
        self._alive()
        try:
            return plugin.call(method, message)
        finally:
            self._waited += self._clock() - began
            self._alive()


class _Plugin:
    """A registered plugin. Its list of devices is replaced as a whole."""

    def __init__(self, resource: str, path: Path, calls: _Calls) -> None:
        self.resource = resource
        self.path = path
        self._calls = calls
        self.options = wire.PluginOptions()
        self.devices: tuple[PoolDevice, ...] = ()
        self.ended_at: float | None = None
        """Monotonic time. None means that the plugin is connected."""
        self.why_ended = ""
        self.stream: GrpcClient | None = None
        self.has_reported = threading.Event()

    # The interface of core/resources/devices/plugins.py, for the deciding thread

    def preferred(self, pod_uid: str, available: tuple[str, ...], must: tuple[str, ...], size: int) -> tuple[str, ...]:
        if not self.options.has_preferences:
            return ()
        message = wire.encode_preferred_request(available, must, size)
        return self._read(wire.decode_preferred, self._calls.answer(pod_uid, self, wire.GET_PREFERRED, message))

    def allocate(self, pod_uid: str, ids: tuple[str, ...]) -> bytes:
        message = wire.encode_allocate_request(ids)
        answer = self._read(wire.decode_allocated, self._calls.answer(pod_uid, self, wire.ALLOCATE, message))
        if answer is None:
            raise DevicePluginFailedError("no containers return in allocation response")
        return answer

    def call(self, method: str, message: bytes) -> bytes:
        """Return the plugin's answer. Raises DevicePluginFailedError."""
        if self.ended_at is not None:
            raise DevicePluginFailedError(f"the device plugin of {self.resource} is gone")
        try:
            with self.connection(time.monotonic() + CALL_SECONDS) as connection:
                return connection.call(method, message)
        except GrpcError as err:
            if err.status is None:
                self.end(err.what)
            raise DevicePluginFailedError(f"the device plugin of {self.resource}: {err.what}") from err

    def _read(self, read: Callable[[bytes], T], message: bytes) -> T:
        try:
            return read(message)
        except ProtobufError as err:
            raise DevicePluginFailedError(f"the device plugin of {self.resource}: {err}") from err

    def connection(self, until: float | None) -> GrpcClient:
        return GrpcClient(DEVICE_PLUGIN, self.path, until, MAX_MESSAGE_BYTES)

    def is_over(self) -> bool:
        return self.ended_at is not None

    def end(self, why: str) -> None:
        """End the connection. Only the first reason is kept."""
        if self.ended_at is None:
            self.why_ended, self.ended_at = why, time.monotonic()
        self.devices = tuple(replace(device, is_healthy=False) for device in self.devices)
        if self.stream is not None:
            self.stream.interrupt()


class DevicePlugins:
    """All device plugins. Their sockets are in the directory of the registration socket. `wake` is called when a list of devices has
    changed.
    """

    def __init__(
        self, path: Path, wake: Callable[[], None], log: Log, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = path.parent
        self._wake = wake
        self.configured: Callable[[], frozenset[str]] = frozenset
        """Returns the resources of configured devices, which no plugin may register."""
        self._log = log
        self._lock = threading.Lock()
        self._plugins: dict[str, _Plugin] = {}
        """Plugins by resource."""
        self._is_closed = False
        self._calls = _Calls(clock)
        self.begin_turn = self._calls.begin_turn
        """Starts a turn with its time limit. The given heartbeat is called around each call."""

    def dialogue(self, on_bug: Callable[[Exception], None]) -> Dialogue:
        """Return the registration service as a gRPC dialogue. `on_bug` is called with an unexpected exception."""
        return Dialogue(GrpcServer.bounds, GrpcServer(self.methods(), on_bug).attend)

    def methods(self) -> dict[str, Method]:
        return {wire.REGISTER: self._register}

    def pools(self) -> tuple[DevicePool, ...]:
        """Return the devices of all plugins, by resource."""
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
        """Have plugins that require it prepare the devices of a container before its start. None means success.

        All plugins of a container are called in one turn, even if that exceeds the time limit.
        """
        ids: dict[str, list[str]] = {}
        for device in held:
            ids.setdefault(device.resource, []).append(device.id)
        with self._lock:
            # Other devices have no plugin, or a plugin whose options are unknown since a restart (as in kubelet).
            known = [plugin for resource in ids if (plugin := self._plugins.get(resource)) is not None]
        asked = [plugin for plugin in known if plugin.options.pre_start_required]
        try:
            if asked:
                self._calls.check_time(asked[0].resource)
            for plugin in asked:
                self._calls.call(plugin, wire.PRE_START, wire.encode_pre_start_request(tuple(ids[plugin.resource])))
        except DevicePluginFailedError as err:
            return Unprepared(f"PreStartContainer: {err}", isinstance(err, DevicePluginPostponedError))
        return None

    def problems(self) -> tuple[str, ...]:
        """Return the problems with disconnected plugins."""
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
        plugin = _Plugin(asked.resource, self._directory / asked.endpoint, self._calls)
        with self._lock:
            before = self._plugins.get(asked.resource)
            if before is not None:
                plugin.devices = before.devices  # unhealthy until the new plugin has reported its devices
            self._plugins[asked.resource] = plugin
        if before is not None:
            before.end("it has registered again")
            plugin.devices = before.devices
        self._log.info("device_plugin_registered", resource=asked.resource, endpoint=asked.endpoint)
        threading.Thread(
            target=partial(self._follow, plugin), name=f"devices {asked.resource}"[:15], daemon=True
        ).start()
        return wire.encode_empty()

    def _find_refusal(self, asked: wire.Registration) -> str:
        """Return the reason to refuse a registration, in kubelet's words where it has some. Empty means none."""
        if asked.version != wire.VERSION:
            return f'requested API version "{asked.version}" is not supported by kubelet. Supported version is "{wire.VERSION}"'
        if not is_extended_resource(asked.resource):
            return f'the ResourceName "{asked.resource}" is invalid'
        if "/" in asked.endpoint or asked.endpoint in {"", ".", ".."} or "\0" in asked.endpoint:
            return f'the endpoint "{asked.endpoint}" is no name of a socket in this directory'
        if asked.resource in self.configured():
            return f"{asked.resource} is given by the configuration (devices)"
        with self._lock:
            if asked.resource not in self._plugins and len(self._plugins) >= MOST_PLUGINS:
                return f"{MOST_PLUGINS} device plugins have registered, and no more are accepted"
        return ""

    def _follow(self, plugin: _Plugin) -> None:
        """Follow a plugin's list of devices until it ends, in a thread of its own."""
        try:
            self._watch(plugin)
            why = "it has ended its list"
        except (GrpcError, ProtobufError) as err:
            why = err.what if isinstance(err, GrpcError) else str(err)
        except Exception as err:  # noqa: BLE001 - whatever it is, nobody would follow the plugin, and its devices would stay healthy
            why = f"following it has failed: {type(err).__name__}: {err}"
        plugin.end(why)
        plugin.has_reported.set()
        with self._lock:
            is_current = self._plugins.get(plugin.resource) is plugin and not self._is_closed
        if is_current:
            self._log.warning("device_plugin_gone", resource=plugin.resource, problem=plugin.why_ended)
            self._wake()

    def _watch(self, plugin: _Plugin) -> None:
        until = time.monotonic() + CONNECT_SECONDS
        plugin.options = wire.decode_options(self._ask_options(plugin, until))
        with plugin.connection(None) as stream:
            plugin.stream = stream
            if plugin.is_over():
                return
            for message in stream.watch(wire.LIST_AND_WATCH, wire.encode_empty()):
                devices = wire.decode_devices(message)
                if plugin.is_over():
                    return
                plugin.devices = devices
                plugin.has_reported.set()
                self._wake()

    def _ask_options(self, plugin: _Plugin, until: float) -> bytes:
        """Return the plugin's options. Retry until the plugin listens."""
        pause = threading.Event()
        while True:
            try:
                with plugin.connection(until) as connection:
                    return connection.call(wire.GET_OPTIONS, wire.encode_empty())
            except GrpcError as err:
                if err.status is not None or time.monotonic() + _RETRY_SECONDS > until or plugin.is_over():
                    raise
                pause.wait(_RETRY_SECONDS)
