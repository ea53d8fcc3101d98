"""Captures (`nodeagent capture`). A capture is one file that describes a node, for tests, bug reports and offline use with every command.

A capture has the machine's files, the agent's allocations and configuration, and the observed cgroups and processes.
Commands, arguments and environments of containers are left out, because they may be secret. docs/capture.md describes
the format.
"""

from types import MappingProxyType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from nodeagent.core.model.cgroup import Attribute, ObservedCgroup, ObservedCgroups, UnitSettings
from nodeagent.core.model.host_processes import HostInterrupt, HostProcess, HostProcesses
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Container, Pod
from nodeagent.core.model.state import NodeState
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.node_state import NodeStateError
from nodeagent.formats.kernel.cgroup_values import (
    EFFECTIVE_CPUS,
    EFFECTIVE_MEMS,
    CgroupValueError,
    format_value,
    parse_flat_keyed,
    parse_value,
)
from nodeagent.formats.kernel.settings import Settings, remove_unknown_parameters
from nodeagent.formats.kernel.sysfs_sample import SysfsSample
from nodeagent.formats.node_view import NodeView, Observation, ViewReader, view_document
from nodeagent.formats.syntax.ascii_json import ascii_json
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError, parse_json

KIND = "NodeCapture"
VERSION = 1
"""Version of the format. New fields don't change the version, and fields are never renamed or removed."""
MAX_BYTES = 256 * 2**20
_ELSEWHERE = "elsewhere"
"""Name of a capture's entry in addition to a cgroup's files. The entry lists CPUs outside the cgroup's cpuset on which processes of the
cgroup are allowed to run.
"""
_ALLOWED_CPUS, _ALLOWED_MEMORY_NODES = "AllowedCPUs", "AllowedMemoryNodes"
"""Names of a capture's entries in addition to the files of a systemd unit's cgroup. The entries contain the systemd properties with these
names.
"""
LEFT_OUT = ("left-out",)
"""Text that replaces a container's command."""

Document = dict[str, Any]


class CaptureError(NodeAgentError):
    """A file is not a valid capture."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"{path} is not a capture of a node: {why}",
            hint="create one with `nodeagent capture --out FILE`, or use `nodeagent topology -o json` for the machine alone",
        )


class Capture(Struct, frozen=True):
    nodeagent: str
    """Version of the program that created the capture."""
    kernel: str
    """Kernel release. It is empty if the release is unknown, for instance for a copied root directory."""
    hostname: str
    """Name of the host. It is empty if the name is unknown."""
    sample: SysfsSample
    observation: Observation
    agent: NodeView | None = None
    """The agent's view of the node. None means that there was neither an agent nor a configuration."""
    settings: Settings = field(default_factory=Settings)
    devices: SysfsSample | None = None
    """Files of PCI devices. None means that they weren't read, as in captures of older versions."""


def encode_capture(capture: Capture) -> str:
    """Encode a capture as text. Equal captures have equal texts. Control characters are escaped."""
    return ascii_json(capture_document(capture), indent=1) + "\n"


def capture_document(capture: Capture) -> Document:
    """Convert a capture to JSON values, without secrets and without the agent's paths."""
    observed, view, cgroups = capture.observation, None, None
    if capture.agent is not None:
        view = view_document(replace(capture.agent, state=without_secrets(capture.agent.state)))
        del view["manifestDirectory"]
    if observed.cgroups is not None:
        cgroups = {path: _format_cgroup(found) for path, found in observed.cgroups.items()}
    return {
        "kind": KIND,
        "version": VERSION,
        "nodeagent": capture.nodeagent,
        "kernel": capture.kernel,
        "hostname": capture.hostname,
        "atMs": observed.at_ms,
        "pageBytes": observed.page_bytes,
        "machine": _format_sample(capture.sample),
        "settings": {
            **_format_sample(capture.settings.sample),
            "unreadable": list(capture.settings.unreadable),
        },
        "agent": view,
        "cgroups": cgroups,
        "cgroupProblems": list(observed.problems),
        "devices": None if capture.devices is None else _format_sample(capture.devices),
        "processes": {
            "beside": dict(observed.beside),
            "counts": dict(observed.process_counts),
            "strays": dict(observed.strays),
        },
        "hostProcesses": None
        if observed.host is None
        else {
            "processes": [{"pid": p.pid, "name": p.name, "cpus": str(p.cpus)} for p in observed.host.processes],
            "kernelThreads": observed.host.kernel_threads,
            "kernelThreadCPUs": str(observed.host.kernel_thread_cpus),
            "hidden": observed.host.hidden,
            "interrupts": [
                {"number": i.number, "name": i.name, "cpus": str(i.cpus), "bound": i.is_bound}
                for i in observed.host.interrupts
            ],
        },
    }


