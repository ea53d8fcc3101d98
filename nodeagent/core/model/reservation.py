"""Reservation: resources of the node that the agent keeps free for one user's jobs between two points in time."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, to_builtins

from nodeagent.core.model.pod import CPU, MEMORY, Pod
from nodeagent.core.model.quantity import Quantity


class Reservation(Struct, frozen=True):
    """One reservation. Times are wall-clock times in milliseconds since the epoch, because users name a time of day, and a reservation must
    survive a reboot.
    """

    name: str
    user: int
    """User ID of the owner. Only jobs of the owner and of root may run in the reservation."""
    pod: Pod
    """Pod that requests the reserved amounts. The agent uses it only for trial decisions, and never admits it."""
    from_ms: int
    until_ms: int
    has_memory: bool = False
    """Whether memory is reserved, too. If not, `pod` requests the smallest possible amount of memory."""
    is_made: bool = True
    """Whether the reservation was accepted and saved on disk. The agent keeps the resources free even before that, but tells users about
    the reservation only afterwards.
    """

    @property
    def amounts(self) -> Mapping[str, Quantity]:
        """Return the reserved amounts by resource."""
        limits = dict(self.pod.containers[0].resources.limits)
        return limits if self.has_memory else {CPU: limits[CPU]}

    def find_excess(self, inside: Iterable[Pod], job: Pod) -> str | None:
        """Return a message if a job and the jobs already in the reservation together exceed the reserved amounts. None means that the job
        fits.

        Args:
            inside: pods of the jobs that use the reservation.
            job: pod of the job that wants to use it.
        """
        pods = (*inside, job)
        for resource, amount in self.amounts.items():
            if sum(pod.sum_limits(resource) for pod in pods) > amount.nano:
                return f"reservation {self.name} has {resource} {amount} for all its jobs together"
        return None


class ReservedRoom(Struct, frozen=True, rename="camel"):
    """A reservation as users see it, with the jobs that use it. Times are in milliseconds since the epoch."""

    name: str
    user: int
    cpus: str
    """Number of reserved CPUs, as the text of a quantity."""
    memory: str | None
    """Amount of reserved memory, as the text of a quantity. None means that no memory is reserved."""
    from_ms: int
    until_ms: int
    jobs: tuple[str, ...] = ()
    """Names of the jobs that run or wait in the reservation, as `namespace/name`."""

    @classmethod
    def of(cls, reservation: Reservation, jobs: Iterable[str] = ()) -> "ReservedRoom":
        amounts = {name: str(amount) for name, amount in reservation.amounts.items()}
        times = reservation.from_ms, reservation.until_ms
        return cls(reservation.name, reservation.user, amounts[CPU], amounts.get(MEMORY), *times, tuple(jobs))

    def as_document(self) -> dict[str, Any]:
        """Return the reservation as a JSON object for the output of commands."""
        return {**to_builtins(self), "jobs": list(self.jobs)}
