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
    IRQBALANCE = "irqbalance"
    """CPUs that irqbalance may move interrupts to; the id of its process."""
    WORKQUEUE = "workqueue"
    """The CPUs of the kernel's unbound work; no name. Each workqueue may use those of them that its own mask has."""
    THREAD = "thread"
    """The affinity of a kernel thread that is bound to no CPU; its id and its start in clock ticks since boot, `45@1234`."""
    UNIT = "unit"
    """`AllowedCPUs` of one of systemd's topmost units; its name."""


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

    def is_ours(self, now: CpuSet, hidden: CpuSet = CpuSet()) -> bool:
        """Whether it is as it was before or as we made it, but for CPUs that the kernel doesn't show."""
        return any(now - hidden == value - hidden for value in (self.before, *self.ours))

    @property
    def differs(self) -> bool:
        return any(value != self.before for value in self.ours)


Record = Mapping[Setting, Change]
"""Each setting that is not what it goes back to. While interrupts to come are kept off CPUs, also every interrupt that there is: any other
came later, and goes back to what it would have been without us. And every kernel thread whose CPUs have been written.
"""


class HostPlan(Struct, frozen=True):
    record: Record
    """To save before the first write."""
    writes: Mapping[Setting, CpuSet]
    changed_by_others: Mapping[Setting, CpuSet]
    """Found with a value that is not ours although we had changed it."""
    keeps_threads: bool = False
    """Kernel threads are kept off CPUs, so that the record has them all."""
    unread: frozenset[SettingKind] = frozenset()
    """Their part of the record stays as it was."""

    def after(self, failed: AbstractSet[Setting]) -> Record:
        """Return the record to save once all is written, but for what failed."""
        changes = {
            setting: Change(change.before, (change.ours[0 if setting in failed else -1],))
            for setting, change in self.record.items()
            if setting.kind not in self.unread
        }
        unread = {setting: change for setting, change in self.record.items() if setting.kind in self.unread}
        return _to_keep(changes, keeps_threads=self.keeps_threads) | unread


class Cpus(Struct, frozen=True):
    """The CPUs of the machine."""

    possible: CpuSet
    """All that it may ever have. A setting that names these is not restricted."""
    host: CpuSet
    """Those for what would have none left. Empty: that stays as it is."""
    hidden: CpuSet = CpuSet()
    """Those that the affinity of a kernel thread doesn't show even if it has them: offline, or in a partition of the cpuset."""


def plan(
    record: Record,
    observed: Mapping[Setting, CpuSet],
    *,
    alone: Mapping[SettingKind, CpuSet],
    cpus: Cpus,
    claims: Mapping[Setting, CpuSet] = {},
    unread: AbstractSet[SettingKind] = frozenset(),
) -> HostPlan:
    """Decide what to write so that no setting names a CPU that is to be left alone, unless its owner wants just that.

    A kernel thread that may not run on all CPUs has its affinity written once even if that is right: the kernel gives a thread any CPU when
    a partition of the cpuset ends, but not beyond what was written.

    Args:
        record: of what was changed before.
        observed: every setting that there is and that can be changed. One that names no CPU is off, and stays off.
        alone: CPUs to be left alone, by kind. Settings of a kind that is missing go back.
        cpus: of the machine.
        claims: settings that a container wants for its own CPUs, and these.
        unread: kinds that could not be read now: nothing is known of them, and nothing changes.
    """
    changes, writes, others = {}, {}, {}
    keeps_threads = bool(alone.get(SettingKind.THREAD))
    for setting, now in observed.items():
        known = record.get(setting)
        hidden = cpus.hidden if setting.kind is SettingKind.THREAD else CpuSet()
        before = _before(setting, now, record, hidden, cpus.possible)
        apart = before - alone.get(setting.kind, CpuSet()) or (cpus.host if before else before) or now
        wanted = claims.get(setting) or apart
        is_new_thread = setting.kind is SettingKind.THREAD and known is None and keeps_threads
        if wanted != now or (is_new_thread and wanted != cpus.possible):
            writes[setting] = wanted
        if known is not None and known.differs and not known.is_ours(now, hidden):
            others[setting] = now
        changes[setting] = Change(before, (now, wanted) if wanted != now else (now,))
    kept = {setting: change for setting, change in record.items() if setting.kind in unread}
    return HostPlan(
        _to_keep(changes, keeps_threads=keeps_threads) | kept, writes, others, keeps_threads, frozenset(unread)
    )


def _before(setting: Setting, now: CpuSet, record: Record, hidden: CpuSet, possible: CpuSet) -> CpuSet:
    known = record.get(setting)
    if known is not None:
        return known.before if known.is_ours(now, hidden) else now
    if hidden and now | hidden == possible:
        return possible
    to_come = record.get(NEW_IRQS)
    came_later = setting.kind is SettingKind.IRQ and to_come is not None and now in to_come.ours
    return to_come.before if came_later and to_come is not None else now


def _to_keep(changes: Record, *, keeps_threads: bool) -> dict[Setting, Change]:
    to_come = changes.get(NEW_IRQS)
    all_of = {SettingKind.IRQ} if to_come is not None and to_come.differs else set()
    all_of |= {SettingKind.THREAD} if keeps_threads else set()
    return {setting: change for setting, change in changes.items() if change.differs or setting.kind in all_of}
