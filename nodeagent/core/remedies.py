"""The smallest changes that would admit a refused pod: fewer CPUs, less memory, another rule, another pod gone.

Each is tried on the core itself: what is offered here has been admitted. Knows nothing of how it is worded.
"""

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, combinations, groupby
from math import comb

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.config import Placement
from nodeagent.core.demand import demand_of
from nodeagent.core.managers import Admitted, Rejected
from nodeagent.core.node_capacity import Insufficient, usage_of
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

_MIB = 2**20
_MILLI = 1000
_NEAREST = 16
"""So many amounts of CPUs are tried one by one, before it goes on by halving."""
_MOST_SETS = 300
"""Of so many sets of pods each is tried, the smallest first; of more, one is improved pod by pod."""
_LAXER_POLICIES = ("single-numa-node", "restricted", "best-effort", "none")


class Change(enum.StrEnum):
    REQUEST = "request"
    """Another amount in the manifest."""
    CONFIGURATION = "configuration"
    REMOVAL = "removal"
    """Other pods end first."""


BUDGETS = {Change.REQUEST: 400, Change.CONFIGURATION: 60, Change.REMOVAL: 440}
"""Decisions tried for one refusal: no kind of change is left out because another one takes long."""
MAX_TRIALS = sum(BUDGETS.values())


class Amount(Struct, frozen=True):
    """Another amount, spelled as in a manifest."""

    container: str | None
    """None: the pod's own."""
    resource: str
    before: str
    after: str


class Remedy(Struct, frozen=True):
    """One change after which the pod is admitted."""

    change: Change
    subject: tuple[str, ...]
    """REQUEST: the containers' names, none for the pod's own amounts; CONFIGURATION: the field; REMOVAL: the pods' names."""
    amounts: tuple[Amount, ...] = ()
    """REQUEST: of each of the containers at least one."""
    before: str = ""
    after: str = ""
    """CONFIGURATION: what the field is, and could be; empty: without the option."""


class Remedies(Struct, frozen=True):
    """What was found, and whether that is all there is to find."""

    found: tuple[Remedy, ...] = ()
    all_tried: bool = True
    """False: a budget ran out, so there may be other changes, or smaller ones."""


def remedies(trial: Trial, pod: Pod, tried: Callable[[], None] = lambda: None) -> Remedies:
    """Look for changes, those of the manifest first; several of one kind only if they are equally small.

    Args:
        trial: the node that refuses the pod.
        pod: with defaults applied.
        tried: called after each decision.
    """
    kinds = {Change.REQUEST: _manifests, Change.CONFIGURATION: _configurations, Change.REMOVAL: _removals}
    found: list[Remedy] = []
    all_tried = True
    refusal = trial.judge(pod)
    assert not isinstance(refusal, Admitted), "an admitted pod needs no change"
    for change, search in kinds.items():
        trials = _Trials(trial, pod, refusal, tried, BUDGETS[change])
        found += search(trials)
        all_tried = all_tried and not trials.ran_out
    return Remedies(tuple(found), all_tried)


class _Trials:
    """Trials of one pod, counted. Lives for the search for one kind of change."""

    def __init__(
        self, trial: Trial, pod: Pod, refusal: Rejected | Insufficient, tried: Callable[[], None], budget: int
    ) -> None:
        self.trial = trial
        self.pod = pod
        self.refusal = refusal
        self.tried = tried
        self.left = budget
        self.ran_out = False

    def admits(self, pod: Pod | None = None, trial: Trial | None = None) -> bool:
        """Whether the core admits it; no, when too much was tried already."""
        if pod is not None and not _is_within_budget(pod):
            return False
        if self.left <= 0:
            self.ran_out = True
            return False
        self.left -= 1
        decision = (trial or self.trial).judge(pod or self.pod)
        self.tried()
        return isinstance(decision, Admitted)


