"""The smallest changes of a manifest that would admit a refused pod: fewer CPUs, whole cores, less memory, fewer devices, higher
pod-level amounts.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain

from msgspec import Struct

from nodeagent.core.explain.amounts_that_fit import NEAREST, first_by_halving, first_nearby
from nodeagent.core.explain.remedy import Amount, Attempts, Remedy, RequestChange
from nodeagent.core.model.demand import demand_of
from nodeagent.core.model.pod import CPU, MEMORY, Pod, ResourceRequirements
from nodeagent.core.model.pod_amounts import (
    MIB,
    MILLI,
    Carry,
    find_least_pod_amount,
    find_shared_part,
    find_smallest_step,
    get_requested,
    keep_pod_amounts,
    list_adaptations,
    list_device_resources,
    list_differences,
    list_memory_resources,
    list_requesting,
    make_change,
    sum_requests,
    with_amounts,
)
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.memory.groups import fewest_nodes
from nodeagent.core.resources.memory.holdings import memory_accounts

_MAX_AMOUNT = 2**62
"""Limit on amounts in the search. No machine has more of any resource."""


class _SoughtAmount(Struct, frozen=True):
    """An amount to search: CPUs in thousandths, other resources in bytes or pieces."""

    pod_with: Callable[[int], Pod]
    """Returns the pod with this amount."""
    asked: int
    """Amount in the current request."""
    floor: int = 0
    """Smallest allowed amount."""
    shared: int = 0
    """Part of the amount that requests no exclusive CPUs."""


_Search = Callable[[Attempts, _SoughtAmount], int | None]
"""Searches for an amount with which the pod is admitted."""


def smaller_requests(attempts: Attempts) -> Sequence[Remedy]:
    """Change the manifest: one amount, the same resource in several containers, or several amounts of one container.

    If none of these changes is sufficient alone, pod-level amounts change together with the containers' amounts.
    """
    resources = list_memory_resources(attempts.pod)
    cpus = _change_one_or_several(attempts, CPU, _find_fewer_cpus, _find_whole_cores)
    memory = [_change_one_or_several(attempts, resource, _search_below(resource)) for resource in resources]
    devices = [
        _change_one_or_several(attempts, resource, _find_fewer_devices)
        for resource in list_device_resources(attempts.pod)
    ]
    requests = (*cpus, *_raise_pod_level(attempts), *chain.from_iterable(memory), *chain.from_iterable(devices))
    if requests:
        return requests
    return next(
        filter(None, (tuple(_change_together(attempts, resources, carry)) for carry in list_adaptations(attempts.pod))),
        (),
    )


def _change_one_or_several(attempts: Attempts, resource: str, *searches: _Search) -> Sequence[Remedy]:
    """Change the amount in one container. If that isn't sufficient, change it in several containers."""
    for carry in list_adaptations(attempts.pod):
        found = [remedy for search in searches for remedy in _change_one(attempts, resource, search, carry)]
        if not found and resource == CPU:
            found = list(_use_whole_cores(attempts, carry))
        found = found or list(_lower_several(attempts, attempts.pod, resource, searches[0], carry))
        if found:
            return found
    return ()


def _change_one(attempts: Attempts, resource: str, search: _Search, carry: Carry) -> Iterator[Remedy]:
    """Change the amount of one container, or the pod-level amount."""
    pod = attempts.pod
    if pod.resources is not None and carry is keep_pod_amounts:
        amount = get_requested(pod.resources, resource)
        if amount:
            yield from _find_remedy(
                attempts,
                search,
                _SoughtAmount(_make_pod_level_change(pod, resource), amount, find_least_pod_amount(pod, resource)),
            )
    yield from _change_container(attempts, pod, resource, search, carry)


def _change_container(attempts: Attempts, pod: Pod, resource: str, search: _Search, carry: Carry) -> Iterator[Remedy]:
    """Change the amount of one container. Other amounts of the given pod may already be changed."""
    for container, amount in list_requesting(pod, resource):
        changed = make_change(pod, (container,), resource, carry)
        kept = find_shared_part(container) if resource == CPU else 0
        yield from _find_remedy(attempts, search, _SoughtAmount(changed, amount, shared=kept))


def _make_pod_level_change(pod: Pod, resource: str) -> Callable[[int], Pod]:
    return lambda value: with_amounts(pod, None, {resource: value})


