"""Fields of all resources in the documents of commands, combined from the resources' modules. A resource without its own module is
described by its `ResourceKind`.
"""

from collections.abc import Iterable

from nodeagent.core.admission.resource_kinds import describe_further_holdings
from nodeagent.core.model.pod import Container, Pod
from nodeagent.core.model.promises import PodPromises
from nodeagent.formats.node_view import NodeView
from nodeagent.views.holdings import claims, cpu, devices, memory
from nodeagent.views.holdings.holding_view import Document, HoldingView

VIEWS: tuple[HoldingView, ...] = (cpu.VIEW, memory.VIEW, devices.VIEW, claims.VIEW)


def promised_fields(held: PodPromises, container: str) -> Document:
    """Return the content of a container's field `promised`: the container's allocations."""
    return _merge_documents(view.promised(held, container) for view in VIEWS)


def container_fields(shown: NodeView, held: PodPromises, container: str) -> Document:
    """Return the fields about a container's resources that `inspect` shows in addition to `promised`."""
    further = describe_further_holdings(held, container)
    fields = _merge_documents(view.container(shown, held, container) for view in VIEWS)
    return fields | ({"further": further} if further else {})


def pod_fields(pod: Pod, held: PodPromises) -> Document:
    """Return the fields about a pod's allocations that `inspect` shows."""
    return _merge_documents(view.pod(pod, held) for view in VIEWS)


def node_fields(shown: NodeView) -> Document:
    """Return the fields about the node's resources that `inspect` shows."""
    return _merge_documents(view.node(shown) for view in VIEWS)


def decided_fields(pod: Pod, held: PodPromises) -> Document:
    """Return the fields about a pod's allocations that `explain` and `simulate` show after a decision."""
    further = {c.name: found for c in pod.containers if (found := describe_further_holdings(held, c.name))}
    fields = _merge_documents(view.decided_pod(pod, held) for view in VIEWS)
    return fields | ({"further": further} if further else {})


def resized_fields(before: PodPromises, was: Container, after: PodPromises, now: Container) -> Document:
    """Return the fields about a container's allocations after a resize. Fields whose names end in `Before` show the allocations before the
    resize.
    """
    old = _merge_documents(view.resized(before, was) for view in VIEWS)
    return _merge_documents(view.resized(after, now) for view in VIEWS) | {
        f"{name}Before": value for name, value in old.items()
    }


def freed_fields(held: PodPromises) -> Document:
    """Return the fields about the resources that will be free once a pod has ended."""
    return _merge_documents(view.freed(held) for view in VIEWS)


def _merge_documents(documents: Iterable[Document]) -> Document:
    merged: Document = {}
    for document in documents:
        merged |= document
    return merged
