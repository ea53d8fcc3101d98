"""Encoder and decoder of kubelet's file kubelet_internal_checkpoint, which lists the devices of each container. The agent writes this file,
too, and recovers the devices' owners from it if the agent's own state is lost.

The checksum is FNV-1a over a dump of the contents as Go's spew prints them (checksum.New, hash.DeepHashObject), not over the file's bytes.
kubelet writes the entries in the random order of a Go map, but this module sorts them. A device with affinity to several NUMA nodes is
listed under each of these nodes.
"""

import base64
import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from nodeagent.core.model.device_pools import DevicePool
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import MAX_ID, NumaSet
from nodeagent.core.model.promises import NOTHING, PodPromises, Promises
from nodeagent.core.resources.devices.holdings import DeviceHoldings, pods_with_devices
from nodeagent.formats.syntax.fnv import fnv1a_32
from nodeagent.formats.syntax.go_json import (
    GoJsonError,
    OldFormatError,
    decode_json,
    fields,
    is_list,
    keys_of,
    mapping,
    quote,
    sequence,
    string,
    unsigned,
)

_NOWHERE = -1
"""NUMA node ID under which kubelet lists devices without topology (nodeWithoutTopology)."""
_NODE = re.compile(r"-1|0|[1-9][0-9]{0,4}")
_ENTRY = ("PodUID", "ContainerName", "ResourceName", "DeviceIDs", "AllocResp")


class _Entry(Struct, frozen=True):
    uid: str
    container: str
    resource: str
    ids: tuple[tuple[int, tuple[str, ...]], ...]
    """Device IDs by NUMA node, in ascending order of nodes."""
    answer: bytes


class DeviceCheckpointError(ValueError):
    """The text is damaged or malformed."""


def encode_devices(promises: Promises, pools: Iterable[DevicePool] = ()) -> str:
    """Encode the file. It lists the devices of each container, and the pools' healthy devices as registered devices."""
    entries = []
    for uid, pod in pods_with_devices(promises):
        for name, own in pod.devices:
            ids: dict[str, dict[int, list[str]]] = {}
            for device in own:
                if device.claim:
                    continue  # kubelet's file doesn't contain the devices of claims
                nowhere = (_NOWHERE,) if device.lists_minus_one or not device.nodes else ()
                for node in (*nowhere, *device.nodes):
                    ids.setdefault(device.resource, {}).setdefault(node, []).append(device.id)
            for resource, by_node in ids.items():
                listed_ids = tuple((node, tuple(listed)) for node, listed in sorted(by_node.items()))
                entries.append(_Entry(uid, name, resource, listed_ids, pod.answer_of(name, resource) or b""))
    registered = {pool.resource: tuple(one.id for one in pool.healthy) for pool in pools if pool.is_registered}
    listed = ",".join(_format_entry(entry) for entry in entries)
    given = ",".join(f"{quote(name)}:{_format_list(ids)}" for name, ids in sorted(registered.items()))
    data = f'{{"PodDeviceEntries":{f"[{listed}]" if entries else "null"},"RegisteredDevices":{{{given}}}}}'
    return f'{{"Data":{data},"Checksum":{_compute_checksum(entries, registered)}}}'


class DeviceContents(Struct, frozen=True):
    """Content of a file, whether or not its checksum is correct."""

    entries: tuple[_Entry, ...]
    registered: Mapping[str, tuple[str, ...]]
    """IDs of the devices that were healthy when the file was written, by resource."""
    checksum: int
    """Checksum as stored in the file."""

    @property
    def sum(self) -> int:
        """Compute the correct checksum of this content."""
        return _compute_checksum(self.entries, self.registered)

    def pods(self) -> dict[str, PodPromises]:
        """Return the devices of each pod and the answers of their plugins, by pod UID."""
        found: dict[str, dict[str, list[HeldDevice]]] = {}
        answers: dict[str, dict[str, dict[str, bytes]]] = {}
        for entry in self.entries:
            nodes: dict[str, set[int]] = {}
            for node, ids in entry.ids:
                for id_ in ids:
                    nodes.setdefault(id_, set()).add(node)
            own = found.setdefault(entry.uid, {}).setdefault(entry.container, [])
            own += [_read_device(entry.resource, id_, nodes[id_]) for id_ in sorted(nodes)]
            if entry.answer:
                answers.setdefault(entry.uid, {}).setdefault(entry.container, {})[entry.resource] = entry.answer
        return {
            uid: NOTHING.having(
                DeviceHoldings(
                    devices=tuple(
                        (name, tuple(sorted(devices, key=lambda held: (held.resource, held.id))))
                        for name, devices in sorted(containers.items())
                    ),
                    answers=tuple(
                        (name, tuple(sorted(given.items()))) for name, given in sorted(answers.get(uid, {}).items())
                    ),
                )
            )
            for uid, containers in found.items()
        }


