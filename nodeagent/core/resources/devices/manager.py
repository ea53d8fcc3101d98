"""Allocation of devices to a container, in kubelet's order (devicemanager/manager.go). Where kubelet's order is random, IDs decide.

Devices of the pod's init containers come first, then devices near the nodes of the merged hint, then other devices. A device that is gone
stays allocated, so no other pod gets it.
"""

from collections.abc import Iterable

from msgspec import Struct

from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.idset import NumaMask
from nodeagent.core.model.pod import ContainerKind
from nodeagent.core.model.promises import PodPromises, Promises, with_pod
from nodeagent.core.model.refusals import Reason, Refusal, wrap_unexpected
from nodeagent.core.resources.devices.holdings import DeviceHoldings, HeldDevice, count_answer_bytes, taken_devices
from nodeagent.core.resources.devices.plugins import DevicePluginFailedError, DevicePluginPostponedError
from nodeagent.core.resources.devices.pools import DevicePool, PoolDevice
from nodeagent.core.resources.resource import Allocation

MAX_ANSWERS_BYTES = 4 * 2**20
"""Limit on the answers of one device plugin that all pods hold together, because they are part of the state file."""


class DeviceManager(Struct, frozen=True):
    pools: tuple[DevicePool, ...]
    every: NumaMask
    """All NUMA nodes of the machine."""

    def pool(self, resource: str) -> DevicePool | None:
        return next((pool for pool in self.pools if pool.resource == resource), None)

    def available(self, pool: DevicePool, promises: Promises) -> list[PoolDevice]:
        """Return the healthy devices that no pod holds."""
        taken = taken_devices(promises)
        return [device for device in pool.healthy if device.held(pool.resource).key not in taken]


def reusable(pool: DevicePool, held: PodPromises, pod: PodDemand) -> list[PoolDevice]:
    """Return the devices that only plain init containers of the pod hold. Later containers can reuse them, because init containers end
    first.
    """
    kinds = {container.name: container.kind for container in pod.containers}
    init_ids: list[str] = []
    lasting_ids: set[str] = set()
    for name, devices in held.of(DeviceHoldings).devices:
        ids = [device.id for device in devices if device.resource == pool.resource]
        if kinds.get(name) is ContainerKind.INIT:
            init_ids += ids
        else:
            lasting_ids |= {*ids}
    device_by_id = {device.id: device for device in pool.devices}
    return [device_by_id[id_] for id_ in dict.fromkeys(init_ids) if id_ not in lasting_ids and id_ in device_by_id]


def allocate_container(
    manager: DeviceManager, promises: Promises, pod: PodDemand, container: ContainerDemand
) -> Allocation:
    """Allocate the requested devices to a container, under its stored hint."""
    for resource, wanted in container.devices:
        held = promises.of_pod(pod.uid)
        own = held.of(DeviceHoldings).devices_of(container.name, resource)
        if own and len(own) == wanted:
            continue
        if own:
            why = f'changed request for resource "{resource}" from {len(own)} to {wanted}'
            return Allocation(promises, refusal=wrap_unexpected(f'pod "{pod.uid}" container "{container.name}" {why}'))
        try:
            chosen = _choose_devices(manager, promises, pod, container.name, resource, wanted)
        except DevicePluginPostponedError as err:
            return Allocation(promises, refusal=Refusal(Reason.DEVICE_PLUGINS_SLOW, str(err)))
        except DevicePluginFailedError as err:
            chosen = str(err)
        if isinstance(chosen, str):
            return Allocation(promises, refusal=wrap_unexpected(chosen))
        devices, answer = chosen
        of_devices = held.of(DeviceHoldings)
        of_devices = of_devices.with_devices(container.name, (*of_devices.devices_of(container.name), *devices))
        if answer is not None:
            kept_bytes = count_answer_bytes(promises, resource) + len(answer)
            if kept_bytes > MAX_ANSWERS_BYTES:
                why = (
                    f"all its answers that pods hold have {kept_bytes} bytes, and at most {MAX_ANSWERS_BYTES} are kept"
                )
                return Allocation(promises, refusal=wrap_unexpected(f"the device plugin of {resource}: {why}"))
            of_devices = of_devices.with_answer(container.name, resource, answer)
        promises = with_pod(promises, pod.uid, held.having(of_devices))
    return Allocation(promises)


def _choose_devices(
    manager: DeviceManager, promises: Promises, pod: PodDemand, name: str, resource: str, wanted: int
) -> tuple[tuple[HeldDevice, ...], bytes | None] | str:
    """Choose devices and call the plugin's Allocate. If there are too few devices, return kubelet's message.

    Raises:
        DevicePluginFailedError: the plugin has given no answer.
    """
    pool = manager.pool(resource)
    if pool is None:
        return f"cannot allocate unregistered device {resource}"
    if not pool.healthy:
        return f"no healthy devices present; cannot allocate unhealthy devices {resource}"
    reusable_devices = reusable(pool, promises.of_pod(pod.uid), pod)[:wanted]
    needed = wanted - len(reusable_devices)
    available = manager.available(pool, promises)
    if len(available) < needed:
        return (
            f"requested number of devices unavailable for {resource}. Requested: {needed}, Available: {len(available)}"
        )
    hint = promises.hint(pod.uid, name).mask
    chosen = (
        *reusable_devices,
        *pick_devices(pool, pod.uid, available, reusable_devices, needed, None if hint is None else hint.bits),
    )
    answer = None if pool.plugin is None else pool.plugin.allocate(pod.uid, tuple(device.id for device in chosen))
    return tuple(device.held(resource) for device in chosen), answer


def pick_devices(
    pool: DevicePool,
    pod_uid: str,
    available: list[PoolDevice],
    reused: list[PoolDevice],
    needed: int,
    affinity: NumaMask | None,
) -> list[PoolDevice]:
    """Pick devices by the hint. Among devices that are equally near, the plugin's preference decides (kubelet: devicesToAllocate)."""
    ordered = sort_devices(pool, available, affinity)
    if pool.plugin is None or not needed:
        return ordered[:needed]
    aligned = (
        [] if affinity is None or not pool.has_topology else [one for one in ordered if (one.nodes or 0) & affinity]
    )
    if needed == len(aligned):
        return aligned
    fixed, rest = ([], aligned) if needed < len(aligned) else (aligned, ordered[len(aligned) :])
    required_ids = tuple(device.id for device in (*reused, *fixed))
    offered = (*required_ids, *(device.id for device in rest))
    preferred = frozenset(pool.plugin.preferred(pod_uid, offered, required_ids, len(reused) + needed))
    return [*fixed, *sorted(rest, key=lambda device: device.id not in preferred)][:needed]


def sort_devices(pool: DevicePool, available: Iterable[PoolDevice], affinity: NumaMask | None) -> list[PoolDevice]:
    """Sort devices in the order of allocation: near the hint's nodes, then near other nodes, then without known nodes."""
    if affinity is None or not pool.has_topology:
        return list(available)

    def rank(device: PoolDevice) -> int:
        if not device.nodes:
            return 2
        return 0 if device.nodes & affinity else 1

    return sorted(available, key=rank)  # stable, so devices of the same rank keep the pool's order