def _lower_several(attempts: Attempts, pod: Pod, resource: str, search: _Search, carry: Carry) -> Iterator[Remedy]:
    """Find a limit for the amount. Lower the containers with more than the limit to it, but only as many as needed."""
    asking = list_requesting(pod, resource)
    if len(asking) < 2:
        return
    largest = max(amount for _, amount in asking)
    changed = make_change(pod, tuple(c for c, _ in asking), resource, carry)
    fit = search(attempts, _SoughtAmount(changed, largest))
    if fit is None:
        return
    chosen = tuple(c for c, amount in asking if amount > fit)
    for container in chosen:
        fewer = tuple(c for c in chosen if c is not container)
        if fewer and attempts.admits(make_change(pod, fewer, resource, carry)(fit)):
            chosen = fewer
    yield _make_remedy(attempts.pod, make_change(pod, chosen, resource, carry)(fit))


def _find_remedy(attempts: Attempts, search: _Search, sought: _SoughtAmount) -> Iterator[Remedy]:
    fit = search(attempts, sought)
    if fit is not None:
        yield _make_remedy(attempts.pod, sought.pod_with(fit))


def _use_whole_cores(attempts: Attempts, carry: Carry) -> Sequence[Remedy]:
    """Use whole cores for each container, if only whole cores are allocated. If that isn't sufficient, also reduce one container, or
    several.
    """
    pods = _list_pods_on_whole_cores(attempts)
    enough = [_make_remedy(attempts.pod, carry(pod)) for pod in pods if attempts.admits(carry(pod))]
    if enough:
        return enough
    for pod in pods:
        enough = list(_change_container(attempts, pod, CPU, _find_fewer_cpus, carry)) or list(
            _lower_several(attempts, pod, CPU, _find_fewer_cpus, carry)
        )
        if enough:
            break
    return enough


def _list_pods_on_whole_cores(attempts: Attempts) -> Sequence[Pod]:
    """Return up to two variants of the pod on whole cores: requests for parts of cores are rounded down, or rounded up."""
    managers, pod = attempts.what_if.managers, attempts.pod
    cpu = managers.providers.of(CpuResource).manager
    if not cpu.options.full_pcpus_only:
        return ()
    layout = cpu.layout
    below = above = pod
    for container, demand in zip(pod.containers, demand_of(managers.rules, pod).containers, strict=True):
        if demand.cpus and not layout.adds_up(layout.online, demand.cpus):
            kept = find_shared_part(container)
            fewer, more = (layout.find_whole_count(demand.cpus, step) for step in (-1, 1))
            below = with_amounts(below, container.name, {CPU: (fewer or more or demand.cpus) * MILLI + kept})
            above = with_amounts(above, container.name, {CPU: (more or fewer or demand.cpus) * MILLI + kept})
    return tuple(whole for whole in ((below,) if above == below else (below, above)) if whole != pod)


def _make_remedy(before: Pod, after: Pod) -> Remedy:
    found = tuple(list_differences(before, after))
    amounts = tuple(Amount(name, resource, str(was), str(now)) for name, resource, was, now in found)
    return Remedy(RequestChange.REQUEST, tuple(dict.fromkeys(name for name, *_ in found if name is not None)), amounts)


class _AmountGroup(Struct, frozen=True):
    """Amounts that change together: of one container, of the pod as a whole, or of all containers above a limit."""

    asked: dict[str, int]
    least: dict[str, int]
    pod_with: Callable[[dict[str, int]], Pod]


