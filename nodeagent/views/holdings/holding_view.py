"""Interface that each resource's module in this package implements: the fields that the resource adds to the documents of commands."""

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
    """Fields that one resource adds to documents. By default, a resource adds no fields."""

    promised: Callable[[PodPromises, str], Document] = _no_fields
    """Function that returns the resource's fields in the part `promised` of a container, for `inspect`."""
    container: Callable[[NodeView, PodPromises, str], Document] = _no_fields
    """Function that returns the resource's fields of a container outside the part `promised`, for `inspect`."""
    pod: Callable[[Pod, PodPromises], Document] = _no_fields
    """Function that returns the resource's fields for a pod in `inspect`."""
    node: Callable[[NodeView], Document] = _no_fields
    """Function that returns the resource's fields for the node in `inspect`."""
    decided_pod: Callable[[Pod, PodPromises], Document] = _no_fields
    """Function that returns the resource's fields for a pod in `explain` and `simulate`, after a decision."""
    resized: Callable[[PodPromises, Container], Document] = _no_fields
    """Function that returns the resource's fields for a resized container in `explain` and `simulate`."""
    freed: Callable[[PodPromises], Document] = _no_fields
    """Function that returns, for `release`, the fields about the amounts that will be free once a pod has ended."""
