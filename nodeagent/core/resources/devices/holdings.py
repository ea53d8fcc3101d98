"""Records of the device manager: devices that pods hold as extended resources or through claims."""

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct

from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.holdings import put_item, remove_item
from nodeagent.core.model.podmap import Fold
from nodeagent.core.model.promises import PodPromises, Promises


class DeviceHoldings(Struct, frozen=True):
    """Devices that one pod holds. All tuples are sorted by container name."""

    devices: tuple[tuple[str, tuple[HeldDevice, ...]], ...] = ()
    """Devices by container, sorted by resource and ID. Devices of init containers may be listed for later containers, too."""
    answers: tuple[tuple[str, tuple[tuple[str, bytes], ...]], ...] = ()
    """Device plugins' answers to Allocate, by container and resource, as encoded messages (formats/wire/device_plugins.py). An answer
    describes how the container gets access to its devices.
    """

    @property
    def holders(self) -> Iterator[str]:
        return (name for name, _ in self.devices)

    @property
    def size(self) -> int:
        return sum(len(devices) for _, devices in self.devices)

    def without(self, container: str) -> "DeviceHoldings":
        return DeviceHoldings(remove_item(self.devices, container), remove_item(self.answers, container))

    def of_container(self, container: str) -> "DeviceHoldings":
        """Return a copy with only the devices and answers of one container."""
        devices = tuple(item for item in self.devices if item[0] == container)
        return DeviceHoldings(devices, tuple(item for item in self.answers if item[0] == container))

    def plus(self, other: "DeviceHoldings") -> "DeviceHoldings":
        """Return these holdings merged with others. For a container that occurs in both, the other holdings replace these."""
        devices, answers = self.devices, self.answers
        for name, own in other.devices:
            devices = put_item(devices, name, own)
        for name, given in other.answers:
            answers = put_item(answers, name, given)
        return DeviceHoldings(devices, answers)

    def with_devices(self, container: str, devices: Iterable[HeldDevice]) -> "DeviceHoldings":
        """Return a copy in which a container holds these devices instead of its present ones."""
        own = tuple(sorted(devices, key=lambda one: (one.resource, one.id)))
        return DeviceHoldings(put_item(self.devices, container, own), self.answers)

    def with_answer(self, container: str, resource: str, answer: bytes) -> "DeviceHoldings":
        """Return a copy with a device plugin's answer for a container added."""
        own = put_item(next((answers for key, answers in self.answers if key == container), ()), resource, answer)
        return DeviceHoldings(self.devices, put_item(self.answers, container, own))

    def devices_of(self, name: str, resource: str | None = None) -> tuple[HeldDevice, ...]:
        """Return a container's devices of one resource, or of all resources if `resource` is None."""
        own = next((devices for key, devices in self.devices if key == name), ())
        return own if resource is None else tuple(device for device in own if device.resource == resource)

    def answer_of(self, name: str, resource: str) -> bytes | None:
        """Return a device plugin's answer for a container. None means that there is no answer, because the resource isn't provided by a
        plugin.
        """
        own = next((answers for key, answers in self.answers if key == name), ())
        return next((answer for key, answer in own if key == resource), None)


class DeviceReuse(Struct, frozen=True):
    """Devices of a pod's init containers that later containers of this pod may reuse. The record is removed at the end of the pod's
    admission or, with Erratum.REUSE_OUTLIVES_POD, when the next pod gets devices. There is therefore at most one.
    """

    pod_uid: str
    devices: tuple[tuple[str, tuple[str, ...]], ...]
    """IDs of the devices by resource, both sorted."""

    def of(self, resource: str) -> tuple[str, ...]:
        return next((ids for name, ids in self.devices if name == resource), ())


class DeviceBooks(Struct, frozen=True):
    """Node-wide records of the device manager. Between decisions they are empty, unless kubelet's errata are reproduced."""

    reuse: DeviceReuse | None = None
    leaked: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """IDs of devices that count as allocated although no pod holds them, by resource (Erratum.REFUSED_PODS_HOLD_DEVICES). A resource stays
    listed without IDs, because kubelet remembers that it was requested.
    """
    ended: tuple[str, ...] = ()
    """UIDs of ended or refused pods that still hold devices, sorted (Erratum.REFUSED_PODS_HOLD_DEVICES)."""
    running: tuple[tuple[str, str], ...] | None = None
    """Pod UID and name of each container that was running when kubelet started. None means that kubelet isn't starting."""


def taken_devices(promises: Promises) -> frozenset[tuple[str, str]]:
    """Return the keys (`HeldDevice.key`) of all devices that pods hold."""
    taken: frozenset[tuple[str, str]] = promises.pods.fold(_DEVICES)
    unrecovered = promises.unrecovered
    return taken.union(*(_list_keys_of_pod(one.uid, one.held) for one in unrecovered)) if unrecovered else taken


def pods_with_devices(promises: Promises) -> Iterator[tuple[str, DeviceHoldings]]:
    """Return the devices of each pod by UID, in ascending order. Lost pods are included. The iterator is empty if no pod has devices."""
    if not taken_devices(promises):
        return iter(())
    return ((uid, pod.of(DeviceHoldings)) for uid, pod in promises.all_pods())


def count_answer_bytes(promises: Promises, resource: str) -> int:
    """Return the total size in bytes of the stored answers from a resource's device plugin."""
    return promises.pods.fold(_ANSWER_BYTES).get(resource, 0)


def count_devices(promises: Promises) -> dict[str, int]:
    """Count the allocated devices of each extended resource. Devices that were allocated through claims aren't counted."""
    ids_by_resource: dict[str, set[str]] = {}
    for _, held in pods_with_devices(promises):
        for _, devices in held.devices:
            for device in devices:
                if device.claim:
                    continue
                ids_by_resource.setdefault(device.resource, set()).add(device.id)
    return {resource: len(ids) for resource, ids in ids_by_resource.items()}


def _list_keys_of_pod(_uid: str, pod: PodPromises) -> frozenset[tuple[str, str]]:
    return frozenset(device.key for _, devices in pod.of(DeviceHoldings).devices for device in devices)


_DEVICES: Fold[PodPromises, frozenset[tuple[str, str]]] = Fold(frozenset(), _list_keys_of_pod, frozenset.__or__)


def _count_answer_bytes_of_pod(_uid: str, pod: PodPromises) -> Counter[str]:
    sizes = Counter[str]()
    for _, answers in pod.of(DeviceHoldings).answers:
        for resource, answer in answers:
            sizes[resource] += len(answer)
    return sizes


_ANSWER_BYTES: Fold[PodPromises, Counter[str]] = Fold(Counter(), _count_answer_bytes_of_pod, Counter.__add__)