def decode_devices(text: str) -> dict[str, PodPromises]:
    """Decode the devices of each pod and the answers of their plugins, by pod UID.

    Raises:
        DeviceCheckpointError: the text is malformed or has a wrong checksum.
    """
    return decode_device_contents(text).pods()


def decode_device_contents(text: str) -> DeviceContents:
    """Decode the file and check its checksum.

    Raises:
        DeviceCheckpointError: the text is malformed or has a wrong checksum.
    """
    try:
        contents = read_device_contents(decode_json(text))
    except GoJsonError as err:
        raise DeviceCheckpointError(str(err)) from err
    if contents.checksum != contents.sum:
        raise DeviceCheckpointError("checkpoint is corrupted")
    return contents


def read_device_contents(document: object) -> DeviceContents:
    """Parse a decoded file without checking its checksum.

    Raises:
        GoJsonError: the document is malformed.
    """
    if keys_of(document) & {"poddeviceentries", "registereddevices"}:
        raise OldFormatError(
            "it has the format of kubelet before 1.11, without Data and Checksum",
            hint="no kubelet migrates this file: drain the node, remove the file, and start kubelet",
        )
    outer = fields(document, ("Data", "Checksum"))
    data = fields(outer["Data"], ("PodDeviceEntries", "RegisteredDevices"))
    return DeviceContents(
        entries=sequence(data["PodDeviceEntries"], _parse_entry) or (),
        registered=mapping(data["RegisteredDevices"], lambda ids: sequence(ids, string) or ()) or {},
        checksum=unsigned(outer["Checksum"]),
    )


def _read_device(resource: str, id_: str, nodes: set[int]) -> HeldDevice:
    # in the file, a device that is only on node -1 looks like a device without topology
    known = NumaSet.from_ids(nodes - {_NOWHERE})
    return HeldDevice(resource, id_, known, lists_minus_one=bool(known) and _NOWHERE in nodes)


def _format_entry(entry: _Entry) -> str:
    # Go sorts the keys of a map as strings.
    ids = ",".join(f'"{node}":{_format_list(ids)}' for node, ids in sorted(entry.ids, key=lambda item: str(item[0])))
    texts = (("PodUID", entry.uid), ("ContainerName", entry.container), ("ResourceName", entry.resource))
    named = ",".join(f'"{name}":{quote(text)}' for name, text in texts)
    return f'{{{named},"DeviceIDs":{{{ids}}},"AllocResp":"{base64.b64encode(entry.answer).decode()}"}}'


def _format_list(ids: Iterable[str]) -> str:
    return f"[{','.join(quote(id_) for id_ in ids)}]"


def _parse_entry(value: object) -> _Entry:
    entry = fields(value, _ENTRY)
    if is_list(entry["DeviceIDs"]):
        # Between kubernetes#102882 and kubernetes#123398, kubelet migrated files of this format.
        raise OldFormatError(
            "it has the format of kubelet before 1.20, whose DeviceIDs are a list without NUMA nodes",
            hint="kubelet 1.20 to 1.29 migrates the file when it starts, later ones don't: use the file that it has written",
        )
    ids = mapping(entry["DeviceIDs"], lambda each: sequence(each, string) or ()) or {}
    for node in ids:
        if not _NODE.fullmatch(node) or int(node) > MAX_ID:
            raise GoJsonError(f"json: cannot unmarshal number {node[:20]} into Go value of type int64")
    text = string(entry["AllocResp"])
    try:
        answer = base64.b64decode(text, validate=True)
    except ValueError as err:  # the error is binascii.Error, or the error for text that isn't ASCII
        raise GoJsonError("illegal base64 data") from err
    return _Entry(
        string(entry["PodUID"]),
        string(entry["ContainerName"]),
        string(entry["ResourceName"]),
        tuple(sorted((int(node), each) for node, each in ids.items())),
        answer,
    )


def _compute_checksum(entries: Iterable[_Entry], registered: Mapping[str, Iterable[str]]) -> int:
    listed = []
    for entry in entries:
        ids = " ".join(f"{node}:[{' '.join(ids)}]" for node, ids in entry.ids)
        listed.append(
            f"{{PodUID:(string){entry.uid} ContainerName:(string){entry.container} ResourceName:(string){entry.resource} "
            f"DeviceIDs:(checkpoint.DevicesPerNUMA)map[{ids}] AllocResp:([]uint8)[{' '.join(map(str, entry.answer))}]}}"
        )
    given = " ".join(f"{name}:[{' '.join(ids)}]" for name, ids in sorted(registered.items()))
    whole = f"[{' '.join(listed)}]" if listed else "<nil>"
    return fnv1a_32(
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)"
        f"{whole} RegisteredDevices:(map[string][]string)map[{given}]}}"
    )
