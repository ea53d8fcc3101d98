"""Devices that pods keep when the agent starts with a lost state, or on a changed machine or configuration. Pods also keep devices that
don't exist any more.
"""

from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.pod import ContainerKind, Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.resources.devices.holdings import DeviceHoldings


def kept_devices(promises: Promises, pod: Pod, before: DeviceHoldings) -> DeviceHoldings:
    """Return the devices that a pod keeps. A device that another container already keeps is left out, unless both have it from the same
    claim, or the other is an init container of the same pod.
    """
    kinds, own_names = {container.name: container.kind for container in pod.containers}, {*before.holders}
    taken: dict[tuple[str, str], str] = {}
    """Full name of the claim from which a device was allocated, by the device's key. An empty name means that the device was allocated
    without a claim.
    """
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
