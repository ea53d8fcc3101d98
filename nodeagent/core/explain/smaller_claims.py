"""Search for the smallest change to a refused pod's claims that would admit the pod: fewer devices for one request.

If the devices are CPUs, the container's CPU request must equal their number, so both are lowered together.
"""

from collections.abc import Iterator
from functools import cache

from msgspec.structs import replace

from nodeagent.core.explain.amounts_that_fit import first_nearby
from nodeagent.core.explain.remedy import Amount, Attempts, Remedy, RequestChange
from nodeagent.core.model.claims import ClaimRequest, PodClaim
from nodeagent.core.model.pod import CPU, Pod
from nodeagent.core.model.pod_amounts import MILLI, get_requested, list_differences, with_amounts


def smaller_claims(attempts: Attempts) -> Iterator[Remedy]:
    """Try fewer devices for one request of one claim. Requests with alternatives are skipped, because the original decision has already
    tried the alternatives.
    """
    for claim in attempts.pod.claims:
        for request in () if claim.spec is None else claim.spec.requests:
            yield from _find_fewer_devices(attempts, claim, request)


def _find_fewer_devices(attempts: Attempts, claim: PodClaim, request: ClaimRequest) -> Iterator[Remedy]:
    wanted = request.ways[0].count
    if len(request.ways) > 1 or wanted is None:
        return

    @cache
    def admitted(count: int) -> Pod | None:
        changed = _change_count(attempts.pod, claim, request, count)
        return next(filter(attempts.admits, (changed, _reduce_cpus(changed, claim, request, wanted - count))), None)

    count = first_nearby(range(wanted - 1, 0, -1), lambda count: admitted(count) is not None)
    pod = None if count is None else admitted(count)
    if pod is not None:
        amounts = tuple(
            Amount(name, resource, str(was), str(now))
            for name, resource, was, now in list_differences(attempts.pod, pod)
        )
        yield Remedy(RequestChange.CLAIM, (claim.name, request.name), amounts, before=str(wanted), after=str(count))


def _change_count(pod: Pod, claim: PodClaim, request: ClaimRequest, count: int) -> Pod:
    assert claim.spec is not None
    fewer = replace(request, ways=(replace(request.ways[0], count=count),))
    requests = tuple(fewer if one is request else one for one in claim.spec.requests)
    changed = replace(claim, spec=replace(claim.spec, requests=requests))
    return replace(pod, claims=tuple(changed if one is claim else one for one in pod.claims))


def _reduce_cpus(pod: Pod, claim: PodClaim, request: ClaimRequest, less: int) -> Pod:
    """Return the pod with a CPU request that is lower by `less` CPUs in the container that uses the claim's request."""
    for container in pod.containers:
        if any(one.uses(claim.name, request.name) for one in container.claims):
            left = get_requested(container.resources, CPU) - less * MILLI
            return with_amounts(pod, container.name, {CPU: left}) if left > 0 else pod
    return pod
