"""The smallest changes that would admit a refused pod: fewer CPUs, less memory, another rule, another pod gone.

Each is tried on the core itself: what is offered here has been admitted. Knows nothing of how it is worded.
"""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from nodeagent.core.config import Placement
from nodeagent.core.managers import Admitted
from nodeagent.core.node_capacity import Insufficient
from nodeagent.core.pod import (
    CPU,
    HUGEPAGES_PREFIX,
    MEMORY,
    Container,
    ContainerKind,
    Pod,
    ResourceRequirements,
    Resources,
)
from nodeagent.core.quantity import Quantity
from nodeagent.core.refusals import StartRefused
from nodeagent.core.trial import Trial

MAX_TRIALS = 600
"""Decisions tried for one refusal: about a second."""
_MIB = 2**20
_LAXER_POLICIES = ("single-numa-node", "restricted", "best-effort", "none")


class Change(enum.StrEnum):
    REQUEST = "request"
    """Another amount in the manifest."""
    CONFIGURATION = "configuration"
    REMOVAL = "removal"
    """Other pods end first."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change after which the pod is admitted."""

    change: Change
    subject: tuple[str, ...]
    """REQUEST: the containers' names, none for the pod's own amounts; CONFIGURATION: the field; REMOVAL: the pods' names."""
    amounts: tuple[tuple[str, str, str], ...] = ()
    """REQUEST: (resource, what it is, what it could be), spelled as in a manifest."""
    before: str = ""
    after: str = ""
    """CONFIGURATION: what the field is, and could be; empty: without the option."""


def remedies(trial: Trial, pod: Pod) -> tuple[Remedy, ...]:
    """Look for changes, those of the manifest first; several of one kind only if they are equally small."""
    trials = _Trials(trial, pod)
    return (
        *_requests(trials, CPU, _fewer_cpus),
        *_requests(trials, CPU, _whole_cores),
        *_larger_budget(trials),
        *(remedy for resource in _memory_resources(pod) for remedy in _requests(trials, resource, _less_memory)),
        *_configurations(trials),
        *_removals(trials),
    )


class _Trials:
    """Trials of one pod, counted. Lives for one search."""

    def __init__(self, trial: Trial, pod: Pod) -> None:
        self.trial = trial
        self.pod = pod
        self.left = MAX_TRIALS

    def admits(self, pod: Pod | None = None, trial: Trial | None = None) -> bool:
        """Whether the core admits it; no, when too much was tried already."""
        if self.left <= 0:
            return False
        self.left -= 1
        return isinstance((trial or self.trial).judge(pod or self.pod), Admitted)


_Search = Callable[[_Trials, Callable[[int], Pod], int], int | None]
"""Trials, the pod with that much (cpu in CPUs, else bytes), what it asks for now → what it could ask for."""


def _memory_resources(pod: Pod) -> list[str]:
    parts = [c.resources for c in pod.containers] + ([] if pod.resources is None else [pod.resources])
    names = {name for part in parts for name, _ in part.requests}
    return sorted(name for name in names if name == MEMORY or name.startswith(HUGEPAGES_PREFIX))


def _requests(trials: _Trials, resource: str, search: _Search) -> Iterator[Remedy]:
    """Change one container, or the pod's own amount; where that isn't enough, all containers that have more than a bound."""
    found = False
    pod = trials.pod
    if pod.resources is not None:
        amount = _asked(pod.resources, resource)
        if amount:
            fit = search(trials, lambda value: _with_pod_amount(pod, resource, value), amount)
            if fit is not None:
                found = True
                yield _request((), resource, amount, fit)
    asking = [(c, amount) for c in pod.containers if (amount := _asked(c.resources, resource))]
    for container, amount in asking:
        fit = search(trials, _changer(pod, (container,), resource), amount)
        if fit is not None:
            found = True
            yield _request((container.name,), resource, amount, fit)
    if not found and len(asking) > 1:
        most = max(amount for _, amount in asking)
        fit = search(trials, _changer(pod, tuple(c for c, _ in asking), resource), most)
        if fit is not None:
            yield _request(tuple(c.name for c, amount in asking if amount > fit), resource, most, fit)