def _format_sample(sample: SysfsSample) -> Document:
    """Convert a sample of /sys and /proc to JSON values. Constantly changing values are left out, and so are unneeded values that may be
    secret.
    """
    files = {}
    for path, text in sample.files.items():
        name = path.rpartition("/")[2]
        wanted = {"meminfo": ("MemTotal:",), "cpuinfo": ("processor", "physical id")}.get(name)
        if name == "cmdline":
            files[path] = remove_unknown_parameters(text)
        elif wanted is None:
            files[path] = text
        else:
            lines = text.splitlines(keepends=True)
            files[path] = "".join(line for line in lines if any(word in line for word in wanted))
    return {"files": files, "directories": {path: list(names) for path, names in sample.directories.items()}}


def without_secrets(state: NodeState) -> NodeState:
    """Return the state without possible secrets of pods. If a container has a command, a placeholder replaces it."""

    def strip_container(container: Container) -> Container:
        return replace(container, command=LEFT_OUT if container.command else (), args=(), env=())

    def strip_pod(pod: Pod) -> Pod:
        return replace(pod, containers=tuple(strip_container(container) for container in pod.containers))

    entries = []
    for entry in state.entries:
        change = entry.refused_change
        stripped_change = None if change is None else replace(change, pod=strip_pod(change.pod))
        entries.append(replace(entry, pod=strip_pod(entry.pod), refused_change=stripped_change))
    return replace(state, entries=tuple(entries))


def _format_cgroup(observed: ObservedCgroup) -> dict[str, str]:
    """Format the contents of a cgroup's files in the kernel's notation."""
    files = {
        "cgroup.controllers": " ".join(sorted(observed.controllers)),
        "cgroup.subtree_control": " ".join(sorted(observed.subtree_control)),
        "cgroup.events": f"populated {int(observed.is_populated)}\nfrozen {int(observed.is_frozen)}",
        "memory.events": f"oom_kill {observed.oom_kills}",
    }
    effective = {EFFECTIVE_CPUS: observed.cpus_effective, EFFECTIVE_MEMS: observed.mems_effective}
    files |= {name: str(ids) for name, ids in effective.items() if ids is not None}
    if observed.elsewhere:
        files[_ELSEWHERE] = str(observed.elsewhere)
    if observed.unit is not None:
        files[_ALLOWED_CPUS] = str(observed.unit.allowed_cpus)
        files[_ALLOWED_MEMORY_NODES] = str(observed.unit.allowed_memory_nodes)
    for attribute, value in observed.attributes:
        is_empty = isinstance(value, CpuSet | NumaSet) and not value
        files[attribute.value] = "" if is_empty else format_value(value)
    return files


def decode_capture(content: bytes, path: str) -> Capture | Document:
    """Decode a capture. A document of another kind, such as the description of a machine, is returned as plain JSON values.

    Raises:
        CaptureError: the document is invalid. The error names the field.
    """
    try:
        document = parse_json(content)
        if document.object().get("kind") != KIND:
            return dict(document.object())
        return _decode_capture(document, path)
    except (MisfitError, NodeStateError, CgroupValueError) as err:
        raise CaptureError(path, str(err)) from err


