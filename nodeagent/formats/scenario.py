"""Scenarios of `nodeagent simulate`: JSON documents → machine, configuration and pod events; states → result documents.

The form is the one of the decision vectors (see docs). Knows how things are spelled, not what is decided.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from nodeagent.core.config import Placement
from nodeagent.core.managers import Managers, isolation
from nodeagent.core.metric_moves import Series
from nodeagent.core.pod import Pod
from nodeagent.core.promises import Promises
from nodeagent.core.topology import Topology
from nodeagent.errors import NodeAgentError
from nodeagent.formats.findings import DocumentError, shown
from nodeagent.formats.pod_manifest import pod_from_document
from nodeagent.formats.scenario_config import placement_from_scenario
from nodeagent.formats.topology_json import TopologyDocumentError, topology_from_document

Document = dict[str, Any]

OPERATIONS = ("add", "start", "removeContainer", "removePod", "restart")


class ScenarioError(NodeAgentError):
    """A scenario that can't be replayed."""

    def __init__(self, where: str, problem: str, value: object = None) -> None:
        found = "" if value is None else f", not {shown(value)}"
        super().__init__(
            f"{where}: {problem}{found}",
            hint="docs/simulate.md (`nodeagent --help` says where) has the form of a scenario",
        )


class Step(Struct, frozen=True):
    op: str
    pod: Pod | None = None
    """Of `add`."""
    pod_uid: str = ""
    container: str | None = None
    """None: all of the pod's."""


class Scenario(Struct, frozen=True):
    id: str
    topology: Topology
    placement: Placement
    steps: tuple[Step, ...]
    files: tuple[tuple[str, str], ...] = ()
    """(file name, text) found at the start, sorted."""
    initial_containers: tuple[tuple[str, tuple[str, str]], ...] = ()
    """(container id, (pod UID, container name)), sorted."""

    def file(self, name: str) -> str | None:
        return dict(self.files).get(name)


def scenario_from_text(text: str | bytes, where: str, machine: Topology | None = None) -> Scenario:
    """Read one scenario.

    Args:
        text: a JSON object; bytes are UTF-8.
        where: names it in errors.
        machine: takes the place of the scenario's own, which isn't looked at then and may be missing.

    Raises:
        ScenarioError: it is none that can be replayed.
    """
    try:
        document = json.loads(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as err:
        raise ScenarioError(where, f"must be JSON: {err}") from err
    if not isinstance(document, dict):
        raise ScenarioError(where, "must be a JSON object", document)
    # A whole vector works as well as its scenario alone.
    inner = document.get("scenario", document)
    if not isinstance(inner, dict):
        raise ScenarioError(where, "scenario: must be a JSON object", inner)
    try:
        return _scenario(inner, where, machine)
    except (DocumentError, TopologyDocumentError) as err:
        raise ScenarioError(where, err.message.replace("\n", f"\n{where}: ")) from err


def _scenario(document: Mapping[str, Any], where: str, machine: Topology | None) -> Scenario:
    steps = document.get("steps") or []
    if not isinstance(steps, list):
        raise ScenarioError(where, "steps: must be a list", steps)
    identity = str(document.get("id", where))
    return Scenario(
        id=identity,
        topology=_machine(document, where) if machine is None else machine,
        placement=placement_from_scenario(_object(document, "config", where)),
        steps=tuple(_step(step, f"{where}: steps[{i}]") for i, step in enumerate(steps)),
        files=tuple(sorted((str(k), str(v)) for k, v in _object(document, "files", where).items())),
        initial_containers=tuple(
            (str(key), _container_name(value, f"{where}: initialContainers[{key}]"))
            for key, value in sorted(_object(document, "initialContainers", where).items())
        ),
    )


def _machine(document: Mapping[str, Any], where: str) -> Topology:
    """Read the scenario's own machine.

    Refuse what discovery finds on none: cores in several sockets, NUMA nodes or caches, distances to some nodes only.
    """
    topology = topology_from_document(document)
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
                    where, f"topology.cpus: core {core} (CPUs {cpus}) lies in the {name} {lie}: must be one"
                )
    for node in topology.numa:
        if node.distances is not None and len(node.distances) != len(topology.numa):
            allowed = f"distances of NUMA node {node.id}: must be one for each of the {len(topology.numa)} nodes"
            raise ScenarioError(where, f"numa: {allowed}", list(node.distances))
    return topology


