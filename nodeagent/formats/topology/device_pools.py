"""Device pools as plain values, in the form that the running agent publishes."""

from typing import Any

from nodeagent.core.model.device_pools import DevicePool, PoolDevice
from nodeagent.core.model.idset import NumaSet
from nodeagent.formats.syntax.json_values import JsonValue

Document = dict[str, Any]


def pools_document(pools: tuple[DevicePool, ...]) -> list[Document]:
    return [
        {
            "resource": pool.resource,
            "devices": [
                {
                    "id": device.id,
                    "numaNodes": None if device.nodes is None else str(NumaSet(device.nodes)),
                    "healthy": device.is_healthy,
                    "kind": device.kind,
                    "names": list(device.names),
                }
                for device in pool.devices
            ],
        }
        for pool in pools
    ]


def pools_from_document(document: JsonValue) -> tuple[DevicePool, ...]:
    """Decode the result of `pools_document`.

    Raises:
        MisfitError: the document is malformed.
    """
    return document.each(
        lambda pool: DevicePool(
            pool.field("resource").text(),
            pool.field("devices").each(
                lambda value: PoolDevice(
                    value.field("id").text(),
                    value.read_optional("numaNodes", lambda nodes: nodes.nodes().bits, None),
                    value.field("healthy").flag(),
                    value.field("kind").text(),
                    value.field("names").each(JsonValue.text),
                )
            ),
        )
    )
