"""Parts that all drawings of a machine share: groups of cores, formatted amounts, and a mark for each owner."""

from collections.abc import Iterable, Mapping
from itertools import product

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.topology import NumaNode, Topology
from nodeagent.views.wording.words import format_count

RESERVED, SHARED, FREE = "reserved", "shared", "free"
FIXED_MARKS = {RESERVED: "#", SHARED: ".", FREE: "-"}
NO_DEVICES = "devices: none (network, InfiniBand, NVMe, GPU, accelerator, CXL memory)"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class CoreGroup(Struct, frozen=True):
    """Cores of the same NUMA node and socket that are drawn together."""

    title: str
    cores: tuple[tuple[int, ...], ...]
    """CPUs of each core."""


class DeviceSection(Struct, frozen=True):
    """Devices that are drawn together under one title."""

    title: str
    rows: tuple[tuple[str, ...], ...]
    """Cells of each device's row."""


class _CoreKind(Struct, frozen=True):
    """Properties by which a drawing groups cores. Only cores with equal properties are drawn together."""

    die: int | None
    l3: int | None
    uncore: int | None
    core_class: str | None
    l3_bytes: int | None
    shared: str
    own: str

    def title(self, *, with_die: bool, l3_nodes: Iterable[int]) -> str:
        others = ", ".join(map(str, l3_nodes))
        parts = [
            f"die {self.die}" if with_die else "",
            "" if self.l3 is None else f"L3 #{self.l3}",
            format_size(self.l3_bytes) if self.l3 is not None and self.l3_bytes else "",
            f"shared with NUMA node {others}" if others else "",
            self.shared or ("no L3" if self.l3 is None else ""),
            "" if self.uncore is None else f"uncore cache {self.uncore}",
            f"{self.core_class} cores" if self.core_class else "",
            self.own,
        ]
        return ", ".join(part for part in parts if part)


class OtherCaches:
    """Descriptions of all caches except the level 3 caches.

    Each cache that several cores share has a description of its own. The caches of a single core are described together.
    """

    def __init__(self, topology: Topology) -> None:
        shared: dict[int, list[str]] = {}
        own: dict[int, dict[str, list[str]]] = {}
        counts: dict[str, int] = {}
        for cache in topology.caches:
            number = counts[cache.name] = counts.get(cache.name, -1) + 1
            size = format_size(cache.size_bytes) if cache.size_bytes else ""
            cpus = cache.cpus & topology.online
            cores = {topology.cpu[cpu].core for cpu in cpus}
            for cpu in cpus:
                if len(cores) > 1:
                    shared.setdefault(cpu, []).append(f"{cache.name} #{number}{size and ', '}{size}")
                else:
                    owner = "core" if topology.cores[topology.cpu[cpu].core] == cpus else "CPU"
                    own.setdefault(cpu, {}).setdefault(owner, []).append(f"{cache.name}{size and ' '}{size}")
        self._shared = {cpu: ", ".join(names) for cpu, names in shared.items()}
        self._own = {}
        for cpu, names in own.items():
            joined = {owner: " and ".join(filter(None, (", ".join(n[:-1]), n[-1]))) for owner, n in names.items()}
            self._own[cpu] = ", ".join(f"{text} per {owner}" for owner, text in joined.items())
        described = {self._own.get(cpu.id, "") for cpu in topology.cpus}
        self.common_text = described.pop() if len(described) == 1 else ""
        """Description of the caches that belong to a single core. Empty means that the cores have different caches."""

    def describe_caches(self, cpu: int) -> tuple[str, str]:
        """Describe the caches that the CPU's core shares with other cores, and the caches that only this core has. The second text is empty
        if it is the same for all cores.
        """
        return self._shared.get(cpu, ""), "" if self.common_text else self._own.get(cpu, "")


def group_cores(topology: Topology, node: int, part: CpuSet, caches: OtherCaches) -> tuple[CoreGroup, ...]:
    """Group the cores that have CPUs in `part` by die, caches and core class. All these cores belong to one NUMA node and one socket."""
    l3_of = {cpu: index for index, group in enumerate(topology.l3) for cpu in group & part}
    cores: dict[_CoreKind, dict[int, list[int]]] = {}
    for cpu in (topology.cpu[number] for number in part):
        kind = _CoreKind(
            cpu.die, l3_of.get(cpu.id), cpu.uncore, cpu.core_class, cpu.l3_bytes, *caches.describe_caches(cpu.id)
        )
        cores.setdefault(kind, {}).setdefault(cpu.core, []).append(cpu.id)
    with_die = len({kind.die for kind in cores}) > 1
    groups = []
    for kind, members in cores.items():
        l3_nodes = set() if kind.l3 is None else set(topology.numa_of(topology.l3[kind.l3])) - {node}
        title = kind.title(with_die=with_die, l3_nodes=sorted(l3_nodes))
        groups.append(CoreGroup(title, tuple(tuple(cpus) for cpus in members.values())))
    return tuple(groups)


