"""Decision on a resize: a running pod whose manifest now requests other amounts. The result is new promises, or the reason why the pod
can't be resized.

By the rules of Kubernetes (KEP-1287, KEP-5554), the QoS class must stay the same. A container neither gains nor loses the right to
exclusive CPUs. A container that gets more CPUs keeps its present ones, and never has fewer than at its admission. Memory stays on its NUMA
nodes.
"""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission import resource_kinds
from nodeagent.core.admission.asked_for import limit_to_pod
from nodeagent.core.admission.managers import Managers, preferred_class
from nodeagent.core.admission.node_capacity import Allocatable, Usage, insufficient
from nodeagent.core.model.claims import CPU_DRIVER, MEMORY_DRIVER
from nodeagent.core.model.demand import PodDemand, demand_of
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import (
    CPU,
    MEMORY,
    Container,
    ContainerKind,
    Pod,
    ResourceRequirements,
    Resources,
    qos_class,
)
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.refusals import RESIZE_DEFERRED, RESIZE_INFEASIBLE, NotResized, refuse_resize_for_good
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.cpu.holdings import default_set, own_set_of, with_default_set
from nodeagent.core.resources.resource import ResourceFailedError


def is_resize(old: Pod, new: Pod) -> bool:
    """Return whether two versions of a pod differ only in amounts: pod-level amounts (KEP-5419), or amounts of app containers and sidecars.

    Init containers must be unchanged, because they may already have run.
    """
    if len(old.containers) != len(new.containers) or old == new:
        return False
    pairs = tuple(zip(old.containers, new.containers, strict=True))
    unsized = tuple(replace(now, resources=was.resources) for was, now in pairs)
    if replace(new, containers=unsized, resources=old.resources) != old:
        return False
    return _list_fixed_amounts(old.resources) == _list_fixed_amounts(new.resources) and all(
        was == now
        or (
            was.kind is not ContainerKind.INIT
            and _list_fixed_amounts(was.resources) == _list_fixed_amounts(now.resources)
        )
        for was, now in pairs
    )


def is_resizable(entry: PodEntry) -> bool:
    """Return whether a changed manifest may resize a pod now. The pod must have an allocation and must not be ending. A pod of a container
    runtime has no manifest, so only kubelet can resize it.
    """
    return entry.holds and entry.deleting_since_ms is None and not entry.is_requested_per_container


def lowers_request(old: Pod, new: Pod) -> bool:
    """Return whether a resize lowers any request of a container or of the pod as a whole."""
    pairs = [(was.resources, now.resources) for was, now in zip(old.containers, new.containers, strict=True)]
    if old.resources is not None and new.resources is not None:
        pairs.append((old.resources, new.resources))
    for was, now in pairs:
        for resource, amount in was.requests:
            left = now.requests.get(resource)
            if left is None or left.nano < amount.nano:
                return True
    return False


def moves_instead(new: Pod, decision: object) -> bool:
    """Return whether the agent decides on a changed pod from the start, because its resize was refused. It does so for pods that pin
    systemd units, because running units can be moved to other CPUs.
    """
    return isinstance(decision, NotResized) and bool(new.units)


def without_variables(pod: Pod) -> Pod:
    """Return a copy of the pod without environment variables, because these may contain secrets."""
    return replace(pod, containers=tuple(replace(container, env=()) for container in pod.containers))


def resized_by(state: NodeState | None, pod: Pod) -> Pod | None:
    """Return the running pod that `pod`, read from a changed manifest, would resize. None means that no pod of this name runs, or that it
    differs in more than amounts.
    """
    for entry in () if state is None else state.entries:
        if is_resizable(entry) and pod.full_name == entry.pod.full_name:
            return entry.pod if is_resize(without_variables(entry.pod), without_variables(pod)) else None
    return None


