"""Allocation of devices to a container, by the rules of kubelet's device manager (devicemanager/manager.go). Where kubelet's order is
random, devices are taken in the order of their IDs.

Devices of the pod's init containers are taken first, then devices near the NUMA nodes of the merged hint, then other devices. A device that
has disappeared stays allocated to its pod, so no other pod gets it if it comes back.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.device_pools import (
    DevicePluginFailedError,
    DevicePluginPostponedError,
    DevicePool,
    PoolDevice,
)
from nodeagent.core.model.errata import Erratum
from nodeagent.core.model.idset import NumaMask
from nodeagent.core.model.pod import ContainerKind
from nodeagent.core.model.promises import Promises, with_pod
from nodeagent.core.model.refusals import Reason, Refusal, wrap_unexpected
from nodeagent.core.resources.devices.holdings import (
    DeviceBooks,
    DeviceHoldings,
    DeviceReuse,
    count_answer_bytes,
    pods_with_devices,
    taken_devices,
)
from nodeagent.core.resources.devices.turnover import release_ended_pods
from nodeagent.core.resources.resource import Allocation

MAX_ANSWERS_BYTES = 4 * 2**20
"""Maximum total size in bytes of the answers from one device plugin for all pods. The answers are part of the state file, which would
otherwise become too large.
"""


class DeviceManager(Struct, frozen=True):
    pools: tuple[DevicePool, ...]
    every: NumaMask
    """All NUMA nodes of the machine."""
    quirks: frozenset[Erratum] = frozenset()

    def pool(self, resource: str) -> DevicePool | None:
        return next((pool for pool in self.pools if pool.resource == resource), None)

    def available(self, pool: DevicePool, promises: Promises) -> list[PoolDevice]:
        """Return the healthy devices that no pod holds."""
        taken = taken_devices(promises)
        leaked = frozenset(dict(promises.of(DeviceBooks).leaked).get(pool.resource, ()))
        return [
            device for device in pool.healthy if device.held(pool.resource).key not in taken and device.id not in leaked
        ]

    def reusable(self, pool: DevicePool, promises: Promises, uid: str) -> list[PoolDevice]:
        """Return the devices, healthy or not, that only init containers of the pod hold. Later containers may reuse these devices, because
        the init containers end before they start.
        """
        reuse = promises.of(DeviceBooks).reuse
        if reuse is None or reuse.pod_uid != uid:
            return []
        return find_devices(pool, reuse.of(pool.resource))

    def is_ignored(self, promises: Promises, resource: str) -> bool:
        """Return whether kubelet would ignore a request for the resource, because no plugin has registered the resource and no pod holds
        its devices (isDevicePluginResource).
        """
        if Erratum.MISSING_DEVICES_LEFT_OUT not in self.quirks:
            return False
        pool = self.pool(resource)
        if pool is not None and pool.is_registered:
            return False
        return resource not in dict(promises.of(DeviceBooks).leaked) and not any(
            device.resource == resource
            for _, held in pods_with_devices(promises)
            for _, devices in held.devices
            for device in devices
        )


def find_devices(pool: DevicePool, ids: Iterable[str]) -> list[PoolDevice]:
    """Return the devices with these IDs. For an ID that the plugin doesn't list, return an unhealthy device without further data."""
    device_by_id = {device.id: device for device in pool.devices}
    return [device_by_id.get(id_) or PoolDevice(id_, is_healthy=False) for id_ in ids]


def allocate_container(
    manager: DeviceManager, promises: Promises, pod: PodDemand, container: ContainerDemand
) -> Allocation:
    """Allocate the requested devices to a container, preferably near the NUMA nodes of its stored hint."""
    books = promises.of(DeviceBooks)
    if books.reuse is not None and books.reuse.pod_uid != pod.uid:
        promises = promises.having(replace(books, reuse=None))
    wanted_by_resource = [one for one in container.devices if not manager.is_ignored(promises, one[0])]
    if wanted_by_resource:
        promises = release_ended_pods(promises)
    for resource, wanted in wanted_by_resource:
        try:
            allocation = _allocate_resource(manager, promises, pod, container.name, resource, wanted)
        except DevicePluginPostponedError as err:
            return Allocation(promises, refusal=Refusal(Reason.DEVICE_PLUGINS_SLOW, str(err)))
        if allocation.refusal is not None:
            return allocation
        promises = allocation.promises
    return Allocation(_update_reuse(promises, pod.uid, container))


def _update_reuse(promises: Promises, uid: str, container: ContainerDemand) -> Promises:
    """Record which devices the pod's later containers may reuse. An init container's devices become reusable, and stay so until a sidecar
    or app container gets them.
    """
    books = promises.of(DeviceBooks)
    if books.reuse is None and container.kind is not ContainerKind.INIT:
        return promises
    ids = {} if books.reuse is None else {name: {*listed} for name, listed in books.reuse.devices}
    for device in promises.of_pod(uid).of(DeviceHoldings).devices_of(container.name):
        if device.claim:
            continue
        own = ids.setdefault(device.resource, set())
        if container.kind is ContainerKind.INIT:
            own.add(device.id)
        else:
            own.discard(device.id)
    left = tuple((name, tuple(sorted(listed))) for name, listed in sorted(ids.items()) if listed)
    return promises.having(replace(books, reuse=DeviceReuse(uid, left) if left else None))


