"""Amounts that the agent knows or estimates for a pod of a container runtime, as documents and as text. Each amount has its source."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from nodeagent.core.model.pod import MEMORY
from nodeagent.core.model.pod_amounts import quantity_of
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.state import NodeState, PodEntry

if TYPE_CHECKING:
    from nodeagent.core.domains.runtime.estimates import Range
    from nodeagent.core.domains.runtime.pod_model import Known

Document = Mapping[str, Any]
_SOURCE_LABELS = {
    "annotation": "its annotations",
    "podsApi": "kubelet's pods API",
    "cgroupParent": "the cgroup's name",
    "cpuShares": "its CPU shares",
    "cpuQuota": "its CPU quota",
    "memoryLimit": "its memory limit",
    "hugepageLimit": "its huge page limit",
    "oomScoreAdj": "its oom_score_adj",
    "qosClass": "the QoS class",
    "seen": "the runtime's reports so far",
}


def find_known_amounts(entry: PodEntry, state: NodeState, capacity_bytes: int) -> "tuple[Known, ...]":
    """Return the amounts that the agent knows or estimates for a pod of a container runtime. The result is empty for other pods."""
    if not entry.is_requested_per_container:
        return ()
    from nodeagent.core.domains.runtime.known_again import restore_known  # noqa: PLC0415 - most nodes have no container runtime
    from nodeagent.formats.runtime.annotations import read_annotations  # noqa: PLC0415 - most nodes have no container runtime

    return restore_known(entry, state.runtime, lambda sandbox: read_annotations(sandbox).stated, capacity_bytes)


def describe_known_amounts(known: "Iterable[Known]") -> list[dict[str, Any]]:
    """Describe each known amount, with the value as a Kubernetes quantity."""
    return [
        {
            "container": one.container or None,
            "exact": one.is_exact,
            "from": one.by.value,
            "least": None if one.between is None else _format_bound(one.what, one.between, is_least=True),
            "most": None if one.between is None else _format_bound(one.what, one.between, is_least=False),
            "value": one.value,
            "what": one.what,
        }
        for one in known
    ]


def format_known_amount(known: Document) -> list[str]:
    """Format a known amount as the cells of a table row: its owner, its name, the amount, and the source."""
    by = _SOURCE_LABELS[known["from"]] if known["exact"] else _format_estimate(known)
    return [known["container"] or "the pod", known["what"], _format_amount(known, "value"), by]


def format_estimate(known: Document) -> str:
    """Format an estimated amount as a line of text, with its source and possible range."""
    owner = "" if known["container"] is None else f"container {known['container']}, "
    return f"{owner}{known['what']} {_format_amount(known, 'value')}: {_format_estimate(known)}"


def _format_estimate(known: Document) -> str:
    between = ""
    if known["least"] is not None:
        least = _format_amount(known, "least")
        between = f" ({least} or more)" if known["most"] is None else f" ({least} to {_format_amount(known, 'most')})"
    return f"estimated from {_SOURCE_LABELS[known['from']]}{between}"


def _format_amount(known: Document, field: str) -> str:
    """Format an amount. Estimated memory is rounded to MiB."""
    text: str = known[field]
    is_rough = not known["exact"] and known["what"].endswith(f".{MEMORY}")
    return f"{Quantity.parse(text).value() / 2**20:.0f}Mi" if is_rough else text


def _format_bound(what: str, between: "Range", *, is_least: bool) -> str | None:
    amount = between.least if is_least else between.most
    return None if amount is None else str(quantity_of(what.partition(".")[2], amount))