def format_summary(topology: Topology) -> str:
    parts = [
        f"{format_count(len(topology.cpus), 'CPU')} in {format_count(len(topology.cores), 'core')}",
        format_count(len(topology.sockets), "socket"),
        format_count(len(topology.numa), "NUMA node"),
        format_size(topology.memory_bytes),
        *_format_hugepages(topology.hugepages),
        *(f"{name} cores {cpus}" for name, cpus in topology.core_classes.items()),
    ]
    return ", ".join(parts)


def format_node_title(topology: Topology, node: NumaNode) -> str:
    cpus = topology.nodes.get(node.id, CpuSet())
    sockets = sum(not members.isdisjoint(cpus) for members in topology.sockets.values())
    spans = [f"spans {sockets} sockets"] if sockets > 1 else []
    return ", ".join(
        [f"NUMA node {node.id}: {format_size(node.memory_bytes)}", *_format_hugepages(node.hugepages), *spans]
    )


def list_nodes_without_cpus(topology: Topology) -> list[str]:
    """Describe each NUMA node with memory but without CPUs. One more line names all nodes that have neither."""
    nodes = [node for node in topology.numa if node.id not in topology.nodes]
    empty = NumaSet.from_ids(node.id for node in nodes if not node.memory_bytes)
    described = [f"{format_node_title(topology, node)}, no CPUs" for node in nodes if node.memory_bytes]
    if empty:
        described.append(f"NUMA node{'s' if len(empty) > 1 else ''} {empty}: no CPUs and no memory")
    return described


def list_cpus_not_drawn(topology: Topology) -> list[str]:
    """List the isolated and the tickless CPUs, which a drawing doesn't mark, and the unused CPUs, which it doesn't contain."""
    sets = (
        ("isolated CPUs (isolcpus)", topology.isolated),
        ("tickless CPUs (nohz_full)", topology.nohz_full),
        ("unused CPUs, whose core or NUMA node is unknown", topology.skipped),
    )
    return [f"{name}: {cpus}" for name, cpus in sets if cpus]


def format_size(size_bytes: int) -> str:
    power = max(0, min(len(_UNITS) - 1, (size_bytes.bit_length() - 1) // 10))
    tenths = size_bytes * 10 >> 10 * power
    return f"{tenths // 10}.{tenths % 10} {_UNITS[power]}" if power else f"{size_bytes} B"


def _format_hugepages(amounts: Iterable[tuple[str, int]]) -> list[str]:
    return [f"{name} {format_size(amount_bytes)}" for name, amount_bytes in amounts if amount_bytes]


def assign_marks(owner: Mapping[int, str]) -> dict[str, str]:
    """Assign a mark to each label. `reserved`, `shared` and `free` have fixed marks; the other labels get letters in the order of their
    lowest CPUs.
    """
    labels = list(dict.fromkeys(owner[cpu] for cpu in sorted(owner)))
    others = [label for label in labels if label not in FIXED_MARKS]
    length = 1
    while len(others) > len(_LETTERS) ** length:
        length += 1
    letters = map("".join, product(_LETTERS, repeat=length))
    return {label: mark for label, mark in FIXED_MARKS.items() if label in labels} | {
        label: mark.capitalize() for label, mark in zip(others, letters, strict=False)
    }


def first_pod_of(label: str) -> str:
    """Return the first pod that a label names. A drawing uses one colour for all containers of a pod."""
    return label.partition(" ")[0]


def number_pods(owner: Mapping[int, str]) -> dict[str, int]:
    """Return the number of the pod for each label that names one. Pods are numbered in the order of their lowest CPUs."""
    pods: dict[str, int] = {}
    numbers = {}
    for cpu in sorted(owner):
        label = owner[cpu]
        if label not in FIXED_MARKS:
            numbers[label] = pods.setdefault(first_pod_of(label), len(pods))
    return numbers
