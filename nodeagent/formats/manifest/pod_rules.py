"""Checks of a pod's values against the API server's rules and additional rules of the agent. For example, a name must suit as a directory's
name, because the agent makes such directories.

The checked Pod has its defaults applied. An error is reported with its path in the manifest, not with its line.
"""

import re
from collections.abc import Iterator

from msgspec import Struct

from nodeagent.core.model.pod import (
    CPU,
    HUGEPAGES_PREFIX,
    MEMORY,
    Container,
    ContainerKind,
    Pod,
    ResourceRequirements,
    Resources,
    RestartPolicy,
    has_pod_level_resources,
)
from nodeagent.core.model.pod_resources import (
    aggregate_container_requests,
    effective_requests,
    is_device,
    is_pod_level,
)
from nodeagent.core.model.quantity import Quantity, QuantitySyntaxError
from nodeagent.formats.manifest.pod_schema import EXCLUSIVE_CPUS, GIVE_BACK, UNIT, WHILE_INACTIVE
from nodeagent.formats.manifest.variables import MAX_PROCESS_BYTES, RESERVED_PREFIX, expand_process
from nodeagent.formats.syntax.fields import suggest_nearest
from nodeagent.formats.syntax.findings import shown
from nodeagent.formats.syntax.tree import Path

MAX_CONTAINERS = 256
"""Maximum number of init containers and app containers together."""
MAX_CLAIMS = 64
MAX_USES = 256
"""Maximum number of claims, or of claim requests, that a container uses."""
MAX_CPU = Quantity.of(1_000_000)
MAX_BYTES = Quantity.of(2**62)
MAX_DEVICES = Quantity.of(65_536)
_MAX_INT64 = 2**63 - 1
_MAX_UID = 128
_MAX_LABEL, _MAX_SUBDOMAIN = 63, 253

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VARIABLE = re.compile(r"[ -<>-~]+")
LABEL_RULE = (
    "must be a lowercase RFC 1123 label: at most 63 of a-z, 0-9 and '-', starting and ending with a letter or digit"
)
SUBDOMAIN_RULE = (
    "must be a lowercase RFC 1123 subdomain: at most 253 of a-z, 0-9, '-' and '.', every part starting and ending with "
    "a letter or digit"
)
_NOT_NEGATIVE = "must be greater than or equal to 0"
_UID_RULE = f"must be at most {_MAX_UID} of A-Z, a-z, 0-9, '.', '_' and '-', starting with a letter or digit: it names a directory"


def is_label(text: str) -> bool:
    return len(text) <= _MAX_LABEL and _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    return len(text) <= _MAX_SUBDOMAIN and _SUBDOMAIN.fullmatch(text) is not None


class Breach(Struct, frozen=True):
    """Violation of a rule by one value of a pod."""

    path: Path
    value: str
    """Value as shown in messages. Empty if the value must stay secret."""
    allowed: str


def find_breaches(pod: Pod, *, is_run: bool = True) -> Iterator[Breach]:
    """Yield all errors in a pod's values. Commands and environments of containers are checked only if the agent runs the pod."""
    yield from find_invalid_identity(pod)
    seen: set[str] = set()
    if not any(True for _ in pod.apps()):
        yield Breach(("spec", "containers"), "", "needs at least one container")
    if len(pod.containers) > MAX_CONTAINERS:
        yield Breach(
            ("spec", "containers"), str(len(pod.containers)), f"at most {MAX_CONTAINERS} containers are allowed"
        )
        return
    for path, container in _containers_with_paths(pod):
        yield from _check_name(path, container, seen)
        if is_run:
            yield from _check_process(path, container)
            yield from _check_restarts(path, pod, container)
        yield from _check_requirements((*path, "resources"), container.resources, with_devices=True)
        yield from _check_hugepages((*path, "resources"), container.resources, pod.resources)
    yield from _check_exclusive_cpus(pod)
    yield from _check_claims(pod)
    yield from _check_units(pod)
    yield from _check_amounts(("spec", "overhead"), pod.overhead)
    if pod.resources is not None:
        yield from _check_pod_level(pod, pod.resources)
    for name, amount in effective_requests(pod).items():
        if amount.value() > _MAX_INT64:
            yield Breach(("spec", "containers"), shown(str(amount)), f"the total {name} of the pod must be below 2^63")


