"""Whether a pod may stand for systemd's units: each has one pod (D30). Knows no systemd."""

from collections.abc import Iterable

from msgspec import Struct

from nodeagent.core.model.pod import Pod
from nodeagent.core.model.refusals import UNIT_TAKEN


class UnitTaken(Struct, frozen=True):
    """Another pod stands for a unit of a pod's."""

    unit: str
    holder: str
    """That pod, by namespace/name."""

    @property
    def reason(self) -> str:
        return UNIT_TAKEN

    @property
    def message(self) -> str:
        return f"pod {self.holder} stands for unit {self.unit} already"


def unit_taken(pod: Pod, holders: Iterable[Pod]) -> UnitTaken | None:
    """Return which unit of a pod's another one has. None: it may have them."""
    for other in holders if pod.units else ():
        both = sorted({*pod.units} & {*other.units})
        if both:
            return UnitTaken(both[0], other.full_name)
    return None
