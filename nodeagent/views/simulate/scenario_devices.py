"""Devices in a replayed scenario: the devices that kubelet knows from each plugin, and kubelet's file kubelet_internal_checkpoint.

This module makes no decisions. It only handles what happens between decisions: plugins register, list devices and disconnect, and kubelet
restarts. A plugin answers each call at once, by the scenario's rules.
"""

import json
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.device_pools import DevicePluginFailedError, DevicePool, PoolDevice
from nodeagent.core.model.promises import Promises
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.formats.checkpoint.device_checkpoint import (
    DeviceCheckpointError,
    decode_device_contents,
    encode_devices,
)
from nodeagent.formats.scenario.device_plugins import PluginRules, ScenarioPlugin, allocate_devices, prefer_devices
from nodeagent.formats.scenario.scenario import ABSENT, AFTER, Document, Scenario, ScenarioStep
from nodeagent.formats.wire.device_plugins import encode_answer

GRACE_SECONDS = 300
"""Time in seconds after which kubelet forgets the resource of a disconnected plugin (endpointStopGracePeriod)."""
_FAILED = "rpc error: code = Unknown desc ="


class _RuledPlugin:
    """Simulated device plugin that answers calls by the scenario's rules. Implements `DevicePlugin` (core/resources/devices/plugins.py)."""

    def __init__(self, resource: str, given: ScenarioPlugin, calls: list[Document]) -> None:
        self.resource = resource
        self.devices: tuple[PoolDevice, ...] = given.devices
        self.rules: PluginRules = given.rules
        self.is_there = False
        self._calls = calls

    def describe_wait(self, _pod_uid: str) -> str:
        return ""

    def preferred(self, pod_uid: str, available: tuple[str, ...], must: tuple[str, ...], size: int) -> tuple[str, ...]:
        if self.rules.preferred is None:
            return ()
        sets = {"available": sorted(available), "mustInclude": sorted(must), "size": size}
        self._record("GetPreferredAllocation", pod_uid, sets)
        answer = prefer_devices(self.rules.preferred, available, must, size)
        if isinstance(answer, str):
            raise DevicePluginFailedError(
                f"device plugin GetPreferredAllocation rpc failed with err: {_FAILED} {answer}"
            )
        return answer

    def allocate(self, pod_uid: str, ids: tuple[str, ...]) -> bytes:
        self._record("Allocate", pod_uid, {"ids": sorted(ids)})
        answer = allocate_devices(self.rules.allocate, ids)
        if isinstance(answer, str):
            raise DevicePluginFailedError(f"{_FAILED} {answer}")
        return encode_answer(answer)

    def _record(self, call: str, pod_uid: str, more: Document) -> None:
        self._calls.append({"call": call, "resource": self.resource, "pod": pod_uid} | more)


class _KnownResource(Struct, frozen=True):
    """Extended resource that kubelet knows, from a plugin or from its checkpoint."""

    pool: DevicePool
    stopped_at: int | None = None
    """Time in the scenario, in seconds, at which the plugin disconnected. None means that the plugin is connected."""


