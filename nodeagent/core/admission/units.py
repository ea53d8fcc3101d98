"""Check that no systemd unit is pinned by two pods (D30)."""

from collections.abc import Iterable

from msgspec import Struct

from nodeagent.core.model.refusals import UNIT_TAKEN
from nodeagent.core.model.state import UnitKey


class UnitTaken(Struct, frozen=True):
    """Refusal of a pod, because another pod already pins one of its units."""

    unit: str
    holder: str
    """Pod that already pins the unit, as `namespace/name`."""

    @property
    def reason(self) -> str:
        return UNIT_TAKEN

    @property
    def message(self) -> str:
        return f"pod {self.holder} already pins unit {self.unit}"


def find_taken_unit(units: frozenset[UnitKey], holders: Iterable[tuple[str, frozenset[UnitKey]]]) -> UnitTaken | None:
    """Return a refusal if another pod already pins one of the pod's units. None means that all of them are free.

    Args:
        units: the units that the pod wants to pin.
        holders: the other pods that pin units, each with its name and units.
    """
    for holder, held in holders if units else ():
        if common := units & held:
            return UnitTaken(min(common)[1], holder)
    return None
