"""Scenarios of `nodeagent simulate`: reader of the machine, configuration and pod events from JSON, and formatter of the resulting states
as documents.

Scenarios have the same format as the decision vectors (see docs). This module only reads and writes them, and makes no decisions.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers
from nodeagent.core.admission.node_rules import isolation
from nodeagent.core.metrics.deltas import Series
from nodeagent.core.model.config import Errata, Placement
from nodeagent.core.model.device_pools import PoolDevice
from nodeagent.core.model.pod import Pod, Resources
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.memory.holdings import memory_nodes_of
from nodeagent.errors import NodeAgentError
from nodeagent.formats.config.placement_fields import PlacementReader
from nodeagent.formats.manifest.pod_manifest import pod_from_document
from nodeagent.formats.scenario.device_plugins import (
    PluginRules,
    ScenarioPlugin,
    read_devices,
    read_plugins,
    read_rules,
)
from nodeagent.formats.syntax.fields import Fields, fields_of
from nodeagent.formats.syntax.findings import DocumentError, Findings, shown
from nodeagent.formats.topology.topology_json import MACHINE_FIELDS, TopologyDocumentError, topology_from_document

Document = dict[str, Any]
T = TypeVar("T")

CPU_FILE, MEMORY_FILE, DEVICE_FILE = FILES = "cpu_manager_state", "memory_manager_state", "kubelet_internal_checkpoint"
_HALF = re.compile("[\ud800-\udfff]")
_MAYBE_HALF = re.compile(rf"\\u[dD][89a-fA-F]|{_HALF.pattern}")
"""Pattern of half a surrogate pair, or of an escape sequence that may be such a half."""
OF_PLUGINS = ("deviceHealth", "deviceList", "pluginGone", "pluginBack")
OPERATIONS = ("add", "start", "removeContainer", "removePod", "restart", *OF_PLUGINS, "nodeStatus")
PLUGIN_TIMES = BEFORE, AFTER, ABSENT = "before", "after", "absent"
RUNNING_ALL, RUNNING_APPS, RUNNING_NONE = RUNNING = "all", "apps", "none"


class ScenarioError(NodeAgentError):
    """A scenario can't be replayed. The message contains a line for each finding, with the finding's path in the document."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            hint="docs/simulate.md (see `nodeagent --help`) describes scenarios; give manifests with -f",
        )


class ScenarioStep(Struct, frozen=True):
    op: str
    pod: Pod | None = None
    """Pod that a step `add` adds."""
    pod_uid: str = ""
    container: str | None = None
    """Name of the container that the step changes. None means all containers of the pod."""
    resource: str = ""
    """Extended resource whose device plugin the step changes."""
    health: tuple[tuple[str, bool], ...] = ()
    """Health of devices after this step, by ID."""
    devices: tuple[PoolDevice, ...] | None = None
    """Devices that the plugin lists after this step. None means that its list stays the same."""
    rules: PluginRules | None = None
    """Rules for the plugin's answers after this step. None means that the rules stay the same."""
    seconds: int = 0
    """Seconds that pass before a step `nodeStatus`."""
    plugin_times: tuple[tuple[str, str], ...] = ()
    """Times at which plugins register at a restart (one of PLUGIN_TIMES), by resource. The entry with an empty resource name applies to all
    other plugins.
    """
    running: str | tuple[tuple[str, str], ...] = RUNNING_ALL
    """Containers that run during a restart: one of RUNNING, or pairs of pod UID and container name."""


class Scenario(Struct, frozen=True):
    id: str
    topology: Topology
    placement: Placement
    steps: tuple[ScenarioStep, ...]
    files: tuple[tuple[str, str], ...] = ()
    """Name and text of each state file that exists at the start, sorted."""
    initial_containers: tuple[tuple[str, tuple[str, str]], ...] = ()
    """Containers that exist at the start, sorted: the ID, and the pair of pod UID and container name."""
    plugins: tuple[tuple[str, ScenarioPlugin], ...] | None = None
    """Device plugins by resource, sorted. None means that the scenario doesn't mention devices."""

    def file(self, name: str) -> str | None:
        return dict(self.files).get(name)


