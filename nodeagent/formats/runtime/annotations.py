"""Reader of the agent's annotations of a container runtime's pod. The annotations contain values that NRI doesn't report.

    nodeagent.io/containers: "setup=init, proxy=sidecar, worker"   all containers of the pod, in order
    requests.nodeagent.io/worker: "cpu=1500m, memory=2Gi"          all requests of a container, as in its `resources`
    limits.nodeagent.io/worker: "cpu=2, memory=2Gi"                all limits of a container
    devices.nodeagent.io/worker: "example.com/nic=1"               devices of a container, of the configuration or plugins

The notation is that of `kubectl set resources`.
"""

import re
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.domains.runtime.stated_pod import StatedContainer, StatedPod
from nodeagent.core.model.nri import Sandbox
from nodeagent.core.model.pod import (
    ANNOTATION_DOMAIN,
    CPU,
    HUGEPAGES_PREFIX,
    MEMORY,
    ContainerKind,
    Resources,
    is_own_annotation,
)
from nodeagent.core.model.quantity import Quantity, QuantitySyntaxError
from nodeagent.errors import printable
from nodeagent.formats.manifest import pod_schema
from nodeagent.formats.manifest.pod_annotations import (
    read_core_class,
    read_exclusive_cpu_count,
    read_interrupts,
    read_is_isolated,
    read_near,
    read_numa_node,
)
from nodeagent.formats.syntax.fields import Fields, fields_of, suggest_nearest
from nodeagent.formats.syntax.findings import DocumentError, Finding, Findings, shown
from nodeagent.formats.syntax.quantity_words import explain_no_quantity
from nodeagent.formats.syntax.resource_names import is_extended_resource

CONTAINERS = f"{ANNOTATION_DOMAIN}/containers"
REQUESTS = f"requests.{ANNOTATION_DOMAIN}"
LIMITS = f"limits.{ANNOTATION_DOMAIN}"
DEVICES = f"devices.{ANNOTATION_DOMAIN}"
_KINDS = (pod_schema.EXCLUSIVE_CPUS, pod_schema.INTERRUPTS, pod_schema.NEAR_OF, REQUESTS, LIMITS, DEVICES)
_NAMING_DEVICES = (pod_schema.NEAR_OF, DEVICES)
_OF_POD = (CONTAINERS, *pod_schema.OF_PODS)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_HUGEPAGES = re.compile(rf"{HUGEPAGES_PREFIX}[1-9][0-9]{{0,5}}[KMG]i")
_COUNTS = "must be numbers of devices such as example.com/nic=1"
_NOTATION = "must be amounts such as cpu=1500m, memory=2Gi, hugepages-2Mi=64Mi"
_LIST = "must name all containers of the pod in order, such as setup=init, proxy=sidecar, worker"
_COUNT = re.compile(r"[1-9][0-9]{0,4}")
_MAX_CONTAINERS = 256


class ReadAnnotations(Struct, frozen=True):
    stated: StatedPod
    """Values of all valid annotations."""
    findings: tuple[Finding, ...] = ()
    """Errors in the annotations. A pod with such errors must be refused."""


def read_annotations(sandbox: Sandbox) -> ReadAnnotations:
    """Read the agent's annotations of a pod. Each finding names the pod and the annotation."""
    findings = Findings(printable(f"pod {sandbox.namespace}/{sandbox.name}"))
    ours = {key: value for key, value in sandbox.annotations if is_own_annotation(key)}
    try:
        document = fields_of({"metadata": {"annotations": ours}}, findings)
    except DocumentError as err:
        return ReadAnnotations(StatedPod(), err.findings)
    metadata = document.object("metadata")
    annotations = None if metadata is None else metadata.object("annotations", keyed=True)
    assert annotations is not None
    listed = _read_containers(annotations)
    read = {name: StatedContainer(name, kind) for name, kind in (listed or {}).items()}
    for key in sorted(annotations.present()):
        kind, _, name = key.partition("/")
        if key in _OF_POD:
            continue
        if kind not in _KINDS:
            known = ", ".join([*_OF_POD, *(f"{each}/<container>" for each in _KINDS)])
            annotations.report(key, f"is not an annotation of this agent: use one of {known}, or remove it")
        elif listed is not None and name not in listed:
            annotations.report(key, f"must name a container that {CONTAINERS} names{suggest_nearest(name, listed)}")
        elif not _NAME.fullmatch(name):
            annotations.report(key, "must name a container of this pod after the slash")
        else:
            stated = read.get(name) or StatedContainer(name)
            read[name] = _read_container_annotation(stated, annotations, kind, key)
    names = read if listed is not None else sorted(read)
    containers = tuple(read[name] for name in names)
    core_class, preferred_core_class = read_core_class(annotations)
    pod = StatedPod(
        containers,
        listed is not None,
        read_is_isolated(annotations),
        read_numa_node(annotations),
        core_class,
        preferred_core_class,
        read_near(annotations),
    )
    return ReadAnnotations(pod, findings.all())


