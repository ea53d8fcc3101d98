"""Systemd units of pods: only one pod may pin a unit (D30). This module doesn't use systemd."""

from collections.abc import Iterable

from msgspec import Struct

from nodeagent.core.model.pod import Pod
from nodeagent.core.model.refusals import UNIT_TAKEN


class UnitTaken(Struct, frozen=True):
    """Another pod already pins one of the pod's units."""

    unit: str
    holder: str
    """The other pod's name, as namespace/name."""

    @property
    def reason(self) -> str:
        return UNIT_TAKEN

    @property
    def message(self) -> str:
        return f"pod {self.holder} stands for unit {self.unit} already"


def find_taken_unit(pod: Pod, holders: Iterable[Pod]) -> UnitTaken | None:
    """Return a unit of the pod that another pod already pins. None means that no other pod pins one of its units."""
    for other in holders if pod.units else ():
        both = sorted({*pod.units} & {*other.units})
        if both:
            return UnitTaken(both[0], other.full_name)
    return None
