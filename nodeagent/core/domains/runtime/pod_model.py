"""Model of kubelet's pod, inferred from NRI's data: amounts, QoS class and containers, each with its source and certainty.

NRI reports values that kubelet has computed from requests and limits. Some amounts can be computed exactly from them, and all others are
estimates, unless an annotation or kubelet's pods API supplies them. An annotation may add to NRI's data but not contradict it. Otherwise,
the pod could get CPUs that the scheduler hasn't counted. If kubelet's pods API contradicts NRI, a resize is pending, and NRI's data counts.
"""

import enum
import re
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.domains.runtime.estimates import (
    BEST_EFFORT_OOM,
    GUARANTEED_OOM,
    Range,
    estimate_cpu_limit,
    estimate_cpu_request,
    estimate_memory_request,
)
from nodeagent.core.domains.runtime.stated_pod import StatedContainer, StatedPod
from nodeagent.core.model.nri import NriContainer, NriResources, Sandbox
from nodeagent.core.model.pod import (
    CPU,
    HUGEPAGES_PREFIX,
    MEMORY,
    Container,
    ContainerKind,
    Pod,
    QosClass,
    ResourceRequirements,
    Resources,
    RestartPolicy,
    has_pod_level_resources,
)
from nodeagent.core.model.pod_amounts import EXCLUSIVE_CPUS, find_shared_part, quantity_of
from nodeagent.core.model.pod_resources import with_pod_level_defaults
from nodeagent.core.model.quantity import Quantity
from nodeagent.errors import printable

REQUESTS, LIMITS = "requests", "limits"
_SLICE = re.compile(r"(?:.*-)?kubepods(?:-(burstable|besteffort))?-pod[^-]+\.slice")
_POD_DIRECTORY = re.compile(r"pod[^/]+")
_CLASSES = {"burstable": QosClass.BURSTABLE, "besteffort": QosClass.BEST_EFFORT}
_PAGE_SIZE = re.compile(r"([0-9]{1,9})([KMG])B")


class ToldBy(enum.StrEnum):
    """Source of a known property of a pod. The values never change, because commands print them."""

    ANNOTATION = "annotation"
    PODS_API = "podsApi"
    """Source: kubelet's pods API."""
    CGROUP_PARENT = "cgroupParent"
    CPU_SHARES = "cpuShares"
    CPU_QUOTA = "cpuQuota"
    MEMORY_LIMIT = "memoryLimit"
    HUGEPAGE_LIMIT = "hugepageLimit"
    OOM_SCORE_ADJ = "oomScoreAdj"
    QOS_CLASS = "qosClass"
    """Source: the pod's QoS class, from which the property follows."""
    SEEN = "seen"
    """Source: the containers that the runtime has reported so far. The property is inferred from them."""


class Known(Struct, frozen=True):
    """One known property of a pod, with its value, source and certainty."""

    what: str
    """Name of the property: `qosClass`, `containers`, `kind`, `requests.NAME` or `limits.NAME`."""
    value: str
    by: ToldBy
    is_exact: bool
    """Whether the value is certain. If not, it is an estimate."""
    container: str = ""
    """Container to which the property belongs. Empty means that it belongs to the pod."""
    between: Range | None = None
    """Range of an estimated amount, in thousandths of a CPU or in bytes. None means that the value is exact, or that the range is
    unknown.
    """


class Contradiction(Struct, frozen=True):
    """Contradiction between an annotation of a pod and the values that kubelet has passed to the runtime."""

    container: str
    what: str
    """Name of the contradicted property: `requests.NAME`, `limits.NAME` or `exclusive-cpus`."""
    stated: str
    told: str

    @property
    def text(self) -> str:
        """Return a description of the contradiction for users. It follows the pod's name."""
        return (
            f"container {printable(self.container[:63])}: its annotation says {self.what} {self.stated}, but {self.told}: "
            "write what the container's `resources` say, or remove the annotation"
        )