def _object(document: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    value = document.get(name) or {}
    if not isinstance(value, dict):
        raise ScenarioError(where, f"{name}: must be an object", value)
    return value


def _container_name(value: Any, where: str) -> tuple[str, str]:
    if not isinstance(value, dict):
        raise ScenarioError(where, "must be an object with podUID and container", value)
    return str(value.get("podUID", "")), str(value.get("container", ""))


def _step(value: Any, where: str) -> Step:
    if not isinstance(value, dict):
        raise ScenarioError(where, "must be an object", value)
    op = value.get("op")
    if op not in OPERATIONS:
        raise ScenarioError(where, f"op: must be one of {', '.join(OPERATIONS)}", op or "")
    if op == "add":
        if not isinstance(value.get("pod"), dict):
            raise ScenarioError(where, "pod: must be a v1 Pod", value.get("pod") or "")
        pod = pod_from_document(value["pod"])
        return Step(op, pod, pod.uid)
    container = value.get("container")
    if op == "removeContainer" and container is None:
        raise ScenarioError(where, "container: must be given")
    return Step(op, None, str(value.get("podUID", "")), None if container is None else str(container))


def pods_document(managers: Managers, promises: Promises, pods: tuple[Pod, ...]) -> Document:
    """Show what each active pod has."""
    return {pod.uid: _pod_document(managers, promises, pod) for pod in pods}


def _pod_document(managers: Managers, promises: Promises, pod: Pod) -> Document:
    held = promises.of_pod(pod.uid)
    document: Document = {"containers": {}}
    for container in pod.containers:
        own = held.own_set(container.name)
        hint = held.hint(container.name)
        nodes = promises.memory_nodes(pod.uid, container.name)
        document["containers"][container.name] = {
            "cpuset": "" if own is None else str(own),
            "effectiveCpuset": str(promises.default if own is None else own),
            "memoryNodes": None if nodes is None else list(nodes),
            "isolation": isolation(managers, promises, pod, container.name).value,
            "hint": {"mask": None if hint.mask is None else list(hint.mask), "preferred": hint.preferred},
        }
    if held.pod_cpus is not None:
        document["podCpuset"] = str(held.pod_cpus)
    return document


def metrics_document(totals: Mapping[Series, int], names: frozenset[str]) -> Document:
    """Show the series of these names that aren't zero."""
    return {str(series): value for series, value in sorted(totals.items(), key=str) if value and series.name in names}


def memory_state_document(text: str | None) -> Document | None:
    """Show memory_manager_state as JSON, without what depends on the reference's random order of blocks."""
    if not text:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {"raw": text}
    if not isinstance(document, dict):
        return {"raw": text}
    document.pop("checksum", None)
    for blocks in _lists_of_blocks(document):
        if all(map(_is_block, blocks)):
            blocks.sort(key=_block_order)
    return document


def has_one_text(document: Document) -> bool:
    """Whether no list of blocks has an order to choose: then the exact text is the only one possible."""
    return all(len(blocks) < 2 for blocks in _lists_of_blocks(document))


def _lists_of_blocks(document: Document) -> Iterator[list[Any]]:
    """Find them in a file that may be anybody's."""
    found = [blocks for containers in _values(document.get("entries")) for blocks in _values(containers)]
    found += [pod.get("memoryBlocks") for pod in _values(document.get("podEntries")) if isinstance(pod, dict)]
    return (blocks for blocks in found if isinstance(blocks, list))


def _values(value: Any) -> tuple[Any, ...]:
    return tuple(value.values()) if isinstance(value, dict) else ()


def _is_block(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return False
    nodes = value.get("numaAffinity")
    return isinstance(nodes, list) and all(isinstance(node, int) for node in nodes)


def _block_order(block: Document) -> tuple[str, list[int]]:
    return block["type"], block["numaAffinity"]
