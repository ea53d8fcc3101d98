"""Differences between nodes that should be alike, as a document: the values of each fact, and the nodes with each value."""

from collections.abc import Mapping, Sequence
from typing import Any

from nodeagent.tools.fleet.facts import Fact, absent_fact, find_facts, format_by_numa_node
from nodeagent.tools.fleet.nodes import FleetNode, UnreadNode, describe_origin, describe_unread
from nodeagent.views.topology.parts import format_size

Document = dict[str, Any]
VERSION = 1
_TOLERANCE = 100
"""Fraction (1/100) by which sizes may differ and still count as equal. Firmware and kernel reserve slightly varying amounts of memory."""

Key = tuple[str, str]


def describe_differences(nodes: Sequence[FleetNode], unread: Sequence[UnreadNode] = ()) -> Document:
    """Compare all nodes with each other.

    Args:
        nodes: nodes in the order to show them.
        unread: nodes that could not be read.
    """
    known = [{(fact.about, fact.name): fact for fact in find_facts(node)} for node in nodes]
    kinds = [{about for about, _ in each} for each in known]
    keys = list(dict.fromkeys(key for each in known for key in each))
    abouts = list(dict.fromkeys(about for about, _ in keys))
    compared = [
        _compare_fact(nodes, known, kinds, key)
        for about in abouts
        for key in keys
        if key[0] == about and sum(about in each for each in kinds) > 1
    ]
    differing = [found for found in compared if len(found["groups"]) > 1]
    odd: list[str] = []
    for first, *others in (found["groups"] for found in differing):
        if all(len(group["nodes"]) < len(first["nodes"]) for group in others):
            odd += (name for group in others for name in group["nodes"])
    return {
        "alike": [
            {"about": found["about"], "fact": found["fact"], "value": found["groups"][0]["value"]}
            for found in compared
            if len(found["groups"]) == 1
        ],
        "differing": differing,
        "kind": "FleetDifference",
        "nodes": [{**describe_origin(node), "odd": odd.count(node.name)} for node in nodes],
        "unread": describe_unread(unread),
        "version": VERSION,
    }


def _compare_fact(
    nodes: Sequence[FleetNode], known: Sequence[Mapping[Key, Fact]], kinds: Sequence[set[str]], key: Key
) -> Document:
    """Group the nodes by the value of one fact, the largest group first. Nodes without any fact of this kind are left out."""
    about, name = key
    having = [
        (node.name, each.get(key) or absent_fact(about, name))
        for node, each, of in zip(nodes, known, kinds, strict=True)
        if about in of
    ]
    values = _format_values([fact for _, fact in having])
    groups: dict[str, list[str]] = {}
    for (node, _), value in zip(having, values, strict=True):
        groups.setdefault(value, []).append(node)
    return {
        "about": about,
        "fact": name,
        "groups": [
            {"nodes": members, "value": value}
            for value, members in sorted(groups.items(), key=lambda group: -len(group[1]))
        ],
    }


def _format_values(found: Sequence[Fact]) -> list[str]:
    """Format the value of each fact. Nearly equal sizes are all shown as the smallest size."""
    smallest = 0
    like: dict[int, int] = {}
    for size_bytes in sorted({size_bytes for fact in found for _, size_bytes in fact.sizes}):
        if not like or size_bytes - smallest > smallest // _TOLERANCE:
            smallest = size_bytes
        like[size_bytes] = smallest
    return [
        format_by_numa_node([(node, format_size(like[size_bytes])) for node, size_bytes in fact.sizes])
        if fact.sizes
        else fact.value
        for fact in found
    ]
