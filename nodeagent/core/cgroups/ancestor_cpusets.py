"""Withheld CPUs: online CPUs that a cgroup above the pods' cgroup excludes. Pods can't run on these CPUs, so they are treated like offline
CPUs.
"""

from collections.abc import Sequence

from msgspec import Struct, field

from nodeagent.core.model.idset import CpuSet


class Withheld(Struct, frozen=True):
    cpus: CpuSet = field(default_factory=CpuSet)
    path: str = ""
    """Path of the topmost cgroup that excludes some of these CPUs."""


NOTHING = Withheld()


def find_withheld(chain: Sequence[tuple[str, CpuSet]]) -> Withheld:
    """Find the online CPUs that the pods' cgroup doesn't have.

    Args:
        chain: (path, effective CPUs) of each cgroup from the root down to the pods' cgroup. The root cgroup has exactly the online CPUs, so
            an offline CPU doesn't count as withheld.
    """
    if not chain:
        return NOTHING
    (_, everything), (_, granted) = chain[0], chain[-1]
    if not everything - granted:
        return NOTHING
    path = next(path for path, cpus in chain if everything - cpus)
    return Withheld(everything - granted, path)
