"""Shows what resource claims have got, as documents and as a line for each claim."""

from collections.abc import Iterable, Mapping
from typing import Any

from nodeagent.core.model.claims import CPU_DRIVER, ClaimAllocation, cpu_of
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import PodPromises
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.views.holdings.holding_view import HoldingView

Document = Mapping[str, Any]


def _describe_pod(pod: Pod, held: PodPromises) -> dict[str, Any]:
    return {"claims": claim_documents(held.of(ClaimHoldings).claims)} if pod.claims else {}


VIEW = HoldingView(pod=_describe_pod, decided_pod=_describe_pod)


def claim_documents(claims: Iterable[ClaimAllocation]) -> list[dict[str, Any]]:
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


def claim_text(claim: Document) -> str:
    """Format the allocation of a claim, request by request, with CPUs by number and other devices by name."""
    by_request: dict[str, list[Document]] = {}
    for one in claim["devices"]:
        by_request.setdefault(one["request"], []).append(one)
    parts = [f"{request} {_format_devices(devices)}" for request, devices in by_request.items()]
    return f"{claim['claim']}: {', '.join(parts)}"


def _format_devices(devices: Iterable[Document]) -> str:
    cpus, others = [], []
    for one in devices:
        name, sizes = one["device"], one.get("capacity", {}).values()
        if one["driver"] == CPU_DRIVER:
            cpus.append(cpu_of(name))
        else:
            others.append(" ".join([name, *(str(Quantity.of_bytes(size)) for size in sizes)]))
    named = [f"CPUs {CpuSet.from_ids(cpus)}"] if cpus else []
    return " ".join([*named, *others])
