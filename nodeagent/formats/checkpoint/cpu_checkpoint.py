"""Encoder and decoder of kubelet's file cpu_manager_state. The encoder's file is identical to kubelet's, byte for byte. The decoder reads
every version.

The checksum is FNV-1a over a dump of the decoded contents as Go's spew prints them, not over the file's bytes.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet, IdSetSyntaxError
from nodeagent.core.model.promises import PodPromises, Promises
from nodeagent.core.model.records import Unreadable
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set
from nodeagent.core.resources.cpu.records import CpuRecord, InitialContainers
from nodeagent.formats.syntax.fnv import Text, fnv1a_32
from nodeagent.formats.syntax.go_json import GoJsonError, decode_json, fields, mapping, quote, string, unsigned
from nodeagent.formats.syntax.long_text import pieces_of

_CORRUPTED = "checkpoint is corrupted"
_NAMES = ("policyName", "defaultCpuSet", "entries", "podEntries", "checksum")

Sets = Mapping[str, str]
"""CPU sets as text, by container name."""


def encode_cpu_state(policy: str, promises: Promises, *, pod_level: bool) -> str:
    """Encode the file in version 2, or in version 3 with `pod_level` (the feature gate PodLevelResourceManagers)."""
    default = str(default_set(promises))
    entries, entries_dump = promises.pods.fold(_ENTRIES)
    members = [f'"policyName":{quote(policy)}', f'"defaultCpuSet":"{default}"']
    if entries:
        members.append(f'"entries":{{{",".join(entries)}}}')
    pods_dump: Text | None = None
    if pod_level:
        pods, pods_dump = promises.pods.fold(_POD_ENTRIES)
        if pods:
            members.append(f'"podEntries":{{{",".join(pods)}}}')
    checksum = fnv1a_32(*_dump(policy, default, entries_dump, pods_dump))
    return "{" + ",".join(members) + f',"checksum":{checksum}}}'


def _dump(
    policy: str,
    default: str,
    entries: Text,
    pods: Text | None,
    name: str = "CPUManagerCheckpoint",
    kind: str = "map[string]map[string]string",
) -> Iterator[Text]:
    yield f"(*state.{name}){{PolicyName:(string){policy} DefaultCPUSet:(string){default} Entries:({kind})map["
    yield entries
    if pods is not None:
        yield "] PodEntries:(state.PodCPUAssignments)map["
        yield pods
    yield "] Checksum:(checksum.Checksum)0}"


def _encode_entry(uid: str, pod: PodPromises) -> tuple[str, str] | None:
    sets = [(name, str(cpus)) for name, cpus in pod.of(CpuHoldings).cpus]
    if not sets:
        return None
    text = ",".join([f'{quote(name)}:"{cpus}"' for name, cpus in sets])
    return f"{quote(uid)}:{{{text}}}", _dump_entry(uid, sets)


def _dump_entry(uid: str, sets: Iterable[tuple[str, str]]) -> str:
    return f"{uid}:map[{' '.join([f'{name}:{cpus}' for name, cpus in sets])}]"


def _encode_pod_entry(uid: str, pod: PodPromises) -> tuple[str, str] | None:
    whole = pod.of(CpuHoldings).pod_cpus
    if whole is None:
        return None
    body = f'{{"cpuSet":"{whole}"}}' if whole else "{}"
    return f"{quote(uid)}:{body}", _dump_pod_entry(uid, whole)


def _dump_pod_entry(uid: str, cpus: CpuSet) -> str:
    listed = " ".join([f"{cpu}:{{}}" for cpu in cpus])
    return f"{uid}:{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}})map[{listed}]}}}}"


_ENTRIES = pieces_of(_encode_entry)
_POD_ENTRIES = pieces_of(_encode_pod_entry)


def decode_cpu_state(
    text: str, *, pod_level: bool, initial: InitialContainers, newer: bool = False
) -> CpuRecord | Unreadable:
    """Decode a file of any version. The versions are tried in the order of kubelet 1.36.

    Args:
        text: the content of the file.
        pod_level: whether the feature gate PodLevelResourceManagers is on. kubelet then tries version 3 first.
        initial: pod UID and container name of the existing containers, by container ID. Version 1 of the file contains only container IDs.
        newer: whether to try version 4 (kubelet 1.37), too.
    """
    try:
        document = decode_json(text)
        if newer:
            record = _decode_version_4(document)
            if record is not None:
                return record
    except GoJsonError as err:
        return Unreadable(str(err))
    left_over: tuple[tuple[str, CpuSet], ...] = ()
    if pod_level:
        record, left_over = _decode_version_3(document)
        if record is not None:
            return record
    record = _decode_version_2(document, pod_level=pod_level)
    if record is not None:
        return CpuRecord(record.policy_name, record.default, record.entries, left_over)
    return _decode_version_1(document, initial)


def _decode_version_4(document: object) -> CpuRecord | Unreadable | None:
    """Decode version 4 (kubelet 1.37), which stores JSON as a string, with a checksum. None means that the file doesn't have this
    version.
    """
    try:
        outer = fields(document, ("data", "dataChecksum"))
        data, checksum = string(outer["data"]), unsigned(outer["dataChecksum"])
    except GoJsonError as err:
        return Unreadable(f"could not load v4 checkpoint: {err}")
    if not data and not checksum:
        return None
    if fnv1a_32(f"(string){data}") != checksum:
        return Unreadable(f"could not load v4 checkpoint: {_CORRUPTED}")
    try:
        found = fields(decode_json(data), _NAMES)
        entries = mapping(found["entries"], _parse_sets) or {}
        pods = mapping(found["podEntries"], _parse_pod_set) or {}
        return _create_record(string(found["policyName"]), string(found["defaultCpuSet"]), entries, pods)
    except GoJsonError as err:
        return Unreadable(f"could not load v4 checkpoint: {err}")


def _parse_sets(value: object) -> dict[str, str]:
    return mapping(value, string) or {}


def _parse_pod_set(value: object) -> CpuSet:
    try:
        return CpuSet.parse(string(fields(value, ("cpuSet",))["cpuSet"]))
    except IdSetSyntaxError as err:
        raise GoJsonError(str(err)) from err


def _parse_pod_set_leniently(value: object) -> CpuSet:
    try:
        return _parse_pod_set(value)
    except GoJsonError:
        return CpuSet()


def _create_record(policy: str, default: str, entries: Mapping[str, Sets], pods: Mapping[str, CpuSet]) -> CpuRecord:
    return CpuRecord(
        policy,
        default,
        tuple((uid, tuple(sorted(sets.items()))) for uid, sets in sorted(entries.items())),
        tuple(sorted(pods.items(), key=lambda item: item[0])),
    )


def _decode_version_3(document: object) -> tuple[CpuRecord | None, tuple[tuple[str, CpuSet], ...]]:
    """Decode version 3. If this fails, return the pod entries that could be decoded, because kubelet keeps these entries when it tries
    version 2.
    """
    left_over: tuple[tuple[str, CpuSet], ...] = ()
    try:
        found = fields(document, _NAMES)
        lenient = mapping(found["podEntries"], _parse_pod_set_leniently) or {}
        left_over = tuple(sorted(lenient.items(), key=lambda item: item[0]))
        policy, default = string(found["policyName"]), string(found["defaultCpuSet"])
        entries = mapping(found["entries"], _parse_sets) or {}
        pods = mapping(found["podEntries"], _parse_pod_set) or {}
        checksum = unsigned(found["checksum"])
    except GoJsonError:
        return None, left_over
    pods_dump = " ".join(_dump_pod_entry(uid, cpus) for uid, cpus in sorted(pods.items(), key=lambda item: item[0]))
    if checksum != fnv1a_32(*_dump(policy, default, _dump_entries(entries), pods_dump)):
        return None, left_over
    return _create_record(policy, default, entries, pods), ()


def _dump_entries(entries: Mapping[str, Sets]) -> str:
    return " ".join(_dump_entry(uid, sorted(sets.items())) for uid, sets in sorted(entries.items()))


def _decode_version_2(document: object, *, pod_level: bool) -> CpuRecord | None:
    try:
        found = fields(document, _NAMES)
        policy, default = string(found["policyName"]), string(found["defaultCpuSet"])
        entries = mapping(found["entries"], _parse_sets) or {}
        checksum = unsigned(found["checksum"])
    except GoJsonError:
        return None
    # A kubelet build between two releases hashed the dump with another type name. With the gate on, kubelet doesn't try this name.
    names = ("CPUManagerCheckpoint",) if pod_level else ("CPUManagerCheckpointV2", "CPUManagerCheckpoint")
    dump = _dump_entries(entries)
    if checksum and checksum not in {fnv1a_32(*_dump(policy, default, dump, None, name)) for name in names}:
        return None
    return _create_record(policy, default, entries, {})


def _decode_version_1(document: object, initial: InitialContainers) -> CpuRecord | Unreadable:
    try:
        found = fields(document, _NAMES)
        policy, default = string(found["policyName"]), string(found["defaultCpuSet"])
        sets = _parse_version_1_sets(found["entries"])
        checksum = unsigned(found["checksum"])
    except GoJsonError as err:
        return Unreadable(str(err))
    listed = sorted(sets.items())
    dump = " ".join(f"{container}:{cpus}" for container, cpus in listed)
    if checksum and checksum != fnv1a_32(*_dump(policy, default, dump, None, kind="map[string]string")):
        return Unreadable(_CORRUPTED)
    entries: dict[str, dict[str, str]] = {}
    for container, cpus in listed:
        known = initial.get(container)
        if known is None:
            return Unreadable(
                f"failed to migrate checkpoint from v1 to v2: containerID '{container}' not found in initial containers list"
            )
        entries.setdefault(known[0], {})[known[1]] = cpus
    return _create_record(policy, default, entries, {})


def _parse_version_1_sets(value: object) -> dict[str, str]:
    for uid, item in (mapping(value, lambda item: item) or {}).items():
        if item is not None and not isinstance(item, str):
            kind = "object" if isinstance(item, list) else "value"
            raise GoJsonError(
                f"json: cannot unmarshal {kind} into Go struct field CPUManagerCheckpointV1.entries.{uid} of type string"
            )
    return mapping(value, string) or {}


class CpuContents(Struct, frozen=True):
    """Content of a file of any version, whether or not its checksum is correct."""

    policy: str
    default: str
    entries: Mapping[str, Sets]
    """CPU sets by pod UID and container name."""
    containers: Mapping[str, str]
    """CPU sets by container ID. Only version 1 has them, because it doesn't name pods."""
    pods: Mapping[str, CpuSet]
    checksum: int

    @property
    def sums(self) -> dict[str, int]:
        """Compute the checksum of this content in each version that can express it. The key is the version, or describes a development
        build of kubelet between two releases.
        """
        dump = _dump_entries(self.entries)
        pods = " ".join(_dump_pod_entry(uid, cpus) for uid, cpus in sorted(self.pods.items()))
        by_id = " ".join(f"{container}:{cpus}" for container, cpus in sorted(self.containers.items()))
        found = {}
        if not self.containers:
            found["3"] = fnv1a_32(*_dump(self.policy, self.default, dump, pods))
            if not self.pods:
                found["2"] = fnv1a_32(*_dump(self.policy, self.default, dump, None))
                found["2 of a build between releases"] = fnv1a_32(
                    *_dump(self.policy, self.default, dump, None, "CPUManagerCheckpointV2")
                )
        if not self.entries and not self.pods:
            found["1"] = fnv1a_32(*_dump(self.policy, self.default, by_id, None, kind="map[string]string"))
        return found


