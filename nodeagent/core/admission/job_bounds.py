"""Limits for the jobs of an ordinary user. The sum of all jobs of one user must stay within the limits. Root has no limits."""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from nodeagent.core.model.config import JobBounds
from nodeagent.core.model.pod import CPU, HUGEPAGES_PREFIX, MEMORY, Pod
from nodeagent.core.model.quantity import Quantity

_NONE: Mapping[str, Collection[str]] = MappingProxyType({})


def find_exceeded_bound(
    bounds: JobBounds, held: Iterable[Pod], job: Pod, reserved: Mapping[str, Collection[str]] = _NONE
) -> str | None:
    """Describe the limit that a job would exceed together with the user's other jobs. None means that the job stays within all limits.

    Args:
        bounds: the limits.
        held: the user's other jobs.
        job: the job.
        reserved: names of the resources that a job takes from a reservation, by the UID of the job's pod. Amounts of these resources don't
            count here.
    """
    pods = (*held, job)
    if len(pods) > bounds.max_per_user:
        return f"you would have {len(pods)} jobs at a time; your limit is {bounds.max_per_user} (jobs.maxPerUser)"
    return _find_exceeded_amount(bounds, pods, "jobs", reserved)


def find_exceeded_reservation_bound(bounds: JobBounds, held: Iterable[Pod], new: Pod) -> str | None:
    """Describe the limit that a reservation would exceed together with the user's other reservations. None means that the reservation
    stays within all limits.
    """
    pods = (*held, new)
    if len(pods) > bounds.max_reservations:
        return (
            f"you would have {len(pods)} reservations; your limit is {bounds.max_reservations} (jobs.maxReservations)"
        )
    return _find_exceeded_amount(bounds, pods, "reservations", _NONE)


def _find_exceeded_amount(
    bounds: JobBounds, pods: tuple[Pod, ...], what: str, reserved: Mapping[str, Collection[str]]
) -> str | None:
    cpus = Quantity(sum(pod.sum_limits(CPU, besides=reserved.get(pod.uid, ())) for pod in pods))
    if bounds.max_cpus is not None and cpus.nano > bounds.max_cpus.nano:
        has_idle = any(pod.quiet is not None and pod.quiet.settings.idle_siblings for pod in pods)
        counted = f"{cpus} CPUs together, idle siblings included" if has_idle else f"{cpus} CPUs together"
        return f"your {what} would have {counted}; your limit is {bounds.max_cpus} (jobs.maxCPUs)"
    in_memory = (pod.sum_limits(MEMORY, HUGEPAGES_PREFIX, besides=reserved.get(pod.uid, ())) for pod in pods)
    memory = Quantity.of_bytes(sum(in_memory) // 10**9)
    if bounds.max_memory is not None and memory.nano > bounds.max_memory.nano:
        return f"your {what} would have {memory} of memory and huge pages together; your limit is {bounds.max_memory} (jobs.maxMemory)"
    return None
