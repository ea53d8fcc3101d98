"""The machine as a document, and back: the `topology` and `numa` of simulate's scenarios, with what discovery knows beyond them.

Strict in what it reads: each error names the field. It ignores other fields of a scenario.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from nodeagent.core.model.idset import MAX_ID, CpuSet, IdSetSyntaxError
from nodeagent.core.model.topology import Cache, Cpu, NumaNode, Topology
from nodeagent.errors import NodeAgentError
from nodeagent.formats.syntax.findings import shown

DEFAULT_NODE_MEMORY_BYTES = 64 * 2**30
"""Memory of a NUMA node that CPUs name but `numa` lacks."""

_MAX_INT64 = 2**63 - 1
_MAX_UINT32 = 2**32 - 1
_MAX_LEVEL = 255
_CORE_CLASSES = ("performance", "efficiency")
_CACHE_TYPES = ("data", "instruction", "unified")
MACHINE_FIELDS = frozenset(
    {
        *("topology", "numa", "sockets", "reportedCPUs", "memory", "hugepages", "l3", "caches", "offline", "skipped"),
        *("isolated", "nohzFull"),
    }
)
"""All fields that a document may have about a machine."""
_CPU_FIELDS = frozenset({"id", "core", "socket", "numa", "uncore", "l3", "die", "coreClass", "capacity", "l3Bytes"})
_CACHE_FIELDS = frozenset({"level", "type", "cpus", "size"})
_NUMA_FIELDS = frozenset({"id", "memory", "hugepages", "distances"})

T = TypeVar("T")


class TopologyDocumentError(NodeAgentError):
    """A document does not describe a machine."""

    def __init__(self, field: str, allowed: str, value: object = None) -> None:
        self.field = field
        self.value = value
        text = f"{field}: {allowed}" if value is None else f"{field}: {allowed}, not {shown(value)}"
        super().__init__(text, hint="`nodeagent topology -o json` prints a document of the right form")


def topology_document(topology: Topology) -> dict[str, Any]:
    """Plain values for JSON or YAML. What the machine doesn't report is left out."""
    group_of = {cpu: index for index, group in enumerate(topology.l3) for cpu in group}
    document: dict[str, Any] = {
        "topology": {"cpus": [_cpu_document(cpu, group_of.get(cpu.id)) for cpu in topology.cpus]},
        "numa": [_node_document(node) for node in topology.numa],
        "sockets": topology.socket_count,
        "reportedCPUs": topology.reported_cpu_count,
        "memory": topology.memory_bytes,
        "hugepages": dict(topology.hugepages),
        "l3": [str(group) for group in topology.l3],
        "caches": [_cache_document(cache) for cache in topology.caches],
        "offline": str(topology.offline),
        "skipped": str(topology.skipped),
        "isolated": str(topology.isolated),
        "nohzFull": str(topology.nohz_full),
    }
    return document


def _cpu_document(cpu: Cpu, l3: int | None) -> dict[str, Any]:
    optional = {
        "uncore": cpu.uncore,
        "l3": l3,
        "die": cpu.die,
        "coreClass": cpu.core_class,
        "capacity": cpu.capacity,
        "l3Bytes": cpu.l3_bytes,
    }
    return {
        "id": cpu.id,
        "core": cpu.core,
        "socket": cpu.socket,
        "numa": cpu.numa,
        **{name: value for name, value in optional.items() if value is not None},
    }


def _node_document(node: NumaNode) -> dict[str, Any]:
    distances = {} if node.distances is None else {"distances": list(node.distances)}
    return {"id": node.id, "memory": node.memory_bytes, "hugepages": dict(node.hugepages), **distances}


def _cache_document(cache: Cache) -> dict[str, Any]:
    size = {} if cache.size_bytes is None else {"size": cache.size_bytes}
    return {"level": cache.level, "type": cache.type, "cpus": str(cache.cpus), **size}


