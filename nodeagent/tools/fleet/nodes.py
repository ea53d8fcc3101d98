"""The nodes of a fleet as values: captured nodes, and nodes that could not be read."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.topology import Topology
from nodeagent.formats.capture import Capture
from nodeagent.formats.node_view import NodeView

Document = dict[str, Any]


class FleetNode(Struct, frozen=True):
    name: str
    """Host name, or the file's name if the host name is unknown."""
    source: str
    """File or host as typed."""
    topology: Topology
    capture: Capture | None = None
    """The node's capture. None means that the file only describes a machine."""
    view: NodeView | None = None
    """State of the node. None means that its configuration is unknown."""


class UnreadNode(Struct, frozen=True):
    """A node that could not be read."""

    source: str
    why: str
    hint: str


def name_apart(nodes: Iterable[FleetNode]) -> tuple[FleetNode, ...]:
    """Append the source (file or host) to each name that several nodes share, to make the names distinct."""
    found = tuple(nodes)
    names = [node.name for node in found]
    return tuple(
        replace(node, name=f"{node.name} ({node.source})") if names.count(node.name) > 1 else node for node in found
    )


def describe_origin(node: FleetNode) -> Document:
    """Describe the node's name, source and time of capture."""
    captured = node.capture
    return {
        "atMs": None if captured is None or not captured.observation.at_ms else captured.observation.at_ms,
        "copiedAt": None if node.view is None else node.view.copied_at,
        "name": node.name,
        "source": node.source,
    }


def describe_unread(unread: Iterable[UnreadNode]) -> list[Document]:
    return [{"hint": one.hint, "source": one.source, "why": one.why} for one in unread]
