"""The device manager as one of several resource managers."""

from collections.abc import Iterator
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import MetricDeltas
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.device_selection import DeviceSelection
from nodeagent.core.model.devices import PlacedDevices
from nodeagent.core.model.idset import NumaMask, NumaSet
from nodeagent.core.model.pod import ContainerKind, Pod
from nodeagent.core.model.promises import PodPromises, Promises, with_pod
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.violations import DevicesGone, Shortfall, Violation
from nodeagent.core.numa.hint_family import Hints
from nodeagent.core.numa.hints import UNSATISFIABLE
from nodeagent.core.numa.resource_manager import Allocation, ResourceHints
from nodeagent.core.resources.devices.hints import pool_hints
from nodeagent.core.resources.devices.holdings import DeviceHoldings, HeldDevice, count_devices, taken_devices
from nodeagent.core.resources.devices.manager import DeviceManager, allocate_container, allocate_pod, reusable
from nodeagent.core.resources.devices.pools import DevicePool, PoolDevice, pools_of


def owned(
    selections: tuple[DeviceSelection, ...],
    there: PlacedDevices | None,
    plugged: tuple[DevicePool, ...],
    every: NumaMask,
) -> "DeviceResource":
    """Return the manager of what there is, and of what device plugins have told; where nobody has looked, of these alone.

    A resource that the configuration has come to give is no plugin's any more: one that has registered before isn't told.
    """
    configured = {selection.resource for selection in selections}
    plugged = tuple(pool for pool in plugged if pool.resource not in configured)
    pools = (*pools_of(selections, there or PlacedDevices()), *plugged)
    return DeviceResource(DeviceManager(pools, every), plugged)


class DeviceResource(Struct, frozen=True):
    """See `ResourceManager`."""

    manager: DeviceManager
    plugged: tuple[DevicePool, ...] = ()
    """Those of device plugins."""
    name: ClassVar[str] = "devices"

    def container_hints(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> ResourceHints:
        held = promises.of_pod(pod.uid)
        return tuple(
            (
                resource,
                self._hints(
                    promises, held, pod, resource, wanted, held.of(DeviceHoldings).devices_of(container.name, resource)
                ),
            )
            for resource, wanted in container.devices
        )

    def pod_hints(self, promises: Promises, pod: PodDemand) -> ResourceHints:
        held = promises.of_pod(pod.uid)
        every = held.of(DeviceHoldings).devices
        return tuple(
            (
                resource,
                self._hints(
                    promises,
                    held,
                    pod,
                    resource,
                    wanted,
                    tuple({d.id: d for _, devices in every for d in devices if d.resource == resource}.values()),
                ),
            )
            for resource, wanted in pod.devices
        )

    def _hints(
        self,
        promises: Promises,
        held: PodPromises,
        pod: PodDemand,
        resource: str,
        wanted: int,
        own: tuple[HeldDevice, ...],
    ) -> Hints:
        pool = self.manager.pool(resource)
        if pool is None:
            return UNSATISFIABLE
        if own:
            if len(own) != wanted:
                return UNSATISFIABLE
            there = [PoolDevice(device.id, device.nodes.bits or None) for device in own]
            return pool_hints(pool, self.manager.every, wanted, there)
        available = self.manager.available(pool, promises)
        lent = reusable(pool, held, pod)
        if len(available) + len(lent) < wanted:
            return UNSATISFIABLE
        return pool_hints(pool, self.manager.every, wanted, available, lent)

    def allocate_container(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> Allocation:
        return allocate_container(self.manager, promises, pod, container)

    def allocate_pod(self, promises: Promises, pod: PodDemand) -> Allocation:
        return allocate_pod(self.manager, promises, pod)

    def percent_given(self, promises: Promises, node: int) -> int | None:  # noqa: ARG002 -- kubelet asks CPUs and memory alone
        return None

    def is_asked(self, container: ContainerDemand) -> bool:
        return bool(container.devices)

    def has_container(self, held: PodPromises, container: ContainerDemand) -> bool:
        is_back = container.kind is ContainerKind.INIT
        return is_back or all(
            len(held.of(DeviceHoldings).devices_of(container.name, name)) == count for name, count in container.devices
        )

    def has_pod(self, held: PodPromises, pod: PodDemand) -> bool:
        return all(self.has_container(held, container) for container in pod.containers)

    def place(self, held: PodPromises, name: str) -> NumaSet:
        nodes = NumaSet()
        for device in held.of(DeviceHoldings).devices_of(name):
            nodes |= device.nodes
        return nodes

    def found_deltas(self, container: ContainerDemand) -> MetricDeltas:  # noqa: ARG002 -- kubelet counts plugins' calls alone
        return ()

    def start_container(self, promises: Promises, pod: Pod, name: str) -> Promises:  # noqa: ARG002 -- devices stay until the pod goes
        return promises

    def release_container(self, promises: Promises, uid: str, name: str) -> tuple[Promises, MetricDeltas]:
        held = promises.of_pod(uid)
        own = held.of(DeviceHoldings)
        if not own.devices_of(name):
            return promises, ()
        return with_pod(promises, uid, held.having(own.without(name))), ()

    def release_pod(self, promises: Promises, uid: str) -> tuple[Promises, MetricDeltas]:  # noqa: ARG002 -- it has none as a whole
        return promises, ()

    def validated(self, promises: Promises) -> Promises | StartRefused:
        return promises

    def started_deltas(self, promises: Promises) -> MetricDeltas:  # noqa: ARG002 -- as above
        return ()

    def gauges(self, promises: Promises) -> tuple[tuple[Series, int], ...]:  # noqa: ARG002 -- kubelet has none
        return ()

    def violations(self, promises: Promises, active: tuple[Pod, ...]) -> Iterator[Violation]:  # noqa: ARG002 -- see admission/invariants.py: they hold without a manager, too
        yield from ()

    def shortfalls(self, promises: Promises) -> Iterator[Shortfall]:
        """A device that is gone, or not healthy any more, stays its holder's."""
        if not taken_devices(promises):
            return
        there = {
            device.held(pool.resource).key: device.is_healthy for pool in self.manager.pools for device in pool.devices
        }
        known = {pool.resource for pool in self.manager.pools}
        for uid, held in promises.pods:
            for name, devices in held.of(DeviceHoldings).devices:
                for resource in sorted({device.resource for device in devices} & known):
                    gone = tuple(d.id for d in devices if d.resource == resource and not there.get(d.key, False))
                    if gone:
                        yield DevicesGone(uid, name, resource, gone)

    def unasked(self) -> "DeviceResource":
        """Return it for decisions that are only tried out: no plugin is asked, or told to give anything."""
        quiet = tuple(replace(pool, plugin=None) for pool in self.manager.pools)
        return replace(self, manager=replace(self.manager, pools=quiet))

    def amounts(self, promises: Promises) -> dict[str, int]:
        """Return what can be asked for of each resource: what is healthy, and at least what is given (kubelet: sanitizeNodeAllocatable)."""
        given: dict[str, int] = {}
        for pool in self.manager.pools:
            given[pool.resource] = max(len(pool.healthy), count_devices(promises).get(pool.resource, 0))
        return given
