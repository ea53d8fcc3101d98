"""Encoder and decoder of kubelet's file memory_manager_state. The encoder's file is identical to kubelet's, byte for byte. The decoder
reads every version.

The checksum is FNV-1a over a dump of the decoded contents as Go's spew prints them, not over the file's bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from msgspec import Struct

from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.promises import PodPromises, Promises
from nodeagent.core.model.records import Unreadable
from nodeagent.core.resources.memory.holdings import (
    Block,
    Blocks,
    MemoryHoldings,
    MemoryNode,
    MemoryTable,
    memory_accounts,
)
from nodeagent.core.resources.memory.records import MemoryRecord
from nodeagent.formats.syntax.fnv import Text, fnv1a_32
from nodeagent.formats.syntax.go_json import (
    GoJsonError,
    decode_json,
    fields,
    integer,
    mapping,
    quote,
    sequence,
    string,
    unsigned,
)
from nodeagent.formats.syntax.long_text import Pieces, pieces_of

T = TypeVar("T")

_CORRUPTED = "checkpoint is corrupted"
_MAX_INT64 = 2**63 - 1
_MAX_NODE = 4095
"""Largest accepted NUMA node ID. Without this limit, a hostile file could make the agent create a huge bitmask."""
_LEGACY, _VERSION_1 = "MemoryManagerCheckpoint", "MemoryManagerCheckpointV1"
_NAMES = ("policyName", "machineState", "entries", "podEntries", "checksum")


def encode_memory_state(policy: str, promises: Promises, *, pod_level: bool) -> str:
    """Encode the file in version 1, or in version 2 with `pod_level` (the feature gate PodLevelResourceManagers)."""
    accounts = memory_accounts(promises)
    entries = promises.pods.fold(_ENTRIES)
    pods = promises.pods.fold(_POD_ENTRIES) if pod_level else None
    encode = _encode_file if entries[0] or (pods is not None and pods[0]) else _encode_without_pods
    return encode(policy, accounts, entries, pods)


def _encode_file(policy: str, accounts: tuple[MemoryNode, ...], of_containers: Pieces, of_pods: Pieces | None) -> str:
    machine = ",".join([_encode_node(node) for node in sorted(accounts, key=lambda node: str(node.id))])
    raw = {node.id: _RawNode(node.assignments, dict(node.tables), tuple(node.cells)) for node in accounts}
    entries, entries_dump = of_containers
    members = [f'"policyName":{quote(policy)}', f'"machineState":{{{machine}}}']
    if entries:
        members.append(f'"entries":{{{",".join(entries)}}}')
    pods_dump: Text | None = None
    if of_pods is not None:
        pods, pods_dump = of_pods
        if pods:
            members.append(f'"podEntries":{{{",".join(pods)}}}')
    checksum = fnv1a_32(*_dump(policy, _dump_map(raw, _dump_node), ("map[", entries_dump, "]"), pods_dump))
    return "{" + ",".join(members) + f',"checksum":{checksum}}}'


_encode_without_pods = lru_cache(maxsize=4)(_encode_file)
"""Cached encoder for nodes on which no pod has memory allocated, for instance with policy None. On such a node, admitting or removing a pod
doesn't change the file.
"""


def _dump(policy: str, machine: str, entries: Iterable[Text], pods: Text | None, name: str = _LEGACY) -> Iterator[Text]:
    yield (
        f"(*state.{name}){{PolicyName:(string){policy} MachineState:(state.NUMANodeMap){machine} "
        f"Entries:(state.ContainerMemoryAssignments)"
    )
    yield from entries
    if pods is not None:
        yield " PodEntries:(state.PodMemoryAssignments)map["
        yield pods
        yield "]"
    yield " Checksum:(checksum.Checksum)0}"


def _encode_node(node: MemoryNode) -> str:
    tables = ",".join(
        [
            f'{quote(name)}:{{"total":{t.total},"systemReserved":{t.system_reserved},"allocatable":{t.allocatable},'
            f'"reserved":{t.reserved},"free":{max(t.free, 0)}}}'
            for name, t in node.tables
        ]
    )
    return f'"{node.id}":{{"numberOfAssignments":{node.assignments},"memoryMap":{{{tables}}},"cells":[{_join_ids(node.cells, ",")}]}}'


def _dump_map(entries: Mapping[Any, T] | None, dump: Callable[[T], str]) -> str:
    """Format a map as Go's spew dumps it. None is formatted as a nil map."""
    if entries is None:
        return "<nil>"
    return f"map[{' '.join([f'{key}:{dump(value)}' for key, value in sorted(entries.items())])}]"


def _dump_node(node: "_RawNode | None") -> str:
    if node is None:
        return "<nil>"
    return (
        f"<*>{{NumberOfAssignments:(int){node.assignments} "
        f"MemoryMap:(map[v1.ResourceName]*state.MemoryTable){_dump_map(node.tables, _dump_table)} "
        f"Cells:([]int){_dump_ids(node.cells)}}}"
    )


