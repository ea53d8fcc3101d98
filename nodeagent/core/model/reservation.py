"""Reservation: resources of the node that are kept free for one user's jobs for a period of wall-clock time."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, to_builtins

from nodeagent.core.model.pod import CPU, MEMORY, Pod
from nodeagent.core.model.quantity import Quantity


class Reservation(Struct, frozen=True):
    """One reservation. All times are in milliseconds since the epoch. Users name a time of the day, and a reservation outlasts a reboot."""

    name: str
    user: int
    """User ID of the reservation's owner. Only jobs of the owner and of root may run in the reservation."""
    pod: Pod
    """Pod with the reserved amounts. The agent makes only trial decisions on this pod, and never admits it."""
    from_ms: int
    until_ms: int
    has_memory: bool = False
    """Whether memory is reserved. If not, the pod requests the smallest possible amount of memory."""
    is_made: bool = True
    """Whether the reservation was accepted and durably saved. Turns respect the reservation even before that, but report it only
    afterwards.
    """

    @property
    def amounts(self) -> Mapping[str, Quantity]:
        """Return the reserved amounts by resource."""
        limits = dict(self.pod.containers[0].resources.limits)
        return limits if self.has_memory else {CPU: limits[CPU]}

    def find_excess(self, inside: Iterable[Pod], job: Pod) -> str | None:
        """Describe the amounts by which a job would exceed the reserved amounts, together with the jobs in the reservation. None means
        that the job doesn't exceed them.
        """
        pods = (*inside, job)
        for resource, amount in self.amounts.items():
            if sum(pod.sum_limits(resource) for pod in pods) > amount.nano:
                return f"reservation {self.name} has {resource} {amount} for all its jobs together"
        return None


class ReservedRoom(Struct, frozen=True, rename="camel"):
    """A reservation as shown to users, with the jobs that use it. All times are in milliseconds since the epoch."""

    name: str
    user: int
    cpus: str
    """Reserved CPUs, as a quantity."""
    memory: str | None
    """Reserved memory, as a quantity. None means that no memory is reserved."""
    from_ms: int
    until_ms: int
    jobs: tuple[str, ...] = ()
    """Names (`namespace/name`) of the jobs in the reservation, including waiting jobs."""

    @classmethod
    def of(cls, reservation: Reservation, jobs: Iterable[str] = ()) -> "ReservedRoom":
        amounts = {name: str(amount) for name, amount in reservation.amounts.items()}
        times = reservation.from_ms, reservation.until_ms
        return cls(reservation.name, reservation.user, amounts[CPU], amounts.get(MEMORY), *times, tuple(jobs))

    def as_document(self) -> dict[str, Any]:
        """Return the fields of the JSON document."""
        return {**to_builtins(self), "jobs": list(self.jobs)}
