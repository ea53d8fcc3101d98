"""Encoder and decoder of pods' devices in the state file."""

import base64
from typing import Any

from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.formats.syntax.json_values import JsonValue

Document = dict[str, Any]


def encode_devices(held: DeviceHoldings) -> Document:
    """Encode the devices of a pod."""
    document: Document = {}
    if held.devices:
        document["devices"] = {name: [_encode_device(one) for one in devices] for name, devices in held.devices}
    if held.answers:
        document["deviceAnswers"] = {
            name: {resource: base64.b64encode(answer).decode() for resource, answer in answers}
            for name, answers in held.answers
        }
    return document


def decode_devices(document: JsonValue) -> DeviceHoldings:
    """Decode the devices of a pod."""
    devices, answers = document.optional("devices"), document.optional("deviceAnswers")
    return DeviceHoldings(
        devices=() if devices is None else devices.by_name(lambda own: own.each(_decode_device)),
        answers=() if answers is None else answers.by_name(lambda own: own.by_name(_decode_answer)),
    )


def _decode_answer(document: JsonValue) -> bytes:
    try:
        return base64.b64decode(document.text(), validate=True)
    except ValueError as err:
        raise document.misfit("base64") from err


def _encode_device(device: HeldDevice) -> Document:
    rest = {
        "nodes": str(device.nodes),
        "kind": device.kind,
        "names": list(device.names),
        "claim": device.claim,
        "listsMinusOne": device.lists_minus_one,
    }
    return {"resource": device.resource, "id": device.id} | {key: value for key, value in rest.items() if value}


def _decode_device(document: JsonValue) -> HeldDevice:
    nodes, kind, names, claim = (document.optional(key) for key in ("nodes", "kind", "names", "claim"))
    return HeldDevice(
        document.field("resource").text(),
        document.field("id").text(),
        NumaSet() if nodes is None else nodes.nodes(),
        "" if kind is None else kind.text(),
        () if names is None else names.each(JsonValue.text),
        "" if claim is None else claim.text(),
        document.read_optional("listsMinusOne", JsonValue.flag, False),
    )