def _dump_table(table: MemoryTable | None) -> str:
    if table is None:
        return "<nil>"
    return (
        f"<*>{{TotalMemSize:(uint64){table.total} SystemReserved:(uint64){table.system_reserved} "
        f"Allocatable:(uint64){table.allocatable} Reserved:(uint64){table.reserved} Free:(uint64){max(table.free, 0)}}}"
    )


def _dump_ids(ids: Iterable[int] | None) -> str:
    return "<nil>" if ids is None else f"[{_join_ids(ids, ' ')}]"


def _join_ids(nodes: Iterable[int], separator: str) -> str:
    return separator.join([str(node) for node in nodes])


def _encode_entry(uid: str, pod: PodPromises) -> tuple[str, str] | None:
    memory = pod.of(MemoryHoldings).memory
    if not memory:
        return None
    text = ",".join([f"{quote(name)}:{_encode_blocks(blocks)}" for name, blocks in memory])
    dump = " ".join([f"{name}:{_dump_blocks(blocks)}" for name, blocks in memory])
    return f"{quote(uid)}:{{{text}}}", f"{uid}:map[{dump}]"


def _encode_pod_entry(uid: str, pod: PodPromises) -> tuple[str, str] | None:
    whole = pod.of(MemoryHoldings).pod_memory
    if whole is None:
        return None
    body = f'{{"memoryBlocks":{_encode_blocks(whole)}}}' if whole else "{}"
    return f"{quote(uid)}:{body}", f"{uid}:{{MemoryBlocks:([]state.Block){_dump_blocks(whole)}}}"


_ENTRIES = pieces_of(_encode_entry)
_POD_ENTRIES = pieces_of(_encode_pod_entry)


def _encode_blocks(blocks: Blocks) -> str:
    listed = [
        f'{{"numaAffinity":[{_join_ids(b.nodes, ",")}],"type":{quote(b.resource)},"size":{b.size_bytes}}}'
        for b in blocks
    ]
    return f"[{','.join(listed)}]"


def _dump_blocks(blocks: "Iterable[Block | _RawBlock] | None") -> str:
    if blocks is None:
        return "<nil>"
    listed = [
        f"{{NUMAAffinity:([]int){_dump_ids(b.nodes)} Type:(v1.ResourceName){b.resource} Size:(uint64){b.size_bytes}}}"
        for b in blocks
    ]
    return f"[{' '.join(listed)}]"


def decode_memory_state(text: str, *, pod_level: bool, newer: bool = False) -> MemoryRecord | Unreadable:
    """Decode a file of any version. The versions are tried in the order of kubelet 1.36.

    Args:
        text: the content of the file.
        pod_level: whether the feature gate PodLevelResourceManagers is on. kubelet then tries version 2 first.
        newer: whether to try version 3 (kubelet 1.37), too.
    """
    try:
        document = decode_json(text)
        if newer:
            record = _decode_version_3(document)
            if record is not None:
                return record
        contents = read_memory_contents(document)
    except GoJsonError as err:
        return Unreadable(str(err))
    if pod_level and contents.checksum == fnv1a_32(*contents.dump(_LEGACY, with_pods=True)):
        return contents.record()
    names = (_LEGACY,) if pod_level else (_VERSION_1, _LEGACY)
    if contents.checksum and contents.checksum not in {fnv1a_32(*contents.dump(n, with_pods=False)) for n in names}:
        return Unreadable(_CORRUPTED)
    # With the gate on, kubelet first tries version 2. If this attempt fails, the pod entries that it has decoded remain.
    return contents.record(with_pods=pod_level)


class _RawNode(Struct, frozen=True):
    assignments: int
    tables: dict[str, MemoryTable | None] | None
    cells: tuple[int, ...] | None


class _RawBlock(Struct, frozen=True):
    nodes: tuple[int, ...] | None
    resource: str
    size_bytes: int


_RawBlocks = tuple[_RawBlock, ...] | None
_RawEntries = dict[str, dict[str, _RawBlocks] | None] | None


