"""What an API server demands of ResourceSlices (resource.k8s.io/v1). Independent of our writer.

Source: the API's types and its validation (k8s.io/api/resource/v1, pkg/apis/resource/validation): counts, lengths, forms of names.
"""

import re
from collections.abc import Iterable
from typing import Any

from nodeagent.core.model.quantity import Quantity

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_VALUES = {"int": int, "bool": bool, "string": str, "version": str}
_LISTS = {"ints": int, "bools": bool, "strings": str, "versions": str}


def is_subdomain(name: str, longest: int = 253) -> bool:
    return len(name) <= longest and all(_LABEL.fullmatch(part) for part in name.split("."))


def checked(slices: Iterable[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Hold them to the rules; return the attributes of each device, by driver and name."""
    pools: dict[tuple[str, str], list[dict[str, Any]]] = {}
    names = []
    for one in slices:
        assert set(one) == {"apiVersion", "kind", "metadata", "spec"}
        assert (one["apiVersion"], one["kind"]) == ("resource.k8s.io/v1", "ResourceSlice")
        assert is_subdomain(one["metadata"]["name"])
        names.append(one["metadata"]["name"])
        spec = one["spec"]
        assert set(spec) == {"devices", "driver", "nodeName", "pool"}
        assert is_subdomain(spec["driver"], 63)
        assert is_subdomain(spec["nodeName"])
        assert set(spec["pool"]) == {"generation", "name", "resourceSliceCount"}
        assert all(is_subdomain(part) for part in spec["pool"]["name"].split("/"))
        assert 1 <= len(spec["devices"]) <= 128
        pools.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
    assert len(names) == len(set(names))
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for (driver, _), specs in pools.items():
        assert {spec["pool"]["resourceSliceCount"] for spec in specs} == {len(specs)}
        assert len({spec["pool"]["generation"] for spec in specs}) == 1
        devices = [device for spec in specs for device in spec["devices"]]
        assert len({device["name"] for device in devices}) == len(devices)
        found[driver] = {device["name"]: _device(device) for device in devices}
    return found


def _device(device: dict[str, Any]) -> dict[str, Any]:
    assert set(device) <= {"name", "attributes", "capacity", "nodeAllocatableResources"}
    for resource, mapped in device.get("nodeAllocatableResources", {}).items():
        assert "/" not in resource, "no extended resource"
        assert set(mapped) == {"mapping"}
        ((kind, quantity),) = mapped["mapping"].items()
        assert kind == "deviceMultiplier"
        assert Quantity.parse(quantity).nano > 0
    assert _LABEL.fullmatch(device["name"])
    attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
    assert len(attributes) + len(capacity) <= 32
    for name in (*attributes, *capacity):
        domain, _, identifier = name.rpartition("/")
        assert is_subdomain(domain, 63)
        assert _IDENTIFIER.fullmatch(identifier), name
    values = {}
    for name, value in attributes.items():
        ((kind, held),) = value.items()
        each = held if kind in _LISTS else [held]
        assert each, "a list has values"
        for part in each:
            assert type(part) is (_VALUES | _LISTS)[kind], name
            assert not isinstance(part, str) or 1 <= len(part) <= 64
        values[name] = held
    assert sum(len(one) if isinstance(one, list) else 1 for one in values.values()) <= 48
    for name, value in capacity.items():
        assert set(value) == {"value"}
        values[name] = Quantity.parse(value["value"]).value()
    return values