def names_devices(sandbox: Sandbox) -> bool:
    """Tell whether the pod requests devices or prefers to be near devices."""
    return any(key.partition("/")[0] in _NAMING_DEVICES or key == pod_schema.NEAR for key, _ in sandbox.annotations)


def _read_container_annotation(stated: StatedContainer, annotations: Fields, kind: str, key: str) -> StatedContainer:
    if kind == pod_schema.EXCLUSIVE_CPUS:
        return replace(stated, exclusive_cpus=read_exclusive_cpu_count(annotations, key))
    if kind == pod_schema.INTERRUPTS:
        return replace(stated, interrupts=read_interrupts(annotations, key))
    if kind == pod_schema.NEAR_OF:
        return replace(stated, near=read_near(annotations, key))
    if kind in {REQUESTS, LIMITS}:
        amounts = _read_amounts(annotations, key)
        return replace(stated, requests=amounts) if kind == REQUESTS else replace(stated, limits=amounts)
    devices: dict[str, int] = {}
    for item, name, count in _split_items(annotations, key, _COUNTS):
        if not is_extended_resource(name):
            annotations.report(key, f"{shown(name)} is not a name of devices such as example.com/nic", item)
        elif not _COUNT.fullmatch(count):
            annotations.report(key, _COUNTS, item)
        else:
            devices[name] = int(count)
    return replace(stated, devices=tuple(sorted(devices.items())))


def _read_containers(annotations: Fields) -> dict[str, ContainerKind] | None:
    """Read the kinds of containers by name, in the pod's order. None means that the list is missing or invalid."""
    text = annotations.string(CONTAINERS)
    if text is None:
        return None
    found: dict[str, ContainerKind] = {}
    kinds = {kind.value: kind for kind in ContainerKind}
    for item in (part.strip() for part in text.split(",")):
        name, equals, kind_name = item.partition("=")
        kind = kinds.get(kind_name) if equals else ContainerKind.APP
        if not _NAME.fullmatch(name):
            annotations.report(CONTAINERS, _LIST, item)
        elif kind is None:
            annotations.report(CONTAINERS, f"{shown(kind_name)} is not a kind of container: {', '.join(kinds)}", item)
        elif name in found:
            annotations.report(CONTAINERS, f"names {name} twice: remove one of them", text)
        elif len(found) == _MAX_CONTAINERS:
            annotations.report(CONTAINERS, f"names more than {_MAX_CONTAINERS} containers")
            return None
        else:
            found[name] = kind
            continue
        return None
    return dict(sorted(found.items(), key=lambda item: item[1] is ContainerKind.APP))


def _read_amounts(annotations: Fields, key: str) -> Resources | None:
    if annotations.string(key) is None:
        return None
    found: dict[str, Quantity] = {}
    for item, name, amount in _split_items(annotations, key, _NOTATION):
        if name not in {CPU, MEMORY} and not _HUGEPAGES.fullmatch(name):
            meant = suggest_nearest(name, (CPU, MEMORY, f"{HUGEPAGES_PREFIX}2Mi", f"{HUGEPAGES_PREFIX}1Gi"))
            annotations.report(key, f"{shown(name)} is not placed by this agent{meant or ': leave it out'}", item)
            continue
        try:
            quantity = Quantity.parse(amount).rounded_up_to_milli()
        except QuantitySyntaxError:
            annotations.report(key, explain_no_quantity(amount), amount)
            continue
        if quantity.nano < 0:
            annotations.report(key, "must be greater than or equal to 0", amount)
        else:
            found[name] = quantity
    return Resources.of(found)


def _split_items(annotations: Fields, key: str, notation: str) -> Iterator[tuple[str, str, str]]:
    """Yield each part of an annotation with its name and amount. No name is yielded twice."""
    text, names = annotations.string(key) or "", set[str]()
    for item in (part.strip() for part in text.split(",")):
        name, equals, amount = item.partition("=")
        if not equals:
            annotations.report(key, notation, item)
        elif name in names:
            annotations.report(key, f"has {name} twice: remove one of them", text)
        else:
            names.add(name)
            yield item, name, amount