class RuntimePod(Struct, frozen=True):
    pod: Pod
    known: tuple[Known, ...]
    """Known properties: first those of the pod, then those of its containers, in the pod's order."""
    contradictions: tuple[Contradiction, ...] = ()
    """Contradictions between annotations and kubelet's values. If there are any, the pod is refused."""

    @property
    def estimates(self) -> tuple[Known, ...]:
        return tuple(known for known in self.known if not known.is_exact)

    @property
    def is_whole(self) -> bool:
        """Whether all properties are exact. With topologyManagerScope `pod`, only such pods can be admitted."""
        return not self.estimates


class _Amount(Struct, frozen=True):
    part: str
    resource: str
    quantity: Quantity | None
    """Requested amount. None means that nothing is requested."""
    by: ToldBy
    is_exact: bool = True
    between: Range | None = None


def build_runtime_pod(
    sandbox: Sandbox, containers: Iterable[NriContainer], stated: StatedPod, capacity_bytes: int
) -> RuntimePod:
    """Build a pod from three sources: NRI, the pod's annotations, and kubelet's pods API.

    Args:
        sandbox: the latest sandbox of the pod.
        containers: the containers that NRI has reported, in the order of their creation. Among containers with the same name, the last one
            counts.
        stated: the data from annotations and from kubelet's pods API (`add_kubelet_data`).
        capacity_bytes: the node's memory, as kubelet knows it. 0 means unknown.
    """
    seen = {container.name: container for container in containers}
    qos = _find_qos(sandbox, tuple(seen.values()))
    names = list(dict.fromkeys([one.name for one in stated.containers] + list(seen)))
    by = ToldBy.PODS_API if stated.is_kubelets else ToldBy.ANNOTATION if stated.names_all else ToldBy.SEEN
    known = [qos, Known("containers", ", ".join(names), by, is_exact=stated.names_all)]
    contradictions: list[Contradiction] = []
    made = []
    of_pod = Resources() if stated.resources is None else stated.resources.limits
    if stated.resources is not None:
        for part, amounts in ((REQUESTS, stated.resources.requests), (LIMITS, stated.resources.limits)):
            known += (
                Known(f"{part}.{resource}", str(quantity), ToldBy.PODS_API, is_exact=True)
                for resource, quantity in amounts
            )
    for name in names:
        of = stated.container(name)
        container, about, against = _build_container(of, seen.get(name), QosClass(qos.value), capacity_bytes, of_pod)
        made.append(replace(container, near=stated.near) if of.near is None else container)
        known += about
        contradictions += against
    pod = Pod(
        uid=sandbox.uid,
        namespace=sandbox.namespace,
        name=sandbox.name,
        containers=tuple(sorted(made, key=lambda container: container.kind is ContainerKind.APP)),
        is_isolated=stated.is_isolated,
        numa_node=stated.numa_node,
        core_class=stated.core_class,
        preferred_core_class=stated.preferred_core_class,
        given_qos=QosClass(qos.value),
        resources=None if stated.resources is None else _normalise(stated.resources.requests, stated.resources.limits),
        overhead=stated.overhead,
    )
    pod = with_pod_level_defaults(pod)
    contradictions += _find_excess_exclusive_cpus(pod)
    return RuntimePod(pod, tuple(known), tuple(contradictions))


def find_qos_class(cgroup_parent: str) -> QosClass | None:
    """Return the QoS class that kubelet has encoded in the name of a pod's cgroup. None means that the name isn't one of kubelet's.

    With the systemd driver, the name is the slice `kubepods[-burstable|-besteffort]-podUID.slice`. With the cgroupfs driver, it is a path
    that ends with `kubepods[/burstable|/besteffort]/podUID`.
    """
    *above, last = cgroup_parent.rstrip("/").split("/")
    if (found := _SLICE.fullmatch(last)) is not None:
        return _CLASSES.get(found[1] or "", QosClass.GUARANTEED)
    if not above or not _POD_DIRECTORY.fullmatch(last):
        return None
    return QosClass.GUARANTEED if above[-1] == "kubepods" else _CLASSES.get(above[-1])


