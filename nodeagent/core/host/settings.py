"""Settings of the host that name CPUs, and the record of what they were before they were changed (D28).

Each keeps off the CPUs that are to be left alone, and goes back to what it was as soon as it may. What somebody else sets meanwhile is
what it goes back to.
"""

import enum
from collections.abc import Mapping, Set as AbstractSet

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet


class SettingKind(enum.StrEnum):
    """What a setting is about, and what its name is."""

    IRQ = "irq"
    """The affinity of an interrupt; its number."""
    NEW_IRQS = "new-irqs"
    """The affinity of interrupts to come; no name."""
    QUEUE = "queue"
    """The CPUs that handle a queue of a network interface (RPS, XPS); a path such as `eth0/queues/rx-0/rps_cpus`."""
    WORKQUEUE = "workqueue"
    """The CPUs of the kernel's unbound work: of all of it (no name), or of one workqueue."""


class Setting(Struct, frozen=True, order=True):
    kind: SettingKind
    name: str = ""


NEW_IRQS = Setting(SettingKind.NEW_IRQS)


class Change(Struct, frozen=True):
    """What one setting was, and what it has become."""

    before: CpuSet
    """What it goes back to."""
    ours: tuple[CpuSet, ...]
    """What it was found with and what is written, if these differ: a crash may leave either."""

    def is_ours(self, now: CpuSet) -> bool:
        return now == self.before or now in self.ours

    @property
    def differs(self) -> bool:
        return any(value != self.before for value in self.ours)


Record = Mapping[Setting, Change]
"""Each setting that is not what it goes back to. While interrupts to come are kept off CPUs, every interrupt that there is: any other came
later, and goes back to what it would have been without us.
"""


class HostPlan(Struct, frozen=True):
    record: Record
    """To save before the first write."""
    writes: Mapping[Setting, CpuSet]
    changed_by_others: Mapping[Setting, CpuSet]
    """Found with a value that is not ours although we had changed it."""

    def after(self, failed: AbstractSet[Setting]) -> Record:
        """Return the record to save once all is written, but for what failed."""
        return _to_keep(
            {
                setting: Change(change.before, (change.ours[0 if setting in failed else -1],))
                for setting, change in self.record.items()
            }
        )


def plan(
    record: Record,
    observed: Mapping[Setting, CpuSet],
    *,
    alone: Mapping[SettingKind, CpuSet],
    host: CpuSet,
    claims: Mapping[Setting, CpuSet] = {},
) -> HostPlan:
    """Decide what to write so that no setting names a CPU that is to be left alone, unless its owner wants just that.

    Args:
        record: of what was changed before.
        observed: every setting that there is and that can be changed. One that names no CPU is off, and stays off.
        alone: CPUs to be left alone, by kind. Settings of a kind that is missing go back.
        host: CPUs for what would have none left. Empty: that stays as it is.
        claims: settings that a container wants for its own CPUs, and these.
    """
    changes, writes, others = {}, {}, {}
    for setting, now in observed.items():
        known = record.get(setting)
        before = _before(setting, now, record)
        apart = before - alone.get(setting.kind, CpuSet()) or (host if before else before) or now
        wanted = claims.get(setting) or apart
        if wanted != now:
            writes[setting] = wanted
        if known is not None and known.differs and not known.is_ours(now):
            others[setting] = now
        changes[setting] = Change(before, (now, wanted) if wanted != now else (now,))
    return HostPlan(_to_keep(changes), writes, others)


def _before(setting: Setting, now: CpuSet, record: Record) -> CpuSet:
    known = record.get(setting)
    if known is not None:
        return known.before if known.is_ours(now) else now
    to_come = record.get(NEW_IRQS)
    came_later = setting.kind is SettingKind.IRQ and to_come is not None and now in to_come.ours
    return to_come.before if came_later and to_come is not None else now


def _to_keep(changes: Record) -> Record:
    to_come = changes.get(NEW_IRQS)
    are_all_known = to_come is not None and to_come.differs
    return {
        setting: change
        for setting, change in changes.items()
        if change.differs or (are_all_known and setting.kind is SettingKind.IRQ)
    }
