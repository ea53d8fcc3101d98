"""Devices that pods keep after a start. Pods also keep devices that no longer exist."""

from nodeagent.core.model.pod import ContainerKind, Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.resources.devices.holdings import DeviceHoldings, HeldDevice


def kept_devices(promises: Promises, pod: Pod, before: DeviceHoldings) -> DeviceHoldings:
    """Return the devices that a pod keeps: all devices that no other container already keeps. Later containers may share devices of plain
    init containers.
    """
    kinds, mine = {container.name: container.kind for container in pod.containers}, {*before.holders}
    taken: dict[tuple[str, str], str] = {}
    """Claims by device key. Empty text means that the device is not claimed."""
    own: dict[tuple[str, str], str] = {}
    for uid, held in promises.pods:
        for name, devices in held.of(DeviceHoldings).devices:
            if uid != pod.uid:
                taken |= {one.key: one.claim for one in devices}
            elif name not in mine and kinds.get(name) is not ContainerKind.INIT:
                own |= {one.key: one.claim for one in devices}
    kept = []
    for name, devices in before.devices:
        if name not in kinds:
            continue
        lends, left = kinds[name] is ContainerKind.INIT, list[HeldDevice]()
        for one in devices:
            of = taken.get(one.key) if lends else taken.get(one.key, own.get(one.key))
            if of is None or (one.claim and of == one.claim):
                left.append(one)
                own |= {} if lends else {one.key: one.claim}
        kept += [(name, tuple(left))] if left else []
    return DeviceHoldings(tuple(kept), tuple(item for item in before.answers if item[0] in kinds))