def _request(containers: tuple[str, ...], resource: str, before: int, after: int) -> Remedy:
    return Remedy(Change.REQUEST, containers, (_amount(resource, before, after),))


def _amount(resource: str, before: int, after: int) -> tuple[str, str, str]:
    return resource, _spelled(resource, before), _spelled(resource, after)


def _spelled(resource: str, amount: int) -> str:
    return str(Quantity.of(amount) if resource == CPU else Quantity.of_bytes(amount))


def _asked(resources: ResourceRequirements, resource: str) -> int:
    amount = resources.requests.get(resource)
    return 0 if amount is None else amount.value()


def _changer(pod: Pod, containers: tuple[Container, ...], resource: str) -> Callable[[int], Pod]:
    """Give the pod with so much for each of these containers that has more (or, if it is one, exactly so much)."""

    def changed(value: int) -> Pod:
        return replace(
            pod,
            containers=tuple(
                replace(c, resources=_with_amount(c.resources, resource, value))
                if c in containers and (len(containers) == 1 or _asked(c.resources, resource) > value)
                else c
                for c in pod.containers
            ),
        )

    return changed


def _with_pod_amount(pod: Pod, resource: str, value: int) -> Pod:
    assert pod.resources is not None
    return replace(pod, resources=_with_amount(pod.resources, resource, value))


def _with_amount(resources: ResourceRequirements, resource: str, value: int) -> ResourceRequirements:
    amount = Quantity.of(value) if resource == CPU else Quantity.of_bytes(value)

    def put(part: Resources) -> Resources:
        return Resources(tuple((name, amount if name == resource else old) for name, old in part))

    return ResourceRequirements(put(resources.requests), put(resources.limits))


def _fewer_cpus(trials: _Trials, pod_with: Callable[[int], Pod], asked: int) -> int | None:
    """Find the most CPUs below what is asked for; whole cores make it no matter of halving."""
    return next((count for count in range(asked - 1, 0, -1) if trials.admits(pod_with(count))), None)


def _whole_cores(trials: _Trials, pod_with: Callable[[int], Pod], asked: int) -> int | None:
    """Find the next whole cores, where only those are given."""
    cpu = trials.trial.managers.providers.cpu
    if not cpu.options.full_pcpus_only:
        return None
    rounded = range(asked + 1, asked + cpu.layout.per_core)
    return next((count for count in rounded if trials.admits(pod_with(count))), None)


def _less_memory(trials: _Trials, pod_with: Callable[[int], Pod], asked: int) -> int | None:
    """Find the most whole MiB below what is asked for, by halving; None: not even one."""
    low, high = 1, (asked - 1) // _MIB
    if high < low or not trials.admits(pod_with(low * _MIB)):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if trials.admits(pod_with(middle * _MIB)) else (low, middle - 1)
    return low * _MIB


def _larger_budget(trials: _Trials) -> Iterator[Remedy]:
    """Give the pod as a whole more than its containers take alone: something for those that share (EmptyPodSharedPoolError)."""
    pod = trials.pod
    if pod.resources is None:
        return
    short = [name for name, _ in pod.resources.requests if _alone(pod, name) >= _asked(pod.resources, name)]
    cores = range(1, 2 * trials.trial.managers.providers.cpu.layout.per_core + 1) if CPU in short else (0,)
    for more in cores:
        changed, amounts = pod, []
        for name in short:
            before = _asked(pod.resources, name)
            after = _alone(pod, name) + (more if name == CPU else _page(name))
            changed = _with_pod_amount(changed, name, after)
            amounts.append(_amount(name, before, after))
        if amounts and trials.admits(changed):
            yield Remedy(Change.REQUEST, (), tuple(amounts))
            return


def _alone(pod: Pod, resource: str) -> int:
    """What containers that stay ask for themselves."""
    return sum(_asked(c.resources, resource) for c in pod.containers if c.kind is not ContainerKind.INIT)