def scenario_from_text(text: str | bytes, where: str, machine: Topology | None = None) -> Scenario:
    """Read one scenario from a JSON object. `where` is the scenario's name in errors. `machine` replaces the
    scenario's own machine, which may then be missing.

    Raises:
        ScenarioError: the text isn't a scenario that can be replayed.
    """
    try:
        document = json.loads(text if isinstance(text, str) else text.decode(), object_pairs_hook=_build_object)
    except RecursionError as err:
        raise ScenarioError(f"{where}: is nested too deeply") from err
    except json.JSONDecodeError as err:
        place = min(err.pos, len(err.doc.rstrip())) + 1
        raise ScenarioError(f"{where}: must be JSON: {err.msg.lower()}, at character {place}") from err
    except ValueError as err:
        raise ScenarioError(f"{where}: must be JSON: {err}") from err
    if not isinstance(document, dict):
        raise ScenarioError(f"{where}: must be a JSON object, not {shown(document)}")
    # A recorded test vector is accepted as well; its field `scenario` contains the scenario.
    inner = document.get("scenario", document)
    if not isinstance(inner, dict):
        raise ScenarioError(f"{where}: scenario: must be a JSON object, not {shown(inner)}")
    try:
        if _MAYBE_HALF.search(text if isinstance(text, str) else text.decode()):
            _refuse_halves(inner, where)
        return _read_scenario(inner, where, machine)
    except RecursionError as err:
        raise ScenarioError(f"{where}: is nested too deeply") from err
    except DocumentError as err:
        raise ScenarioError(err.message) from err


def _refuse_halves(document: Mapping[str, Any], where: str) -> None:
    """Refuse a scenario with an unpaired surrogate in any string, because no state file can contain such a string."""
    findings = Findings(where)
    for path, text in _find_halves(document, ""):
        findings.add(None, path, shown(text), "must not have half of a surrogate pair, which is not a character")
    if findings:
        raise DocumentError(findings.all())