def _find_qos(sandbox: Sandbox, containers: tuple[NriContainer, ...]) -> Known:
    told = find_qos_class(sandbox.cgroup_parent)
    if told is not None:
        return Known("qosClass", told.value, ToldBy.CGROUP_PARENT, is_exact=True)
    scores = {container.oom_score_adj for container in containers}
    guess = QosClass.BURSTABLE
    if scores == {GUARANTEED_OOM}:  # only a guess, because critical pods have this OOM score, too
        guess = QosClass.GUARANTEED
    elif scores == {BEST_EFFORT_OOM}:
        guess = QosClass.BEST_EFFORT
    return Known("qosClass", guess.value, ToldBy.OOM_SCORE_ADJ, is_exact=False)


def _build_container(
    stated: StatedContainer, seen: NriContainer | None, qos: QosClass, capacity_bytes: int, of_pod: Resources
) -> tuple[Container, list[Known], list[Contradiction]]:
    told = () if seen is None else tuple(_reported_amounts(seen, qos, capacity_bytes))
    if stated.is_kubelets and seen is not None and _is_resized(stated, seen, of_pod):
        stated = replace(stated, requests=None, limits=None)
    limits = _resources(told, LIMITS) if stated.limits is None else stated.limits
    # As in the API server, a missing request defaults to the limit.
    requests = stated.limits if seen is None else None
    if stated.requests is not None:
        requests = Resources.of(dict([*limits, *stated.requests]))
    by = ToldBy.PODS_API if stated.is_kubelets else ToldBy.ANNOTATION
    amounts = [
        *_choose_amounts(REQUESTS, requests, told, by),
        *_choose_amounts(LIMITS, stated.limits, told, by),
        *_devices(stated),
    ]
    kind = stated.kind or ContainerKind.APP
    is_known = stated.kind is not None
    known = [Known("kind", kind.value, by if is_known else ToldBy.SEEN, is_known, stated.name)]
    for amount in amounts:
        value = "0" if amount.quantity is None else str(amount.quantity)
        what = f"{amount.part}.{amount.resource}"
        known.append(Known(what, value, amount.by, amount.is_exact, stated.name, amount.between))
    if seen is None and stated.requests is None and stated.limits is None:
        known.append(Known(REQUESTS, "0", ToldBy.SEEN, is_exact=False, container=stated.name))
    container = Container(
        name=stated.name,
        kind=kind,
        resources=_format_as_saved(_resources(amounts, REQUESTS), _resources(amounts, LIMITS)),
        restart_policy=RestartPolicy.ALWAYS if kind is ContainerKind.SIDECAR else None,
        exclusive_cpus=stated.exclusive_cpus,
        interrupts=stated.interrupts,
        near=stated.near or (),
    )
    against: list[Contradiction] = []
    if seen is not None and stated.limits is not None and not stated.is_kubelets:
        against += _against_limits(stated.name, stated.limits, seen.resources)
    if seen is not None and requests is not None and not stated.is_kubelets:
        against += _against_shares(stated.name, requests, limits, seen.resources)
        against += _against_class(stated.name, requests, limits, qos)
    return container, known, against


def _is_resized(stated: StatedContainer, seen: NriContainer, of_pod: Resources) -> bool:
    """Return whether kubelet has accepted a resize of the container that isn't in effect yet. In this case, kubelet's pods API already
    reports the new amounts, and NRI still reports the old ones.

    Args:
        stated: the container, as kubelet's pods API reports it.
        seen: the container, as NRI reports it.
        of_pod: the pod-level limits, which kubelet applies to containers that have no limits of their own.
    """
    assert stated.requests is not None
    assert stated.limits is not None
    requests = Resources.of(dict([*stated.limits, *stated.requests]))
    limits = Resources.of(dict([*of_pod, *stated.limits]))
    against = (
        *_against_limits(stated.name, limits, seen.resources),
        *_against_shares(stated.name, requests, limits, seen.resources),
    )
    return bool(against)


def _choose_amounts(part: str, stated: Resources | None, told: Iterable[_Amount], by: ToldBy) -> Iterator[_Amount]:
    if stated is None:
        return (amount for amount in told if amount.part == part)
    return (_Amount(part, name, quantity, by) for name, quantity in stated)


