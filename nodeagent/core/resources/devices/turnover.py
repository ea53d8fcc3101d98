"""Devices of ended and refused pods, as kubelet's device manager treats them (Erratum.REFUSED_PODS_HOLD_DEVICES).

When a pod ends or is refused, kubelet doesn't release the pod's devices until its next decision on any pod. Without the erratum, these
functions change nothing, because the device manager's accounts are empty.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from nodeagent.core.model.promises import Promises, with_pod
from nodeagent.core.resources.devices.holdings import DeviceBooks, DeviceHoldings


def restore_devices(promises: Promises, held: Mapping[str, DeviceHoldings]) -> Promises:
    """Add the devices in kubelet_internal_checkpoint, given by pod UID, to promises without devices."""
    for uid, devices in held.items():
        promises = with_pod(promises, uid, promises.of_pod(uid).having(devices))
    return promises


def begin_start(promises: Promises, running: tuple[tuple[str, str], ...]) -> Promises:
    """Begin the phase in which kubelet starts and doesn't know any pods. `running` lists the pod UID and name of each container that is
    running.
    """
    return promises.having(replace(promises.of(DeviceBooks), running=running))


def finish_start(promises: Promises) -> Promises:
    """End the phase in which kubelet starts. kubelet then knows all its pods, because it has readmitted the running pods."""
    return promises.having(replace(promises.of(DeviceBooks), running=None))


def end_pod(promises: Promises, uid: str, held: DeviceHoldings) -> Promises:
    """Let an ended or refused pod keep its devices until the next decision."""
    books = promises.of(DeviceBooks)
    promises = with_pod(promises, uid, promises.of_pod(uid).having(held))
    return promises.having(replace(books, ended=tuple(sorted({*books.ended, uid}))))


def begin_pod(promises: Promises, uid: str) -> Promises:
    """Count a pod as active during the decision on it. The pod takes over the devices of an ended pod with the same UID."""
    books = promises.of(DeviceBooks)
    if uid not in books.ended:
        return promises
    return promises.having(replace(books, ended=tuple(one for one in books.ended if one != uid)))


def release_ended_pods(promises: Promises) -> Promises:
    """Release the devices of all ended pods. If there are any such pods, also release all devices that no pod holds
    (UpdateAllocatedDevices).
    """
    books = promises.of(DeviceBooks)
    if books.running is not None or not books.ended:
        return promises
    for one in books.ended:
        promises = with_pod(promises, one, promises.of_pod(one).having(DeviceHoldings()))
    return promises.having(replace(books, leaked=(), ended=()))
