"""The machine as a document: the fields `topology` and `numa` of simulate's scenarios, and everything else that
discovery finds.

The decoder is strict, and each error names the field. It ignores the other fields of a scenario.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from nodeagent.core.model.idset import MAX_ID, CpuSet, IdSetSyntaxError
from nodeagent.core.model.topology import Cache, Cpu, NumaNode, Topology
from nodeagent.errors import NodeAgentError
from nodeagent.formats.syntax.findings import shown

DEFAULT_NODE_MEMORY_BYTES = 64 * 2**30
"""Memory of a NUMA node that CPUs refer to but `numa` doesn't list."""

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
"""All fields about a machine that a document may have."""
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
    """Format a machine as plain values for JSON or YAML. Values that the machine doesn't report are left out."""
    group_of = {cpu: index for index, group in enumerate(topology.l3) for cpu in group}
    document: dict[str, Any] = {
        "topology": {"cpus": [_format_cpu(cpu, group_of.get(cpu.id)) for cpu in topology.cpus]},
        "numa": [_format_node(node) for node in topology.numa],
        "sockets": topology.socket_count,
        "reportedCPUs": topology.reported_cpu_count,
        "memory": topology.memory_bytes,
        "hugepages": dict(topology.hugepages),
        "l3": [str(group) for group in topology.l3],
        "caches": [_format_cache(cache) for cache in topology.caches],
        "offline": str(topology.offline),
        "skipped": str(topology.skipped),
        "isolated": str(topology.isolated),
        "nohzFull": str(topology.nohz_full),
    }
    return document


def _format_cpu(cpu: Cpu, l3: int | None) -> dict[str, Any]:
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


def _format_node(node: NumaNode) -> dict[str, Any]:
    distances = {} if node.distances is None else {"distances": list(node.distances)}
    return {"id": node.id, "memory": node.memory_bytes, "hugepages": dict(node.hugepages), **distances}


def _format_cache(cache: Cache) -> dict[str, Any]:
    size = {} if cache.size_bytes is None else {"size": cache.size_bytes}
    return {"level": cache.level, "type": cache.type, "cpus": str(cache.cpus), **size}


def topology_from_document(document: object) -> Topology:
    """Decode the machine of a scenario or the result of `topology_document`.

    Raises:
        TopologyDocumentError: the document is invalid. The error has the field, its value and the allowed ones.
    """
    top = _require_object(document, "the document")
    topology = _require_object(_required(top, "topology", ""), "topology")
    _refuse_unknown(topology, frozenset({"cpus"}), "topology")
    items = _require_list(_required(topology, "cpus", "topology"), "topology.cpus")
    entries = [_require_object(item, f"topology.cpus[{index}]") for index, item in enumerate(items)]
    cpus = tuple(_decode_cpu(entry, f"topology.cpus[{index}]") for index, entry in enumerate(entries))
    _require_unique((cpu.id for cpu in cpus), "topology.cpus")
    given = tuple(
        _decode_node(item, f"numa[{index}]") for index, item in enumerate(_require_list(top.get("numa", []), "numa"))
    )
    _require_unique((node.id for node in given), "numa")
    lacking = sorted({cpu.numa for cpu in cpus} - {node.id for node in given})
    return Topology.of(
        cpus,
        (*given, *(NumaNode(node, DEFAULT_NODE_MEMORY_BYTES) for node in lacking)),
        offline=_optional(top, "offline", "", _decode_cpu_set),
        l3=_l3_groups(top, entries, cpus),
        caches=_optional(top, "caches", "", _decode_caches) or (),
        socket_count=_optional(top, "sockets", "", _number_reader()),
        reported_cpu_count=_optional(top, "reportedCPUs", "", _number_reader()),
        skipped=_optional(top, "skipped", "", _decode_cpu_set),
        isolated=_optional(top, "isolated", "", _decode_cpu_set),
        nohz_full=_optional(top, "nohzFull", "", _decode_cpu_set),
        memory_bytes=_optional(top, "memory", "", _number_reader()),
        hugepages=_optional(top, "hugepages", "", _decode_hugepages),
    )


def _decode_cpu(entry: Mapping[str, Any], path: str) -> Cpu:
    _refuse_unknown(entry, _CPU_FIELDS, path)
    return Cpu(
        id=_number_reader(MAX_ID)(_required(entry, "id", path), f"{path}.id"),
        core=_number_reader(_MAX_UINT32)(_required(entry, "core", path), f"{path}.core"),
        socket=_number_reader(_MAX_UINT32)(_required(entry, "socket", path), f"{path}.socket"),
        numa=_number_reader(MAX_ID)(_required(entry, "numa", path), f"{path}.numa"),
        uncore=_optional(entry, "uncore", path, _number_reader(_MAX_UINT32)),
        die=_optional(entry, "die", path, _number_reader(_MAX_UINT32)),
        core_class=_optional(entry, "coreClass", path, _word_reader(_CORE_CLASSES)),
        capacity=_optional(entry, "capacity", path, _number_reader()),
        l3_bytes=_optional(entry, "l3Bytes", path, _number_reader()),
    )