def _page(resource: str) -> int:
    """The least amount of memory that is worth naming."""
    return _MIB if resource == MEMORY else Quantity.parse(resource.removeprefix(HUGEPAGES_PREFIX)).value()


def _configurations(trials: _Trials) -> Iterator[Remedy]:
    placement = trials.trial.managers.placement
    tried = False
    for field, before, after, changed in _placements(placement):
        if field == "topologyManagerPolicy" and tried:
            continue
        other = trials.trial.under(changed)
        if not isinstance(other, StartRefused) and trials.admits(trial=other):
            tried = tried or field == "topologyManagerPolicy"
            yield Remedy(Change.CONFIGURATION, (field,), (), before, after)
    short = trials.trial.judge(trials.pod)
    if isinstance(short, Insufficient) and short.resource == "pods" and trials.trial.allocatable is not None:
        room = replace(trials.trial.allocatable, pods=short.used + 1)
        if trials.admits(trial=replace(trials.trial, allocatable=room)):
            yield Remedy(Change.CONFIGURATION, ("maxPods",), (), str(short.capacity), str(short.used + 1))


def _placements(placement: Placement) -> Iterator[tuple[str, str, str, Placement]]:
    """Give (field, what it is, what it could be, the configuration then); of the policies the strictest laxer one first."""
    policy = placement.topology_manager_policy
    for laxer in _LAXER_POLICIES[_LAXER_POLICIES.index(policy) + 1 :] if policy in _LAXER_POLICIES else ():
        yield "topologyManagerPolicy", policy, laxer, replace(placement, topology_manager_policy=laxer)
    if policy != "none":
        scope = placement.topology_manager_scope
        other = "pod" if scope == "container" else "container"
        yield "topologyManagerScope", scope, other, replace(placement, topology_manager_scope=other)
    options = placement.cpu_manager_policy_options
    for name, value in options:
        left = tuple(item for item in options if item[0] != name)
        yield f"cpuManagerPolicyOptions.{name}", value, "", replace(placement, cpu_manager_policy_options=left)
    if placement.isolated_cpus == "only":
        yield "isolatedCPUs", "only", "prefer", replace(placement, isolated_cpus="prefer")
    if placement.memory_manager_policy == "Static":
        yield (
            "memoryManagerPolicy",
            "Static",
            "None",
            replace(placement, memory_manager_policy="None", reserved_memory=()),
        )


def _removals(trials: _Trials) -> Iterator[Remedy]:
    """Find the pods of which one is enough, those that hold least; else several, none of which could stay."""
    pods = sorted(trials.trial.pods, key=lambda pod: (_size(trials.trial, pod), pod.full_name))
    best: int | tuple[int, int] | None = None
    for pod in pods:
        size = _size(trials.trial, pod)
        if best is not None and size != best:
            return
        if trials.admits(trial=trials.trial.without(frozenset({pod.uid}))):
            best = size
            yield Remedy(Change.REMOVAL, (pod.full_name,))
    if best is not None:
        return
    gone: list[Pod] = []
    for pod in reversed(pods):
        gone.append(pod)
        if trials.admits(trial=_without(trials.trial, gone)):
            break
    else:
        return
    for pod in reversed(gone[:-1]):
        others = [other for other in gone if other is not pod]
        if trials.admits(trial=_without(trials.trial, others)):
            gone = others
    yield Remedy(Change.REMOVAL, tuple(sorted(pod.full_name for pod in gone)))


def _without(trial: Trial, pods: list[Pod]) -> Trial:
    return trial.without(frozenset(pod.uid for pod in pods))


def _size(trial: Trial, pod: Pod) -> tuple[int, int]:
    """How many CPUs it has alone, and how many bytes."""
    held = trial.promises.of_pod(pod.uid)
    cpus = 0
    for _, own in held.cpus:
        cpus |= own.bits
    blocks = held.pod_memory or tuple(block for _, each in held.memory for block in each)
    return cpus.bit_count(), sum(block.size_bytes for block in blocks)
