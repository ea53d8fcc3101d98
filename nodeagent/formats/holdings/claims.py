"""Encoder and decoder of the allocations of resource claims in the state file."""

from typing import Any

from nodeagent.core.model.claims import AllocatedDevice, ClaimAllocation
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.formats.syntax.json_values import JsonValue

Document = dict[str, Any]


def encode_claims(held: ClaimHoldings) -> Document:
    """Encode the allocations of a pod's resource claims as JSON values."""
    claims = [
        {
            "claim": claim.claim,
            "name": claim.name,
            "devices": [[each.request, each.driver, each.device, dict(each.capacity)] for each in claim.devices],
        }
        | ({"own": True} if claim.is_own else {})
        for claim in held.claims
    ]
    return {"claims": claims} if claims else {}


def decode_claims(document: JsonValue) -> ClaimHoldings:
    """Decode the allocations of a pod's claims."""
    claims = document.optional("claims")
    return ClaimHoldings(() if claims is None else claims.each(_decode_claim))


def _decode_claim(document: JsonValue) -> ClaimAllocation:
    rows = document.field("devices").each(lambda item: item.row(4))
    devices = tuple(
        AllocatedDevice(request.text(), driver.text(), device.text(), capacity.by_name(JsonValue.whole))
        for request, driver, device, capacity in rows
    )
    own = document.optional("own")
    name, claim = document.field("name").text(), document.field("claim").text()
    return ClaimAllocation(claim, name, devices, own is not None and own.flag())