def find_invalid_names(pod: Pod) -> Iterator[Breach]:
    """Yield the errors in the names and UID of a pod and in its containers' names."""
    yield from find_invalid_identity(pod)
    seen: set[str] = set()
    for path, container in _containers_with_paths(pod):
        yield from _check_name(path, container, seen)


def find_negative_amounts(pod: Pod) -> Iterator[Breach]:
    """Yield negative amounts anywhere in a pod, because they would falsify sums of requests."""
    parts: list[tuple[Path, Resources]] = [(("spec", "overhead"), pod.overhead)]
    owners: list[tuple[Path, ResourceRequirements | None]] = [(("spec", "resources"), pod.resources)]
    owners += (((*path, "resources"), container.resources) for path, container in _containers_with_paths(pod))
    for path, resources in owners:
        if resources is not None:
            parts += (((*path, "requests"), resources.requests), ((*path, "limits"), resources.limits))
    for path, amounts in parts:
        for name, amount in amounts:
            if amount.nano < 0:
                yield Breach((*path, name), str(amount), _NOT_NEGATIVE)


def find_invalid_identity(pod: Pod) -> Iterator[Breach]:
    """Yield the errors in the name, namespace and UID of a pod."""
    rows = (
        ("name", pod.name, _SUBDOMAIN, _MAX_SUBDOMAIN, SUBDOMAIN_RULE),
        ("namespace", pod.namespace, _LABEL, _MAX_LABEL, LABEL_RULE),
        ("uid", pod.uid, _UID, _MAX_UID, _UID_RULE),
    )
    for key, text, pattern, longest, rule in rows:
        if len(text) > longest or not pattern.fullmatch(text):
            yield Breach(("metadata", key), shown(text) if text else "", rule if text else "is required")


def _containers_with_paths(pod: Pod) -> Iterator[tuple[Path, Container]]:
    for key, containers in (("initContainers", pod.inits()), ("containers", pod.apps())):
        for index, container in enumerate(containers):
            yield ("spec", key, index), container


def _check_name(path: Path, container: Container, seen: set[str]) -> Iterator[Breach]:
    name = container.name
    if not is_label(name):
        yield Breach((*path, "name"), shown(name) if name else "", LABEL_RULE if name else "is required")
    if name in seen:
        yield Breach((*path, "name"), shown(name), "is the name of another container in this pod")
    seen.add(name)


def _check_process(path: Path, container: Container) -> Iterator[Breach]:
    if container.kind is ContainerKind.INIT and not container.command:
        yield Breach((*path, "command"), "", "is required: an init container has to run to completion")
    if container.args and not container.command:
        yield Breach((*path, "args"), "", "needs a command: there is no image with an entry point that could take them")
    directory = container.working_dir
    if directory is not None and (not directory.startswith("/") or len(directory.encode()) > 4095):
        yield Breach((*path, "workingDir"), shown(directory), "must be an absolute path")
    for index, (name, _) in enumerate(container.env):
        if not _VARIABLE.fullmatch(name):
            rule = "must consist of printable ASCII characters other than '='" if name else "is required"
            # An invalid name isn't shown, because it may have the form `PASSWORD=…`, as in a shell.
            yield Breach((*path, "env", index, "name"), "", rule)
        elif name.startswith(RESERVED_PREFIX):
            rule = f"must not begin with {RESERVED_PREFIX}: the agent sets these variables itself"
            yield Breach((*path, "env", index, "name"), "", rule)
    process = expand_process(container)
    if process is None:
        # Values may be secret, so the message shows neither values nor their names.
        rule = f"command, args and env, with $(…) replaced, exceed {MAX_PROCESS_BYTES} bytes of JSON: put large values into a file"
        yield Breach((*path, "command"), "", rule)
    elif process.argv[:1] == ("",):
        yield Breach((*path, "command", 0), "", "must name a program")


def _check_restarts(path: Path, pod: Pod, container: Container) -> Iterator[Breach]:
    policy, kind = container.restart_policy, container.kind
    if policy is not None and kind is ContainerKind.APP:
        yield Breach((*path, "restartPolicy"), policy.value, "is for init containers only: use the pod's restartPolicy")
    elif policy is not None and policy is not RestartPolicy.ALWAYS:
        yield Breach((*path, "restartPolicy"), policy.value, "must be Always, which makes the init container a sidecar")
    if container.restarts_for and pod.restart_policy is RestartPolicy.NEVER and kind is not ContainerKind.SIDECAR:
        rule = "can't be RestartContainer in a pod with restartPolicy: Never"
        yield Breach((*path, "resizePolicy"), ", ".join(container.restarts_for), rule)


