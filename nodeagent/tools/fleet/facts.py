"""Facts about a node, for comparison with other nodes: the machine, the kernel, services and the agent's configuration."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Topology
from nodeagent.formats.config.effective_config import config_document
from nodeagent.formats.kernel.settings import CGROUPS, KUBELET_STATE, PODS_UNIT, SERVICES, Settings
from nodeagent.formats.kernel.sysfs_sample import CPUS
from nodeagent.tools.fleet.nodes import FleetNode
from nodeagent.views.topology.parts import format_size
from nodeagent.views.wording.words import format_bytes

MACHINE, KERNEL, SERVICE, CONFIGURATION = "machine", "kernel", "services", "configuration"
_NOT_SET = "not set"
_NONE = "none"


class Fact(Struct, frozen=True):
    """A property of a node, as text or as sizes."""

    about: str
    name: str
    value: str
    sizes: tuple[tuple[int, int], ...] = ()
    """Sizes in bytes by NUMA node, instead of a text. Small differences between sizes are ignored, because equal machines have slightly
    different amounts of memory left by the kernel.
    """


def find_facts(node: FleetNode) -> Iterator[Fact]:
    """Yield the known facts of a node. A fact that isn't yielded is unknown."""
    for name, value in _find_machine_facts(node.topology):
        yield Fact(MACHINE, name, value or _NONE)
    sizes = tuple((numa.id, numa.memory_bytes) for numa in node.topology.numa)
    yield Fact(MACHINE, "memory of NUMA nodes", "", sizes)
    pages = []
    for numa in node.topology.numa:
        sizes_of_node = (f"{name} {format_bytes(amount)}" for name, amount in numa.hugepages if amount)
        pages.append((numa.id, ", ".join(sizes_of_node) or _NONE))
    yield Fact(MACHINE, "huge pages of NUMA nodes", format_by_numa_node(pages))
    if node.capture is not None:
        yield Fact(KERNEL, "release", node.capture.kernel or "unknown")
        for name, value in _find_kernel_facts(node.capture.settings, node.topology.online):
            yield Fact(KERNEL, name, value or _NONE)
        yield Fact(SERVICE, "nodeagent", node.capture.nodeagent)
        agent = _NONE if node.view is None else "runs" if node.view.is_live else "does not run"
        yield Fact(SERVICE, "the agent", agent)
        files = node.capture.settings.sample.files
        for name in SERVICES:
            events = files.get(f"{CGROUPS}/system.slice/{name}.service/cgroup.events", "")
            yield Fact(SERVICE, name, "runs" if "populated 1" in events else _NONE)
        yield Fact(SERVICE, "kubelet's CPU state", "there" if KUBELET_STATE in files else _NONE)
    if node.view is not None:
        yield Fact(CONFIGURATION, "reserved CPUs", str(node.view.node.reserved) or _NONE)
        for name, value in _flatten(config_document(node.view.node.config)):
            if name != "reservedSystemCPUs":  # reserved CPUs are already listed as a separate fact
                yield Fact(CONFIGURATION, name, value)


def format_by_numa_node(values: Sequence[tuple[int, str]]) -> str:
    """Format a value for each NUMA node, or one value if all are equal."""
    same = {value for _, value in values}
    if len(values) > 1 and len(same) == 1:
        return f"{same.pop()} on each"
    return "; ".join(f"{node}: {value}" for node, value in values)


def absent_fact(about: str, name: str) -> Fact:
    """Return the text to show for a fact that a node lacks, such as a field that isn't set, although other facts of this kind are known for
    the node.
    """
    return Fact(about, name, _NOT_SET if about in {KERNEL, CONFIGURATION} else _NONE)


def _find_machine_facts(topology: Topology) -> Iterator[tuple[str, str]]:
    yield "CPUs", f"{len(topology.online)} ({topology.online})"
    yield "offline CPUs", str(topology.offline)
    yield "sockets", str(len(topology.sockets))
    threads = Counter(len(cpus) for cpus in topology.cores.values())
    yield "cores", ", ".join(f"{count} of {_format_count(size, 'thread')}" for size, count in sorted(threads.items()))
    classes = Counter(cpu.core_class for cpu in topology.cpus if cpu.core_class is not None)
    yield "kinds of cores", ", ".join(f"{count} {name} CPUs" for name, count in sorted(classes.items()))
    yield "NUMA nodes", "; ".join(f"{node}: {topology.nodes.get(node, '') or 'no CPUs'}" for node in topology.node_ids)
    yield "NUMA distances", "; ".join(" ".join(map(str, node.distances or ("unknown",))) for node in topology.numa)
    l3 = [there for cpus in topology.l3 if (there := cpus & topology.online)]
    yield "L3 caches", _format_caches((topology.cpu[min(cpus)].l3_bytes, cpus) for cpus in l3)
    for name in sorted({cache.name for cache in topology.caches}):
        of_name = (cache for cache in topology.caches if cache.name == name)
        yield f"{name} caches", _format_caches((cache.size_bytes, cache.cpus) for cache in of_name)
    yield "isolated CPUs", str(topology.isolated)
    yield "tickless CPUs", str(topology.nohz_full)


def _format_caches(found: Iterable[tuple[int | None, CpuSet]]) -> str:
    sizes = Counter((len(cpus), size_bytes or 0) for size_bytes, cpus in found)
    return ", ".join(
        f"{count}{f' of {format_size(size_bytes)}' if size_bytes else ''} for {_format_count(cpus, 'CPU')}{' each' if count > 1 else ''}"
        for (cpus, size_bytes), count in sorted(sizes.items(), reverse=True)
    )


def _find_kernel_facts(settings: Settings, online: CpuSet) -> Iterator[tuple[str, str]]:
    files = settings.sample.files
    if (cmdline := files.get("proc/cmdline")) is not None:
        given: dict[str, list[str]] = {}
        for word in cmdline.split():
            name, equals, value = word.partition("=")
            given.setdefault(name, []).append(value if equals else "given")
        for name, values in given.items():
            yield f"parameter {name}", " ".join(values)
    for name, path in (
        ("numa_balancing", "proc/sys/kernel/numa_balancing"),
        ("SMT", f"{CPUS}/smt/control"),
        ("controllers of cgroups", f"{CGROUPS}/cgroup.controllers"),
        ("controllers of pods", f"{PODS_UNIT}/cgroup.controllers"),
    ):
        if path in files:
            yield name, " ".join(sorted(files[path].split()))
    governors: dict[str, list[int]] = {}
    for cpu in online:
        if (found := files.get(f"{CPUS}/cpu{cpu}/cpufreq/scaling_governor")) is not None:
            governors.setdefault(found.strip(), []).append(cpu)
    yield (
        "frequency governor",
        ", ".join(
            name if len(governors) == 1 else f"{name} ({CpuSet.from_ids(cpus)})" for name, cpus in governors.items()
        ),
    )


def _flatten(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each value with its full name. Null and empty values count as not set."""
    for name, value in sorted(document.items()):
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        elif value in (None, "", []):
            yield f"{prefix}{name}", _NOT_SET
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)


def _format_count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"
