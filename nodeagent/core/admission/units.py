"""systemd units that pods pin. Only one pod may pin a unit (D30)."""

from collections.abc import Iterable

from msgspec import Struct

from nodeagent.core.model.refusals import UNIT_TAKEN
from nodeagent.core.model.state import UnitKey


class UnitTaken(Struct, frozen=True):
    """Refusal: another pod already pins one of the pod's units."""

    unit: str
    holder: str
    """Name of the pod that pins the unit, as namespace/name."""

    @property
    def reason(self) -> str:
        return UNIT_TAKEN

    @property
    def message(self) -> str:
        return f"pod {self.holder} already pins unit {self.unit}"


def find_taken_unit(units: frozenset[UnitKey], holders: Iterable[tuple[str, frozenset[UnitKey]]]) -> UnitTaken | None:
    """Return a unit that another pod already pins. None means that none of these units is pinned by another pod.

    Args:
        units: the units of a pod.
        holders: the names of the other pods, each with its units.
    """
    for holder, held in holders if units else ():
        if common := units & held:
            return UnitTaken(min(common)[1], holder)
    return None