def _find_halves(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path and text of each string with an unpaired surrogate. If the string is a field's name, the path is that of the
    field's object.
    """
    if isinstance(value, str):
        if _HALF.search(value):
            yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _find_halves(name, path)
            yield from _find_halves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _find_halves(inner, f"{path}[{index}]")


def _build_object(pairs: list[tuple[str, Any]]) -> Document:
    """Build an object from (name, value) pairs. A repeated name is refused, because the intended value is unknown."""
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
    raise ValueError(f"{shown(name)} is given twice in one object")


def _read_scenario(document: Mapping[str, Any], where: str, machine: Topology | None) -> Scenario:
    findings = Findings(where)
    # machine, configuration and pods are left out, because other functions read these parts
    plain = {name: {} if name in MACHINE_FIELDS else value for name, value in document.items()}
    if isinstance(plain.get("config"), dict):
        plain["config"] = {}
    if isinstance(plain.get("steps"), list):
        plain["steps"] = [
            {**step, "pod": {}} if isinstance(step, dict) and isinstance(step.get("pod"), dict) else step
            for step in plain["steps"]
        ]
    fields = fields_of(plain, findings)
    identity = fields.string("id")
    fields.object("config")
    steps = [_read_step(each) for each in fields.objects("steps")]
    files = _read_files(fields)
    containers = _read_initial_containers(fields)
    plugins = read_plugins(fields)
    fields.unused(MACHINE_FIELDS)
    fields.close()
    if findings:
        raise DocumentError(findings.all())
    given = document.get("steps") or ()
    problems: list[str] = []
    pods = {
        i: _read_part(problems, partial(pod_from_document, given[i]["pod"], f"{where}: steps[{i}].pod"))
        for i, step in enumerate(steps)
        if step.op == "add"
    }
    placement = _read_part(problems, lambda: placement_from_scenario(document.get("config") or {}, f"{where}: config"))
    topology = _read_part(problems, lambda: _read_machine(document, where)) if machine is None else machine
    if topology is None or placement is None or problems:
        raise ScenarioError("\n".join(problems))
    return Scenario(
        id=identity or where,
        topology=topology,
        placement=placement,
        steps=tuple(
            step if (pod := pods.get(i)) is None else replace(step, pod=pod, pod_uid=pod.uid)
            for i, step in enumerate(steps)
        ),
        files=files,
        initial_containers=containers,
        plugins=plugins,
    )


def _read_part(problems: list[str], read: Callable[[], T]) -> T | None:
    """Read a part of the scenario with the part's own reader. If the part is invalid, return None and add the error to
    `problems`.
    """
    try:
        return read()
    except (DocumentError, ScenarioError) as err:
        problems.append(err.message)
        return None


def _read_step(fields: Fields) -> ScenarioStep:
    """Read a step of the scenario, except for the pod of a step `add`."""
    if not fields.has("op"):
        fields.report("op", f"is required: one of {', '.join(OPERATIONS)}")
    op = fields.one_of("op", OPERATIONS) or ""
    step = ScenarioStep(op)
    match op:
        case "add":
            if fields.object("pod") is None and not fields.has("pod"):
                fields.report("pod", "is required: a v1 Pod")
        case "start" | "removePod":
            step = ScenarioStep(op, pod_uid=_read_required(fields, "podUID", "the pod's metadata.uid"))
            if op == "start":
                step = replace(step, container=fields.string("container"))
        case "removeContainer":
            uid = _read_required(fields, "podUID", "the pod's metadata.uid")
            step = ScenarioStep(op, pod_uid=uid, container=_read_required(fields, "container", "its name"))
        case "restart":
            step = ScenarioStep(op, plugin_times=_read_plugin_times(fields), running=_read_running(fields))
        case "nodeStatus":
            step = ScenarioStep(op, seconds=fields.integer("seconds", 0, 2**31) or 0)
        case "deviceHealth" | "deviceList" | "pluginGone" | "pluginBack":
            step = _read_plugin_step(fields, op)
    if op in OPERATIONS:
        fields.close()
    return step


def _read_plugin_step(fields: Fields, op: str) -> ScenarioStep:
    step = ScenarioStep(op, resource=_read_required(fields, "resource", "the plugin's resource"))
    if op == "deviceHealth":
        return replace(step, health=fields.booleans("devices"))
    if op != "pluginGone" and fields.has("devices"):
        step = replace(step, devices=read_devices(fields))
    return replace(step, rules=read_rules(fields)) if op == "pluginBack" else step


def _read_plugin_times(fields: Fields) -> tuple[tuple[str, str], ...]:
    if fields.has_text("plugins"):
        return (("", fields.one_of("plugins", PLUGIN_TIMES) or AFTER),)
    inner = fields.object("plugins", keyed=True)
    if inner is None:
        return (("", AFTER),)
    times = tuple((name, inner.one_of(name, PLUGIN_TIMES) or AFTER) for name in sorted(inner.present()))
    inner.close()
    return times


def _read_running(fields: Fields) -> str | tuple[tuple[str, str], ...]:
    if not fields.has("running"):
        return RUNNING_ALL
    if fields.has_text("running"):
        return fields.one_of("running", RUNNING) or RUNNING_ALL
    return fields.pairs("running")


def _read_files(fields: Fields) -> tuple[tuple[str, str], ...]:
    inner = fields.object("files", keyed=True)
    if inner is None:
        return ()
    texts = [(name, inner.string(name)) for name in FILES]
    inner.close()
    return tuple((name, text) for name, text in texts if text is not None)


def _read_initial_containers(fields: Fields) -> tuple[tuple[str, tuple[str, str]], ...]:
    inner = fields.object("initialContainers", keyed=True)
    if inner is None:
        return ()
    found = []
    for name in sorted(inner.present()):
        each = inner.object(name)
        if each is not None:
            uid = _read_required(each, "podUID", "the pod's metadata.uid")
            found.append((name, (uid, _read_required(each, "container", "its name"))))
            each.close()
    return tuple(found)


def _read_required(fields: Fields, name: str, what: str) -> str:
    """Read a required string. If the string is missing or invalid, report the error and return an empty string."""
    if not fields.has(name):
        fields.report(name, f"is required: {what}")
    return fields.string(name) or ""


def _read_machine(document: Mapping[str, Any], where: str) -> Topology:
    """Read the scenario's own machine.

    Refuse machines that discovery never finds: cores in several sockets, NUMA nodes or caches, distances to some
    nodes only.
    """
    try:
        topology = topology_from_document(document)
    except TopologyDocumentError as err:
        raise ScenarioError(f"{where}: {err.message}") from err
    for core, cpus in topology.cores.items():
        for name, groups in (
            ("sockets", topology.sockets),
            ("NUMA nodes", topology.nodes),
            ("uncore caches", topology.uncores),
        ):
            found = [number for number, members in groups.items() if members & cpus]
            if len(found) > 1:
                lie = ", ".join(map(str, found))
                raise ScenarioError(
                    f"{where}: topology.cpus: core {core} (CPUs {cpus}) spans the {name} {lie}, but must be in one of them"
                )
    for node in topology.numa:
        if node.distances is not None and len(node.distances) != len(topology.numa):
            allowed = f"distances of NUMA node {node.id}: must be one for each of the {len(topology.numa)} nodes"
            raise ScenarioError(f"{where}: numa: {allowed}, not {shown(list(node.distances))}")
    # Kubelet and discovery number a core by its lowest CPU. Equal cores are allocated in the order of these numbers.
    lowest = {core: min(cpus) for core, cpus in topology.cores.items()}
    return replace(topology, cpus=tuple(replace(cpu, core=lowest[cpu.core]) for cpu in topology.cpus))


def pods_document(managers: Managers, promises: Promises, pods: tuple[Pod, ...], *, has_devices: bool) -> Document:
    """Format the allocations of each active pod."""
    return {pod.uid: _format_pod(managers, promises, pod, has_devices) for pod in pods}


def _format_pod(managers: Managers, promises: Promises, pod: Pod, has_devices: bool) -> Document:
    held, shared_pool = promises.of_pod(pod.uid), default_set(promises)
    document: Document = {"containers": {}}
    for container in pod.containers:
        own = held.of(CpuHoldings).own_set(container.name)
        effective = shared_pool if own is None else own | shared_pool if container.is_mixed else own
        hint = held.hint(container.name)
        nodes = memory_nodes_of(promises, pod.uid, container.name)
        document["containers"][container.name] = {
            "cpuset": "" if own is None else str(own),
            "effectiveCpuset": str(effective),
            "memoryNodes": None if nodes is None else list(nodes),
            "isolation": isolation(managers, promises, pod, container.name).value,
            "hint": {"mask": None if hint.mask is None else list(hint.mask), "preferred": hint.preferred},
        }
        if has_devices:
            ids: dict[str, list[str]] = {}
            for device in held.of(DeviceHoldings).devices_of(container.name):
                ids.setdefault(device.resource, []).append(device.id)
            document["containers"][container.name]["devices"] = ids
    if held.of(CpuHoldings).pod_cpus is not None:
        document["podCpuset"] = str(held.of(CpuHoldings).pod_cpus)
    return document


def metrics_document(totals: Mapping[Series, int], names: frozenset[str]) -> Document:
    """Format the nonzero series of the metrics with these names."""
    return {str(series): value for series, value in sorted(totals.items(), key=str) if value and series.name in names}


def memory_state_document(text: str | None) -> Document | None:
    """Format memory_manager_state as JSON, with blocks sorted because their order is random in kubelet."""
    if not text:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {"raw": text}
    if not isinstance(document, dict):
        return {"raw": text}
    document.pop("checksum", None)
    for blocks in _find_block_lists(document):
        if all(map(_is_block, blocks)):
            blocks.sort(key=lambda block: (block["type"], block["numaAffinity"]))
    return document


def is_text_unique(document: Document) -> bool:
    """Tell whether every list of memory blocks has at most one block, so that only one text of the file is possible."""
    return all(len(blocks) < 2 for blocks in _find_block_lists(document))


def _find_block_lists(document: Document) -> Iterator[list[Any]]:
    """Yield the lists of memory blocks anywhere in a document."""
    found = [blocks for containers in _list_values(document.get("entries")) for blocks in _list_values(containers)]
    found += [pod.get("memoryBlocks") for pod in _list_values(document.get("podEntries")) if isinstance(pod, dict)]
    return (blocks for blocks in found if isinstance(blocks, list))


def _list_values(value: Any) -> tuple[Any, ...]:
    return tuple(value.values()) if isinstance(value, dict) else ()


def _is_block(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return False
    nodes = value.get("numaAffinity")
    return isinstance(nodes, list) and all(isinstance(node, int) for node in nodes)


def placement_from_scenario(document: Mapping[str, object], source: str = "config") -> Placement:
    """Read a scenario's configuration: KubeletConfiguration's fields and `numReservedCPUs`, `reservedCPU` and
    `errata`.

    The node's memory reservation is the sum of `reservedMemory`.

    Raises:
        DocumentError: fields are unknown, have the wrong type or are not quantities or ID sets. The message names every such field.
    """
    findings = Findings(source)
    fields = fields_of(document, findings)
    reader = PlacementReader(fields)
    reserved_memory = reader.reserved_memory()
    errata = fields.one_of("errata", tuple(item.value for item in Errata))
    whole = fields.integer("numReservedCPUs", 0, 2**31)
    amount = fields.quantity("reservedCPU")
    total: dict[str, Quantity] = {}
    for entry in reserved_memory:
        for name, size in entry.limits:
            total[name] = total[name] + size if name in total else size
    placement = reader.placement(
        reserved_cpu_milli=amount.milli() if amount is not None else None if whole is None else whole * 1000,
        memory_reservation=Resources.of(total),
        errata=Errata(errata or Errata.KUBELET_1_36.value),
    )
    fields.close()
    if findings:
        raise DocumentError(findings.all())
    return placement
