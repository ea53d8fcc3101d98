"""The smallest changes of a manifest that would admit a refused pod: fewer CPUs, whole cores, less memory, fewer devices, higher pod-level
amounts.
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

_MOST = 2**62
"""Limit on searched amounts. No machine has more of any resource."""


class _Sought(Struct, frozen=True):
    """A searched amount: CPUs in thousandths, other resources in bytes or pieces."""

    pod_with: Callable[[int], Pod]
    """Returns the pod with this amount."""
    asked: int
    """Current request."""
    floor: int = 0
    """Smallest allowed amount."""
    shared: int = 0
    """Part of the amount that isn't exclusive CPUs."""


_Search = Callable[[Attempts, _Sought], int | None]
"""Searches for an amount that is admitted."""


def smaller_requests(attempts: Attempts) -> Sequence[Remedy]:
    """Change the manifest: one amount, the same amount of several containers, or several amounts of one container.

    If none of these is sufficient alone, pod-level amounts change together with the containers'.
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
    """Change one amount, or that of several containers if one isn't sufficient."""
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
                _Sought(_pod_level_changer(pod, resource), amount, find_least_pod_amount(pod, resource)),
            )
    yield from _change_container(attempts, pod, resource, search, carry)


def _change_container(attempts: Attempts, pod: Pod, resource: str, search: _Search, carry: Carry) -> Iterator[Remedy]:
    """Change one container of this pod, which may already have other changed amounts."""
    for container, amount in list_requesting(pod, resource):
        changed = make_change(pod, (container,), resource, carry)
        kept = find_shared_part(container) if resource == CPU else 0
        yield from _find_remedy(attempts, search, _Sought(changed, amount, shared=kept))


def _pod_level_changer(pod: Pod, resource: str) -> Callable[[int], Pod]:
    return lambda value: with_amounts(pod, None, {resource: value})


def _lower_several(attempts: Attempts, pod: Pod, resource: str, search: _Search, carry: Carry) -> Iterator[Remedy]:
    """Lower all containers of this pod that have more than a limit to it."""
    asking = list_requesting(pod, resource)
    if len(asking) < 2:
        return
    most = max(amount for _, amount in asking)
    changed = make_change(pod, tuple(c for c, _ in asking), resource, carry)
    fit = search(attempts, _Sought(changed, most))
    if fit is None:
        return
    chosen = tuple(c for c, amount in asking if amount > fit)
    for container in chosen:
        fewer = tuple(c for c in chosen if c is not container)
        if fewer and attempts.admits(make_change(pod, fewer, resource, carry)(fit)):
            chosen = fewer
    yield _make_remedy(attempts.pod, make_change(pod, chosen, resource, carry)(fit))


def _find_remedy(attempts: Attempts, search: _Search, sought: _Sought) -> Iterator[Remedy]:
    fit = search(attempts, sought)
    if fit is not None:
        yield _make_remedy(attempts.pod, sought.pod_with(fit))


def _use_whole_cores(attempts: Attempts, carry: Carry) -> Sequence[Remedy]:
    """Use whole cores for each container if only those are allocated. If that isn't sufficient, use fewer for one container, or for all."""
    pods = _pods_on_whole_cores(attempts)
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


