"""kubelet's late release of devices (Erratum.REFUSED_PODS_HOLD_DEVICES). kubelet releases the devices of an ended or refused pod only when
it decides on the next pod.

If the erratum isn't reproduced, these functions change nothing, because the records in `DeviceBooks` are then empty.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from nodeagent.core.model.promises import Promises, with_pod
from nodeagent.core.resources.devices.holdings import DeviceBooks, DeviceHoldings


def restore_devices(promises: Promises, held: Mapping[str, DeviceHoldings]) -> Promises:
    """Add the devices from kubelet's file kubelet_internal_checkpoint, by pod UID, to promises without devices."""
    for uid, devices in held.items():
        promises = with_pod(promises, uid, promises.of_pod(uid).having(devices))
    return promises


def begin_start(promises: Promises, running: tuple[tuple[str, str], ...]) -> Promises:
    """Record that kubelet is starting and doesn't know its pods yet. `running` contains the pod UID and the name of each running
    container.
    """
    return promises.having(replace(promises.of(DeviceBooks), running=running))


def finish_start(promises: Promises) -> Promises:
    """Record that kubelet has finished its start. It then knows all its pods, because it has admitted the running pods once more."""
    return promises.having(replace(promises.of(DeviceBooks), running=None))


def end_pod(promises: Promises, uid: str, held: DeviceHoldings) -> Promises:
    """Record that an ended or refused pod holds its devices until the next decision."""
    books = promises.of(DeviceBooks)
    promises = with_pod(promises, uid, promises.of_pod(uid).having(held))
    return promises.having(replace(books, ended=tuple(sorted({*books.ended, uid}))))


def clear_ended_pod(promises: Promises, uid: str) -> Promises:
    """Remove a pod from the ended pods before the decision on it. If an ended pod had the same UID, its devices become the pod's own."""
    books = promises.of(DeviceBooks)
    if uid not in books.ended:
        return promises
    return promises.having(replace(books, ended=tuple(one for one in books.ended if one != uid)))


def release_ended_pods(promises: Promises) -> Promises:
    """Release the devices of all ended pods. If there are any, also release the devices that count as allocated although no pod holds them
    (kubelet: UpdateAllocatedDevices).
    """
    books = promises.of(DeviceBooks)
    if books.running is not None or not books.ended:
        return promises
    for one in books.ended:
        promises = with_pod(promises, one, promises.of_pod(one).having(DeviceHoldings()))
    return promises.having(replace(books, leaked=(), ended=()))
