"""Which CPUs the cgroups above the pods' one withhold. They count as offline: nothing can run there, whatever is promised."""

from collections.abc import Sequence

from msgspec import Struct, field

from nodeagent.core.model.idset import CpuSet


class Withheld(Struct, frozen=True):
    cpus: CpuSet = field(default_factory=CpuSet)
    path: str = ""
    """The topmost cgroup that lacks some of them."""


NOTHING = Withheld()


def withheld(chain: Sequence[tuple[str, CpuSet]]) -> Withheld:
    """Compare what each cgroup grants with what there is.

    Args:
        chain: (path, effective CPUs) from the root of all cgroups down to the pods' one. The root has every CPU that is online, so a CPU
            that goes or comes is not mistaken for one that is withheld.
    """
    if not chain:
        return NOTHING
    (_, everything), (_, granted) = chain[0], chain[-1]
    if not everything - granted:
        return NOTHING
    path = next(path for path, cpus in chain if everything - cpus)
    return Withheld(everything - granted, path)