def _list_fixed_amounts(resources: ResourceRequirements | None) -> tuple[Resources, ...] | None:
    """Return the amounts that Kubernetes doesn't allow a resize to change: huge pages and devices. None means that there are no pod-level
    resources to compare.
    """
    if resources is None:
        return None
    parts = (resources.requests, resources.limits)
    resizable = frozenset[str]().union(*(kind.resizable for kind in resource_kinds.RESOURCES))
    return tuple(Resources(tuple(item for item in part if item[0] not in resizable)) for part in parts)


def resized(
    managers: Managers,
    promises: Promises,
    old: Pod,
    new: Pod,
    *,
    usage: Usage,
    allocatable: Allocatable | None,
    occupied: CpuSet = CpuSet(),
) -> Promises | NotResized:
    """Decide on the resize of a running pod.

    Args:
        managers: the managers of the node.
        promises: the allocations so far, including those of the pod.
        old: the pod as it runs.
        new: the pod with changed amounts (see `is_resize`).
        usage: the requests of all pods that hold resources, including those of `old`.
        allocatable: the node's allocatable amounts. None means that the capacity of the node isn't checked.
        occupied: CPUs on which processes run that belong to no pod. The resize uses them only if there are too few others.

    Returns:
        The new promises, or the refusal. After a refusal, the pod runs on unchanged.
    """
    gate = managers.placement.gate("PodLevelResources")
    if qos_class(old, pod_level_resources=gate) is not qos_class(new, pod_level_resources=gate):
        was, becomes = (qos_class(pod, pod_level_resources=gate).value for pod in (old, new))
        return NotResized(RESIZE_INFEASIBLE, f"its QoS class would change from {was} to {becomes}")
    if managers.is_pod_level(new) and demand_of(managers.rules, old) != demand_of(managers.rules, new):
        return refuse_resize_for_good(
            "CPUs and memory allocated to the pod as a whole, and its containers' parts of them, can't change while it runs: "
            "end the pod and start it again"
        )
    claimed = _refuse_claimed_change(promises, old, new)
    if claimed is not None:
        return claimed
    if allocatable is not None:
        there, others = managers.with_amounts(allocatable, promises), usage.minus(old, pod_level_resources=gate)
        shortage = insufficient(new, others, there, pod_level_resources=gate)
        if shortage is not None:
            reason = RESIZE_INFEASIBLE if shortage.requested > shortage.capacity else RESIZE_DEFERRED
            return NotResized(reason, shortage.message)
    taken = default_set(promises) & occupied
    if taken:
        elsewhere = _decide_by_class(managers, with_default_set(promises, default_set(promises) - taken), old, new)
        if isinstance(elsewhere, Promises):
            return with_default_set(elsewhere, default_set(elsewhere) | taken)
    return _decide_by_class(managers, promises, old, new)


def _refuse_claimed_change(promises: Promises, old: Pod, new: Pod) -> NotResized | None:
    """Refuse the resize of an amount that a container gets from its claims. Claims stay allocated unchanged until the pod ends."""
    for was, now in zip(old.containers, new.containers, strict=True):
        drivers = {
            one.driver
            for claim in promises.of_pod(old.uid).of(ClaimHoldings).claims
            for one in claim.devices
            if any(used.uses(claim.name, one.request.partition("/")[0]) for used in was.claims)
        }
        for resource, driver in ((CPU, CPU_DRIVER), (MEMORY, MEMORY_DRIVER)):
            amounts = (container.resources.requests.get(resource) for container in (was, now))
            if driver in drivers and not _is_equal_amount(*amounts):
                what = "CPUs" if resource == CPU else "memory"
                why = f"container {was.name} has its {what} by a claim, which a resize can't change: change both, and restart the pod"
                return refuse_resize_for_good(why)
    return None


def _decide_by_class(managers: Managers, promises: Promises, old: Pod, new: Pod) -> Promises | NotResized:
    demand = demand_of(managers.rules, new)
    wish = preferred_class(managers, new, demand)
    if wish is not None:
        first = _decide(managers, promises, old, replace(demand, core_class=wish))
        if isinstance(first, Promises):
            return first
    return _decide(managers, promises, old, demand)


