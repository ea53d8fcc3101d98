"""Table of the resources that are allocated to pods. Their order is that in which kubelet's managers give hints and allocate. A new
resource needs one more entry.

An entry imports its manager only when the manager is built, because modules that only read allocations don't need it.
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
    """Entry for one resource: its name and types, and functions to build its manager, check its configuration and describe its
    allocations.
    """

    name: str
    holdings: type[Holdings]
    build: "Callable[[Topology, Placement], Resource | tuple[StartRefused, ...]]"
    """Function that builds the resource's manager. If the configuration can't be used on the machine, it returns the errors in kubelet's
    words instead.
    """
    books: type[Books] | None = None
    """Type of the records that the resource keeps for the whole node. None means that it keeps none."""
    judge: Callable[[Placement], tuple[StartRefused, ...]] = lambda _: ()
    """Function that returns the errors of the configuration that can be found without knowing the machine."""
    describe: Callable[[PodPromises, str], str] = lambda _held, _name: ""
    """Function that describes a container's allocation in a few words. It returns an empty text if there is no allocation, or if a module
    in views/holdings describes it.
    """
    metrics: "tuple[MetricSpec, ...]" = ()
    """Specifications of the resource's gauges. Those of CPUs and memory are in core/metrics instead."""
    resizable: frozenset[str] = frozenset()
    """Names in `requests` whose amounts a resize may change."""


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
"""Resources on which the agent decides for every pod, in the order in which they are called.

If the node has devices, the device manager precedes them (`Managers.knowing`). Claims aren't listed, because the decision on claims wraps
the decision on all resources (core/resources/claims/placing.py).
"""


def describe_further_holdings(held: PodPromises, container: str) -> dict[str, str]:
    """Describe a container's allocation of each resource that has no module in views/holdings. The keys of the result are resource
    names.
    """
    return {kind.name: text for kind in RESOURCES if (text := kind.describe(held, container))}