def _check_requirements(path: Path, resources: ResourceRequirements, *, with_devices: bool = False) -> Iterator[Breach]:
    # If a request equals its limit, it may be a default, so only the limit is checked.
    own = [(name, amount) for name, amount in resources.requests if amount != resources.limits.get(name)]
    yield from _check_amounts((*path, "requests"), Resources(tuple(own)), with_devices=with_devices)
    yield from _check_amounts((*path, "limits"), resources.limits, with_devices=with_devices)
    for name, request in resources.requests:
        limit = resources.limits.get(name)
        if limit is None:
            if name.startswith(HUGEPAGES_PREFIX):
                yield Breach((*path, "limits"), "", f"must have {name}: huge pages can't be overcommitted")
            elif with_devices and is_device(name):
                yield Breach((*path, "limits"), "", f"must have {name}: devices can't be overcommitted")
        elif request.nano > limit.nano:
            yield Breach(
                (*path, "requests", name), str(request), f"must be less than or equal to {name} limit of {limit}"
            )
        elif request.nano != limit.nano and (name.startswith(HUGEPAGES_PREFIX) or is_device(name)):
            yield Breach((*path, "requests", name), str(request), f"must be equal to {name} limit of {limit}")


def _check_amounts(path: Path, resources: Resources, *, with_devices: bool = False) -> Iterator[Breach]:
    for name, amount in resources:
        here = (*path, name)
        if is_device(name):
            yield from _check_devices(here, name, amount, of_container=with_devices)
            continue
        if not is_pod_level(name):
            meant = suggest_nearest(name, (CPU, MEMORY))
            yield Breach(here, "", f"is not a resource of this node{meant or ': cpu, memory and hugepages-<size> are'}")
            continue
        largest = MAX_CPU if name == CPU else MAX_BYTES
        if amount.nano < 0:
            yield Breach(here, str(amount), _NOT_NEGATIVE)
        elif amount.nano > largest.nano:
            yield Breach(here, str(amount), f"must be at most {largest}")
        elif name.startswith(HUGEPAGES_PREFIX):
            size_text = name.removeprefix(HUGEPAGES_PREFIX)
            try:
                size = Quantity.parse(size_text)
            except QuantitySyntaxError:
                size = Quantity.of(0)
            if size.nano <= 0 or not size.is_whole() or str(size) != size_text:
                yield Breach(
                    here, "", "must name a page size in canonical form, such as hugepages-2Mi or hugepages-1Gi"
                )
            elif amount.nano % size.nano:
                yield Breach(here, str(amount), f"must be a multiple of the page size {size}")


def _check_devices(path: Path, name: str, amount: Quantity, *, of_container: bool) -> Iterator[Breach]:
    from nodeagent.formats.syntax.resource_names import is_extended_resource  # noqa: PLC0415 - few pods request devices

    if not of_container:
        yield Breach(path, "", "is a device: only containers can request devices")
    elif not is_extended_resource(name):
        yield Breach(path, "", "must be DOMAIN/NAME, like Kubernetes' extended resources (not kubernetes.io)")
    elif amount.nano < 0:
        yield Breach(path, str(amount), _NOT_NEGATIVE)
    elif amount.nano % 10**9:
        yield Breach(path, str(amount), "must be an integer: devices are whole")
    elif amount.nano > MAX_DEVICES.nano:
        yield Breach(path, str(amount), f"must be at most {MAX_DEVICES}")


def _check_exclusive_cpus(pod: Pod) -> Iterator[Breach]:
    for container in pod.containers:
        if container.exclusive_cpus is None:
            continue
        path: Path = ("metadata", "annotations", f"{EXCLUSIVE_CPUS}/{container.name}")
        count, request = str(container.exclusive_cpus), container.resources.requests.get(CPU)
        if has_pod_level_resources(pod):
            rule = "can't be combined with pod-level resources (spec.resources): remove one of them"
            yield Breach(path, count, rule)
        elif request is None or request.nano < container.exclusive_cpus * 10**9:
            asked = "no CPU" if request is None else f"cpu: {request}"
            rule = f"is more than the container requests ({asked}): request at least this number; the rest comes from the shared pool"
            yield Breach(path, count, rule)


