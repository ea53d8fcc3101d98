"""Contract of a resource's module in this package: which fields the resource adds to the documents of commands."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from nodeagent.core.model.pod import Container, Pod
from nodeagent.core.model.promises import PodPromises
from nodeagent.formats.node_view import NodeView

Document = dict[str, Any]


def _no_fields(*_: object) -> Document:
    return {}


class HoldingView(Struct, frozen=True):
    """Fields of one resource. By default the resource adds none."""

    promised: Callable[[PodPromises, str], Document] = _no_fields
    """In `inspect`, fields for the part `promised` of a container."""
    container: Callable[[NodeView, PodPromises, str], Document] = _no_fields
    """In `inspect`, other fields of a container."""
    pod: Callable[[Pod, PodPromises], Document] = _no_fields
    """In `inspect`, fields of a pod."""
    node: Callable[[NodeView], Document] = _no_fields
    """In `inspect`, fields of the node."""
    decided_pod: Callable[[Pod, PodPromises], Document] = _no_fields
    """In `explain` and `simulate`, fields of a pod after the decision."""
    resized: Callable[[PodPromises, Container], Document] = _no_fields
    """In `explain` and `simulate`, fields of a resized container."""
    freed: Callable[[PodPromises], Document] = _no_fields
    """In `release`, fields for the resources that become free when a pod ends."""
