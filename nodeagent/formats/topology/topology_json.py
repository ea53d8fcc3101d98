"""The machine as a document: the fields `topology` and `numa` of simulate's scenarios, and everything else that
discovery finds.

The decoder ignores a scenario's other fields.
"""

from collections.abc import Iterable
from typing import Any

from nodeagent.core.model.idset import MAX_ID, CpuSet
from nodeagent.core.model.topology import Cache, Cpu, NumaNode, Topology
from nodeagent.errors import NodeAgentError
from nodeagent.formats.syntax.findings import shown
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError

DEFAULT_NODE_MEMORY_BYTES = 64 * 2**30
"""Assumed memory of a NUMA node to which CPUs refer but which `numa` doesn't list."""

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
"""Names of all fields that describe a machine in a document."""
_CPU_FIELDS = frozenset({"id", "core", "socket", "numa", "uncore", "l3", "die", "coreClass", "capacity", "l3Bytes"})
_CACHE_FIELDS = frozenset({"level", "type", "cpus", "size"})
_NUMA_FIELDS = frozenset({"id", "memory", "hugepages", "distances"})


class TopologyDocumentError(NodeAgentError):
    """A document is not a valid description of a machine."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="`nodeagent topology -o json` prints a document of the right form")


def topology_document(topology: Topology) -> dict[str, Any]:
    """Format a machine as plain values for JSON or YAML. Values that the machine doesn't report are left out."""
    group_of = {cpu: index for index, group in enumerate(topology.l3) for cpu in group}
    return {
        "topology": {"cpus": [_format_cpu(cpu, group_of.get(cpu.id)) for cpu in topology.cpus]},
        "numa": [
            {"id": node.id, "memory": node.memory_bytes, "hugepages": dict(node.hugepages)}
            | ({} if node.distances is None else {"distances": list(node.distances)})
            for node in topology.numa
        ],
        "sockets": topology.socket_count,
        "reportedCPUs": topology.reported_cpu_count,
        "memory": topology.memory_bytes,
        "hugepages": dict(topology.hugepages),
        "l3": [str(group) for group in topology.l3],
        "caches": [
            {"level": cache.level, "type": cache.type, "cpus": str(cache.cpus)}
            | ({} if cache.size_bytes is None else {"size": cache.size_bytes})
            for cache in topology.caches
        ],
        "offline": str(topology.offline),
        "skipped": str(topology.skipped),
        "isolated": str(topology.isolated),
        "nohzFull": str(topology.nohz_full),
    }


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


def topology_from_document(document: object) -> Topology:
    """Decode the machine of a scenario or the result of `topology_document`.

    Raises:
        TopologyDocumentError: the document is invalid. The error names the field, its value and the allowed values.
    """
    try:
        machine = JsonValue(document)
        read_optional = machine.read_optional
        topology = machine.field("topology")
        _refuse_unknown(topology, frozenset({"cpus"}))
        entries = topology.field("cpus").each(lambda entry: entry)
        cpus = tuple(map(_decode_cpu, entries))
        _require_unique((cpu.id for cpu in cpus), "topology.cpus")
        nodes = read_optional("numa", lambda items: items.each(_decode_node), ())
        _require_unique((node.id for node in nodes), "numa")
        unlisted = sorted({cpu.numa for cpu in cpus} - {node.id for node in nodes})
        return Topology.of(
            cpus,
            (*nodes, *(NumaNode(node, DEFAULT_NODE_MEMORY_BYTES) for node in unlisted)),
            offline=read_optional("offline", JsonValue.cpus, None),
            l3=_decode_l3_groups(machine, entries, cpus),
            caches=read_optional("caches", lambda caches: caches.each(_decode_cache), ()),
            socket_count=read_optional("sockets", _read_amount, None),
            reported_cpu_count=read_optional("reportedCPUs", _read_amount, None),
            skipped=read_optional("skipped", JsonValue.cpus, None),
            isolated=read_optional("isolated", JsonValue.cpus, None),
            nohz_full=read_optional("nohzFull", JsonValue.cpus, None),
            memory_bytes=read_optional("memory", _read_amount, None),
            hugepages=read_optional("hugepages", _decode_hugepages, None),
        )
    except MisfitError as err:
        raise TopologyDocumentError(str(err)) from err


