"""The resources of a node, in kubelet's order of asking and allocating. Another resource is one more line here."""

from collections.abc import Callable

from msgspec import Struct

from nodeagent.core.metrics.manager_metrics import MetricSpec
from nodeagent.core.model.config import Placement
from nodeagent.core.model.holdings import Holdings
from nodeagent.core.model.pod import CPU, MEMORY
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from nodeagent.core.resources.cpu.manager import build_cpu_manager, judge_cpu_configuration
from nodeagent.core.resources.cpu.resource import CpuResource, with_cpu_plugins
from nodeagent.core.resources.memory.holdings import MemoryHoldings
from nodeagent.core.resources.memory.manager import build_memory_manager, judge_memory_configuration
from nodeagent.core.resources.memory.resource import MemoryResource
from nodeagent.core.resources.resource import Resource


class ResourceKind(Struct, frozen=True):
    """How a resource is made."""

    name: str
    holdings: type[Holdings]
    build: Callable[[Topology, Placement], Resource | tuple[StartRefused, ...]]
    """Judges machine and configuration together, with kubelet's texts, and stops at kubelet's first error."""
    judge: Callable[[Placement], tuple[StartRefused, ...]] = lambda _: ()
    """Returns the errors of the configuration that don't depend on the machine."""
    metrics: tuple[MetricSpec, ...] = ()
    """Specifications of its gauges, unless core/metrics has them."""
    resizable: frozenset[str] = frozenset()
    """Amounts that may change while a pod runs, by their names in `requests`."""


def _build_cpus(topology: Topology, placement: Placement) -> CpuResource | tuple[StartRefused, ...]:
    manager = build_cpu_manager(topology, placement)
    if isinstance(manager, tuple):
        return manager
    return CpuResource(with_cpu_plugins(manager, placement.cpu_plugins if manager.static else ()))


def _build_memory(topology: Topology, placement: Placement) -> MemoryResource | tuple[StartRefused, ...]:
    manager = build_memory_manager(topology, placement)
    return manager if isinstance(manager, tuple) else MemoryResource(manager)


RESOURCES: tuple[ResourceKind, ...] = (
    ResourceKind(
        "cpu",
        CpuHoldings,
        _build_cpus,
        lambda placement: judge_cpu_configuration(placement)[1],
        resizable=frozenset({CPU}),
    ),
    ResourceKind("memory", MemoryHoldings, _build_memory, judge_memory_configuration, resizable=frozenset({MEMORY})),
)
"""Devices come before these once a scan has found devices (`Managers.knowing`). Claims are not in the tuple, because their decision wraps
those of the others (core/resources/claims/placing.py).
"""
