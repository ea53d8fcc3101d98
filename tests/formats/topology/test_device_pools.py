"""Devices that a node gives, as its agent publishes them: read back unchanged, those of an unknown place too."""

import json

import pytest

from nodeagent.core.model.device_pools import DevicePool, PoolDevice
from nodeagent.core.model.idset import NumaMask
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError
from nodeagent.formats.topology.device_pools import pools_document, pools_from_document

POOLS = (
    DevicePool(
        "example.com/nic",
        (
            PoolDevice("0000:3b:00.0", NumaMask(2), kind="network", names=("eth0", "rdma0")),
            PoolDevice("0000:af:00.0", None, is_healthy=False),
            PoolDevice("0000:b0:00.0", NumaMask(0)),
        ),
    ),
    DevicePool("example.com/none", ()),
)


def test_they_are_read_back_unchanged() -> None:
    text = json.dumps(pools_document(POOLS))
    assert pools_from_document(JsonValue(json.loads(text))) == POOLS


def test_what_is_missing_is_named() -> None:
    document = pools_document(POOLS)
    del document[0]["devices"][1]["id"]
    with pytest.raises(MisfitError, match="id: is missing"):
        pools_from_document(JsonValue(document))
