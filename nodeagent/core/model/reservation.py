"""Reservation: room of the node that is kept free for one user's jobs during a time of the wall clock."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from nodeagent.core.model.pod import CPU, Pod
from nodeagent.core.model.quantity import Quantity


class Reservation(Struct, frozen=True):
    """All times are in milliseconds since the epoch, because a person names a time of the day, and a reservation outlives a boot."""

    name: str
    user: int
    """User ID of its owner. Only the owner's jobs and root's may run in it."""
    pod: Pod
    """Pod with the reserved amounts. It is only tried, and never admitted."""
    from_ms: int
    until_ms: int
    has_memory: bool = False
    """Whether memory is reserved. If not, the pod's memory is the least that a pod can have."""

    @property
    def amounts(self) -> Mapping[str, Quantity]:
        """Reserved amounts by resource."""
        limits = dict(self.pod.containers[0].resources.limits)
        return limits if self.has_memory else {CPU: limits[CPU]}

    def find_excess(self, inside: Iterable[Pod], job: Pod) -> str | None:
        """Return a text about what a job would take beyond the reserved amounts, together with the jobs in it. None means nothing."""
        pods = (*inside, job)
        for resource, amount in self.amounts.items():
            taken = sum(
                limit.nano
                for pod in pods
                for container in pod.containers
                for name, limit in container.resources.limits
                if name == resource
            )
            if taken > amount.nano:
                return f"reservation {self.name} has {resource} {amount} for all its jobs together"
        return None