class ScenarioDevices:
    """Device plugins of a scenario, and the devices that kubelet knows from these plugins."""

    def __init__(self, scenario: Scenario, text: str | None) -> None:
        self.text = text
        """Text of kubelet's checkpoint file. None means that there is no file."""
        self.calls: list[Document] = []
        """Calls to plugins in the current step."""
        self._unnamed = 0
        self._plugins = {name: _RuledPlugin(name, given, self.calls) for name, given in scenario.plugins or ()}
        self._known: dict[str, _KnownResource] = {}
        self._now = 0

    @property
    def pools(self) -> tuple[DevicePool, ...]:
        return tuple(known.pool for _, known in sorted(self._known.items()))

    def load(self) -> Mapping[str, DeviceHoldings]:
        """Read kubelet's checkpoint file as kubelet does at its start, and return the devices allocated to each pod. A damaged file counts
        as missing.
        """
        self._known = {}
        try:
            contents = None if self.text is None else decode_device_contents(self.text)
        except DeviceCheckpointError:
            contents = None
        if contents is None:
            return {}
        for resource in contents.registered:
            self._known[resource] = _KnownResource(DevicePool(resource, (), self._plugins.get(resource)), self._now)
        return {uid: pod.of(DeviceHoldings) for uid, pod in contents.pods().items()}

    def write(self, promises: Promises) -> None:
        self.text = encode_devices(promises, self.pools)

    def describe_file(self) -> Document:
        """Return the content of the checkpoint file as a document without its checksum, and as text."""
        return {
            "kubeletInternalCheckpoint": self._decode_file(),
            "kubeletInternalCheckpointText": self.text,
        }

    def _decode_file(self) -> Document | None:
        if self.text is None:
            return None
        try:
            decode_device_contents(self.text)
        except DeviceCheckpointError:
            return {"raw": self.text}
        data: Document = json.loads(self.text)["Data"]
        return data

    def begin(self, promises: Promises) -> None:
        """Connect the plugins that are registered when kubelet starts for the first time, and let them list their devices."""
        for plugin in self._plugins.values():
            if plugin.rules.is_registered:
                self._list(plugin, promises)

    def stop(self) -> frozenset[str]:
        """Disconnect all plugins, because kubelet restarts. Return the resources of the plugins that were connected."""
        connected = frozenset(name for name, plugin in self._plugins.items() if plugin.is_there)
        for plugin in self._plugins.values():
            plugin.is_there = False
        return connected

    def return_plugins(self, step: ScenarioStep, connected: frozenset[str], time: str, promises: Promises) -> None:
        """Let each plugin that reconnects at this point of kubelet's restart list its devices. `time` says whether the point is before or
        after the pods are admitted again.
        """
        times = dict(step.plugin_times)
        for name, plugin in self._plugins.items():
            own = times.get(name) or (times.get("", AFTER) if name in connected else ABSENT)
            if own == time:
                self._list(plugin, promises)

    def follow(self, step: ScenarioStep, promises: Promises) -> Document:
        """Carry out a step about a plugin or the node's capacity, and return the fields that it adds to the step's result."""
        if step.op == "nodeStatus":
            return self._read_capacity(step.seconds, promises)
        plugin = self._plugins.setdefault(step.resource, _RuledPlugin(step.resource, ScenarioPlugin(()), self.calls))
        if step.op == "pluginGone":
            self._end(plugin)
            return {}
        health = dict(step.health)
        listed = plugin.devices if step.devices is None else step.devices
        plugin.devices = tuple(replace(one, is_healthy=health.get(one.id, one.is_healthy)) for one in listed)
        plugin.rules = plugin.rules if step.rules is None else step.rules
        if plugin.is_there or step.op == "pluginBack":
            self._list(plugin, promises)
        return {}

    def note_allocation(self, container: str | None, promises: Promises, *, is_refused: bool) -> None:
        """Add the container's name to the plugin calls that its allocation caused. If the container got devices, write kubelet's checkpoint
        file.
        """
        new, self._unnamed = self.calls[self._unnamed :], len(self.calls)
        for call in new:
            call["container"] = container
        if not is_refused and any(call["call"] == "Allocate" for call in new):
            self.write(promises)

    def take_calls(self) -> list[Document]:
        """Return the plugin calls of the current step, and forget them."""
        calls = list(self.calls)
        self.calls.clear()
        self._unnamed = 0
        return calls

    def _list(self, plugin: _RuledPlugin, promises: Promises) -> None:
        plugin.is_there = True
        self._known[plugin.resource] = _KnownResource(DevicePool(plugin.resource, plugin.devices, plugin))
        self.write(promises)

    def _end(self, plugin: _RuledPlugin) -> None:
        if plugin.is_there:
            plugin.is_there = False
            pool = self._known[plugin.resource].pool
            devices = tuple(replace(device, is_healthy=False) for device in pool.devices)
            self._known[plugin.resource] = _KnownResource(replace(pool, devices=devices), self._now)

    def _read_capacity(self, seconds: int, promises: Promises) -> Document:
        self._now += seconds
        removed = []
        capacity, allocatable = dict[str, int](), dict[str, int]()
        for resource, known in sorted(self._known.items()):
            if not known.pool.is_registered:
                continue
            if known.stopped_at is not None and self._now - known.stopped_at > GRACE_SECONDS:
                self._known[resource] = replace(known, pool=replace(known.pool, is_registered=False))
                removed.append(resource)
            else:
                capacity[resource] = len(known.pool.devices)
                allocatable[resource] = len(known.pool.healthy)
        if removed:
            self.write(promises)
        return {"capacity": capacity, "allocatable": allocatable, "removed": removed}
