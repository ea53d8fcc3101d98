"""Limits on the jobs and reservations of a user other than root. They apply to the sum of the user's jobs, and to the sum of the user's
reservations.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from nodeagent.core.model.config import JobBounds
from nodeagent.core.model.pod import CPU, HUGEPAGES_PREFIX, MEMORY, Pod
from nodeagent.core.model.quantity import Quantity

_NONE: Mapping[str, Collection[str]] = MappingProxyType({})


def find_exceeded_bound(
    bounds: JobBounds, held: Iterable[Pod], job: Pod, reserved: Mapping[str, Collection[str]] = _NONE
) -> str | None:
    """Return a message about the limit that the user's jobs would exceed if this job were added. None means that they would exceed no
    limit.

    Args:
        bounds: the user's limits.
        held: pods of the user's other jobs.
        job: pod of the new job.
        reserved: resources that a job takes from a reservation, by the UID of the job's pod. They don't count towards the limits of jobs.
    """
    pods = (*held, job)
    if len(pods) > bounds.max_per_user:
        return f"you would have {len(pods)} jobs at a time; your limit is {bounds.max_per_user} (jobs.maxPerUser)"
    return _find_exceeded_amount(bounds, pods, "jobs", reserved)


def find_exceeded_reservation_bound(bounds: JobBounds, held: Iterable[Pod], new: Pod) -> str | None:
    """Return a message about the limit that the user's reservations would exceed if this reservation were added. None means that they would
    exceed no limit.
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