def _check_claims(pod: Pod) -> Iterator[Breach]:
    path: Path = ("spec", "resourceClaims")
    if len(pod.claims) > MAX_CLAIMS:
        yield Breach(path, str(len(pod.claims)), f"at most {MAX_CLAIMS} claims are allowed")
        return
    names = [claim.name for claim in pod.claims]
    used = {use.name for container in pod.containers for use in container.claims}
    for index, claim in enumerate(pod.claims):
        if not is_label(claim.name):
            yield Breach((*path, index, "name"), shown(claim.name) if claim.name else "", LABEL_RULE)
        elif claim.name in names[:index]:
            yield Breach((*path, index, "name"), claim.name, "is the name of another claim of this pod")
        elif claim.name not in used:
            rule = "must be used by a container (resources.claims): only containers hold claims"
            yield Breach((*path, index, "name"), claim.name, rule)
        own = claim.claim_name(pod.name)
        if claim.name not in names[:index] and own in [other.claim_name(pod.name) for other in pod.claims[:index]]:
            rule = "is also the name of another claim of this pod (a claim from a template is named POD-NAME)"
            yield Breach((*path, index, "resourceClaimName" if claim.claim else "name"), shown(own), rule)
        if bool(claim.claim) is bool(claim.template):
            yield Breach((*path, index), "", "needs resourceClaimName or resourceClaimTemplateName, but not both")
        elif not is_subdomain(claim.claim or claim.template):
            key = "resourceClaimName" if claim.claim else "resourceClaimTemplateName"
            yield Breach((*path, index, key), shown(claim.claim or claim.template), SUBDOMAIN_RULE)
    for container_path, container in _containers_with_paths(pod):
        here: Path = (*container_path, "resources", "claims")
        if len(container.claims) > MAX_USES:
            yield Breach(here, str(len(container.claims)), f"at most {MAX_USES} are allowed")
            continue
        for index, use in enumerate(container.claims):
            if use.name not in names:
                meant = suggest_nearest(use.name, tuple(names))
                yield Breach((*here, index, "name"), shown(use.name), f"must be one of spec.resourceClaims{meant}")
            elif use.request and not is_label(use.request):
                yield Breach((*here, index, "request"), shown(use.request), LABEL_RULE)
            elif use in container.claims[:index]:
                yield Breach((*here, index, "name"), use.name, "is listed twice")


def _check_units(pod: Pod) -> Iterator[Breach]:
    """Check that either all containers of a pod are systemd units or none of them is, because their cgroups need the same owner."""
    if pod.gives_back and not pod.units:
        path: Path = ("metadata", "annotations", WHILE_INACTIVE)
        yield Breach(path, GIVE_BACK, f"needs containers that pin systemd units ({UNIT}/<container>)")
    seen: set[str] = set()
    for container in pod.containers if pod.units else ():
        path = ("metadata", "annotations", f"{UNIT}/{container.name}")
        if not container.unit:
            yield Breach(path, "", "is required: either all containers of a pod pin systemd units, or none")
        elif container.unit in seen:
            yield Breach(path, container.unit, "is the unit of another container in this pod")
        elif container.kind is not ContainerKind.APP:
            yield Breach(path, container.unit, "can't be set on an init container: systemd starts and stops the unit")
        elif container.command:
            yield Breach(path, container.unit, "can't be combined with a command: systemd starts and stops the unit")
        seen.add(container.unit)


def _check_hugepages(path: Path, own: ResourceRequirements, pods: ResourceRequirements | None) -> Iterator[Breach]:
    names = {name for part in (own.requests, own.limits) for name, _ in part}
    around = set() if pods is None else {name for part in (pods.requests, pods.limits) for name, _ in part}
    if any(name.startswith(HUGEPAGES_PREFIX) for name in names) and not (names | around) & {CPU, MEMORY}:
        yield Breach(path, "", "huge pages require cpu or memory")


def _check_pod_level(pod: Pod, resources: ResourceRequirements) -> Iterator[Breach]:
    path: Path = ("spec", "resources")
    yield from _check_requirements(path, resources)
    yield from _check_hugepages(path, resources, None)
    for name, total in aggregate_container_requests(pod).items():
        request = resources.requests.get(name)
        if request is not None and total.nano > request.nano:
            rule = f"must be greater than or equal to aggregate container requests of {total}"
            yield Breach((*path, "requests", name), str(request), rule)
    for container_path, container in _containers_with_paths(pod):
        for name, limit in container.resources.limits:
            most = resources.limits.get(name)
            if most is not None and limit.nano > most.nano:
                rule = f"must be less than or equal to pod limits of {most}"
                yield Breach((*container_path, "resources", "limits", name), str(limit), rule)
