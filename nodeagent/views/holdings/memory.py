"""Memory and huge pages that are allocated from NUMA nodes, as documents and text."""

from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.pod import Container
from nodeagent.core.model.promises import PodPromises
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.resources.memory.holdings import MemoryHoldings
from nodeagent.views.holdings.holding_view import Document, HoldingView


def _describe_container(held: PodPromises, container: str) -> Document:
    nodes = held.of(MemoryHoldings).nodes(container)
    return {"mems": str(nodes) if nodes else None}


def _describe_resized(held: PodPromises, container: Container) -> Document:
    """Describe a container's allocated memory with its NUMA nodes. If no memory is allocated, describe the memory limit."""
    parts = [
        f"{Quantity.of_bytes(block.size_bytes)} on NUMA {block.nodes}"
        for block in held.of(MemoryHoldings).blocks(container.name) or ()
        if block.resource == "memory"
    ]
    limit = container.resources.limits.get("memory")
    return {"memory": ", ".join(parts) or (None if limit is None else str(limit))}


def _describe_freed(held: PodPromises) -> Document:
    nodes = NumaSet()
    for name in held.of(MemoryHoldings).holders:
        nodes |= held.of(MemoryHoldings).nodes(name)
    return {"memoryNodes": str(nodes)}


VIEW = HoldingView(promised=_describe_container, resized=_describe_resized, freed=_describe_freed)