def topology_from_document(document: object) -> Topology:
    """Read the machine from a scenario, or from the result of `topology_document`.

    Raises:
        TopologyDocumentError: naming the field, its value and what is allowed.
    """
    top = _object(document, "the document")
    topology = _object(_required(top, "topology", ""), "topology")
    _only(topology, frozenset({"cpus"}), "topology")
    items = _list(_required(topology, "cpus", "topology"), "topology.cpus")
    entries = [_object(item, f"topology.cpus[{index}]") for index, item in enumerate(items)]
    cpus = tuple(_cpu(entry, f"topology.cpus[{index}]") for index, entry in enumerate(entries))
    _unique((cpu.id for cpu in cpus), "topology.cpus")
    given = tuple(_node(item, f"numa[{index}]") for index, item in enumerate(_list(top.get("numa", []), "numa")))
    _unique((node.id for node in given), "numa")
    lacking = sorted({cpu.numa for cpu in cpus} - {node.id for node in given})
    return Topology.of(
        cpus,
        (*given, *(NumaNode(node, DEFAULT_NODE_MEMORY_BYTES) for node in lacking)),
        offline=_optional(top, "offline", "", _cpu_set),
        l3=_l3_groups(top, entries, cpus),
        caches=_optional(top, "caches", "", _caches) or (),
        socket_count=_optional(top, "sockets", "", _number()),
        reported_cpu_count=_optional(top, "reportedCPUs", "", _number()),
        skipped=_optional(top, "skipped", "", _cpu_set),
        isolated=_optional(top, "isolated", "", _cpu_set),
        nohz_full=_optional(top, "nohzFull", "", _cpu_set),
        memory_bytes=_optional(top, "memory", "", _number()),
        hugepages=_optional(top, "hugepages", "", _hugepages),
    )


def _cpu(entry: Mapping[str, Any], path: str) -> Cpu:
    _only(entry, _CPU_FIELDS, path)
    return Cpu(
        id=_number(MAX_ID)(_required(entry, "id", path), f"{path}.id"),
        core=_number(_MAX_UINT32)(_required(entry, "core", path), f"{path}.core"),
        socket=_number(_MAX_UINT32)(_required(entry, "socket", path), f"{path}.socket"),
        numa=_number(MAX_ID)(_required(entry, "numa", path), f"{path}.numa"),
        uncore=_optional(entry, "uncore", path, _number(_MAX_UINT32)),
        die=_optional(entry, "die", path, _number(_MAX_UINT32)),
        core_class=_optional(entry, "coreClass", path, _one_of(_CORE_CLASSES)),
        capacity=_optional(entry, "capacity", path, _number()),
        l3_bytes=_optional(entry, "l3Bytes", path, _number()),
    )


def _node(item: object, path: str) -> NumaNode:
    entry = _object(item, path)
    _only(entry, _NUMA_FIELDS, path)
    return NumaNode(
        id=_number(MAX_ID)(_required(entry, "id", path), f"{path}.id"),
        memory_bytes=_number()(_required(entry, "memory", path), f"{path}.memory"),
        hugepages=_optional(entry, "hugepages", path, _hugepages) or (),
        distances=_optional(entry, "distances", path, _distances),
    )


def _l3_groups(top: Mapping[str, Any], entries: list[Mapping[str, Any]], cpus: tuple[Cpu, ...]) -> tuple[CpuSet, ...]:
    """The groups by the CPUs' `l3`; the list `l3`, if given, has them in order, including CPUs that aren't listed."""
    members: dict[int, CpuSet] = {}
    for index, (entry, cpu) in enumerate(zip(entries, cpus, strict=True)):
        group = _optional(entry, "l3", f"topology.cpus[{index}]", _number(_MAX_UINT32))
        if group is not None:
            members[group] = members.get(group, CpuSet()) | CpuSet.of(cpu.id)
    listed = _optional(top, "l3", "", _cpu_sets)
    if listed is None:
        return tuple(members.values())
    known = CpuSet.from_ids(cpu.id for cpu in cpus)
    taken = CpuSet()
    for index, group_cpus in enumerate(listed):
        if not group_cpus or not group_cpus.isdisjoint(taken) or group_cpus & known != members.pop(index, CpuSet()):
            raise TopologyDocumentError(
                f"l3[{index}]", "must be the CPUs whose `l3` is this index, in one group each", str(group_cpus)
            )
        taken |= group_cpus
    if members:
        raise TopologyDocumentError("l3", f"must have a group {min(members)}, which CPUs name")
    return listed


