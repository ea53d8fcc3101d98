"""The results of a probe, as a document with stable names."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.resources.memory.holdings import memory_nodes_of
from nodeagent.formats.node_view import NodeView
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError, parse_json
from nodeagent.tools.probe.latency import Delays, DelaysByCpu, decode_histogram

KIND = "Probe"
VERSION = 1
"""Version of the document. New fields don't increase the version, and fields are never renamed or removed."""
THRESHOLDS_US = (10, 100, 1000)
_QUANTILES = {"medianMicroseconds": 500, "p99Microseconds": 990, "p999Microseconds": 999}

Document = dict[str, Any]


class ProbedCpus(Struct, frozen=True):
    """CPUs of a latency measurement."""

    cpus: CpuSet
    pod: str | None = None
    container: str | None = None
    processes: int = 0
    """Number of the pod's processes on these CPUs during the measurement."""


class Latency(Struct, frozen=True):
    """Result of one latency measurement."""

    of: ProbedCpus
    at_ms: int
    seconds: int
    """Duration of each of the two tests, in seconds."""
    busy: DelaysByCpu
    """Delays of threads that run in a loop and never sleep, by CPU."""
    waking: DelaysByCpu
    """Delays of threads that repeatedly sleep for a moment, by CPU."""


class ContainerMemory(Struct, frozen=True):
    pod: str
    uid: str
    container: str
    promised: NumaSet | None
    """Allocated NUMA nodes. None means that the memory may come from any node."""
    by_node: Mapping[int, int] | None
    """Bytes by NUMA node. None means that the amounts are unknown."""

    @property
    def elsewhere(self) -> int:
        """Return the bytes outside of the allocated nodes."""
        nodes = self.promised
        if nodes is None or self.by_node is None:
            return 0
        return sum(size for node, size in self.by_node.items() if node not in nodes)


def find_container_memory(
    view: NodeView, uids: frozenset[str] | None, container: str | None, by_path: Mapping[str, Mapping[int, int] | None]
) -> tuple[ContainerMemory, ...]:
    """Return the memory of containers with a cgroup, in the order of the pods.

    Args:
        view: the node.
        uids: UIDs of the pods to show. None means all pods.
        container: name of the container to show. None means all containers.
        by_path: bytes by node for each cgroup. None means that the amounts are unknown.
    """
    return tuple(
        ContainerMemory(
            entry.pod.full_name,
            entry.pod.uid,
            one.name,
            memory_nodes_of(view.state.promises, entry.pod.uid, one.name),
            by_path[entry.container_path(one.name)],
        )
        for entry in view.state.entries
        if entry.is_active and (uids is None or entry.pod.uid in uids)
        for one in entry.pod.containers
        if container in {None, one.name} and entry.container_path(one.name) in by_path
    )


def describe_probe(
    memory: Iterable[ContainerMemory] | None = None, latency: Latency | None = None, before: Latency | None = None
) -> Document:
    """Describe the results as a document. A part that was not probed is null."""
    return {
        "kind": KIND,
        "version": VERSION,
        "memory": None
        if memory is None
        else [
            {
                "pod": one.pod,
                "uid": one.uid,
                "container": one.container,
                "promised": None if one.promised is None else str(one.promised),
                "nodes": None
                if one.by_node is None
                else [{"node": node, "bytes": size} for node, size in sorted(one.by_node.items())],
                "elsewhereBytes": None if one.by_node is None else one.elsewhere,
            }
            for one in memory
        ],
        "latency": None if latency is None else _describe_latency(latency),
        "before": None if before is None else _describe_latency(before),
    }


def read_latency(text: bytes) -> Latency:
    """Decode the latency measurement in the document of an earlier probe.

    Raises:
        MisfitError: the document is of another kind, or contains no latency.
    """
    document = parse_json(text)
    document.field("kind").among((KIND,))
    found = document.field("latency")
    pod, container = found.optional("pod"), found.optional("container")
    of = ProbedCpus(
        found.field("cpus").cpus(),
        None if pod is None else pod.text(),
        None if container is None else container.text(),
        found.field("processes").whole(),
    )
    return Latency(
        of,
        found.field("atMs").whole(),
        found.field("seconds").whole(1),
        dict(_read_delays(found.field("busy"))),
        dict(_read_delays(found.field("waking"))),
    )


def _describe_latency(found: Latency) -> Document:
    return {
        "cpus": str(found.of.cpus),
        "pod": found.of.pod,
        "container": found.of.container,
        "processes": found.of.processes,
        "atMs": found.at_ms,
        "seconds": found.seconds,
        "busy": [{"cpu": cpu, **_describe_delays(delays)} for cpu, delays in found.busy.items()],
        "waking": [{"cpu": cpu, **_describe_delays(delays)} for cpu, delays in found.waking.items()],
    }


def _describe_delays(delays: Delays) -> Document:
    return {
        "samples": delays.samples,
        "worstMicroseconds": delays.worst_us,
        **{name: delays.quantile(permille) for name, permille in _QUANTILES.items()},
        "atLeast": [{"microseconds": us, "times": delays.at_least(us)} for us in THRESHOLDS_US],
        "histogram": {str(us): times for us, times in delays.histogram},
        "beyondHistogram": delays.beyond,
    }


def _read_delays(value: JsonValue) -> Iterator[tuple[int, Delays]]:
    found = value.each(
        lambda one: (
            one.field("cpu").whole(),
            Delays(
                one.field("worstMicroseconds").whole(),
                decode_histogram(one.field("histogram")),
                one.field("beyondHistogram").whole(),
            ),
        )
    )
    if not found:
        raise MisfitError(f"{value.path}: must contain at least one CPU")
    yield from found