def _decode_node(item: object, path: str) -> NumaNode:
    entry = _require_object(item, path)
    _refuse_unknown(entry, _NUMA_FIELDS, path)
    return NumaNode(
        id=_number_reader(MAX_ID)(_required(entry, "id", path), f"{path}.id"),
        memory_bytes=_number_reader()(_required(entry, "memory", path), f"{path}.memory"),
        hugepages=_optional(entry, "hugepages", path, _decode_hugepages) or (),
        distances=_optional(entry, "distances", path, _decode_distances),
    )


def _l3_groups(top: Mapping[str, Any], entries: list[Mapping[str, Any]], cpus: tuple[Cpu, ...]) -> tuple[CpuSet, ...]:
    """Return the groups named by the CPUs' `l3`. The list `l3`, if given, determines their order and may have CPUs
    that aren't listed.
    """
    members: dict[int, CpuSet] = {}
    for index, (entry, cpu) in enumerate(zip(entries, cpus, strict=True)):
        group = _optional(entry, "l3", f"topology.cpus[{index}]", _number_reader(_MAX_UINT32))
        if group is not None:
            members[group] = members.get(group, CpuSet()) | CpuSet.of(cpu.id)
    listed = _optional(top, "l3", "", _decode_cpu_sets)
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
        raise TopologyDocumentError("l3", f"must have a group {min(members)}, because CPUs refer to it")
    return listed


def _decode_caches(value: object, path: str) -> tuple[Cache, ...]:
    return tuple(_decode_cache(item, f"{path}[{index}]") for index, item in enumerate(_require_list(value, path)))


def _decode_cache(item: object, path: str) -> Cache:
    entry = _require_object(item, path)
    _refuse_unknown(entry, _CACHE_FIELDS, path)
    cpus = _decode_cpu_set(_required(entry, "cpus", path), f"{path}.cpus")
    if not cpus:
        raise TopologyDocumentError(f"{path}.cpus", "must have a CPU")
    return Cache(
        level=_number_reader(_MAX_LEVEL)(_required(entry, "level", path), f"{path}.level"),
        type=_word_reader(_CACHE_TYPES)(_required(entry, "type", path), f"{path}.type"),
        cpus=cpus,
        size_bytes=_optional(entry, "size", path, _number_reader()),
    )


def _require_object(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TopologyDocumentError(path, "must be an object", _describe(value))
    return value


def _require_list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise TopologyDocumentError(path, "must be a list", _describe(value))
    return value


def _describe(value: object) -> object:
    return value if isinstance(value, (str, int, bool)) else type(value).__name__


def _refuse_unknown(entry: Mapping[str, Any], known: frozenset[str], path: str) -> None:
    unknown = [str(name) for name in entry if name not in known]
    if unknown:
        raise TopologyDocumentError(f"{path}.{unknown[0][:40]}", f"unknown field; known are {', '.join(sorted(known))}")


def _required(entry: Mapping[str, Any], name: str, path: str) -> object:
    if name not in entry:
        raise TopologyDocumentError(_join_path(path, name), "is required")
    return entry[name]


def _optional(entry: Mapping[str, Any], name: str, path: str, read: Callable[[object, str], T]) -> T | None:
    return None if entry.get(name) is None else read(entry[name], _join_path(path, name))


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _number_reader(high: int = _MAX_INT64) -> Callable[[object, str], int]:
    def read(value: object, path: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
            raise TopologyDocumentError(
                path, f"must be a whole number from 0 to {high}", "null" if value is None else value
            )
        return value

    return read


def _word_reader(words: tuple[str, ...]) -> Callable[[object, str], str]:
    def read(value: object, path: str) -> str:
        if not isinstance(value, str) or value not in words:
            raise TopologyDocumentError(path, f"must be one of {', '.join(words)}", value)
        return value

    return read


def _decode_cpu_set(value: object, path: str) -> CpuSet:
    if not isinstance(value, str):
        raise TopologyDocumentError(path, "must be a CPU list such as 0-3,8", _describe(value))
    try:
        return CpuSet.parse(value)
    except IdSetSyntaxError as err:
        raise TopologyDocumentError(path, "must be a CPU list such as 0-3,8", value) from err


def _decode_cpu_sets(value: object, path: str) -> tuple[CpuSet, ...]:
    return tuple(_decode_cpu_set(item, f"{path}[{index}]") for index, item in enumerate(_require_list(value, path)))


def _decode_distances(value: object, path: str) -> tuple[int, ...]:
    return tuple(_number_reader()(item, f"{path}[{index}]") for index, item in enumerate(_require_list(value, path)))


def _decode_hugepages(value: object, path: str) -> tuple[tuple[str, int], ...]:
    amounts = _require_object(value, path)
    for name in amounts:
        if not isinstance(name, str) or not name.startswith("hugepages-"):
            raise TopologyDocumentError(f"{path}.{str(name)[:40]}", "must be a resource name such as hugepages-2Mi")
    return tuple((name, _number_reader()(amounts[name], f"{path}.{name}")) for name in sorted(amounts))


def _require_unique(ids: Iterable[int], path: str) -> None:
    seen: set[int] = set()
    for index, number in enumerate(ids):
        if number in seen:
            raise TopologyDocumentError(f"{path}[{index}].id", "must occur only once", number)
        seen.add(number)