def read_cpu_contents(text: str) -> CpuContents:
    """Parse a file of version 1, 2 or 3 without checking its checksum.

    Raises:
        GoJsonError: the text is malformed.
    """
    found = fields(decode_json(text), _NAMES)
    values = mapping(found["entries"], lambda value: value) or {}
    is_by_id = any(isinstance(value, str) for value in values.values())
    return CpuContents(
        string(found["policyName"]),
        string(found["defaultCpuSet"]),
        {} if is_by_id else {uid: _parse_sets(value) for uid, value in values.items()},
        {container: string(value) for container, value in values.items()} if is_by_id else {},
        mapping(found["podEntries"], _parse_pod_set) or {},
        unsigned(found["checksum"]),
    )


def encode_cpu_state_1(policy: str, default: str, containers: Mapping[str, str]) -> str:
    """Encode version 1 of the file (kubelet 1.17 and earlier), with CPU sets by container ID."""
    listed = sorted(containers.items())
    members = [f'"policyName":{quote(policy)}', f'"defaultCpuSet":"{default}"']
    if listed:
        members.append('"entries":{' + ",".join(f'{quote(container)}:"{cpus}"' for container, cpus in listed) + "}")
    dump = " ".join(f"{container}:{cpus}" for container, cpus in listed)
    checksum = fnv1a_32(*_dump(policy, default, dump, None, kind="map[string]string"))
    return "{" + ",".join(members) + f',"checksum":{checksum}}}'