def _decode_capture(document: JsonValue, path: str) -> Capture:
    version = document.field("version").whole(1)
    if version > VERSION:
        raise MisfitError(
            f"format version {version} was written by a later nodeagent; this nodeagent reads versions up to {VERSION}"
        )
    settings = document.field("settings")
    return Capture(
        nodeagent=document.field("nodeagent").text(),
        kernel=document.field("kernel").text(),
        hostname=document.field("hostname").text(),
        sample=_decode_sample(document.field("machine"), path),
        observation=_decode_observation(document),
        agent=document.read_optional("agent", ViewReader(), None),
        settings=Settings(_decode_sample(settings, path), settings.field("unreadable").each(JsonValue.text)),
        devices=document.read_optional("devices", lambda sample: _decode_sample(sample, path), None),
    )


def _decode_sample(document: JsonValue, path: str) -> SysfsSample:
    files = document.field("files").by_name(JsonValue.text)
    directories = document.field("directories").by_name(lambda names: names.each(JsonValue.text))
    return SysfsSample(MappingProxyType(dict(files)), MappingProxyType(dict(directories)), path)


def _decode_observation(document: JsonValue) -> Observation:
    cgroups, processes = document.optional("cgroups"), document.field("processes")
    observed: ObservedCgroups | None = None
    if cgroups is not None:
        observed = {path: _decode_cgroup(path, cgroup) for path, cgroup in cgroups.by_name(lambda found: found)}
    return Observation(
        at_ms=document.field("atMs").whole(),
        page_bytes=document.field("pageBytes").whole(1),
        cgroups=observed,
        problems=document.field("cgroupProblems").each(JsonValue.text),
        process_counts=dict(processes.field("counts").by_name(JsonValue.whole)),
        strays=dict(processes.field("strays").by_name(JsonValue.whole)),
        beside=dict(processes.read_optional("beside", lambda counts: counts.by_name(JsonValue.whole), ())),
        host=document.read_optional("hostProcesses", _decode_host, None),
    )


def _decode_cgroup(path: str, document: JsonValue) -> ObservedCgroup:
    texts = dict(document.by_name(JsonValue.text))
    events = parse_flat_keyed(texts.get("cgroup.events", ""))
    unit: UnitSettings | None = None
    if _ALLOWED_CPUS in texts:
        nodes = document.read_optional(_ALLOWED_MEMORY_NODES, JsonValue.nodes, NumaSet())
        unit = UnitSettings(document.field(_ALLOWED_CPUS).cpus(), nodes)
    return ObservedCgroup(
        path=path,
        controllers=frozenset(texts.get("cgroup.controllers", "").split()),
        subtree_control=frozenset(texts.get("cgroup.subtree_control", "").split()),
        attributes=tuple((a, parse_value(a, texts[a.value])) for a in Attribute if a.value in texts),
        cpus_effective=document.read_optional(EFFECTIVE_CPUS, JsonValue.cpus, None),
        mems_effective=document.read_optional(EFFECTIVE_MEMS, JsonValue.nodes, None),
        is_populated=events.get("populated") == 1,
        is_frozen=events.get("frozen") == 1,
        oom_kills=parse_flat_keyed(texts.get("memory.events", "")).get("oom_kill", 0),
        elsewhere=document.read_optional(_ELSEWHERE, JsonValue.cpus, CpuSet()),
        unit=unit,
    )


def _decode_host(document: JsonValue) -> HostProcesses:
    return HostProcesses(
        processes=document.field("processes").each(
            lambda p: HostProcess(p.field("pid").whole(), p.field("name").text(), p.field("cpus").cpus())
        ),
        kernel_threads=document.field("kernelThreads").whole(),
        kernel_thread_cpus=document.field("kernelThreadCPUs").cpus(),
        hidden=document.field("hidden").whole(),
        # Captures of older versions have no interrupts.
        interrupts=document.read_optional(
            "interrupts",
            lambda interrupts: interrupts.each(
                lambda i: HostInterrupt(
                    i.field("number").whole(), i.field("name").text(), i.field("cpus").cpus(), i.field("bound").flag()
                )
            ),
            (),
        ),
    )
