"""Device plugins, as kubelet has them: they register at a socket, tell their devices, and are asked when some of these are given.

Each plugin's list is followed by a thread of its own. The deciding thread takes what was told last, and waits for an answer for
`CALL_SECONDS` at most: a plugin that is later is disconnected, and its devices are unhealthy until it registers again.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from nodeagent.core.resources.devices.holdings import HeldDevice
from nodeagent.core.resources.devices.plugins import DevicePluginFailedError
from nodeagent.core.resources.devices.pools import DevicePool, PoolDevice
from nodeagent.daemon.reports.logs import Log
from nodeagent.edge.plugins.device_plugins import DevicePluginConnection, DevicePluginError
from nodeagent.edge.transport.grpc_server import GrpcServer, Method
from nodeagent.edge.transport.serving import Dialogue
from nodeagent.formats.syntax.resource_names import is_extended_resource
from nodeagent.formats.wire import device_plugins as wire
from nodeagent.formats.wire.grpc_messages import CallError, Status
from nodeagent.formats.wire.protobuf import ProtobufError

T = TypeVar("T")

CALL_SECONDS = 5.0
CONNECT_SECONDS = 10.0
"""A plugin may register before it listens (kubelet: dial)."""
GRACE_SECONDS = 300.0
"""After which a resource is forgotten whose plugin has gone (kubelet: endpointStopGracePeriod)."""
_RETRY_SECONDS = 0.1
MOST_PLUGINS = 64


class _Plugin:
    """One that has registered. What it told is replaced as a whole."""

    def __init__(self, resource: str, path: Path) -> None:
        self.resource = resource
        self.path = path
        self.options = wire.PluginOptions()
        self.devices: tuple[PoolDevice, ...] = ()
        self.ended_at: float | None = None
        """As of time.monotonic(). None: it is followed."""
        self.stream: DevicePluginConnection | None = None
        self.has_told = threading.Event()

    # What core asks (core/resources/devices/plugins.py): in the deciding thread

    def preferred(self, available: tuple[str, ...], must: tuple[str, ...], size: int) -> tuple[str, ...]:
        if not self.options.has_preferences:
            return ()
        return self._read(
            wire.preferred, self._asked(wire.GET_PREFERRED, wire.preferred_request(available, must, size))
        )

    def allocate(self, ids: tuple[str, ...]) -> bytes:
        answer = self._read(wire.allocated, self._asked(wire.ALLOCATE, wire.allocate_request(ids)))
        if answer is None:
            raise DevicePluginFailedError("no containers return in allocation response")
        return answer

    def prepare(self, ids: tuple[str, ...]) -> None:
        if self.options.pre_start_required:
            self._asked(wire.PRE_START, wire.pre_start_request(ids))

    def _asked(self, method: str, message: bytes) -> bytes:
        if self.ended_at is not None:
            raise DevicePluginFailedError(f"the device plugin of {self.resource} is gone")
        try:
            with DevicePluginConnection(self.path, time.monotonic() + CALL_SECONDS) as connection:
                return connection.call(method, message)
        except DevicePluginError as err:
            if not err.is_refusal:
                self.end()
            raise DevicePluginFailedError(f"the device plugin of {self.resource}: {err.what}") from err

    def _read(self, read: Callable[[bytes], T], message: bytes) -> T:
        try:
            return read(message)
        except ProtobufError as err:
            raise DevicePluginFailedError(f"the device plugin of {self.resource}: {err}") from err

    def is_over(self) -> bool:
        return self.ended_at is not None

    def end(self) -> None:
        """Follow it no more."""
        if self.ended_at is None:
            self.ended_at = time.monotonic()
        self.devices = tuple(replace(device, is_healthy=False) for device in self.devices)
        if self.stream is not None:
            self.stream.interrupt()


class DevicePlugins:
    """All of them.

    Args:
        path: of the socket where they register. Theirs are beside it.
        wake: called when what they have told is another.
        log: the agent's.
    """

    def __init__(self, path: Path, wake: Callable[[], None], log: Log) -> None:
        self._directory = path.parent
        self._wake = wake
        self.given: Callable[[], frozenset[str]] = frozenset
        """Returns the resources that the configuration gives, which no plugin may."""
        self._log = log
        self._lock = threading.Lock()
        self._plugins: dict[str, _Plugin] = {}
        """By resource."""
        self._is_closed = False

    def dialogue(self, on_bug: Callable[[Exception], None]) -> Dialogue:
        """Return the registration as gRPC. `on_bug` is called with what it raised."""
        return Dialogue(GrpcServer.bounds, GrpcServer(self.methods(), on_bug).attend)

    def methods(self) -> dict[str, Method]:
        return {wire.REGISTER: self._register}

    def pools(self) -> tuple[DevicePool, ...]:
        """Return what they have told, by resource."""
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

    def prepare(self, held: tuple[HeldDevice, ...]) -> str | None:
        """Let plugins that want it prepare the devices of a container that is about to start. Returns why it can't."""
        by_resource: dict[str, list[HeldDevice]] = {}
        for device in held:
            by_resource.setdefault(device.resource, []).append(device)
        for resource, devices in by_resource.items():
            with self._lock:
                plugin = self._plugins.get(resource)
            if plugin is None:
                continue  # it isn't a plugin's, or what that wants is not known after a restart (as in kubelet)
            try:
                plugin.prepare(tuple(device.id for device in devices))
            except DevicePluginFailedError as err:
                return f"PreStartContainer: {err}"
        return None

    def problems(self) -> tuple[str, ...]:
        """Return what a person should know."""
        with self._lock:
            gone = sorted(plugin.resource for plugin in self._plugins.values() if plugin.ended_at is not None)
        return tuple(
            f"the device plugin of {resource} is gone: its devices are given to nobody until it registers again (see its log)"
            for resource in gone
        )

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            plugins = tuple(self._plugins.values())
        for plugin in plugins:
            plugin.end()

    def _register(self, message: bytes) -> bytes:
        try:
            asked = wire.registration(message)
        except ProtobufError as err:
            raise CallError(Status.INVALID_ARGUMENT, str(err)) from err
        why = self._why_not(asked)
        if why:
            self._log.warning("device_plugin_refused", resource=asked.resource, problem=why)
            raise CallError(Status.UNKNOWN, why)
        plugin = _Plugin(asked.resource, self._directory / asked.endpoint)
        with self._lock:
            before = self._plugins.get(asked.resource)
            if before is not None:
                plugin.devices = before.devices  # unhealthy, until it has told its own
            self._plugins[asked.resource] = plugin
        if before is not None:
            before.end()
            plugin.devices = before.devices
        self._log.info("device_plugin_registered", resource=asked.resource, endpoint=asked.endpoint)
        threading.Thread(
            target=partial(self._follow, plugin), name=f"devices {asked.resource}"[:15], daemon=True
        ).start()
        return wire.empty()

    def _why_not(self, asked: wire.Registration) -> str:
        """Explain what is wrong with a registration, in kubelet's words where it has them; empty: nothing."""
        if asked.version != wire.VERSION:
            return f'requested API version "{asked.version}" is not supported by kubelet. Supported version is "{wire.VERSION}"'
        if not is_extended_resource(asked.resource):
            return f'the ResourceName "{asked.resource}" is invalid'
        if "/" in asked.endpoint or asked.endpoint in {"", ".", ".."} or "\0" in asked.endpoint:
            return f'the endpoint "{asked.endpoint}" is no name of a socket in this directory'
        if asked.resource in self.given():
            return f"{asked.resource} is given by the configuration (devices)"
        with self._lock:
            if asked.resource not in self._plugins and len(self._plugins) >= MOST_PLUGINS:
                return f"{MOST_PLUGINS} device plugins have registered, and no more are taken"
        return ""

    def _follow(self, plugin: _Plugin) -> None:
        """In its own thread: take in its lists until it ends."""
        try:
            self._watch(plugin)
            why = "it has ended its list"
        except (DevicePluginError, ProtobufError) as err:
            why = err.what if isinstance(err, DevicePluginError) else str(err)
        plugin.end()
        plugin.has_told.set()
        with self._lock:
            is_current = self._plugins.get(plugin.resource) is plugin and not self._is_closed
        if is_current:
            self._log.warning("device_plugin_gone", resource=plugin.resource, problem=why)
            self._wake()

    def _watch(self, plugin: _Plugin) -> None:
        until = time.monotonic() + CONNECT_SECONDS
        said = self._persistently(plugin, until)
        plugin.options = wire.options(said)
        with DevicePluginConnection(plugin.path, None) as stream:
            plugin.stream = stream
            if plugin.is_over():
                return
            for message in stream.watch(wire.LIST_AND_WATCH, wire.empty()):
                told = wire.devices(message)
                if plugin.is_over():
                    return
                plugin.devices = told
                plugin.has_told.set()
                self._wake()

    def _persistently(self, plugin: _Plugin, until: float) -> bytes:
        """Ask for its options once it listens."""
        pause = threading.Event()
        while True:
            try:
                with DevicePluginConnection(plugin.path, until) as connection:
                    return connection.call(wire.GET_OPTIONS, wire.empty())
            except DevicePluginError as err:
                if err.is_refusal or time.monotonic() + _RETRY_SECONDS > until or plugin.is_over():
                    raise
                pause.wait(_RETRY_SECONDS)