def _manifests(trials: _Trials) -> Sequence[Remedy]:
    """Change the manifest: one amount, the same amount of several containers, or several amounts of one container."""
    resources = _memory_resources(trials.pod)
    cpus = (*_requests(trials, CPU, _fewer_cpus), *_requests(trials, CPU, _whole_cores))
    memory = [
        tuple(_requests(trials, resource, _less_of(resource))) or tuple(_bounded(trials, resource, _less_of(resource)))
        for resource in resources
    ]
    requests = (
        *(cpus or tuple(_whole_cores_each(trials)) or _bounded(trials, CPU, _fewer_cpus)),
        *_larger_budget(trials),
        *chain.from_iterable(memory),
    )
    return requests or tuple(_together(trials, resources))


def _is_within_budget(pod: Pod) -> bool:
    """Whether the containers' requests are within the pod's own, as a manifest's must be."""
    return pod.resources is None or all(
        _budget_floor(pod, name) <= _asked(pod.resources, name) for name, _ in pod.resources.requests
    )


def _budget_floor(pod: Pod, resource: str) -> int:
    """What the pod's own amount must be at least."""
    return max((_alone(pod, resource), *(_asked(c.resources, resource) for c in pod.containers)))


class _Sought(Struct, frozen=True):
    """An amount that is looked for; cpu in thousandths, else in bytes."""

    pod_with: Callable[[int], Pod]
    """The pod with so much of it."""
    asked: int
    """What it asks for now."""
    floor: int = 0
    """What it must have at least, whatever is free."""


_Search = Callable[[_Trials, _Sought], int | None]
"""Find what it could ask for."""


def _memory_resources(pod: Pod) -> list[str]:
    parts = [c.resources for c in pod.containers] + ([] if pod.resources is None else [pod.resources])
    names = {name for part in parts for name, _ in part.requests}
    return sorted(name for name in names if name == MEMORY or name.startswith(HUGEPAGES_PREFIX))


def _requests(trials: _Trials, resource: str, search: _Search) -> Iterator[Remedy]:
    """Change one container, or the pod's own amount."""
    pod = trials.pod
    if pod.resources is not None:
        amount = _asked(pod.resources, resource)
        if amount:
            own = _Sought(lambda value: _with_pod_amount(pod, resource, value), amount, _budget_floor(pod, resource))
            fit = search(trials, own)
            if fit is not None:
                yield Remedy(Change.REQUEST, (), (_amount(None, pod.resources, resource, fit),))
    for container, amount in _asking(pod, resource):
        fit = search(trials, _Sought(_changer(pod, (container,), resource), amount))
        if fit is not None:
            yield _request({container: fit}, resource)


def _bounded(trials: _Trials, resource: str, search: _Search) -> Iterator[Remedy]:
    """Change all containers that have more than a bound."""
    asking = _asking(trials.pod, resource)
    if len(asking) < 2:
        return
    most = max(amount for _, amount in asking)
    fit = search(trials, _Sought(_changer(trials.pod, tuple(c for c, _ in asking), resource), most))
    if fit is not None:
        yield _request({c: fit for c, amount in asking if amount > fit}, resource)


