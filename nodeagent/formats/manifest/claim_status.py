"""ResourceClaims with their status (allocation and consumers), as the API server would show them. The agent writes these documents, and
reads them if it has lost its state.
"""

import json
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.claims import (
    CARD_DRIVER,
    CPU_DRIVER,
    AllocatedDevice,
    ClaimAllocation,
    ClaimSpec,
    decode_cpu_name,
    format_card_name,
)
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.promises import NOTHING, UnrecoveredPod
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.formats.manifest.claim_documents import API_VERSION, devices_document
from nodeagent.formats.manifest.pod_schema import CLAIM
from nodeagent.formats.syntax.json_values import JsonValue, parse_json


class ClaimHolder(Struct, frozen=True):
    """A pod in a claim's `reservedFor`."""

    pod: str
    """Name of the pod, without its namespace."""
    uid: str


class AllocatedClaim(Struct, frozen=True):
    allocation: ClaimAllocation
    holders: tuple[ClaimHolder, ...]
    cards: tuple[HeldDevice, ...] = ()
    """PCI devices that are allocated to the claim."""
    spec: ClaimSpec | None = None
    """Requests of the claim. None if the claim was read back from a file, because the pods' manifests contain the
    requests.
    """


def allocated_claims(state: NodeState) -> dict[str, AllocatedClaim]:
    """Return the allocated claims by `namespace/name`."""
    found: dict[str, AllocatedClaim] = {}
    specs = {entry.pod.uid: {claim.name: claim.spec for claim in entry.pod.claims} for entry in state.entries}
    known_pods = ((entry.pod.name, entry.pod.uid, state.promises.of_pod(entry.pod.uid)) for entry in state.entries)
    unrecovered = ((lost.name, lost.uid, lost.held) for lost in state.promises.unrecovered)
    for pod_name, uid, held in (*known_pods, *unrecovered):
        devices = {device for _, own in held.of(DeviceHoldings).devices for device in own}
        for allocation in held.of(ClaimHoldings).claims:
            known = found.get(allocation.claim) or AllocatedClaim(replace(allocation, devices=()), ())
            # A pod only holds the claimed devices that its containers use. Other pods may hold more devices of the same claim.
            every = tuple(dict.fromkeys((*known.allocation.devices, *allocation.devices)))
            cards = {card.id: card for card in (*known.cards, *devices) if card.claim == allocation.claim}
            found[allocation.claim] = AllocatedClaim(
                replace(allocation, devices=every),
                (*known.holders, ClaimHolder(pod_name, uid)),
                tuple(card for _, card in sorted(cards.items())),
                known.spec or specs.get(uid, {}).get(allocation.name),
            )
    return found


def claim_text(claim: AllocatedClaim, node: str) -> bytes:
    """Format a claim as JSON, which is also YAML. The device pool has the node's name."""
    namespace, _, name = claim.allocation.claim.partition("/")
    results = []
    for device in claim.allocation.devices:
        result: dict[str, object] = {
            "request": device.request,
            "driver": device.driver,
            "pool": node,
            "device": device.device,
        }
        if device.capacity:
            result["consumedCapacity"] = {key: str(Quantity.of_bytes(size)) for key, size in device.capacity}
        results.append(result)
    status: dict[str, object] = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": each.pod, "uid": each.uid} for each in claim.holders],
    }
    if claim.cards:
        status["devices"] = [
            {
                "driver": CARD_DRIVER,
                "pool": node,
                "device": format_card_name(card.id),
                "data": {
                    "address": card.id,
                    "kind": card.kind,
                    "names": list(card.names),
                    "numaNodes": str(card.nodes),
                },
            }
            for card in claim.cards
        ]
    document = {
        "apiVersion": API_VERSION,
        "kind": CLAIM,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": devices_document(claim.spec or ClaimSpec(()))},
        "status": status,
    }
    return json.dumps(document, indent=2).encode() + b"\n"


def parse_claim_text(content: bytes) -> AllocatedClaim | None:
    """Parse the output of `claim_text`. None means that the content is malformed."""
    try:
        document = parse_json(content)
        metadata, status = document.field("metadata"), document.field("status")
        full_name = f"{metadata.field('namespace').text()}/{metadata.field('name').text()}"
        results = status.field("allocation").field("devices").field("results").each(_parse_result)
        holders = status.field("reservedFor").each(
            lambda holder: ClaimHolder(holder.field("name").text(), holder.field("uid").text())
        )
        data = status.read_optional("devices", lambda cards: cards.each(lambda card: card.field("data")), ())
        cards = tuple(
            HeldDevice(
                CARD_DRIVER,
                card.field("address").text(),
                card.field("numaNodes").nodes(),
                card.field("kind").text(),
                card.field("names").each(JsonValue.text),
                full_name,
            )
            for card in data
        )
    except ValueError:  # this also catches MisfitError, which is a ValueError
        return None
    return AllocatedClaim(ClaimAllocation(full_name, "", results), holders, cards)


def _parse_result(item: JsonValue) -> AllocatedDevice:
    capacity = item.read_optional("consumedCapacity", lambda sizes: sizes.by_name(JsonValue.quantity), ())
    sizes = tuple((name, JsonValue(size.value(), name).whole()) for name, size in capacity)
    request, driver, device = (item.field(key).text() for key in ("request", "driver", "device"))
    if driver == CPU_DRIVER:
        decode_cpu_name(device)
    return AllocatedDevice(request, driver, device, sizes)


def group_by_pod(recorded: Iterable[AllocatedClaim]) -> tuple[UnrecoveredPod, ...]:
    """Return the recorded claims by the pod for which each is reserved."""
    found: dict[str, UnrecoveredPod] = {}
    for claim in recorded:
        for holder in claim.holders:
            known = found.get(holder.uid) or UnrecoveredPod(holder.uid, NOTHING, holder.pod)
            cards = (*known.held.of(DeviceHoldings).devices_of(""), *claim.cards)
            devices = (("", cards),) if cards else ()
            held = known.held.having(
                replace(known.held.of(DeviceHoldings), devices=devices),
                ClaimHoldings(claims=(*known.held.of(ClaimHoldings).claims, claim.allocation)),
            )
            found[holder.uid] = replace(known, held=held)
    return tuple(pod for _, pod in sorted(found.items()))