def _caches(value: object, path: str) -> tuple[Cache, ...]:
    return tuple(_cache(item, f"{path}[{index}]") for index, item in enumerate(_list(value, path)))


def _cache(item: object, path: str) -> Cache:
    entry = _object(item, path)
    _only(entry, _CACHE_FIELDS, path)
    cpus = _cpu_set(_required(entry, "cpus", path), f"{path}.cpus")
    if not cpus:
        raise TopologyDocumentError(f"{path}.cpus", "must have a CPU")
    return Cache(
        level=_number(_MAX_LEVEL)(_required(entry, "level", path), f"{path}.level"),
        type=_one_of(_CACHE_TYPES)(_required(entry, "type", path), f"{path}.type"),
        cpus=cpus,
        size_bytes=_optional(entry, "size", path, _number()),
    )


def _object(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TopologyDocumentError(path, "must be an object", _kind(value))
    return value


def _list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise TopologyDocumentError(path, "must be a list", _kind(value))
    return value


def _kind(value: object) -> object:
    return value if isinstance(value, (str, int, bool)) else type(value).__name__


def _only(entry: Mapping[str, Any], known: frozenset[str], path: str) -> None:
    unknown = [str(name) for name in entry if name not in known]
    if unknown:
        raise TopologyDocumentError(f"{path}.{unknown[0][:40]}", f"unknown field; known are {', '.join(sorted(known))}")


def _required(entry: Mapping[str, Any], name: str, path: str) -> object:
    if name not in entry:
        raise TopologyDocumentError(_below(path, name), "must be given")
    return entry[name]


def _optional(entry: Mapping[str, Any], name: str, path: str, read: Callable[[object, str], T]) -> T | None:
    return None if entry.get(name) is None else read(entry[name], _below(path, name))


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _number(high: int = _MAX_INT64) -> Callable[[object, str], int]:
    def read(value: object, path: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
            raise TopologyDocumentError(
                path, f"must be a whole number from 0 to {high}", "null" if value is None else value
            )
        return value

    return read


def _one_of(words: tuple[str, ...]) -> Callable[[object, str], str]:
    def read(value: object, path: str) -> str:
        if not isinstance(value, str) or value not in words:
            raise TopologyDocumentError(path, f"must be one of {', '.join(words)}", value)
        return value

    return read


def _cpu_set(value: object, path: str) -> CpuSet:
    if not isinstance(value, str):
        raise TopologyDocumentError(path, "must be a CPU list such as 0-3,8", _kind(value))
    try:
        return CpuSet.parse(value)
    except IdSetSyntaxError as err:
        raise TopologyDocumentError(path, "must be a CPU list such as 0-3,8", value) from err


def _cpu_sets(value: object, path: str) -> tuple[CpuSet, ...]:
    return tuple(_cpu_set(item, f"{path}[{index}]") for index, item in enumerate(_list(value, path)))


def _distances(value: object, path: str) -> tuple[int, ...]:
    return tuple(_number()(item, f"{path}[{index}]") for index, item in enumerate(_list(value, path)))


def _hugepages(value: object, path: str) -> tuple[tuple[str, int], ...]:
    amounts = _object(value, path)
    for name in amounts:
        if not isinstance(name, str) or not name.startswith("hugepages-"):
            raise TopologyDocumentError(f"{path}.{str(name)[:40]}", "must be a resource name such as hugepages-2Mi")
    return tuple((name, _number()(amounts[name], f"{path}.{name}")) for name in sorted(amounts))


def _unique(ids: Iterable[int], path: str) -> None:
    seen: set[int] = set()
    for index, number in enumerate(ids):
        if number in seen:
            raise TopologyDocumentError(f"{path}[{index}].id", "must occur only once", number)
        seen.add(number)