def _whole_cores_each(trials: _Trials) -> Iterator[Remedy]:
    """Give several containers whole cores each, where only those are given: the next below, and the next above."""
    managers, pod = trials.trial.managers, trials.pod
    cpu = managers.providers.cpu
    if not cpu.options.full_pcpus_only:
        return
    core = cpu.layout.per_core
    odd = {
        c: demand.cpus
        for c, demand in zip(pod.containers, demand_of(managers.rules, pod).containers, strict=True)
        if demand.cpus % core
    }
    if len(odd) < 2:
        return
    below = {c: max(core, cpus // core * core) * _MILLI for c, cpus in odd.items()}
    above = {c: _up(cpus, core) * _MILLI for c, cpus in odd.items()}
    for whole in (below, above) if below != above else (above,):
        changed = pod
        for container, amount in whole.items():
            changed = _changed(changed, container, {CPU: amount})
        if trials.admits(changed):
            yield _request(whole, CPU)


def _asking(pod: Pod, resource: str) -> list[tuple[Container, int]]:
    return [(c, amount) for c in pod.containers if (amount := _asked(c.resources, resource))]


def _request(after: dict[Container, int], resource: str) -> Remedy:
    amounts = tuple(_amount(c.name, c.resources, resource, amount) for c, amount in after.items())
    return Remedy(Change.REQUEST, tuple(c.name for c in after), amounts)


def _amount(container: str | None, now: ResourceRequirements, resource: str, after: int) -> Amount:
    return Amount(container, resource, str(now.requests.get(resource)), str(_quantity(resource, after)))


def _quantity(resource: str, amount: int) -> Quantity:
    return Quantity(amount * 10**6) if resource == CPU else Quantity.of_bytes(amount)


def _together(trials: _Trials, resources: list[str]) -> Iterator[Remedy]:
    """Change all amounts of one container: as many CPUs as may be, and then as much of the rest."""
    for container in trials.pod.containers:
        now = container.resources
        asked = {name: amount for name in (CPU, *resources) if (amount := _asked(now, name))}
        if len(asked) < 2:
            continue
        found = {name: _least(name) for name in asked.keys() - {CPU}}
        if CPU in asked:
            with_cpus = partial(_with_rest, trials.pod, container, found, CPU)
            cpus = _cpus_beside(trials, _Sought(with_cpus, asked[CPU]))
            if cpus is None:
                continue
            found[CPU] = cpus
        elif not trials.admits(_changed(trials.pod, container, found)):
            continue
        for name in asked.keys() - {CPU}:
            if trials.admits(_changed(trials.pod, container, found | {name: asked[name]})):
                found[name] = asked[name]
                continue
            with_rest = partial(_with_rest, trials.pod, container, found, name)
            found[name] = _less_of(name)(trials, _Sought(with_rest, asked[name])) or _least(name)
        amounts = tuple(_amount(container.name, now, name, found[name]) for name in asked if found[name] != asked[name])
        yield Remedy(Change.REQUEST, (container.name,), amounts)


def _cpus_beside(trials: _Trials, sought: _Sought) -> int | None:
    """Find how many CPUs may be had: all, else fewer, else the next whole cores."""
    if trials.admits(sought.pod_with(sought.asked)):
        return sought.asked
    fewer = _fewer_cpus(trials, sought)
    return _whole_cores(trials, sought) if fewer is None else fewer


def _with_rest(pod: Pod, container: Container, rest: dict[str, int], resource: str, value: int) -> Pod:
    return _changed(pod, container, rest | {resource: value})


def _changed(pod: Pod, container: Container, amounts: dict[str, int]) -> Pod:
    resources = container.resources
    for name, amount in amounts.items():
        resources = _with_amount(resources, name, amount)
    other = replace(container, resources=resources)
    return replace(pod, containers=tuple(other if c is container else c for c in pod.containers))


def _asked(resources: ResourceRequirements, resource: str) -> int:
    """How much of it: cpu in thousandths, all else in bytes."""
    amount = resources.requests.get(resource)
    if amount is None:
        return 0
    return amount.milli() if resource == CPU else amount.value()


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
    """Give the list with another request; a limit that was equal stays so. Nothing of a resource: it isn't named."""
    was = resources.requests.get(resource)

    def put(part: Resources) -> Resources:
        amounts = {name: _quantity(resource, value) if (name, old) == (resource, was) else old for name, old in part}
        return Resources.of({name: amount for name, amount in amounts.items() if amount.nano})

    return ResourceRequirements(put(resources.requests), put(resources.limits))


def _fewer_cpus(trials: _Trials, sought: _Sought) -> int | None:
    """Find the most CPUs below what is asked for: of those that are shared the most thousandths, else the most whole ones.

    Of those the nearest one by one: fewer CPUs may come to lie on another NUMA node, and then be in the way of another container. The
    rest by halving, but only among amounts that need equally many NUMA nodes: `restricted` admits 9 CPUs on two nodes that have 5 free
    each, and refuses 6.
    """

    def fits(amount: int) -> bool:
        return trials.admits(sought.pod_with(amount))

    if not _takes_alone(trials, sought):
        return _first(range(sought.asked - 1, max(sought.floor, 1) - 1, -1), fits)
    cpu = trials.trial.managers.providers.cpu
    step = _MILLI * (cpu.layout.per_core if cpu.options.full_pcpus_only else 1)
    counts = range((sought.asked - 1) // step * step, max(sought.floor, 1) - 1, -step)
    nearest = next((count for count in counts[:_NEAREST] if fits(count)), None)
    if nearest is not None:
        return nearest
    for _, alike in groupby(counts[_NEAREST:], key=lambda count: _fewest_nodes(trials, sought.pod_with(count))):
        found = _first(list(alike), fits)
        if found is not None:
            return found
    return None


def _takes_alone(trials: _Trials, sought: _Sought) -> bool:
    """Whether the amount decides on how many CPUs are given to it alone."""
    managers = trials.trial.managers
    little, all_of_it = (demand_of(managers.rules, sought.pod_with(amount)) for amount in (1, sought.asked))
    return managers.providers.cpu.static and not all_of_it.is_skipped and little != all_of_it


def _fewest_nodes(trials: _Trials, pod: Pod) -> tuple[int, ...]:
    """How many NUMA nodes the CPUs of each container need, and of the pod as a whole."""
    managers = trials.trial.managers
    demand = demand_of(managers.rules, pod)
    fewest = managers.providers.cpu.layout.fewest_nodes
    return tuple(fewest(cpus) if cpus else 0 for cpus in (demand.cpus, *(c.cpus for c in demand.containers)))


def _first(amounts: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Find the first that fits, where those after it do too."""
    if not amounts or not fits(amounts[-1]):
        return None
    low, high = 0, len(amounts) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(amounts[middle]) else (middle + 1, high)
    return amounts[high]


def _whole_cores(trials: _Trials, sought: _Sought) -> int | None:
    """Find the next whole cores, where only those are given."""
    cpu = trials.trial.managers.providers.cpu
    if not cpu.options.full_pcpus_only or not _takes_alone(trials, sought):
        return None
    rounded = _up(sought.asked, _MILLI * cpu.layout.per_core)
    return rounded if rounded > sought.asked and trials.admits(sought.pod_with(rounded)) else None


def _up(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit


def _less_of(resource: str) -> _Search:
    """Find the most whole MiB, or pages, below what is asked for, by halving; pages can be none at all."""
    unit = _page(resource)

    def less(trials: _Trials, sought: _Sought) -> int | None:
        amounts = range((sought.asked - 1) // unit * unit, max(sought.floor, _least(resource)) - 1, -unit)
        return _first(amounts, lambda amount: trials.admits(sought.pod_with(amount)))

    return less


def _least(resource: str) -> int:
    """Memory: what is worth naming; huge pages: none."""
    return _MIB if resource == MEMORY else 0


def _larger_budget(trials: _Trials) -> Iterator[Remedy]:
    """Give the pod as a whole more than its containers take alone: something for those that share (EmptyPodSharedPoolError)."""
    pod = trials.pod
    if pod.resources is None:
        return
    own = {name: _asked(pod.resources, name) for name, _ in pod.resources.requests}
    least = {name: _up(max(asked, _alone(pod, name) + _page(name)), _page(name)) for name, asked in own.items()}
    for more in range(2 * trials.trial.managers.providers.cpu.layout.per_core):
        wanted = {name: amount + (more * _MILLI if name == CPU else 0) for name, amount in least.items()}
        changed = pod
        for name, amount in wanted.items():
            changed = _with_pod_amount(changed, name, amount)
        if wanted != own and trials.admits(changed):
            amounts = tuple(
                _amount(None, pod.resources, name, wanted[name]) for name in own if wanted[name] != own[name]
            )
            yield Remedy(Change.REQUEST, (), amounts)
            return


def _alone(pod: Pod, resource: str) -> int:
    """What containers that stay ask for themselves."""
    return sum(_asked(c.resources, resource) for c in pod.containers if c.kind is not ContainerKind.INIT)


def _page(resource: str) -> int:
    """The least amount that is worth naming."""
    if resource == CPU:
        return _MILLI
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
    short = trials.refusal
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
    pods = sorted(trials.trial.pods, key=lambda pod: (_size(trials, pod), pod.full_name))
    best: tuple[int, ...] | None = None
    for pod in pods:
        size = _size(trials, pod)
        if best is not None and size != best:
            return
        if trials.admits(trial=trials.trial.without(frozenset({pod.uid}))):
            best = size
            yield Remedy(Change.REMOVAL, (pod.full_name,))
    several = _several(trials, pods) if best is None else None
    if several is not None:
        yield Remedy(Change.REMOVAL, tuple(sorted(pod.full_name for pod in several)))


def _several(trials: _Trials, pods: Sequence[Pod]) -> Sequence[Pod] | None:
    """Find the fewest pods, and of equally many those that hold least together.

    Args:
        trials: of the refused pod.
        pods: those that hold least first; none of them is enough alone.
    """
    enough = _enough(trials, pods)
    if enough is None:
        return None
    sizes = {pod.uid: _size(trials, pod) for pod in pods}
    left = _MOST_SETS
    for count in range(2, len(enough) + 1):
        left -= comb(len(pods), count)
        if left < 0:
            return _exchanged(trials, pods, enough)
        for gone in sorted(combinations(pods, count), key=lambda each: _total([sizes[pod.uid] for pod in each])):
            if trials.admits(trial=_without(trials.trial, gone)):
                return gone
    return enough


def _enough(trials: _Trials, pods: Sequence[Pod]) -> list[Pod] | None:
    """Take the largest ones until it is enough, and leave out those that aren't needed; the largest first."""
    gone: list[Pod] = []
    for pod in reversed(pods):
        gone.append(pod)
        if trials.admits(trial=_without(trials.trial, gone)):
            break
    else:
        return None
    for pod in reversed(gone[:-1]):
        others = [other for other in gone if other is not pod]
        if trials.admits(trial=_without(trials.trial, others)):
            gone = others
    return gone


def _exchanged(trials: _Trials, pods: Sequence[Pod], enough: list[Pod]) -> list[Pod]:
    """Put the smallest pod that is enough in the place of each, the largest first."""
    gone = enough
    for pod in enough:
        for smaller in pods[: pods.index(pod)]:
            others = [smaller if other is pod else other for other in gone]
            if smaller not in gone and trials.admits(trial=_without(trials.trial, others)):
                gone = others
                break
    return gone


def _total(sizes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*sizes, strict=True)))


def _without(trial: Trial, pods: Iterable[Pod]) -> Trial:
    return trial.without(frozenset(pod.uid for pod in pods))


def _size(trials: _Trials, pod: Pod) -> tuple[int, ...]:
    """How much it requests of what the node as a whole is short of, how many CPUs it has alone, and how many bytes."""
    trial, short = trials.trial, trials.refusal
    requested = 0
    if isinstance(short, Insufficient):
        usage = usage_of((pod,), pod_level_resources=trial.managers.placement.gate("PodLevelResources"))
        requested = dict(usage.amounts).get(short.resource, 0)
    held = trial.promises.of_pod(pod.uid)
    cpus = 0
    for _, own in held.cpus:
        cpus |= own.bits
    blocks = held.pod_memory or tuple(block for _, each in held.memory for block in each)
    return requested, cpus.bit_count(), sum(block.size_bytes for block in blocks)