def _decide(managers: Managers, promises: Promises, old: Pod, demand: PodDemand) -> Promises | NotResized:
    providers = limit_to_pod(managers.providers, demand)
    before = {container.name: container for container in demand_of(managers.rules, old).containers}
    try:
        for resource in providers.resources:
            # containers that release resources come first, because other containers of the pod may need these resources
            for now in sorted(demand.containers, key=lambda now: not resource.is_lowered(before[now.name], now)):
                answer = resource.resize(providers.topology, promises, demand, before[now.name], now)
                if isinstance(answer, NotResized):
                    return answer
                promises = answer
    except ResourceFailedError as err:
        return NotResized(err.reason.value, str(err))
    return promises


def restarted(old: Pod, new: Pod) -> frozenset[str]:
    """Return the names of the containers that must restart to apply the resize (`resizePolicy`). Containers that pin units are left out,
    because systemd starts the units.
    """
    return frozenset(
        now.name
        for was, now in zip(old.containers, new.containers, strict=True)
        if not now.unit
        for resource in now.restarts_for
        if not _is_equal_amount(was.resources.requests.get(resource), now.resources.requests.get(resource))
        or not _is_equal_amount(_get_limit(old, was, resource), _get_limit(new, now, resource))
    )


def _is_equal_amount(was: Quantity | None, now: Quantity | None) -> bool:
    """Return whether two amounts have the same value in any notation, such as `1Gi` and `1073741824`."""
    return was == now if was is None or now is None else was.nano == now.nano


def _get_limit(pod: Pod, container: Container, resource: str) -> Quantity | None:
    """Return the limit that applies to a container: its own, or else the pod-level limit."""
    own = container.resources.limits.get(resource)
    return own if own is not None or pod.resources is None else pod.resources.limits.get(resource)


class AmountChange(Struct, frozen=True):
    """One amount that a resize changes, of a container or of the pod as a whole."""

    container: str | None
    resource: str
    before: str | None
    """Amount before the resize, in the manifest's notation. None means that the manifest didn't contain it."""
    after: str | None


def changed_amounts(old: Pod, new: Pod) -> Iterator[AmountChange]:
    """Yield the amounts that a resize changes: each changed limit, or the changed request where the limit stays the same."""
    both: list[tuple[str | None, ResourceRequirements | None, ResourceRequirements | None]]
    both = [(None, old.resources, new.resources)]
    both += [(was.name, was.resources, now.resources) for was, now in zip(old.containers, new.containers, strict=True)]
    for name, was, now in both if is_resize(old, new) else ():
        if was is None or now is None:
            continue
        stated = {resource for part in (was.limits, was.requests, now.limits, now.requests) for resource, _ in part}
        for resource in sorted(stated, key=lambda name: (name not in {CPU, MEMORY}, name)):
            for before, after in ((was.limits, now.limits), (was.requests, now.requests)):
                amounts = [part.get(resource) for part in (before, after)]
                if not _is_equal_amount(*amounts):
                    yield AmountChange(name, resource, *(None if each is None else str(each) for each in amounts))
                    break


def differences(before: Promises, after: Promises, old: Pod, new: Pod) -> Iterator[str]:
    """Yield a short description of the change for each container that a resize changes, and for the pod as a whole."""
    if old.resources != new.resources:
        yield "the pod as a whole: amounts"
    for was, now in zip(old.containers, new.containers, strict=True):
        if was == now:
            continue
        cpus = [own_set_of(promises, new.uid, now.name) or "shared" for promises in (before, after)]
        if cpus[0] != cpus[1]:
            yield f"{now.name}: CPUs {cpus[0]} → {cpus[1]}"
        else:
            yield f"{now.name}: amounts"