class MemoryContents(Struct, frozen=True):
    """Content of a file of version 1 or 2. Nulls are kept, because they affect the checksum."""

    policy: str
    machine: dict[int, _RawNode | None] | None
    entries: _RawEntries
    pods: dict[str, _RawBlocks] | None
    checksum: int

    def dump(self, name: str, *, with_pods: bool) -> Iterator[Text]:
        pods = None
        if with_pods:
            listed = [
                f"{uid}:{{MemoryBlocks:([]state.Block){_dump_blocks(blocks)}}}"
                for uid, blocks in sorted((self.pods or {}).items())
            ]
            pods = " ".join(listed)
        entries = _dump_map(self.entries or {}, lambda containers: _dump_map(containers, _dump_blocks))
        return _dump(self.policy, _dump_map(self.machine, _dump_node), [entries], pods, name)

    @property
    def sums(self) -> dict[str, int]:
        """Compute the checksum of this content in each version that can express it. The key is the version, with kubelet 1.36.0 as a
        variant of version 1.
        """
        found = {"2": fnv1a_32(*self.dump(_LEGACY, with_pods=True))}
        if not self.pods:
            found["1"] = fnv1a_32(*self.dump(_LEGACY, with_pods=False))
            found["1 of kubelet 1.36.0"] = fnv1a_32(*self.dump(_VERSION_1, with_pods=False))
        return found

    def record(self, *, with_pods: bool = True) -> MemoryRecord | Unreadable:
        machine = []
        for node_id, node in sorted((self.machine or {}).items()):
            if node is None or any(table is None for table in (node.tables or {}).values()):
                # kubelet would accept the checksum of such a file, and then panic.
                return Unreadable(_CORRUPTED)
            tables = tuple(sorted((k, t) for k, t in (node.tables or {}).items() if t is not None))
            machine.append(MemoryNode(node_id, node.assignments, NumaSet.from_ids(node.cells or ()), tables))
        entries = tuple(
            (uid, tuple(sorted((name, _to_blocks(blocks)) for name, blocks in containers.items())))
            for uid, containers in sorted((self.entries or {}).items())
            if containers
        )
        pods = tuple((uid, _to_blocks(blocks)) for uid, blocks in sorted((self.pods or {}).items()))
        return MemoryRecord(self.policy, tuple(machine), entries, pods if with_pods else ())


def _to_blocks(blocks: _RawBlocks) -> Blocks:
    listed = [Block(NumaSet.from_ids(b.nodes or ()), b.resource, b.size_bytes) for b in blocks or ()]
    return tuple(sorted(listed, key=lambda block: (block.resource, tuple(block.nodes))))


def read_memory_contents(document: object) -> MemoryContents:
    """Parse a decoded file of version 1 or 2 without checking its checksum.

    Raises:
        GoJsonError: the document is malformed.
    """
    found = fields(document, _NAMES)
    machine = mapping(found["machineState"], _parse_node)
    return MemoryContents(
        policy=string(found["policyName"]),
        machine=None if machine is None else {_parse_node_id(key): node for key, node in machine.items()},
        entries=mapping(found["entries"], lambda value: mapping(value, _parse_blocks)),
        pods=mapping(
            found["podEntries"], lambda value: _parse_blocks(fields(value, ("memoryBlocks",))["memoryBlocks"])
        ),
        checksum=unsigned(found["checksum"]),
    )


def _parse_node_id(key: str) -> int:
    if not (key.isascii() and key.isdigit()) or int(key[:10]) > _MAX_NODE:
        raise GoJsonError(f"json: cannot unmarshal number {key} into Go value of type int")
    return int(key)


def _parse_node(value: object) -> _RawNode | None:
    if value is None:
        return None
    found = fields(value, ("numberOfAssignments", "memoryMap", "cells"))
    return _RawNode(
        integer(found["numberOfAssignments"], low=-_MAX_INT64 - 1, high=_MAX_INT64),
        mapping(found["memoryMap"], _parse_table),
        sequence(found["cells"], _parse_node_number),
    )


def _parse_node_number(value: object) -> int:
    return integer(value, low=0, high=_MAX_NODE)


def _parse_table(value: object) -> MemoryTable | None:
    if value is None:
        return None
    found = fields(value, ("total", "systemReserved", "allocatable", "reserved", "free"))
    return MemoryTable(*(unsigned(size) for size in found.values()))


def _parse_blocks(value: object) -> _RawBlocks:
    def parse_block(block: object) -> _RawBlock:
        found = fields(block, ("numaAffinity", "type", "size"))
        return _RawBlock(
            sequence(found["numaAffinity"], _parse_node_number),
            string(found["type"]),
            unsigned(found["size"]),
        )

    return sequence(value, parse_block)


def _decode_version_3(document: object) -> MemoryRecord | Unreadable | None:
    """Decode version 3 (kubelet 1.37), which stores JSON as a string, with a checksum. None means that the file doesn't have this
    version.
    """
    outer = fields(document, ("data", "dataChecksum"))
    data, checksum = string(outer["data"]), unsigned(outer["dataChecksum"])
    if not data and not checksum:
        return None
    if fnv1a_32(f"(string){data}") != checksum:
        return Unreadable(f"could not load v3 checkpoint: {_CORRUPTED}")
    try:
        return read_memory_contents(decode_json(data)).record()
    except GoJsonError as err:
        return Unreadable(f"could not load v3 checkpoint: {err}")
