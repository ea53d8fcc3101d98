"""The resources of a node, in the order in which kubelet's managers give hints and allocate. A new resource needs one more entry here.

Each kind imports its manager only when a node is built, because modules that only read holdings don't need the managers.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from nodeagent.core.model.config import Placement
from nodeagent.core.model.holdings import Books, Holdings
from nodeagent.core.model.pod import CPU, MEMORY
from nodeagent.core.model.promises import PodPromises
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings
from nodeagent.core.resources.memory.holdings import MemoryBooks, MemoryHoldings

if TYPE_CHECKING:
    from nodeagent.core.metrics.manager_metrics import MetricSpec
    from nodeagent.core.resources.cpu.resource import CpuResource
    from nodeagent.core.resources.memory.resource import MemoryResource
    from nodeagent.core.resources.resource import Resource


class ResourceKind(Struct, frozen=True):
    """Entry of the resource table: how to build the resource's manager, and how to check, describe and count the resource."""

    name: str
    holdings: type[Holdings]
    build: "Callable[[Topology, Placement], Resource | tuple[StartRefused, ...]]"
    """Function that builds the manager. The function checks machine and configuration together, with kubelet's error texts, and stops at
    the first error.
    """
    books: type[Books] | None = None
    """Type of the resource's accounts for the whole node. None means that the resource keeps no such accounts."""
    judge: Callable[[Placement], tuple[StartRefused, ...]] = lambda _: ()
    """Function that returns the errors of the configuration that don't depend on the machine."""
    describe: Callable[[PodPromises, str], str] = lambda _held, _name: ""
    """Function that describes a container's holding in a few words. The text is empty if the container doesn't hold the resource, or if
    views/holdings has a module for the resource.
    """
    metrics: "tuple[MetricSpec, ...]" = ()
    """Specifications of the resource's gauges, if they are not in core/metrics."""
    resizable: frozenset[str] = frozenset()
    """Names of the resources in `requests` whose amounts may change while a pod runs."""


def _build_cpus(topology: Topology, placement: Placement) -> "CpuResource | tuple[StartRefused, ...]":
    from nodeagent.core.resources.cpu import manager, resource  # noqa: PLC0415 - only where decisions are made

    built = manager.build_cpu_manager(topology, placement)
    if isinstance(built, tuple):
        return built
    return resource.CpuResource(resource.with_cpu_plugins(built, placement.cpu_plugins if built.static else ()))


def _judge_cpus(placement: Placement) -> tuple[StartRefused, ...]:
    from nodeagent.core.resources.cpu.manager import judge_cpu_configuration  # noqa: PLC0415 - as above

    return judge_cpu_configuration(placement)[1]


def _build_memory(topology: Topology, placement: Placement) -> "MemoryResource | tuple[StartRefused, ...]":
    from nodeagent.core.resources.memory import manager, resource  # noqa: PLC0415 - as above

    built = manager.build_memory_manager(topology, placement)
    return built if isinstance(built, tuple) else resource.MemoryResource(built)


def _judge_memory(placement: Placement) -> tuple[StartRefused, ...]:
    from nodeagent.core.resources.memory.manager import judge_memory_configuration  # noqa: PLC0415 - as above

    return judge_memory_configuration(placement)


RESOURCES: tuple[ResourceKind, ...] = (
    ResourceKind("cpu", CpuHoldings, _build_cpus, CpuBooks, _judge_cpus, resizable=frozenset({CPU})),
    ResourceKind("memory", MemoryHoldings, _build_memory, MemoryBooks, _judge_memory, resizable=frozenset({MEMORY})),
)
"""Resources that take part in every decision, in this order.

After a scan of devices, device resources precede them (`Managers.knowing`). Claims aren't in this list, because the decision on claims
encloses the decisions on all resources (core/resources/claims/placing.py).
"""


def describe_further_holdings(held: PodPromises, container: str) -> dict[str, str]:
    """Describe a container's holdings of those resources that have no module in views/holdings, by resource."""
    return {kind.name: text for kind in RESOURCES if (text := kind.describe(held, container))}
