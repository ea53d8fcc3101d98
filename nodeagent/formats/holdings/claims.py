"""Resource claims in the state file."""

from typing import Any

from nodeagent.core.model.claims import AllocatedDevice, ClaimAllocation
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.formats.syntax.json_values import JsonValue

Document = dict[str, Any]


def encode_claims(held: ClaimHoldings) -> Document:
    """Encode the claims of a pod."""
    return {"claims": [_claim_document(claim) for claim in held.claims]} if held.claims else {}


def decode_claims(document: JsonValue) -> ClaimHoldings:
    """Decode the claims of a pod."""
    claims = document.optional("claims")
    return ClaimHoldings(() if claims is None else claims.each(_claim))


def _claim_document(claim: ClaimAllocation) -> Document:
    devices = [[each.request, each.driver, each.device, dict(each.capacity)] for each in claim.devices]
    own = {"own": True} if claim.is_own else {}
    return {"claim": claim.claim, "name": claim.name, "devices": devices} | own


def _claim(document: JsonValue) -> ClaimAllocation:
    devices = document.field("devices").each(_allocated_device)
    own = document.optional("own")
    name, claim = document.field("name").text(), document.field("claim").text()
    return ClaimAllocation(claim, name, devices, own is not None and own.flag())


def _allocated_device(item: JsonValue) -> AllocatedDevice:
    request, driver, device, capacity = item.row(4)
    return AllocatedDevice(request.text(), driver.text(), device.text(), capacity.by_name(JsonValue.whole))