def _devices(stated: StatedContainer) -> Iterator[_Amount]:
    """Yield the requests for devices that the agent allocates. They come from annotations, because kubelet's own requests are for kubelet's
    devices.
    """
    for resource, count in stated.devices:
        for part in (REQUESTS, LIMITS):
            yield _Amount(part, resource, Quantity.parse(str(count)), ToldBy.ANNOTATION)


def _resources(amounts: Iterable[_Amount], part: str) -> Resources:
    return Resources.of({a.resource: a.quantity for a in amounts if a.part == part and a.quantity is not None})


def _format_as_saved(requests: Resources, limits: Resources) -> ResourceRequirements:
    """Return the amounts in the form that they have after they were saved and loaded. In that form, a missing request means the limit, so a
    request of 0 is written out.
    """
    unasked = dict.fromkeys((name for name, _ in limits), Quantity.parse("0"))
    return _normalise(Resources.of(unasked | dict(requests)), limits)


def _normalise(requests: Resources, limits: Resources) -> ResourceRequirements:
    asked, limited = (
        Resources.of({name: Quantity.parse(str(quantity)) for name, quantity in part}) for part in (requests, limits)
    )
    return ResourceRequirements(asked, limited)


def _reported_amounts(seen: NriContainer, qos: QosClass, capacity_bytes: int) -> Iterator[_Amount]:
    resources = seen.resources
    limit = _limit_of(resources)
    request = None if resources.cpu_shares is None else estimate_cpu_request(resources.cpu_shares)
    if qos is QosClass.GUARANTEED:
        yield from _guaranteed_cpu(request, limit)
    else:
        if request is not None:
            yield _cpu_amount(REQUESTS, request, ToldBy.CPU_SHARES)
        if limit is not None:
            yield _cpu_amount(LIMITS, limit, ToldBy.CPU_QUOTA)
    yield from _memory_amounts(seen, qos, capacity_bytes)
    for resource, limit_bytes in _hugepages(resources):
        if limit_bytes > 0:
            quantity = Quantity.of_bytes(limit_bytes)
            yield _Amount(REQUESTS, resource, quantity, ToldBy.HUGEPAGE_LIMIT)
            yield _Amount(LIMITS, resource, quantity, ToldBy.HUGEPAGE_LIMIT)


def _limit_of(resources: NriResources) -> Range | None:
    if resources.cpu_quota_us is None or resources.cpu_period_us is None:
        return None
    return estimate_cpu_limit(resources.cpu_quota_us, resources.cpu_period_us)


def _guaranteed_cpu(request: Range | None, limit: Range | None) -> Iterator[_Amount]:
    """Yield request and limit of a Guaranteed container, which are equal. Either the shares or the quota give the exact amount."""
    rows = ((request, ToldBy.CPU_SHARES), (limit, ToldBy.CPU_QUOTA))
    ranges = [(found, by) for found, by in rows if found is not None]
    if ranges:
        found, by = next((row for row in ranges if row[0].is_exact), ranges[-1])
        yield _cpu_amount(REQUESTS, found, by)
        yield _cpu_amount(LIMITS, found, by)


def _cpu_amount(part: str, found: Range, by: ToldBy) -> _Amount:
    quantity = quantity_of(CPU, found.least) if found.least else None
    return _Amount(part, CPU, quantity, by, found.is_exact, None if found.is_exact else found)


def _memory_amounts(seen: NriContainer, qos: QosClass, capacity_bytes: int) -> Iterator[_Amount]:
    limit_bytes = seen.resources.memory_limit_bytes
    limit = limit_bytes if limit_bytes is not None and limit_bytes > 0 else None
    if limit is not None:
        yield _Amount(LIMITS, MEMORY, Quantity.of_bytes(limit), ToldBy.MEMORY_LIMIT)
    if qos is QosClass.GUARANTEED and limit is not None:
        yield _Amount(REQUESTS, MEMORY, Quantity.of_bytes(limit), ToldBy.QOS_CLASS)
    if qos is QosClass.BURSTABLE:
        score = seen.oom_score_adj
        yield _burstable_memory(None if score is None else estimate_memory_request(score, capacity_bytes), limit)