def _list_amount_groups(pod: Pod, resources: list[str], carry: Carry) -> Iterator[_AmountGroup]:
    def part(container: str | None, now: ResourceRequirements) -> _AmountGroup:
        asked = {name: amount for name in (CPU, *resources) if (amount := get_requested(now, name))}
        least = {
            name: max(_get_least_amount(name), 0 if container else find_least_pod_amount(pod, name)) for name in asked
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
    return _AmountGroup(largest, {name: _get_least_amount(name) for name in largest}, bounded)


def _change_together(attempts: Attempts, resources: list[str], carry: Carry) -> Iterator[Remedy]:
    """Change all amounts of one container, or of the pod as a whole. If that isn't sufficient, change all containers."""
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
    """Find the largest number of CPUs, and then the largest amounts of the other resources."""
    rest = [name for name in part.asked if name != CPU]
    if len(part.asked) < 2:
        return None
    for found in _list_least_memory(attempts, part, rest):
        if CPU in part.asked:
            sought = _SoughtAmount(partial(_make_pod_with, part.pod_with, found, CPU), part.asked[CPU], part.least[CPU])
            cpus = _find_cpus(attempts, sought)
            if cpus is None:
                continue
            found[CPU] = cpus
        elif not attempts.admits(part.pod_with(found)):
            continue
        for name in rest:
            if attempts.admits(part.pod_with(found | {name: part.asked[name]})):
                found[name] = part.asked[name]
                continue
            sought = _SoughtAmount(
                partial(_make_pod_with, part.pod_with, found, name), part.asked[name], part.least[name]
            )
            found[name] = _search_below(name)(attempts, sought) or found[name]
        return _make_remedy(attempts.pod, part.pod_with(found))
    return None


def _list_least_memory(attempts: Attempts, part: _AmountGroup, rest: list[str]) -> Iterator[dict[str, int]]:
    """Yield small amounts of memory to combine with CPUs: for each number of NUMA nodes up to the request's, the least memory that needs
    as many nodes.
    """
    least = {name: part.least[name] for name in rest}
    for name in rest:
        unit = find_smallest_step(name)
        amounts = range(min(part.asked[name], _MAX_AMOUNT) // unit * unit, part.least[name] - 1, -unit)

        def nodes(amount: int, name: str = name) -> tuple[int, ...]:
            return _count_fewest_nodes(attempts, part.pod_with(least | {name: amount}))

        for alike in _split_alike(amounts, nodes):
            if alike[-1] > least[name]:
                yield least | {name: alike[-1]}
    yield least


def _find_cpus(attempts: Attempts, sought: _SoughtAmount) -> int | None:
    """Find a number of CPUs: the requested number, or else the next smaller one, or else the next whole cores."""
    if attempts.admits(sought.pod_with(sought.asked)):
        return sought.asked
    fewer = _find_fewer_cpus(attempts, sought)
    return _find_whole_cores(attempts, sought) if fewer is None else fewer


def _make_pod_with(pod_with: Callable[[dict[str, int]], Pod], rest: dict[str, int], resource: str, value: int) -> Pod:
    return pod_with(rest | {resource: value})


def _find_fewer_cpus(attempts: Attempts, sought: _SoughtAmount) -> int | None:
    """Find the largest number of CPUs below the request: in thousandths if the CPUs are shared, otherwise in whole CPUs.

    The nearest amounts are tried one by one, because fewer CPUs may be on another NUMA node and block another container there. Smaller
    amounts are searched by halving, but only among amounts that need equally many NUMA nodes. For example, `restricted` admits 9 CPUs on
    two nodes with 5 free CPUs each, but refuses 6 CPUs.
    """

    def fits(amount: int) -> bool:
        return attempts.admits(sought.pod_with(amount))

    if not _decides_exclusive_cpus(attempts, sought):
        return first_by_halving(range(min(sought.asked, _MAX_AMOUNT) - 1, max(sought.floor, 1) - 1, -1), fits)
    cpu = attempts.what_if.managers.providers.of(CpuResource).manager
    step = MILLI * (cpu.layout.core_size or 1 if cpu.options.full_pcpus_only else 1)
    largest = (min(sought.asked, _MAX_AMOUNT) - sought.shared - 1) // step * step + sought.shared
    counts = range(largest, max(sought.floor, 1) - 1, -step)
    nearest = next((count for count in counts[:NEAREST] if fits(count)), None)
    if nearest is not None:
        return nearest
    return _find_first_alike(attempts, sought, counts[NEAREST:])


def _find_fewer_devices(attempts: Attempts, sought: _SoughtAmount) -> int | None:
    """Find the largest sufficient number of devices below the request. It may be zero."""
    counts = range(min(sought.asked, _MAX_AMOUNT) - 1, -1, -1)
    return first_nearby(counts, lambda count: attempts.admits(sought.pod_with(count)))


def _decides_exclusive_cpus(attempts: Attempts, sought: _SoughtAmount) -> bool:
    """Tell whether the pod's exclusive CPUs depend on the amount."""
    managers = attempts.what_if.managers
    little, all_of_it = (demand_of(managers.rules, sought.pod_with(amount)) for amount in (1, sought.asked))
    return managers.providers.of(CpuResource).manager.static and not all_of_it.is_skipped and little != all_of_it


def _count_fewest_nodes(attempts: Attempts, pod: Pod) -> tuple[int, ...]:
    """Return how many NUMA nodes the CPUs, and the memory, of the pod and of each container need on an empty machine."""
    managers, books = attempts.what_if.managers, attempts.what_if.promises
    demand = demand_of(managers.rules, pod)
    nodes_for = managers.providers.of(CpuResource).manager.layout.fewest_nodes
    parts = [(demand.cpus, demand.memory), *((c.cpus, c.memory) for c in demand.containers)]
    cpus = tuple(nodes_for(count) if count else 0 for count, _ in parts)
    return cpus + tuple(fewest_nodes(books, amounts or ()) if memory_accounts(books) else 0 for _, amounts in parts)


def _find_first_alike(attempts: Attempts, sought: _SoughtAmount, amounts: range) -> int | None:
    """Find the first amount that fits. Of amounts that need equally many NUMA nodes, all after the first that fits are assumed to fit,
    too.
    """
    for alike in _split_alike(amounts, lambda amount: _count_fewest_nodes(attempts, sought.pod_with(amount))):
        found = first_by_halving(alike, lambda amount: attempts.admits(sought.pod_with(amount)))
        if found is not None:
            return found
    return None


def _split_alike(amounts: range, nodes: Callable[[int], tuple[int, ...]]) -> Iterator[range]:
    """Split descending amounts where they begin to need fewer NUMA nodes."""
    while amounts:
        needed = nodes(amounts[0])
        low, high = 0, len(amounts) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if nodes(amounts[middle]) == needed else (low, middle - 1)
        yield amounts[: low + 1]
        amounts = amounts[low + 1 :]


def _find_whole_cores(attempts: Attempts, sought: _SoughtAmount) -> int | None:
    """Find the next larger number of whole cores, if only whole cores are allocated."""
    cpu = attempts.what_if.managers.providers.of(CpuResource).manager
    if not cpu.options.full_pcpus_only or not _decides_exclusive_cpus(attempts, sought):
        return None
    layout, exclusive = cpu.layout, -(-(sought.asked - sought.shared) // MILLI)
    # Where cores differ in size, the cores that are free may be larger than those that the number needs.
    further = 0 if layout.core_size is not None else max(core.size for core in layout.cores)
    counts = (layout.find_whole_count(exclusive + more, 1) for more in range(further + 1))
    larger = (count * MILLI + sought.shared for count in counts if count is not None)
    return next(
        (amount for amount in larger if amount > sought.asked and attempts.admits(sought.pod_with(amount))), None
    )


def _round_up(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit


def _search_below(resource: str) -> _Search:
    """Return a search for the largest amount below the request, in whole MiB or pages. Huge pages may become zero.

    The search is by halving, but only among amounts that need equally many NUMA nodes. For example, `restricted` refuses memory on fewer
    nodes than the CPUs need.
    """
    unit = find_smallest_step(resource)

    def less(attempts: Attempts, sought: _SoughtAmount) -> int | None:
        largest = (min(sought.asked, _MAX_AMOUNT) - 1) // unit * unit
        return _find_first_alike(
            attempts, sought, range(largest, max(sought.floor, _get_least_amount(resource)) - 1, -unit)
        )

    return less


def _get_least_amount(resource: str) -> int:
    """Return the smallest amount worth suggesting. Huge pages may be zero."""
    return MIB if resource == MEMORY else 0


def _raise_pod_level(attempts: Attempts) -> Iterator[Remedy]:
    """Raise pod-level amounts above the containers' exclusive amounts, so that something remains for sharing containers
    (EmptyPodSharedPoolError).
    """
    pod = attempts.pod
    if pod.resources is None:
        return
    own = {name: get_requested(pod.resources, name) for name, _ in pod.resources.requests}
    least = {
        name: _round_up(max(asked, sum_requests(pod, name) + find_smallest_step(name)), find_smallest_step(name))
        for name, asked in own.items()
    }
    for extra_cpus in range(2 * attempts.what_if.managers.providers.of(CpuResource).manager.layout.per_core):
        wanted = {name: amount + (extra_cpus * MILLI if name == CPU else 0) for name, amount in least.items()}
        changed = with_amounts(pod, None, wanted)
        if wanted != own and attempts.admits(changed):
            yield _make_remedy(pod, changed)
            return
