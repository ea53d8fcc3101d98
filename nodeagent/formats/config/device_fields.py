"""Reader and formatter of the configuration's field `devices`, which selects the devices of each extended resource. The module is loaded
only if the field is set, because few nodes have devices.
"""

import re
from typing import Any

from nodeagent.core.model.device_selection import DeviceSelection, DeviceSelector
from nodeagent.core.model.devices import DEVICE_KINDS, DeviceKind
from nodeagent.formats.syntax.fields import Fields
from nodeagent.formats.syntax.json_values import JsonValue
from nodeagent.formats.syntax.resource_names import is_extended_resource, variable_part

Document = dict[str, Any]

MOST_RESOURCES = 256
MOST_SELECTORS = 256
_MAX_NUMA_ID = 2**31 - 1
_PCI_IDS = re.compile(r"([0-9a-fA-F]{4}):([0-9a-fA-F]{4}|\*)")
_ADDRESS = re.compile(r"[0-9a-f:.*?\[\]]{1,32}")
_DRIVER = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NAME = re.compile(r"[^\s/]{1,64}")


def read_devices(items: tuple[Fields, ...], owner: Fields) -> tuple[DeviceSelection, ...]:
    """Read the items of the field `devices`. `owner` is the object that contains the field."""
    found: dict[str, DeviceSelection] = {}
    variables: dict[str, str] = {}
    for item in items:
        resource, selectors = item.string("resource") or "", tuple(map(_read_selector, item.objects("select")))
        if not resource:
            item.report("resource", "is required: the name that pods request, such as example.com/nic-100g")
        elif not is_extended_resource(resource):
            item.report(
                "resource", "must be DOMAIN/NAME, like Kubernetes' extended resources (not kubernetes.io)", resource
            )
        elif resource in found:
            item.report("resource", "is listed twice: give all its selectors in one entry", resource)
        elif variables.setdefault(variable_part(resource), resource) != resource:
            other = variables[variable_part(resource)]
            item.report(
                "resource", f"has the same name as {other} in a container's environment: choose another", resource
            )
        if not selectors:
            item.report(
                "select",
                "is required: at least one of kind, address, device, driver, name, numaNode, virtualFunctionsOf",
            )
        elif len(selectors) > MOST_SELECTORS:
            item.report("select", f"has more than {MOST_SELECTORS} entries")
        item.close()
        found.setdefault(resource, DeviceSelection(resource, selectors))
    if len(items) > MOST_RESOURCES:
        owner.report("devices", f"has more than {MOST_RESOURCES} entries")
    return tuple(found.values())


def _read_selector(fields: Fields) -> DeviceSelector:
    kind, ids = fields.one_of("kind", DEVICE_KINDS), fields.string("device")
    match = None if ids is None else _PCI_IDS.fullmatch(ids)
    if ids is not None and match is None:
        fields.report(
            "device", "must be VENDOR:DEVICE in hexadecimal as shown by `lspci -n`, such as 15b3:101d or 15b3:*", ids
        )
    selector = DeviceSelector(
        kind=None if kind is None else DeviceKind(kind),
        address=_read_text(
            fields, "address", _ADDRESS, "must be a PCI address such as 0000:3b:00.0, with * for any text"
        ),
        vendor=None if match is None else int(match[1], 16),
        model=None if match is None or match[2] == "*" else int(match[2], 16),
        driver=_read_text(fields, "driver", _DRIVER, "must be the name of a driver"),
        name=_read_text(fields, "name", _NAME, "must be the name of a device, with * for any text"),
        numa_node=fields.integer("numaNode", 0, _MAX_NUMA_ID),
        virtual_functions_of=_read_text(
            fields, "virtualFunctionsOf", _NAME, "must be the address or a name of the physical function"
        ),
    )
    if selector == DeviceSelector() and not fields.present():
        fields.report("kind", "or another field is required: an empty selector would select every device")
    fields.close()
    return selector


def _read_text(fields: Fields, key: str, form: re.Pattern[str], rule: str) -> str:
    text = fields.string(key)
    if text is not None and not form.fullmatch(text):
        fields.report(key, rule, text)
        return ""
    return text or ""


def devices_document(selections: tuple[DeviceSelection, ...]) -> list[Document]:
    """Format the selections as in a configuration."""
    return [
        {"resource": selection.resource, "select": [_format_selector(selector) for selector in selection.selectors]}
        for selection in selections
    ]


def _format_selector(selector: DeviceSelector) -> Document:
    model = "*" if selector.model is None else f"{selector.model:04x}"
    document: Document = {
        "kind": None if selector.kind is None else selector.kind.value,
        "address": selector.address or None,
        "device": None if selector.vendor is None else f"{selector.vendor:04x}:{model}",
        "driver": selector.driver or None,
        "name": selector.name or None,
        "numaNode": selector.numa_node,
        "virtualFunctionsOf": selector.virtual_functions_of or None,
    }
    return {key: value for key, value in document.items() if value is not None}


def devices_from_document(value: JsonValue) -> tuple[DeviceSelection, ...]:
    """Read the result of `devices_document`.

    Raises:
        MisfitError: the value is malformed.
    """
    return value.each(
        lambda item: DeviceSelection(item.field("resource").text(), item.field("select").each(_decode_selector))
    )


def _decode_selector(value: JsonValue) -> DeviceSelector:
    texts = {
        key: value.read_optional(key, JsonValue.text, "")
        for key in ("address", "device", "driver", "name", "virtualFunctionsOf")
    }
    match = _PCI_IDS.fullmatch(texts["device"])
    return DeviceSelector(
        kind=value.read_optional("kind", lambda kind: kind.one_of(DeviceKind), None),
        address=texts["address"],
        vendor=None if match is None else int(match[1], 16),
        model=None if match is None or match[2] == "*" else int(match[2], 16),
        driver=texts["driver"],
        name=texts["name"],
        numa_node=value.read_optional("numaNode", JsonValue.whole, None),
        virtual_functions_of=texts["virtualFunctionsOf"],
    )
