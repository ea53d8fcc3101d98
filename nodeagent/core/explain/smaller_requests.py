"""Search for the smallest changes of requested amounts in a manifest that would admit a refused pod: fewer CPUs, whole cores, less memory,
fewer devices, or higher pod-level amounts.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from msgspec import Struct

from nodeagent.core.explain.amounts_that_fit import first_by_halving
from nodeagent.core.explain.remedy import Amount, Attempts, Remedy, RequestChange
from nodeagent.core.model.demand import ContainerDemand, PodDemand, demand_of
from nodeagent.core.model.pod import CPU, Pod, ResourceRequirements
from nodeagent.core.model.pod_amounts import (
    Carry,
    find_least_pod_amount,
    find_shared_part,
    find_smallest_step,
    get_least_amount,
    get_requested,
    keep_pod_amounts,
    list_adaptations,
    list_device_resources,
    list_differences,
    list_memory_resources,
    list_requesting,
    make_request_limiter,
    sum_requests,
    with_amounts,
    with_whole_bytes,
)
from nodeagent.core.resources.explainer import (
    MAX_AMOUNT,
    NEAREST,
    Explainer,
    SmallerAmounts,
    SoughtAmount,
    list_explainers,
)


class _Search(Struct, frozen=True):
    """Search for another amount of one resource with which the pod is admitted."""

    attempts: Attempts
    sought: SoughtAmount
    pod_with: Callable[[int], Pod]
    """Function that returns the pod with another amount of the resource."""

    @classmethod
    def of(
        cls,
        attempts: Attempts,
        resource: str,
        pod_with: Callable[[int], Pod],
        asked: int,
        floor: int = 0,
        shared: int = 0,
    ) -> "_Search":
        little, all_of_it = (demand_of(attempts.what_if.managers.rules, pod_with(amount)) for amount in (1, asked))
        return cls(attempts, SoughtAmount(resource, asked, floor, shared, little, all_of_it), pod_with)

    def fits(self, amount: int) -> bool:
        return self.attempts.admits(self.pod_with(amount))

    def find_smaller(self) -> int | None:
        """Find the largest amount below the request with which the pod is admitted. None means that there is none."""
        found = next(filter(None, (each.list_smaller(self.sought) for each in _explainers(self.attempts))), None)
        smaller = found or SmallerAmounts(range(self.sought.bounded - 1, -1, -1), NEAREST)
        nearest = next((amount for amount in smaller.amounts[: smaller.one_by_one] if self.fits(amount)), None)
        if nearest is not None:
            return nearest
        rest = smaller.amounts[smaller.one_by_one :]
        return self._find_first_alike(rest) if smaller.is_by_nodes else first_by_halving(rest, self.fits)

    def _find_first_alike(self, amounts: range) -> int | None:
        """Find the largest of these descending amounts with which the pod is admitted. Amounts that need the same number of NUMA nodes are
        searched together, by binary search: if one of them admits the pod, all smaller ones are assumed to admit it, too.
        """
        for alike in _split_alike(amounts, lambda amount: _count_fewest_nodes(self.attempts, self.pod_with(amount))):
            found = first_by_halving(alike, self.fits)
            if found is not None:
                return found
        return None

    def find_larger(self) -> int | None:
        """Find the smallest amount above the request with which the pod is admitted. None means that there is none."""
        amounts = chain.from_iterable(each.list_larger(self.sought) for each in _explainers(self.attempts))
        return next(filter(self.fits, amounts), None)


def _explainers(attempts: Attempts) -> tuple[Explainer, ...]:
    return list_explainers(attempts.what_if.managers.providers.resources)


def smaller_requests(attempts: Attempts) -> Sequence[Remedy]:
    """Search for changes of requested amounts with which the pod is admitted: of one amount, of one resource in several containers, or of
    several amounts in one container.

    If no such change admits the pod, pod-level amounts are changed together with the containers' amounts. If the manifest requests a
    fraction of a byte of memory, which policy Static refuses, all changes include rounded amounts.
    """
    if attempts.what_if.managers.placement.memory_manager_policy == "Static":
        for carry in list_adaptations(attempts.pod):
            whole = carry(with_whole_bytes(attempts.pod))
            if whole != attempts.pod and attempts.admits(whole):
                return (_make_remedy(attempts, whole),)
        attempts.pod = with_whole_bytes(attempts.pod)
    resources = [*list_memory_resources(attempts.pod), *list_device_resources(attempts.pod)]
    cpus, *others = [_change_one_or_several(attempts, name) for name in (CPU, *resources)]
    requests = (*cpus, *_raise_pod_level(attempts), *chain.from_iterable(others))
    if requests:
        return requests
    return next(
        filter(None, (tuple(_change_together(attempts, resources, carry)) for carry in list_adaptations(attempts.pod))),
        (),
    )


def _change_one_or_several(attempts: Attempts, resource: str) -> Sequence[Remedy]:
    """Try another amount of a resource in one container. If no such change admits the pod, try the change in several containers."""
    for carry in list_adaptations(attempts.pod):
        found = (
            [
                remedy
                for find in (_Search.find_smaller, _Search.find_larger)
                for remedy in _change_one(attempts, resource, find, carry)
            ]
            or list(_round_amounts(attempts, resource, carry))
            or list(_lower_several(attempts, attempts.pod, resource, carry))
        )
        if found:
            return found
    return ()


_Direction = Callable[[_Search], int | None]


def _change_one(attempts: Attempts, resource: str, find: _Direction, carry: Carry) -> Iterator[Remedy]:
    """Try another amount of a resource in one container, or another pod-level amount."""
    pod = attempts.pod
    if pod.resources is not None and carry is keep_pod_amounts:
        amount = get_requested(pod.resources, resource)
        if amount:
            search = _Search.of(
                attempts,
                resource,
                lambda value: with_amounts(pod, None, {resource: value}),
                amount,
                find_least_pod_amount(pod, resource),
            )
            fit = find(search)
            if fit is not None:
                yield _make_remedy(attempts, search.pod_with(fit))
    yield from _change_container(attempts, pod, resource, find, carry)


def _change_container(attempts: Attempts, pod: Pod, resource: str, find: _Direction, carry: Carry) -> Iterator[Remedy]:
    """Try another amount of a resource in one container of a pod, whose other amounts may already be changed."""
    for container, amount in list_requesting(pod, resource):
        shared = find_shared_part(container) if resource == CPU else 0
        changed = make_request_limiter(pod, (container,), resource, carry)
        fit = find(_Search.of(attempts, resource, changed, amount, shared=shared))
        if fit is not None:
            yield _make_remedy(attempts, changed(fit))


def _lower_several(attempts: Attempts, pod: Pod, resource: str, carry: Carry) -> Iterator[Remedy]:
    """Try to lower the requests of several containers to a common maximum. Containers whose requests needn't be lowered are left
    unchanged.
    """
    asking = list_requesting(pod, resource)
    if len(asking) < 2:
        return
    largest = max(amount for _, amount in asking)
    changed = make_request_limiter(pod, tuple(c for c, _ in asking), resource, carry)
    fit = _Search.of(attempts, resource, changed, largest).find_smaller()
    if fit is None:
        return
    chosen = tuple(c for c, amount in asking if amount > fit)
    for container in chosen:
        fewer = tuple(c for c in chosen if c is not container)
        if fewer and attempts.admits(make_request_limiter(pod, fewer, resource, carry)(fit)):
            chosen = fewer
    yield _make_remedy(attempts, make_request_limiter(pod, chosen, resource, carry)(fit))


def _round_amounts(attempts: Attempts, resource: str, carry: Carry) -> Sequence[Remedy]:
    """Try to round each container's amount to one that can be allocated, such as whole cores. If the pod isn't admitted then, also lower
    the amount in one or several containers.
    """
    pods = _list_rounded_pods(attempts, resource)
    enough = [_make_remedy(attempts, carry(pod)) for pod in pods if attempts.admits(carry(pod))]
    if enough:
        return enough
    for pod in pods:
        enough = list(_change_container(attempts, pod, resource, _Search.find_smaller, carry)) or list(
            _lower_several(attempts, pod, resource, carry)
        )
        if enough:
            break
    return enough


def _list_rounded_pods(attempts: Attempts, resource: str) -> Sequence[Pod]:
    """Return variants of the pod in which amounts that can't be allocated are rounded down, or rounded up. The list is empty if all amounts
    can be allocated.
    """
    below = above = pod = attempts.pod
    demands = demand_of(attempts.what_if.managers.rules, pod).containers
    for explainer in _explainers(attempts):
        for container, demand in zip(pod.containers, demands, strict=True):
            rounded = explainer.round_amount(resource, container, demand)
            if rounded is not None:
                below = with_amounts(below, container.name, {resource: rounded[0]})
                above = with_amounts(above, container.name, {resource: rounded[1]})
    return tuple(whole for whole in ((below,) if above == below else (below, above)) if whole != pod)


def _make_remedy(attempts: Attempts, after: Pod) -> Remedy:
    found = tuple(list_differences(attempts.given, after))
    amounts = tuple(Amount(name, resource, str(was), str(now)) for name, resource, was, now in found)
    return Remedy(RequestChange.REQUEST, tuple(dict.fromkeys(name for name, *_ in found if name is not None)), amounts)


class _AmountGroup(Struct, frozen=True):
    """Amounts of several resources that are changed in one remedy: the amounts of one container, the pod-level amounts, or the largest
    amounts that any container may have.
    """

    asked: dict[str, int]
    least: dict[str, int]
    pod_with: Callable[[dict[str, int]], Pod]

    def search(self, attempts: Attempts, others: dict[str, int], name: str) -> _Search:
        """Create the search for a smaller amount of the resource `name`, with the amounts `others` for all other resources."""
        rest = dict(others)
        return _Search.of(
            attempts, name, lambda value: self.pod_with(rest | {name: value}), self.asked[name], self.least[name]
        )


def _list_amount_groups(pod: Pod, resources: list[str], carry: Carry) -> Iterator[_AmountGroup]:
    def part(container: str | None, now: ResourceRequirements) -> _AmountGroup:
        asked = {name: amount for name in (CPU, *resources) if (amount := get_requested(now, name))}
        least = {
            name: max(get_least_amount(name), 0 if container else find_least_pod_amount(pod, name)) for name in asked
        }
        return _AmountGroup(asked, least, lambda amounts: carry(with_amounts(pod, container, amounts)))

    if pod.resources is not None and carry is keep_pod_amounts:
        yield part(None, pod.resources)
    yield from (part(container.name, container.resources) for container in pod.containers)


def _group_all_containers(pod: Pod, resources: list[str], carry: Carry) -> _AmountGroup:
    def bounded(amounts: dict[str, int]) -> Pod:
        changed = pod
        for container in pod.containers:
            larger = {
                name: largest for name, largest in amounts.items() if get_requested(container.resources, name) > largest
            }
            changed = with_amounts(changed, container.name, larger)
        return carry(changed)

    largest = {
        name: max(amount for _, amount in asking)
        for name in (CPU, *resources)
        if (asking := list_requesting(pod, name))
    }
    return _AmountGroup(largest, {name: get_least_amount(name) for name in largest}, bounded)


def _change_together(attempts: Attempts, resources: list[str], carry: Carry) -> Iterator[Remedy]:
    """Try to change several amounts in one container, or several pod-level amounts. If no such change admits the pod, try to change amounts
    in all containers.
    """
    found = [
        each
        for part in _list_amount_groups(attempts.pod, resources, carry)
        if (each := _find_several_amounts(attempts, part))
    ]
    if not found and attempts.pod.resources is None and len(attempts.pod.containers) > 1:
        found = (
            [each]
            if (each := _find_several_amounts(attempts, _group_all_containers(attempts.pod, resources, carry)))
            else []
        )
    yield from found


def _find_several_amounts(attempts: Attempts, part: _AmountGroup) -> Remedy | None:
    """Find a change of several amounts with which the pod is admitted, with as many CPUs as possible, and then with as much of each other
    resource as possible. None means that there is none.
    """
    rest = [name for name in part.asked if name != CPU]
    if len(part.asked) < 2:
        return None
    for found in _list_least_memory(attempts, part, rest):
        if CPU in part.asked:
            search = part.search(attempts, found, CPU)
            cpus = part.asked[CPU] if search.fits(part.asked[CPU]) else search.find_smaller()
            cpus = search.find_larger() if cpus is None else cpus
            if cpus is None:
                continue
            found[CPU] = cpus
        elif not attempts.admits(part.pod_with(found)):
            continue
        for name in rest:
            if attempts.admits(part.pod_with(found | {name: part.asked[name]})):
                found[name] = part.asked[name]
            else:
                found[name] = part.search(attempts, found, name).find_smaller() or found[name]
        return _make_remedy(attempts, part.pod_with(found))
    return None


def _list_least_memory(attempts: Attempts, part: _AmountGroup, rest: list[str]) -> Iterator[dict[str, int]]:
    """Yield small amounts of memory to combine with other numbers of CPUs. For each number of NUMA nodes, yield the smallest amount that
    needs this number of nodes, because policy `restricted` may refuse memory on fewer nodes than the CPUs need.
    """
    least = {name: part.least[name] for name in rest}
    for name in rest:
        unit = find_smallest_step(name)
        amounts = range(min(part.asked[name], MAX_AMOUNT) // unit * unit, part.least[name] - 1, -unit)

        def nodes(amount: int, name: str = name) -> tuple[int, ...]:
            return _count_fewest_nodes(attempts, part.pod_with(least | {name: amount}))

        for alike in _split_alike(amounts, nodes):
            if alike[-1] > least[name]:
                yield least | {name: alike[-1]}
    yield least


def _count_fewest_nodes(attempts: Attempts, pod: Pod) -> tuple[int, ...]:
    """Return the smallest number of NUMA nodes that each resource of the pod and of each container needs on an empty machine."""
    demand = demand_of(attempts.what_if.managers.rules, pod)
    parts: list[PodDemand | ContainerDemand] = [demand, *demand.containers]
    return tuple(
        explainer.count_fewest_nodes(attempts.what_if.promises, part)
        for explainer in _explainers(attempts)
        for part in parts
    )


def _split_alike(amounts: range, nodes: Callable[[int], tuple[int, ...]]) -> Iterator[range]:
    """Split descending amounts into ranges. All amounts in a range need the same numbers of NUMA nodes."""
    while amounts:
        needed = nodes(amounts[0])
        low, high = 0, len(amounts) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if nodes(amounts[middle]) == needed else (low, middle - 1)
        yield amounts[: low + 1]
        amounts = amounts[low + 1 :]


def _raise_pod_level(attempts: Attempts) -> Iterator[Remedy]:
    """Try to raise the pod-level amounts above the sum of the containers' requests, so that containers without exclusive CPUs or memory get
    a part (reason EmptyPodSharedPoolError).
    """
    pod = attempts.pod
    if pod.resources is None:
        return
    own = {name: get_requested(pod.resources, name) for name, _ in pod.resources.requests}
    least = {}
    for name, asked in own.items():
        unit = find_smallest_step(name)
        least[name] = -(-max(asked, sum_requests(pod, name) + unit) // unit) * unit
    for extra in chain.from_iterable(each.list_additions() for each in _explainers(attempts)):
        wanted = {name: amount + extra.get(name, 0) for name, amount in least.items()}
        changed = with_amounts(pod, None, wanted)
        if wanted != own and attempts.admits(changed):
            yield _make_remedy(attempts, changed)
            return
