"""Memory and huge pages in the state file."""

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
        document["memory"] = {name: _blocks_document(blocks) for name, blocks in held.memory}
    if held.pod_memory is not None:
        document["podMemory"] = _blocks_document(held.pod_memory)
    return document


def decode_memory(document: JsonValue) -> MemoryHoldings:
    """Decode the memory of a pod."""
    memory, whole = document.optional("memory"), document.optional("podMemory")
    return MemoryHoldings(
        memory=() if memory is None else memory.by_name(_blocks),
        pod_memory=None if whole is None else _blocks(whole),
    )


def encode_memory_books(books: MemoryBooks) -> Document:
    """Encode the memory manager's accounts of the node."""
    document: Document = {}
    if books.nodes:
        document["memory"] = [_memory_node_document(node) for node in books.nodes]
    if books.reuse is not None:
        amounts = [[str(nodes), resource, size] for (nodes, resource), size in books.reuse.amounts]
        document["memoryReuse"] = {"pod": books.reuse.pod_uid, "amounts": amounts}
    return document


def decode_memory_books(document: JsonValue) -> MemoryBooks:
    """Decode the memory manager's accounts of the node."""
    nodes, reuse = document.optional("memory"), document.optional("memoryReuse")
    return MemoryBooks(
        nodes=() if nodes is None else nodes.each(_memory_node),
        reuse=None if reuse is None else _memory_reuse(reuse),
    )


def _memory_reuse(document: JsonValue) -> MemoryReuse:
    rows = document.field("amounts").each(lambda row: row.row(3))
    amounts = tuple(((nodes.nodes(), resource.text()), size.whole()) for nodes, resource, size in rows)
    return MemoryReuse(document.field("pod").text(), amounts)


def _blocks_document(blocks: Blocks) -> list[list[str | int]]:
    return [[str(b.nodes), b.resource, b.size_bytes] for b in blocks]


def _blocks(items: JsonValue) -> Blocks:
    return items.each(_block)


def _block(item: JsonValue) -> Block:
    nodes, resource, size = item.row(3)
    return Block(nodes.nodes(), resource.text(), size.whole())


def _memory_node_document(node: MemoryNode) -> Document:
    tables = {r: [t.total, t.system_reserved, t.allocatable, t.reserved, t.free] for r, t in node.tables}
    return {"id": node.id, "assignments": node.assignments, "cells": str(node.cells), "tables": tables}


def _memory_node(document: JsonValue) -> MemoryNode:
    return MemoryNode(
        id=document.field("id").whole(),
        assignments=document.field("assignments").whole(),
        cells=document.field("cells").nodes(),
        tables=document.field("tables").by_name(_memory_table),
    )


def _memory_table(item: JsonValue) -> MemoryTable:
    # More memory may be allocated than a node has, so free and allocatable bytes may be negative.
    return MemoryTable(*(amount.whole(-MAX_WHOLE) for amount in item.row(5)))
