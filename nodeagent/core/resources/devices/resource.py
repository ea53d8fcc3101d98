"""Implementation of the `Resource` contract by the device manager."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from nodeagent.core.metrics.manager_metrics import MetricDeltas
from nodeagent.core.model.demand import Amounts, ContainerDemand, PodDemand
from nodeagent.core.model.device_pools import DevicePool, PoolDevice
from nodeagent.core.model.device_selection import DeviceSelection, select_devices
from nodeagent.core.model.devices import PlacedDevices
from nodeagent.core.model.errata import Erratum
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import NumaMask, NumaSet
from nodeagent.core.model.pod import ContainerKind, Pod
from nodeagent.core.model.promises import PodPromises, Promises, with_pod
from nodeagent.core.model.refusals import Reason, Refusal
from nodeagent.core.model.violations import DevicesGone, Shortfall
from nodeagent.core.numa.hint_family import Hints
from nodeagent.core.numa.hints import DONT_CARE, UNSATISFIABLE
from nodeagent.core.resources.devices.hints import pool_hints
from nodeagent.core.resources.devices.holdings import DeviceBooks, DeviceHoldings, count_devices, taken_devices
from nodeagent.core.resources.devices.keep import kept_devices
from nodeagent.core.resources.devices.manager import DeviceManager, allocate_container, find_devices
from nodeagent.core.resources.resource import Allocation, Resource, ResourceHints, Share

if TYPE_CHECKING:
    from nodeagent.core.resources.devices.explainer import DeviceExplainer


def owned(
    selections: tuple[DeviceSelection, ...],
    discovered: PlacedDevices | None,
    plugged: tuple[DevicePool, ...],
    every: NumaMask,
    elsewhere: frozenset[str] = frozenset(),
    quirks: frozenset[Erratum] = frozenset(),
) -> "DeviceResource":
    """Build the device manager for devices found on the machine and devices of plugins.

    Args:
        selections: the resources in the configuration's `devices`, with the devices that each of them selects.
        discovered: the devices found by a scan of /sys. None means that there was no scan, so the manager knows only devices of plugins.
        plugged: the devices of plugins. They are ignored for a resource that `selections` defines.
        every: all NUMA nodes of the machine.
        elsewhere: the names of extended resources that other managers allocate.
        quirks: kubelet's errata that are reproduced.
    """
    configured = {selection.resource for selection in selections}
    plugged = tuple(pool for pool in plugged if pool.resource not in configured)
    pools = (*list_pools(selections, discovered or PlacedDevices()), *plugged)
    return DeviceResource(DeviceManager(pools, every, quirks), plugged, elsewhere)


class DeviceResource(Resource, frozen=True):
    """The device manager as a resource (core/resources/resource.py)."""

    manager: DeviceManager
    plugged: tuple[DevicePool, ...] = ()
    """Devices that device plugins list, as one pool per resource."""
    elsewhere: frozenset[str] = frozenset()
    """Names of extended resources that other managers allocate."""
    name: ClassVar[str] = "devices"
    holdings: ClassVar[type[DeviceHoldings]] = DeviceHoldings
    gives_way: ClassVar[bool] = True

    @property
    def managed(self) -> frozenset[str]:
        return frozenset(pool.resource for pool in self.manager.pools)

    def explainer(self) -> "DeviceExplainer":
        from nodeagent.core.resources.devices.explainer import DeviceExplainer  # noqa: PLC0415 - few decisions are explained

        return DeviceExplainer()

    def end_reuse(self, promises: Promises) -> Promises:
        return promises.having(replace(promises.of(DeviceBooks), reuse=None))

    def keep(self, promises: Promises, pod: Pod, demand: PodDemand, before: PodPromises) -> Promises:
        kept = kept_devices(promises, pod, before.of(DeviceHoldings))
        return with_pod(promises, pod.uid, promises.of_pod(pod.uid).having(kept))

    def container_hints(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> ResourceHints:
        held = promises.of_pod(pod.uid).of(DeviceHoldings)
        return tuple(
            (resource, self._find_hints(promises, pod.uid, resource, wanted, own, has_reuse=True))
            for resource, wanted in self._list_requests(promises, container.devices)
            for own in [held.devices_of(container.name, resource)]
        )

    def pod_hints(self, promises: Promises, pod: PodDemand) -> ResourceHints:
        every = promises.of_pod(pod.uid).of(DeviceHoldings).devices
        hints = []
        for resource, wanted in self._list_requests(promises, pod.devices):
            own = {one.id: one for _, devices in every for one in devices if one.resource == resource}
            hints.append(
                (resource, self._find_hints(promises, pod.uid, resource, wanted, tuple(own.values()), has_reuse=False))
            )
        return tuple(hints)

    def _list_requests(self, promises: Promises, requests: Amounts) -> Amounts:
        """Return the requests that concern the device manager. Requests for resources of other managers, and requests that kubelet would
        ignore, are left out.
        """
        return tuple(
            one for one in requests if one[0] not in self.elsewhere and not self.manager.is_ignored(promises, one[0])
        )

    def _find_hints(
        self,
        promises: Promises,
        uid: str,
        resource: str,
        wanted: int,
        own: tuple[HeldDevice, ...],
        *,
        has_reuse: bool,
    ) -> Hints:
        pool, every = self.manager.pool(resource), self.manager.every
        if pool is None or not pool.has_topology:
            return DONT_CARE
        if own:
            if len(own) != wanted:
                return UNSATISFIABLE
            if Erratum.UNLISTED_DEVICES_WITHOUT_NODES in self.manager.quirks:
                own_devices = find_devices(pool, (device.id for device in own))
            else:
                own_devices = [PoolDevice(device.id, device.nodes.bits) for device in own]
            return pool_hints(pool, every, wanted, own_devices)
        available = self.manager.available(pool, promises)
        reusable = self.manager.reusable(pool, promises, uid) if has_reuse else []
        if len({device.id for device in (*available, *reusable)}) < wanted:
            return UNSATISFIABLE
        return pool_hints(pool, every, wanted, available, reusable)

    def allocate_container(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> Allocation:
        return allocate_container(self.manager, promises, pod, self._drop_foreign_resources(container))

    def _drop_foreign_resources(self, container: ContainerDemand) -> ContainerDemand:
        """Return the container without its requests for extended resources that other managers allocate."""
        if self.elsewhere.isdisjoint(name for name, _ in container.devices):
            return container
        return replace(container, devices=tuple(one for one in container.devices if one[0] not in self.elsewhere))

    def list_shares(self, promises: Promises, name: str) -> tuple[Share, ...]:
        """Return how many of a resource's healthy devices are allocated. Devices near the same NUMA nodes form one share."""
        pool = self.manager.pool(name)
        if pool is None:
            return ()
        free = {device.id for device in self.manager.available(pool, promises)}
        counts: dict[NumaMask, tuple[int, int]] = {}
        for device in pool.healthy:
            if device.nodes:
                given, whole = counts.get(device.nodes, (0, 0))
                counts[device.nodes] = given + (device.id not in free), whole + 1
        return tuple(Share(nodes, given, whole) for nodes, (given, whole) in counts.items())

    def is_asked(self, container: ContainerDemand) -> bool:
        return any(name not in self.elsewhere for name, _ in container.devices)

    def has_container(self, held: PodPromises, container: ContainerDemand) -> bool:
        is_init = container.kind is ContainerKind.INIT
        own = held.of(DeviceHoldings)
        wanted = ((name, count) for name, count in container.devices if name not in self.elsewhere)
        return is_init or all(len(own.devices_of(container.name, name)) == count for name, count in wanted)

    def numa_nodes_of(self, held: PodPromises, name: str) -> NumaSet:
        nodes = NumaSet()
        for device in held.of(DeviceHoldings).devices_of(name):
            nodes |= device.nodes
        return nodes

    def release_container(self, promises: Promises, uid: str, name: str) -> tuple[Promises, MetricDeltas]:
        held = promises.of_pod(uid)
        own = held.of(DeviceHoldings)
        if not own.devices_of(name) or Erratum.REFUSED_PODS_HOLD_DEVICES in self.manager.quirks:
            return promises, ()
        return with_pod(promises, uid, held.having(own.without(name))), ()

    def shortfalls(self, promises: Promises) -> Iterator[Shortfall]:
        """Yield the allocated devices that have disappeared or are unhealthy. Containers keep these devices."""
        if not taken_devices(promises):
            return
        health_by_key = {
            device.held(pool.resource).key: device.is_healthy for pool in self.manager.pools for device in pool.devices
        }
        known = {pool.resource for pool in self.manager.pools}
        for uid, held in promises.pods:
            for name, devices in held.of(DeviceHoldings).devices:
                for resource in sorted({device.resource for device in devices} & known):
                    gone = tuple(
                        d.id for d in devices if d.resource == resource and not health_by_key.get(d.key, False)
                    )
                    if gone:
                        yield DevicesGone(uid, name, resource, gone)

    def find_wait(self, held: PodPromises, pod: PodDemand) -> Refusal | None:
        """Return a temporary refusal of a pod if a device plugin that it needs can't be called at present. None means that the agent can
        decide on the pod now.
        """
        if self.has_pod(held, pod):
            return None
        wanted = dict(pod.devices)
        waits = (
            pool.plugin.describe_wait(pod.uid)
            for pool in self.manager.pools
            if pool.plugin is not None and pool.resource in wanted
        )
        why = next(filter(None, waits), "")
        return Refusal(Reason.DEVICE_PLUGINS_SLOW, why) if why else None

    def tried_out(self) -> "DeviceResource":
        """Return a copy of the device manager that calls no plugins, for trial decisions."""
        quiet = tuple(replace(pool, plugin=None) for pool in self.manager.pools)
        return replace(self, manager=replace(self.manager, pools=quiet))

    def amounts(self, promises: Promises) -> dict[str, int]:
        """Return the node's amount of each resource: the number of healthy devices, or the number of allocated devices if that is larger
        (kubelet: sanitizeNodeAllocatable).
        """
        counts: dict[str, int] = {}
        for pool in self.manager.pools:
            counts[pool.resource] = max(len(pool.healthy), count_devices(promises).get(pool.resource, 0))
        return counts


def list_pools(selections: tuple[DeviceSelection, ...], discovered: PlacedDevices) -> tuple[DevicePool, ...]:
    """Return one pool of devices for each resource in the configuration, in the order of the configuration."""
    return tuple(
        DevicePool(
            resource,
            tuple(
                PoolDevice(
                    device.address,
                    None if node is None else NumaMask(1 << node),
                    kind=device.kind.value,
                    names=device.names,
                )
                for device, node in devices
            ),
        )
        for resource, devices in select_devices(selections, discovered)
    )