def _burstable_memory(between: Range | None, limit: int | None) -> _Amount:
    """Estimate the memory request of a Burstable container.

    If the container has a limit and the request can be that large, the limit is assumed, because many manifests set only a limit. Otherwise
    the smallest possible request is assumed, so that the pod isn't refused for memory that it may not have requested.
    """
    if between is None:
        return _Amount(REQUESTS, MEMORY, None, ToldBy.OOM_SCORE_ADJ, is_exact=False)
    guess = limit if limit is not None and (limit in between or limit < between.least) else between.least
    quantity = Quantity.of_bytes(guess) if guess else None
    return _Amount(REQUESTS, MEMORY, quantity, ToldBy.OOM_SCORE_ADJ, is_exact=False, between=between)


def _hugepages(resources: NriResources) -> Iterator[tuple[str, int]]:
    """Yield pairs of huge page resource and bytes. The kernel's page size `2MB` is the resource `hugepages-2Mi`."""
    for limit in resources.hugepage_limits:
        if (found := _PAGE_SIZE.fullmatch(limit.page_size)) is not None:
            yield f"{HUGEPAGES_PREFIX}{found[1]}{found[2]}i", limit.limit_bytes


def _against_shares(name: str, requests: Resources, limits: Resources, told: NriResources) -> Iterator[Contradiction]:
    asked, limit = requests.get(CPU) or Quantity(0), limits.get(CPU)
    if told.cpu_shares is not None:
        found = estimate_cpu_request(told.cpu_shares)
        # a container that requests nothing gets shares according to its limit
        counted = asked if asked.nano or limit is None else limit
        if counted.milli() not in found:
            why = f"kubelet gave it {told.cpu_shares} CPU shares, as for {quantity_of(CPU, found.least)}"
            yield Contradiction(name, f"{REQUESTS}.{CPU}", str(asked), why)


def _against_class(name: str, requests: Resources, limits: Resources, qos: QosClass) -> Iterator[Contradiction]:
    for resource in (CPU, MEMORY):
        request, limit = requests.get(resource), limits.get(resource)
        if request is None or limit is None or request.nano == limit.nano:
            continue
        if qos is QosClass.GUARANTEED or request.nano > limit.nano:
            why = f"its limit is {limit}" + (", and the pod is Guaranteed" if qos is QosClass.GUARANTEED else "")
            yield Contradiction(name, f"{REQUESTS}.{resource}", str(request), why)


def _against_limits(name: str, stated: Resources, told: NriResources) -> Iterator[Contradiction]:
    cpu, found = stated.get(CPU), _limit_of(told)
    if found is not None and (0 if cpu is None else cpu.milli()) not in found:
        why = f"kubelet gave it a quota of {told.cpu_quota_us} in {told.cpu_period_us} µs"
        yield Contradiction(name, f"{LIMITS}.{CPU}", str(cpu or "none"), why)
    memory, limit = stated.get(MEMORY), told.memory_limit_bytes
    if limit is not None and max(0, limit) != (0 if memory is None else memory.value()):
        why = f"kubelet gave it {Quantity.of_bytes(limit)}" if limit > 0 else "kubelet gave it no limit"
        yield Contradiction(name, f"{LIMITS}.{MEMORY}", str(memory or "none"), why)
    for resource, limit_bytes in _hugepages(told):
        pages = stated.get(resource)
        if (0 if pages is None else pages.value()) != limit_bytes:
            why = f"kubelet gave it {Quantity.of_bytes(limit_bytes)}"
            yield Contradiction(name, f"{LIMITS}.{resource}", str(pages or "none"), why)


def _find_excess_exclusive_cpus(pod: Pod) -> Iterator[Contradiction]:
    for container in pod.containers:
        if container.exclusive_cpus is not None and has_pod_level_resources(pod):
            why = "the pod has resources as a whole (spec.resources), whose CPUs are divided by other rules"
            yield Contradiction(container.name, EXCLUSIVE_CPUS, str(container.exclusive_cpus), why)
        elif find_shared_part(container) < 0:
            request = container.resources.requests.get(CPU)
            why = f"it requests {'no CPU' if request is None else f'cpu: {request}'}"
            yield Contradiction(container.name, EXCLUSIVE_CPUS, str(container.exclusive_cpus), why)
