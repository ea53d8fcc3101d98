"""Encoder and decoder of pods' memory and huge pages, and of the memory manager's record of NUMA nodes, in the state file."""

from typing import Any

from nodeagent.core.resources.memory.holdings import (
    Block,
    Blocks,
    MemoryBooks,
    MemoryHoldings,
    MemoryNode,
    MemoryReuse,
    MemoryTable,
)
from nodeagent.formats.syntax.json_values import MAX_WHOLE, JsonValue

Document = dict[str, Any]


def encode_memory(held: MemoryHoldings) -> Document:
    """Encode the memory of a pod."""
    document: Document = {}
    if held.memory:
        document["memory"] = {name: _encode_blocks(blocks) for name, blocks in held.memory}
    if held.pod_memory is not None:
        document["podMemory"] = _encode_blocks(held.pod_memory)
    return document


def decode_memory(document: JsonValue) -> MemoryHoldings:
    """Decode the memory of a pod."""
    memory, whole = document.optional("memory"), document.optional("podMemory")
    return MemoryHoldings(
        memory=() if memory is None else memory.by_name(_decode_blocks),
        pod_memory=None if whole is None else _decode_blocks(whole),
    )


def encode_memory_books(books: MemoryBooks) -> Document:
    """Encode the memory manager's record of the NUMA nodes' free and reserved memory."""
    document: Document = {}
    if books.nodes:
        document["memory"] = [
            {
                "id": node.id,
                "assignments": node.assignments,
                "cells": str(node.cells),
                "tables": {r: [t.total, t.system_reserved, t.allocatable, t.reserved, t.free] for r, t in node.tables},
            }
            for node in books.nodes
        ]
    if books.reuse is not None:
        amounts = [[str(nodes), resource, size] for (nodes, resource), size in books.reuse.amounts]
        document["memoryReuse"] = {"pod": books.reuse.pod_uid, "amounts": amounts}
    return document


def decode_memory_books(document: JsonValue) -> MemoryBooks:
    """Decode the memory manager's record of the NUMA nodes' free and reserved memory."""
    listed, reuse = document.optional("memory"), document.optional("memoryReuse")
    nodes = () if listed is None else listed.each(_decode_node)
    if reuse is None:
        return MemoryBooks(nodes)
    rows = reuse.field("amounts").each(lambda row: row.row(3))
    amounts = tuple(((group.nodes(), resource.text()), size.whole()) for group, resource, size in rows)
    return MemoryBooks(nodes, MemoryReuse(reuse.field("pod").text(), amounts))


def _encode_blocks(blocks: Blocks) -> list[list[str | int]]:
    return [[str(b.nodes), b.resource, b.size_bytes] for b in blocks]


def _decode_blocks(items: JsonValue) -> Blocks:
    rows = items.each(lambda item: item.row(3))
    return tuple(Block(nodes.nodes(), resource.text(), size.whole()) for nodes, resource, size in rows)


def _decode_node(document: JsonValue) -> MemoryNode:
    return MemoryNode(
        id=document.field("id").whole(),
        assignments=document.field("assignments").whole(),
        cells=document.field("cells").nodes(),
        # More memory may be allocated on a node than it has, so free and allocatable bytes may be negative.
        tables=document.field("tables").by_name(
            lambda item: MemoryTable(*(amount.whole(-MAX_WHOLE) for amount in item.row(5)))
        ),
    )
