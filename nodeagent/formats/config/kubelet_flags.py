"""Converter of kubelet's command-line flags to fields of a KubeletConfiguration, according to cmd/kubelet/app/options."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile

from msgspec import Struct

from nodeagent.formats.syntax.tree import ListNode, MapEntry, MapNode, Scalar, TreeNode


class Flag(Struct, frozen=True):
    """One kubelet flag, with its value as written."""

    name: str
    """Name without hyphens."""
    value: str
    line: int | None = None


_BOOLEANS = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}
_ASSIGNMENT = re.compile(r"^(?:[A-Za-z_][A-Za-z0-9_]*+=)++(?=(?:.*\s)?--)")
"""Pattern of the variable's name at the start of a line such as `KUBELET_EXTRA_ARGS=-v=2 --max-pods=1`, in a file of environment variables
or a unit file.
"""
_PASSED_ON = ("kubelet-arg", "kubelet-extra-args")
"""Flags of k3s, RKE2 and the start script of older EKS nodes, whose values are kubelet flags."""
_COMMENT = re.compile(r"^[^\S\n]*[;#].*$", re.MULTILINE)
"""Pattern of a comment line, which begins with `#` or, in unit files, with `;`."""
_FLAG = re.compile(r"""(?:^|[\s"'=\0])--[a-z][a-z0-9_-]+""")
_YAML_LINE = re.compile(r"""^(?:---\s*$|\{|-\s|["']?[A-Za-z][\w./+-]*["']?\s*:(?:\s|$))""", re.MULTILINE)


def is_command_line(text: str) -> bool:
    """Tell whether a text contains flags, that is, a command line, a unit file or a file of environment variables, rather than the fields
    of a configuration.
    """
    return _FLAG.search(text) is not None and _YAML_LINE.search(text) is None


def split_command_line(text: str) -> tuple[Flag, ...]:
    """Find the flags in a text with shell quoting, or in the content of /proc/PID/cmdline.

    Raises:
        ValueError: a quote isn't closed.
    """
    if "\0" in text:
        return tuple(_pass_on(pair_flags(text.split("\0"))))
    flags: list[Flag] = []
    line, start = "", 1
    for number, part in enumerate((*_COMMENT.sub("", text).splitlines(), ""), 1):
        start = start if line else number
        line += part.removesuffix("\\")
        if part.endswith("\\"):
            line += " "
        else:
            flags += pair_flags(_split_words(line), start)
            line = ""
    return tuple(_pass_on(flags))


def _split_words(line: str) -> Iterator[str]:
    words = shlex.shlex(line, posix=True)
    words.whitespace_split, words.commenters = True, ""  # inside a word, a # begins no comment
    for word in takewhile(lambda word: not word.startswith("#"), words):
        plain = _ASSIGNMENT.sub("", word)
        yield from shlex.split(plain) if plain != word else (word,)


def pair_flags(words: Iterable[str], line: int | None = None) -> tuple[Flag, ...]:
    """Join flags with their values. The notations are `--name=value`, `--name value`, and `--name` for true."""
    flags: list[Flag] = []
    awaits = False
    for word in words:
        if awaits and (not word.startswith("-") or flags[-1].name in _PASSED_ON):
            flags[-1] = Flag(flags[-1].name, word, line)
            awaits = False
        elif word.startswith("--"):
            name, equals, value = word.removeprefix("--").partition("=")
            name = name.replace("_", "-")  # kubelet accepts both `-` and `_` in the name of a flag
            awaits = not equals and _READERS.get(name, ("", _read_text))[1] is not _read_boolean
            flags.append(Flag(name, value if equals or awaits else "true", line))
        else:
            awaits = False
    return tuple(flags)


def _pass_on(flags: Iterable[Flag]) -> Iterator[Flag]:
    """Yield kubelet's flags. If the value of a k3s, RKE2 or EKS flag is a flag for kubelet, yield kubelet's flag in its place."""
    for flag in flags:
        match flag.name:
            case "kubelet-arg":
                yield read_argument(flag.value, flag.line)
            case "kubelet-extra-args":
                yield from pair_flags(shlex.split(flag.value), flag.line)
            case _:
                yield flag


def read_argument(text: str, line: int | None) -> Flag:
    """Read a flag in the notation of k3s, `name=value`."""
    name, equals, value = text.removeprefix("--").partition("=")
    # In k3s, `name+=value` and `name-=value` change the value that k3s itself passes to a flag.
    return Flag(name.rstrip("+-"), value if equals else "true", line)


def flag_fields(flags: Iterable[Flag]) -> tuple[tuple[MapEntry, ...], tuple[Flag, ...]]:
    """Convert flags to fields of a configuration. As in kubelet, a later value of a flag replaces an earlier one, and lists are combined.

    Returns:
        The fields, and the flags without a corresponding field.
    """
    fields: dict[str, MapEntry] = {}
    others: list[Flag] = []
    for flag in flags:
        field, read = _READERS.get(flag.name, ("", None))
        if read is None:
            others.append(flag)
            continue
        entry, before = MapEntry(field, read(flag.value, flag.line), flag.line), fields.get(field)
        fields[field] = entry if before is None else join_entries(before, entry)
    return tuple(fields.values()), tuple(others)


def join_entries(first: MapEntry, second: MapEntry) -> MapEntry:
    """Join two values of a field. Objects are merged and lists are concatenated. Otherwise, the second value replaces the first."""
    match first.value, second.value:
        case MapNode(entries=before), MapNode(entries=after):
            merged = {entry.key: entry for entry in (*before, *after)}
            return MapEntry(second.key, MapNode(tuple(merged.values()), second.line), second.line)
        case ListNode(items=before), ListNode(items=after):
            return MapEntry(second.key, ListNode((*before, *after), second.line), second.line)
        case _:
            return second


_Reader = Callable[[str, int | None], TreeNode]


def _read_text(text: str, line: int | None) -> TreeNode:
    return Scalar(text, line)


def _read_boolean(text: str, line: int | None) -> TreeNode:
    return Scalar(_BOOLEANS.get(text.lower(), text), line)


def _read_integer(text: str, line: int | None) -> TreeNode:
    return Scalar(int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text, line)


def _map_reader(separator: str, read: _Reader = _read_text) -> _Reader:
    """Return a reader of the notation `key=value,key=value`."""

    def read_map(text: str, line: int | None) -> TreeNode:
        pairs = [part.partition(separator) for part in text.split(",") if part.strip()]
        entries = {key.strip(): MapEntry(key.strip(), read(value.strip(), line), line) for key, _, value in pairs}
        return MapNode(tuple(entries.values()), line)

    return read_map


def _read_reserved_memory(text: str, line: int | None) -> TreeNode:
    """Read the notation `0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=2Gi`."""
    items: list[TreeNode] = []
    for part in filter(None, text.split(";")):
        node, _, amounts = part.partition(":")
        limits = _map_reader("=")(amounts, line)
        number = MapEntry("numaNode", _read_integer(node.strip(), line), line)
        items.append(MapNode((number, MapEntry("limits", limits, line)), line))
    return ListNode(tuple(items), line)


_MAP = _map_reader("=")
_READERS: dict[str, tuple[str, _Reader]] = {
    "cgroup-root": ("cgroupRoot", _read_text),
    "cgroups-per-qos": ("cgroupsPerQOS", _read_boolean),
    "cpu-cfs-quota": ("cpuCFSQuota", _read_boolean),
    "cpu-cfs-quota-period": ("cpuCFSQuotaPeriod", _read_text),
    "cpu-manager-policy": ("cpuManagerPolicy", _read_text),
    "cpu-manager-policy-options": ("cpuManagerPolicyOptions", _MAP),
    "cpu-manager-reconcile-period": ("cpuManagerReconcilePeriod", _read_text),
    "eviction-hard": ("evictionHard", _map_reader("<")),
    "feature-gates": ("featureGates", _map_reader("=", _read_boolean)),
    "file-check-frequency": ("fileCheckFrequency", _read_text),
    "kube-reserved": ("kubeReserved", _MAP),
    "kube-reserved-cgroup": ("kubeReservedCgroup", _read_text),
    "max-pods": ("maxPods", _read_integer),
    "pod-max-pids": ("podPidsLimit", _read_integer),
    "memory-manager-policy": ("memoryManagerPolicy", _read_text),
    "pod-manifest-path": ("staticPodPath", _read_text),
    "pods-per-core": ("podsPerCore", _read_integer),
    "reserved-cpus": ("reservedSystemCPUs", _read_text),
    "reserved-memory": ("reservedMemory", _read_reserved_memory),
    "system-reserved": ("systemReserved", _MAP),
    "system-reserved-cgroup": ("systemReservedCgroup", _read_text),
    "topology-manager-policy": ("topologyManagerPolicy", _read_text),
    "topology-manager-policy-options": ("topologyManagerPolicyOptions", _MAP),
    "topology-manager-scope": ("topologyManagerScope", _read_text),
}
"""Configuration field and reader of the value, for each kubelet flag that nodeagent uses."""
FLAGS = tuple(_READERS)