def _decode_cpu(entry: JsonValue) -> Cpu:
    _refuse_unknown(entry, _CPU_FIELDS)
    return Cpu(
        id=_read_id(entry.field("id")),
        core=_read_kernel_id(entry.field("core")),
        socket=_read_kernel_id(entry.field("socket")),
        numa=_read_id(entry.field("numa")),
        uncore=entry.read_optional("uncore", _read_kernel_id, None),
        die=entry.read_optional("die", _read_kernel_id, None),
        core_class=entry.read_optional("coreClass", lambda value: value.among(_CORE_CLASSES), None),
        capacity=entry.read_optional("capacity", _read_amount, None),
        l3_bytes=entry.read_optional("l3Bytes", _read_amount, None),
    )


def _decode_node(entry: JsonValue) -> NumaNode:
    _refuse_unknown(entry, _NUMA_FIELDS)
    return NumaNode(
        id=_read_id(entry.field("id")),
        memory_bytes=_read_amount(entry.field("memory")),
        hugepages=entry.read_optional("hugepages", _decode_hugepages, ()),
        distances=entry.read_optional("distances", lambda values: values.each(_read_amount), None),
    )


def _decode_l3_groups(document: JsonValue, entries: tuple[JsonValue, ...], cpus: tuple[Cpu, ...]) -> tuple[CpuSet, ...]:
    """Return the groups that the CPUs' `l3` fields name. The list `l3`, if given, determines their order. A group in `l3` may contain
    further CPUs.
    """
    members: dict[int, CpuSet] = {}
    for entry, cpu in zip(entries, cpus, strict=True):
        group = entry.read_optional("l3", _read_kernel_id, None)
        if group is not None:
            members[group] = members.get(group, CpuSet()) | CpuSet.of(cpu.id)
    listed = document.read_optional("l3", lambda groups: groups.each(JsonValue.cpus), None)
    if listed is None:
        return tuple(members.values())
    known = CpuSet.from_ids(cpu.id for cpu in cpus)
    taken = CpuSet()
    for index, group_cpus in enumerate(listed):
        if not group_cpus or not group_cpus.isdisjoint(taken) or group_cpus & known != members.pop(index, CpuSet()):
            rule = "must be the CPUs that have this index as `l3` and are in no other group"
            raise MisfitError(f"l3[{index}]: {rule}, not {shown(str(group_cpus))}")
        taken |= group_cpus
    if members:
        raise MisfitError(f"l3: must have a group {min(members)}, because CPUs refer to it")
    return listed


def _decode_cache(value: JsonValue) -> Cache:
    _refuse_unknown(value, _CACHE_FIELDS)
    cpus = value.field("cpus").cpus()
    if not cpus:
        raise MisfitError(f"{value.path}.cpus: must contain at least one CPU")
    return Cache(
        level=value.field("level").whole(high=_MAX_LEVEL),
        type=value.field("type").among(_CACHE_TYPES),
        cpus=cpus,
        size_bytes=value.read_optional("size", _read_amount, None),
    )


def _decode_hugepages(value: JsonValue) -> tuple[tuple[str, int], ...]:
    for name in value.object():
        if not isinstance(name, str) or not name.startswith("hugepages-"):
            raise MisfitError(f"{value.path}.{str(name)[:40]}: must be a resource name such as hugepages-2Mi")
    return value.by_name(_read_amount)


def _read_id(value: JsonValue) -> int:
    return value.whole(high=MAX_ID)


def _read_kernel_id(value: JsonValue) -> int:
    return value.whole(high=_MAX_UINT32)


def _read_amount(value: JsonValue) -> int:
    return value.whole(high=_MAX_INT64)


def _refuse_unknown(value: JsonValue, known: frozenset[str]) -> None:
    unknown = [str(name) for name in value.object() if name not in known]
    if unknown:
        raise MisfitError(f"{value.path}.{unknown[0][:40]}: unknown field; known are {', '.join(sorted(known))}")


def _require_unique(ids: Iterable[int], path: str) -> None:
    seen: set[int] = set()
    for index, number in enumerate(ids):
        if number in seen:
            raise MisfitError(f"{path}[{index}].id: must occur only once, not {number}")
        seen.add(number)
