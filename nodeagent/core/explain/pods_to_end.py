"""Search for pods whose end would make room for a refused pod. Few pods with small holdings are preferred, and the number of trial
decisions is limited.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from math import comb

from nodeagent.core.admission.node_capacity import Insufficient, usage_of
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.remedy import Attempts, Remedy, RequestChange
from nodeagent.core.model.pod import Pod

MOST_ALIKE = 8
"""Maximum number of pods that are listed as alternatives, if the end of any one of them would make enough room."""
_MAX_SINGLE_TRIALS = 150
"""Number of pods with the smallest holdings, and of pods with the largest, whose end is tried for one pod at a time. If there are more
pods, those in between are skipped.
"""
MOST_SETS = 300
"""Maximum number of sets of pods for an exhaustive search, which tries sets of fewer pods first. If there are more sets, the search instead
starts from a set whose end makes enough room, and replaces its pods by smaller ones.
"""


def pods_to_end(attempts: Attempts) -> Iterator[Remedy]:
    """Find the pods with the smallest holdings whose end, one at a time, makes enough room for the refused pod. If no single pod does, find
    several pods that do so together.
    """
    sizes = {pod.uid: _measure_holdings(attempts, pod) for pod in attempts.what_if.pods}
    short = attempts.refusal
    counts = isinstance(short, Insufficient) and short.resource == "pods"
    holding = [pod for pod in attempts.what_if.pods if counts or any(sizes[pod.uid])]
    pods = sorted(holding, key=lambda pod: (sizes[pod.uid], pod.full_name))
    tried_alone = (
        pods if len(pods) <= 2 * _MAX_SINGLE_TRIALS else pods[:_MAX_SINGLE_TRIALS] + pods[-_MAX_SINGLE_TRIALS:]
    )
    best: tuple[int, ...] | None = None
    found = 0
    for number, pod in enumerate(tried_alone):
        if (best is not None and sizes[pod.uid] != best) or found == MOST_ALIKE:
            return
        if number == _MAX_SINGLE_TRIALS and len(tried_alone) < len(pods):
            attempts.cut_short = True  # the search is cut short: another pod, of a size in between, may be sufficient
        if attempts.admits(what_if=_end_pods(attempts.what_if, [pod])):
            best, found = sizes[pod.uid], found + 1
            yield Remedy(RequestChange.REMOVAL, (pod.full_name,))
    several = _find_smallest_set(attempts, pods) if best is None else None
    if several is not None:
        yield Remedy(RequestChange.REMOVAL, tuple(sorted(pod.full_name for pod in several)))


def _find_smallest_set(attempts: Attempts, pods: Sequence[Pod]) -> Sequence[Pod] | None:
    """Find the smallest set of pods whose end makes enough room for the refused pod. Of several sets with equally many pods, choose the one
    with the smallest holdings.

    Args:
        attempts: the trial decisions on the refused pod.
        pods: the running pods, those with the smallest holdings first. The end of one of them alone doesn't make enough room.
    """
    enough = _find_sufficient(attempts, pods)
    if enough is None:
        return None
    sizes = {pod.uid: _measure_holdings(attempts, pod) for pod in pods}
    left = MOST_SETS
    for count in range(2, len(enough) + 1):
        left -= comb(len(pods), count)
        if left < 0:
            attempts.cut_short = True
            return _exchange_for_smaller(attempts, pods, enough)
        for gone in sorted(
            combinations(pods, count),
            key=lambda each: tuple(map(sum, zip(*(sizes[pod.uid] for pod in each), strict=True))),
        ):
            if attempts.admits(what_if=_end_pods(attempts.what_if, gone)):
                return gone
    return enough


def _find_sufficient(attempts: Attempts, pods: Sequence[Pod]) -> list[Pod] | None:
    """Collect pods, those with the largest holdings first, until their end makes enough room for the refused pod. Then leave out pods that
    aren't needed. None means that even the end of all pods doesn't make enough room.
    """
    gone = list(reversed(pods))
    if not attempts.admits(what_if=_end_pods(attempts.what_if, gone)):
        return None
    few, enough = 0, len(gone)
    while few + 1 < enough:
        middle = (few + enough) // 2
        few, enough = (
            (few, middle) if attempts.admits(what_if=_end_pods(attempts.what_if, gone[:middle])) else (middle, enough)
        )
    gone = gone[:enough]
    for pod in reversed(gone[:-1]):
        others = [other for other in gone if other is not pod]
        if attempts.admits(what_if=_end_pods(attempts.what_if, others)):
            gone = others
    return gone


def _exchange_for_smaller(attempts: Attempts, pods: Sequence[Pod], enough: list[Pod]) -> list[Pod]:
    """Exchange each pod in the set `enough`, whose end makes room for the refused pod, for the pod with the smallest holdings with which
    the set still makes enough room. The pod with the largest holdings comes first in `enough`, and is exchanged first.
    """
    gone = enough
    for pod in enough:
        for smaller in pods[: pods.index(pod)]:
            others = [smaller if other is pod else other for other in gone]
            if smaller not in gone and attempts.admits(what_if=_end_pods(attempts.what_if, others)):
                gone = others
                break
    return gone


def _end_pods(what_if: WhatIf, pods: Iterable[Pod]) -> WhatIf:
    return what_if.without(frozenset(pod.uid for pod in pods))


def _measure_holdings(attempts: Attempts, pod: Pod) -> tuple[int, ...]:
    """Return a pod's sort key, by which smaller pods come first: its request for the resource that is short, its holding of each resource,
    and its requests for the other resources that the refused pod requests.
    """
    what_if, short = attempts.what_if, attempts.refusal
    requested = 0
    others: list[int] = []
    if isinstance(short, Insufficient):
        gate = what_if.managers.placement.gate("PodLevelResources")
        own, wanted = (dict(usage_of((each,), pod_level_resources=gate).amounts) for each in (pod, attempts.pod))
        requested = own.get(short.resource, 0)
        # even if the scarce resource becomes available, the node may still lack one of these others
        others = [own.get(name, 0) for name in sorted(wanted)]
    held = what_if.promises.of_pod(pod.uid)
    resources = sorted(what_if.managers.providers.resources, key=lambda resource: resource.gives_way)
    return requested, *(held.of(resource.holdings).size for resource in resources), *others
