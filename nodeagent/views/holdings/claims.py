"""Allocations of a pod's resource claims, as documents and as one line of text per claim."""

from collections.abc import Iterable, Mapping
from typing import Any

from nodeagent.core.model.claims import CPU_DRIVER, ClaimAllocation, decode_cpu_name
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import PodPromises
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.views.holdings.holding_view import HoldingView

Document = Mapping[str, Any]


def _describe_pod(pod: Pod, held: PodPromises) -> dict[str, Any]:
    return {"claims": describe_claims(held.of(ClaimHoldings).claims)} if pod.claims else {}


VIEW = HoldingView(pod=_describe_pod, decided_pod=_describe_pod)


def describe_claims(claims: Iterable[ClaimAllocation]) -> list[dict[str, Any]]:
    """Describe the allocations of a pod's claims."""
    return [
        {
            "claim": claim.claim,
            "devices": [
                {"device": one.device, "driver": one.driver, "request": one.request}
                | ({"capacity": dict(one.capacity)} if one.capacity else {})
                for one in claim.devices
            ],
            "name": claim.name,
        }
        for claim in claims
    ]


def format_claim(claim: Document) -> str:
    """Format a claim's allocation, grouped by request. CPUs are shown by number, and other devices by name."""
    by_request: dict[str, list[Document]] = {}
    for one in claim["devices"]:
        by_request.setdefault(one["request"], []).append(one)
    parts = []
    for request, devices in by_request.items():
        cpus = CpuSet.from_ids(decode_cpu_name(one["device"]) for one in devices if one["driver"] == CPU_DRIVER)
        words = [request, *([f"CPUs {cpus}"] if cpus else [])]
        for one in devices:
            if one["driver"] != CPU_DRIVER:
                words += [one["device"], *(str(Quantity.of_bytes(size)) for size in one.get("capacity", {}).values())]
        parts.append(" ".join(words))
    return f"{claim['claim']}: {', '.join(parts)}"