def _pods_on_whole_cores(attempts: Attempts) -> Sequence[Pod]:
    """Return the pod with the next whole cores below, and above, for each container that requests parts of one."""
    managers, pod = attempts.what_if.managers, attempts.pod
    cpu = managers.providers.of(CpuResource).manager
    if not cpu.options.full_pcpus_only:
        return ()
    core = cpu.layout.per_core
    below = above = pod
    for container, demand in zip(pod.containers, demand_of(managers.rules, pod).containers, strict=True):
        if demand.cpus % core:
            kept = find_shared_part(container)
            below = with_amounts(below, container.name, {CPU: max(core, demand.cpus // core * core) * MILLI + kept})
            above = with_amounts(above, container.name, {CPU: _round_up(demand.cpus, core) * MILLI + kept})
    return tuple(whole for whole in ((below,) if above == below else (below, above)) if whole != pod)


def _make_remedy(before: Pod, after: Pod) -> Remedy:
    found = tuple(list_differences(before, after))
    amounts = tuple(Amount(name, resource, str(was), str(now)) for name, resource, was, now in found)
    return Remedy(RequestChange.REQUEST, tuple(dict.fromkeys(name for name, *_ in found if name is not None)), amounts)


class _Part(Struct, frozen=True):
    """Amounts that change together: of a container, of the pod, or of all containers with larger ones."""

    asked: dict[str, int]
    least: dict[str, int]
    pod_with: Callable[[dict[str, int]], Pod]


def _list_parts(pod: Pod, resources: list[str], carry: Carry) -> Iterator[_Part]:
    def part(container: str | None, now: ResourceRequirements) -> _Part:
        asked = {name: amount for name in (CPU, *resources) if (amount := get_requested(now, name))}
        least = {name: max(_least_amount(name), 0 if container else find_least_pod_amount(pod, name)) for name in asked}
        return _Part(asked, least, lambda amounts: carry(with_amounts(pod, container, amounts)))

    if pod.resources is not None and carry is keep_pod_amounts:
        yield part(None, pod.resources)
    yield from (part(container.name, container.resources) for container in pod.containers)


def _part_of_all(pod: Pod, resources: list[str], carry: Carry) -> _Part:
    def bounded(amounts: dict[str, int]) -> Pod:
        changed = pod
        for container in pod.containers:
            larger = {name: most for name, most in amounts.items() if get_requested(container.resources, name) > most}
            changed = with_amounts(changed, container.name, larger)
        return carry(changed)

    most = {
        name: max(amount for _, amount in asking)
        for name in (CPU, *resources)
        if (asking := list_requesting(pod, name))
    }
    return _Part(most, {name: _least_amount(name) for name in most}, bounded)


def _change_together(attempts: Attempts, resources: list[str], carry: Carry) -> Iterator[Remedy]:
    """Change all amounts of one container, or of the pod as a whole, or else of all containers."""
    found = [
        each for part in _list_parts(attempts.pod, resources, carry) if (each := _find_several_amounts(attempts, part))
    ]
    if not found and attempts.pod.resources is None and len(attempts.pod.containers) > 1:
        found = (
            [each] if (each := _find_several_amounts(attempts, _part_of_all(attempts.pod, resources, carry))) else []
        )
    yield from found


def _find_several_amounts(attempts: Attempts, part: _Part) -> Remedy | None:
    """Find the largest possible number of CPUs, and then as much as possible of the other resources."""
    rest = [name for name in part.asked if name != CPU]
    if len(part.asked) < 2:
        return None
    for found in _least_memory_choices(attempts, part, rest):
        if CPU in part.asked:
            sought = _Sought(partial(_pod_with_rest, part.pod_with, found, CPU), part.asked[CPU], part.least[CPU])
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
            sought = _Sought(partial(_pod_with_rest, part.pod_with, found, name), part.asked[name], part.least[name])
            found[name] = _search_below(name)(attempts, sought) or found[name]
        return _make_remedy(attempts.pod, part.pod_with(found))
    return None


def _least_memory_choices(attempts: Attempts, part: _Part, rest: list[str]) -> Iterator[dict[str, int]]:
    """Yield the least memory that needs as many NUMA nodes as the request, then as fewer nodes. CPUs are searched with each."""
    least = {name: part.least[name] for name in rest}
    for name in rest:
        unit = find_smallest_step(name)
        amounts = range(min(part.asked[name], _MOST) // unit * unit, part.least[name] - 1, -unit)

        def nodes(amount: int, name: str = name) -> tuple[int, ...]:
            return _fewest_nodes(attempts, part.pod_with(least | {name: amount}))

        for alike in _split_alike(amounts, nodes):
            if alike[-1] > least[name]:
                yield least | {name: alike[-1]}
    yield least


def _find_cpus(attempts: Attempts, sought: _Sought) -> int | None:
    """Find the possible number of CPUs: the requested one, or else a lower one, or else the next whole cores."""
    if attempts.admits(sought.pod_with(sought.asked)):
        return sought.asked
    fewer = _find_fewer_cpus(attempts, sought)
    return _find_whole_cores(attempts, sought) if fewer is None else fewer


def _pod_with_rest(made: Callable[[dict[str, int]], Pod], rest: dict[str, int], resource: str, value: int) -> Pod:
    return made(rest | {resource: value})


def _find_fewer_cpus(attempts: Attempts, sought: _Sought) -> int | None:
    """Find the most CPUs below the request: thousandths if they are shared, otherwise whole CPUs.

    The nearest amounts are tried one by one, because fewer CPUs may end up on another NUMA node and block another container. The rest is
    searched by halving, but only among amounts that need equally many NUMA nodes: `restricted` admits 9 CPUs on two nodes with 5 free CPUs
    each, and refuses 6.
    """

    def fits(amount: int) -> bool:
        return attempts.admits(sought.pod_with(amount))

    if not _decides_exclusive_cpus(attempts, sought):
        return first_by_halving(range(min(sought.asked, _MOST) - 1, max(sought.floor, 1) - 1, -1), fits)
    cpu = attempts.what_if.managers.providers.of(CpuResource).manager
    step = MILLI * (cpu.layout.per_core if cpu.options.full_pcpus_only else 1)
    most = (min(sought.asked, _MOST) - sought.shared - 1) // step * step + sought.shared
    counts = range(most, max(sought.floor, 1) - 1, -step)
    nearest = next((count for count in counts[:NEAREST] if fits(count)), None)
    if nearest is not None:
        return nearest
    return _find_first_alike(attempts, sought, counts[NEAREST:])


def _find_fewer_devices(attempts: Attempts, sought: _Sought) -> int | None:
    """Find the largest number of devices below the request, or zero."""
    counts = range(min(sought.asked, _MOST) - 1, -1, -1)
    return first_nearby(counts, lambda count: attempts.admits(sought.pod_with(count)))


def _decides_exclusive_cpus(attempts: Attempts, sought: _Sought) -> bool:
    """Tell whether the amount decides how many exclusive CPUs the pod gets."""
    managers = attempts.what_if.managers
    little, all_of_it = (demand_of(managers.rules, sought.pod_with(amount)) for amount in (1, sought.asked))
    return managers.providers.of(CpuResource).manager.static and not all_of_it.is_skipped and little != all_of_it


def _fewest_nodes(attempts: Attempts, pod: Pod) -> tuple[int, ...]:
    """How many NUMA nodes the CPUs, and the memory, of each container and of the pod as a whole need on an empty machine."""
    managers, books = attempts.what_if.managers, attempts.what_if.promises
    demand = demand_of(managers.rules, pod)
    nodes_for = managers.providers.of(CpuResource).manager.layout.fewest_nodes
    parts = [(demand.cpus, demand.memory), *((c.cpus, c.memory) for c in demand.containers)]
    cpus = tuple(nodes_for(count) if count else 0 for count, _ in parts)
    return cpus + tuple(fewest_nodes(books, amounts or ()) if memory_accounts(books) else 0 for _, amounts in parts)


def _find_first_alike(attempts: Attempts, sought: _Sought, amounts: range) -> int | None:
    """Find the first that fits, assuming that the ones after it that need equally many NUMA nodes fit too."""
    for alike in _split_alike(amounts, lambda amount: _fewest_nodes(attempts, sought.pod_with(amount))):
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


def _find_whole_cores(attempts: Attempts, sought: _Sought) -> int | None:
    """Find the next whole cores, if only those are allocated."""
    cpu = attempts.what_if.managers.providers.of(CpuResource).manager
    if not cpu.options.full_pcpus_only or not _decides_exclusive_cpus(attempts, sought):
        return None
    rounded = _round_up(sought.asked - sought.shared, MILLI * cpu.layout.per_core) + sought.shared
    return rounded if rounded > sought.asked and attempts.admits(sought.pod_with(rounded)) else None


def _round_up(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit


def _search_below(resource: str) -> _Search:
    """Return a search for the most whole MiB, or pages, below the request. Zero pages are allowed.

    The search is by halving, but only among amounts that need equally many NUMA nodes: `restricted` refuses memory on fewer nodes than the
    CPUs are on.
    """
    unit = find_smallest_step(resource)

    def less(attempts: Attempts, sought: _Sought) -> int | None:
        most = (min(sought.asked, _MOST) - 1) // unit * unit
        return _find_first_alike(attempts, sought, range(most, max(sought.floor, _least_amount(resource)) - 1, -unit))

    return less


def _least_amount(resource: str) -> int:
    """Return the smallest amount worth suggesting. Huge pages may be zero."""
    return MIB if resource == MEMORY else 0


def _raise_pod_level(attempts: Attempts) -> Iterator[Remedy]:
    """Raise the pod-level amount above what its containers take exclusively, so that something remains for those that share
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
    for more in range(2 * attempts.what_if.managers.providers.of(CpuResource).manager.layout.per_core):
        wanted = {name: amount + (more * MILLI if name == CPU else 0) for name, amount in least.items()}
        changed = with_amounts(pod, None, wanted)
        if wanted != own and attempts.admits(changed):
            yield _make_remedy(pod, changed)
            return