def _allocate_resource(
    manager: DeviceManager, promises: Promises, pod: PodDemand, name: str, resource: str, wanted: int
) -> Allocation:
    own = promises.of_pod(pod.uid).of(DeviceHoldings).devices_of(name, resource)
    if own and len(own) != wanted:
        why = f'changed request for resource "{resource}" from {len(own)} to {wanted}'
        return Allocation(promises, refusal=wrap_unexpected(f'pod "{pod.uid}" container "{name}" {why}'))
    is_judged_again = Erratum.DEVICES_REFUSED_AT_A_START in manager.quirks
    running = promises.of(DeviceBooks).running
    if (own and not is_judged_again) or (running is not None and (pod.uid, name) in running):
        return Allocation(promises)
    pool = manager.pool(resource)
    if pool is None or not pool.is_registered:
        return Allocation(promises, refusal=wrap_unexpected(f"cannot allocate unregistered device {resource}"))
    healthy = {device.id for device in pool.healthy}
    if not healthy or any(device.id not in healthy for device in own):
        problem = "previously allocated devices are no longer healthy" if healthy else "no healthy devices present"
        why = f"{problem}; cannot allocate unhealthy devices {resource}"
        return Allocation(promises, refusal=wrap_unexpected(why))
    if own or not wanted:
        return Allocation(promises)
    return _allocate_new(manager, promises, pod.uid, name, pool, wanted)


def _allocate_new(
    manager: DeviceManager, promises: Promises, uid: str, name: str, pool: DevicePool, wanted: int
) -> Allocation:
    """Allocate devices of a pool to a container that has none of them yet."""
    resource = pool.resource
    taken = manager.reusable(pool, promises, uid)[:wanted]
    needed = wanted - len(taken)
    available = manager.available(pool, promises) if needed else []
    if len(available) < needed:
        why = (
            f"requested number of devices unavailable for {resource}. Requested: {needed}, Available: {len(available)}"
        )
        return Allocation(_leak(manager, promises, resource, taken), refusal=wrap_unexpected(why))
    hint = promises.hint(uid, name).mask
    aligned, others = _split_by_affinity(pool, available, None if hint is None else hint.bits)
    first, rest = (taken, aligned) if needed < len(aligned) else ([*taken, *aligned], others)
    try:
        chosen = first if len(first) == wanted else _pick_preferred(pool, uid, first, rest, wanted)
    except DevicePluginPostponedError:
        raise
    except DevicePluginFailedError as err:
        return Allocation(_leak(manager, promises, resource, first), refusal=wrap_unexpected(str(err)))
    try:
        ids = tuple(device.id for device in chosen)
        answer = None if pool.plugin is None else pool.plugin.allocate(uid, ids)
    except DevicePluginPostponedError:
        raise
    except DevicePluginFailedError as err:
        promises = promises.having(replace(promises.of(DeviceBooks), leaked=()))
        return Allocation(promises, refusal=wrap_unexpected(str(err)))
    devices = (device.held(resource) for device in chosen)
    held = promises.of_pod(uid)
    of_devices = held.of(DeviceHoldings)
    of_devices = of_devices.with_devices(name, (*of_devices.devices_of(name), *devices))
    if answer is not None:
        kept_bytes = count_answer_bytes(promises, resource) + len(answer)
        if kept_bytes > MAX_ANSWERS_BYTES:
            why = f"its stored answers for all pods would have {kept_bytes} bytes, more than the limit of {MAX_ANSWERS_BYTES}"
            return Allocation(promises, refusal=wrap_unexpected(f"the device plugin of {resource}: {why}"))
        of_devices = of_devices.with_answer(name, resource, answer)
    return Allocation(with_pod(promises, uid, held.having(of_devices)))


def _leak(manager: DeviceManager, promises: Promises, resource: str, picked: Iterable[PoolDevice]) -> Promises:
    """Record that the devices chosen for a refused container count as allocated, as kubelet does. They count until kubelet releases the
    devices of an ended pod, or until a plugin's Allocate fails.
    """
    if Erratum.REFUSED_PODS_HOLD_DEVICES not in manager.quirks:
        return promises
    books = promises.of(DeviceBooks)
    leaked = dict(books.leaked)
    leaked[resource] = tuple(sorted({*leaked.get(resource, ()), *(device.id for device in picked)}))
    return promises.having(replace(books, leaked=tuple(sorted(leaked.items()))))


def _split_by_affinity(
    pool: DevicePool, available: Iterable[PoolDevice], affinity: NumaMask | None
) -> tuple[list[PoolDevice], list[PoolDevice]]:
    """Split the devices into those near the NUMA nodes of the hint, and all others. Among the others, devices whose NUMA nodes are known
    come first (kubelet: filterByAffinity).
    """
    if affinity is None or not pool.has_topology:
        return [], list(available)
    aligned, others = list[PoolDevice](), list[PoolDevice]()
    for device in available:
        (aligned if (device.nodes or 0) & affinity else others).append(device)
    # The sort is stable, so equal devices stay in the order of the pool.
    return aligned, sorted(others, key=lambda device: not device.nodes)


def _pick_preferred(
    pool: DevicePool, uid: str, first: list[PoolDevice], rest: list[PoolDevice], wanted: int
) -> list[PoolDevice]:
    """Return `wanted` devices: all of `first`, and as many of `rest` as needed. Those of `rest` that the plugin prefers come before the
    others (kubelet: devicesToAllocate).
    """
    preferred = frozenset[str]()
    if pool.plugin is not None:
        required = tuple(device.id for device in first)
        offered = tuple(device.id for device in (*first, *rest))
        preferred = frozenset(pool.plugin.preferred(uid, offered, required, wanted))
    # The plugin's choice takes precedence over the order by NUMA nodes.
    chosen = sorted((device for device in rest if device.id in preferred), key=lambda device: device.id)
    return [*first, *chosen, *(device for device in rest if device.id not in preferred)][:wanted]
