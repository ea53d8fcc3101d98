"""Devices that pods keep after a start of the agent. Pods also keep devices that no longer exist."""

from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.pod import ContainerKind, Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.resources.devices.holdings import DeviceHoldings


def kept_devices(promises: Promises, pod: Pod, before: DeviceHoldings) -> DeviceHoldings:
    """Return the devices that a pod keeps. Devices that another container already keeps are left out, except that later containers may
    share devices of plain init containers.
    """
    kinds, own_names = {container.name: container.kind for container in pod.containers}, {*before.holders}
    taken: dict[tuple[str, str], str] = {}
    """Claims by device key. An empty text means that the device isn't claimed."""
    own: dict[tuple[str, str], str] = {}
    for uid, held in promises.pods:
        for name, devices in held.of(DeviceHoldings).devices:
            if uid != pod.uid:
                taken |= {one.key: one.claim for one in devices}
            elif name not in own_names and kinds.get(name) is not ContainerKind.INIT:
                own |= {one.key: one.claim for one in devices}
    kept = []
    for name, devices in before.devices:
        if name not in kinds:
            continue
        is_init, kept_here = kinds[name] is ContainerKind.INIT, list[HeldDevice]()
        for one in devices:
            claim_of_owner = taken.get(one.key) if is_init else taken.get(one.key, own.get(one.key))
            if claim_of_owner is None or (one.claim and claim_of_owner == one.claim):
                kept_here.append(one)
                own |= {} if is_init else {one.key: one.claim}
        kept += [(name, tuple(kept_here))] if kept_here else []
    return DeviceHoldings(tuple(kept), tuple(item for item in before.answers if item[0] in kinds))
