"""Settings of the host that name CPUs, and the record of what they were before they were changed (D28).

Each keeps off the CPUs that are to be left alone, and goes back to what it was as soon as it may. What somebody else sets meanwhile is
what it goes back to.
"""

import enum
from collections.abc import Mapping, Set as AbstractSet

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.idset import CpuSet


class SettingKind(enum.StrEnum):
    """What a setting is about, and what its name is."""

    IRQ = "irq"
    """The affinity of an interrupt; its number."""
    NEW_IRQS = "new-irqs"
    """The affinity of interrupts to come; no name."""
    QUEUE = "queue"
    """The CPUs that handle a queue of a network interface (RPS, XPS); a path such as `eth0/queues/rx-0/rps_cpus`, by its name now."""
    IRQBALANCE = "irqbalance"
    """CPUs that irqbalance may move interrupts to; no name. It shows what it was told only after its next scan."""
    BALANCING = "balancing"
    """The CPUs that irqbalance may move one interrupt to: all of these, or none; the interrupt's number."""
    WORKQUEUE = "workqueue"
    """The CPUs of the kernel's unbound work; no name. Each workqueue may use those of them that its own mask has."""
    THREAD = "thread"
    """The affinity of a kernel thread that is bound to no CPU; its id and its start in clock ticks since boot, `45@1234`."""
    UNIT = "unit"
    """`AllowedCPUs` of one of systemd's units: the path of its cgroup below the root of all, so of a topmost one its name. One that is gone
    comes back with what it was given.
    """


class Setting(Struct, frozen=True, order=True):
    kind: SettingKind
    name: str = ""


OF_SERVICES = frozenset({SettingKind.IRQBALANCE, SettingKind.BALANCING, SettingKind.UNIT})
"""A service may do what it was told after it has failed to answer. What the kernel refuses is refused."""

NEW_IRQS = Setting(SettingKind.NEW_IRQS)


class Change(Struct, frozen=True):
    """What one setting was, and what it has become."""

    before: CpuSet
    """What it goes back to. None: where the interrupt comes that the thread handles."""
    ours: tuple[CpuSet, ...]
    """What it may have by us. The last is what it was found with, or written to have, in the end: a crash may leave any. irqbalance doesn't
    show whether it has been told: until that is known, the last is one that it doesn't show. Of a kernel thread, what it may have been
    given by a write that the kernel remembers; all CPUs, if there may be none.
    """
    instance: int | None = None
    """As `Facts.instance`."""

    def is_of(self, facts: "Facts") -> bool:
        """Whether it may be about this interrupt or queue, and is not about an earlier one with its name."""
        return None in {self.instance, facts.instance} or self.instance == facts.instance

    def is_ours(self, now: CpuSet) -> bool:
        """Whether it is as we found it or made it. Once it is written, the value before is not ours any more."""
        return now in self.ours

    @property
    def last(self) -> CpuSet:
        return self.ours[-1]

    def is_settled(self, kind: SettingKind, wanted: CpuSet) -> bool:
        """Whether it need not be written to have what is wanted: systemd still does what it was told when it didn't answer."""
        return self.ours == (wanted,) if kind is SettingKind.UNIT else self.last == wanted

    @property
    def differs(self) -> bool:
        return any(value != self.before for value in self.ours)


class Facts(Struct, frozen=True):
    """What else the kernel says of an interrupt, a network queue or a kernel thread."""

    instance: int | None = None
    """Another one has another, even under the same name: a device's interrupts go with its driver, and their numbers are given again.
    Of a queue, its interface's: that may get another name.
    """
    near: CpuSet = CpuSet()
    """The CPUs of an interrupt's NUMA node, which the kernel prefers when it begins; none: it has no node."""
    handles: Setting | None = None
    """The interrupt that a thread handles."""
    follows: CpuSet = CpuSet()
    """Where that comes: the kernel moves the thread there when it comes for the first time after it has been moved."""


Record = Mapping[Setting, Change]
"""Each setting that is not what it goes back to. While interrupts to come are kept off CPUs, also every interrupt that there is: any other
came later, and goes back to what it would have been without us. And every kernel thread, while some leave CPUs alone.
"""


def maybe_put_back(record: Record) -> Record:
    """Return the record after somebody has put settings back in our name: each may be as it was before."""
    return {s: replace(c, ours=_ending((c.before, *c.ours), c.last)) for s, c in record.items()}


class HostPlan(Struct, frozen=True):
    record: Record
    """To save before the first write."""
    writes: Mapping[Setting, CpuSet]
    changed_by_others: Mapping[Setting, CpuSet]
    """Found with a value that is not ours although we had changed it."""
    keeps_threads: bool = False
    """Kernel threads are kept off CPUs, by us or by a partition that has not ended yet, so that the record has them all."""
    unread: frozenset[Setting] = frozenset()
    """Their part of the record stays as it was."""
    offline: CpuSet = CpuSet()
    """CPUs that may be missing from what is written for a kernel thread."""

    def without(self, refused: AbstractSet[Setting]) -> "HostPlan":
        """Leave some settings as they are."""
        changes = {s: replace(c, ours=(c.last,)) if s in refused else c for s, c in self.record.items()}
        writes = {setting: value for setting, value in self.writes.items() if setting not in refused}
        return replace(self, record=self._kept(changes), writes=writes)

    def after(self, failed: AbstractSet[Setting]) -> Record:
        """Return the record to save once all is written, but for what failed."""
        return self._kept({s: self._after(s, change, has_failed=s in failed) for s, change in self.record.items()})

    def _kept(self, changes: Record) -> Record:
        read = {setting: change for setting, change in changes.items() if setting not in self.unread}
        unread = {setting: self.record[setting] for setting in self.unread}
        return _to_keep(read, keeps_threads=self.keeps_threads) | unread

    def _after(self, setting: Setting, change: Change, *, has_failed: bool) -> Change:
        written = self.writes.get(setting)
        if written is None:
            return change
        if has_failed:
            may_be_any = setting.kind in OF_SERVICES or setting.kind is SettingKind.THREAD
            return change if may_be_any else replace(change, ours=(change.last,))
        if setting.kind is SettingKind.THREAD:
            return replace(change, ours=_shown(written, self.offline))
        shown_later = change.ours if setting.kind is SettingKind.IRQBALANCE else ()
        return replace(change, ours=_ending(shown_later, written))


class Cpus(Struct, frozen=True):
    """The CPUs of the machine."""

    possible: CpuSet
    """All that it may ever have. A setting that names these is not restricted."""
    host: CpuSet
    """Those for what would have none left: online, and not to be left alone. Empty: that stays as it is."""
    hidden: CpuSet = CpuSet()
    """Those that a kernel thread can't be given: offline, or in a partition of the cpuset."""
    offline: CpuSet = CpuSet()
    partitioned: CpuSet = CpuSet()
    """Those to be left alone from which the kernel drives its threads itself, as they are in a partition or about to be."""
    was_hidden: CpuSet = CpuSet()
    """Those that were hidden at some moment since the last look: the affinity of a kernel thread may still lack them."""
    nodes: tuple[CpuSet, ...] = ()
    """Those of each NUMA node, be they offline: the kernel gives them to threads that work for it."""
    uevents: int = 0
    """How many messages about devices the kernel has sent: if that differs between two looks, CPUs may have gone and come again."""


def plan(
    record: Record,
    observed: Mapping[Setting, CpuSet],
    *,
    alone: Mapping[SettingKind, CpuSet],
    cpus: Cpus,
    claims: Mapping[Setting, CpuSet] = {},
    spared: Mapping[Setting, CpuSet] = {},
    facts: Mapping[Setting, Facts] = {},
    unread: AbstractSet[SettingKind] = frozenset(),
) -> HostPlan:
    """Decide what to write so that no setting names a CPU that is to be left alone, unless its owner wants just that.

    Args:
        record: of what was changed before.
        observed: every setting that there is and that can be changed. One that names no CPU is off, and stays off.
        alone: CPUs to be left alone, by kind. Settings of a kind that is missing go back.
        cpus: of the machine.
        claims: settings that a container wants for its own CPUs, and these.
        spared: CPUs that a setting need not leave alone: whoever has them for itself is within.
        facts: what else is known of those that are observed.
        unread: kinds that could not be read now: nothing is known of them, and nothing changes.
    """
    record = _renamed(record, facts)
    changes, writes, others = {}, {}, {}
    keeps_threads = bool(alone.get(SettingKind.THREAD)) or bool(cpus.hidden - cpus.offline)
    for setting, now in observed.items():
        of = facts.get(setting, Facts())
        known = record.get(setting)
        known = known if known is not None and known.is_of(of) else None
        to_leave = alone.get(setting.kind, CpuSet()) - spared.get(setting, CpuSet())
        if setting.kind is SettingKind.THREAD:
            if known is None and not (keeps_threads and now):
                continue
            left = to_leave if of.handles is None else to_leave - claims.get(of.handles, CpuSet())
            found = _follower(known, now, left, cpus, of.follows, keeps_threads=keeps_threads)
        else:
            found = _other(setting, known, now, of, record.get(NEW_IRQS), claims.get(setting), to_leave, cpus)
        changes[setting] = Change(found.before, found.ours, of.instance)
        if found.written is not None:
            writes[setting] = found.written
        if found.is_others:
            others[setting] = now
    kept = {setting: change for setting, change in record.items() if _is_unread(setting, observed, unread)}
    return HostPlan(
        _to_keep(changes, keeps_threads=keeps_threads) | kept,
        writes,
        others,
        keeps_threads,
        frozenset(kept),
        cpus.offline,
    )


class _Found(Struct, frozen=True):
    before: CpuSet
    ours: tuple[CpuSet, ...]
    """As in `Change`, before it is written."""
    written: CpuSet | None
    is_others: bool


def _other(
    setting: Setting,
    known: Change | None,
    now: CpuSet,
    of: Facts,
    to_come: Change | None,
    claim: CpuSet | None,
    to_leave: CpuSet,
    cpus: Cpus,
) -> _Found:
    """Decide on a setting that keeps what it was given."""
    is_ours = known is not None and (known.is_ours(now) or _is_anywhere(setting, known, now, cpus))
    before = known.before if known is not None and is_ours else now
    if known is None:
        before = _before(setting, now, of, to_come, cpus)
    wanted = _apart(before, now, to_leave, cpus) if claim is None else claim
    is_written = wanted != now or (known is not None and is_ours and not known.is_settled(setting.kind, wanted))
    found = _found(setting.kind, known if is_ours else None, now)
    if is_written:
        last = found[-1]
        if setting.kind is SettingKind.IRQBALANCE:
            last = next((value for value in (wanted, *found) if value != now), last)
        found = _ending((wanted, *found), last)
    is_others = known is not None and known.differs and not is_ours
    return _Found(before, found, wanted if is_written else None, is_others)


def _follower(
    known: Change | None, now: CpuSet, to_leave: CpuSet, cpus: Cpus, follows: CpuSet, *, keeps_threads: bool
) -> _Found:
    """Decide on a kernel thread, which is a NUMA node's if it is anyone's, or an interrupt's.

    One of an interrupt has all CPUs until that comes for the first time. From then on it follows, and what somebody else gives it lasts as
    long as its interrupt stays where it is: so nothing is anybody else's.
    """
    if not follows:
        return _thread(known, now, to_leave, cpus)
    there = replace(cpus, nodes=(*cpus.nodes, follows))
    if known is not None and not known.before:
        known = replace(known, before=follows)
    found = _thread(known, now, to_leave, there)
    if found.is_others or (known is not None and now == follows and now not in known.ours):
        found = _thread(Change(follows, (now, cpus.possible)), now, to_leave, there)
    is_over = not keeps_threads and found.ours == (follows,) and found.written is None
    return found if found.before != follows or is_over else replace(found, before=CpuSet())


def _thread(known: Change | None, now: CpuSet, to_leave: CpuSet, cpus: Cpus) -> _Found:
    """Decide on a kernel thread.

    The kernel remembers what was written for a thread, and gives it those of these CPUs that are in no partition, whenever a partition
    changes; all that are in none, if nothing is left. So a thread that may not run on all CPUs is written once, and the kernel itself keeps
    it off partitions and puts it back. But it forgets that when it finds a thread without any online CPU: it gives it all then. And
    whenever a CPU comes online, threads that work for a NUMA node get that node's, be they in a partition (kcompactd_cpu_online in
    mm/compaction.c). A thread that goes where it was never to be is written again, as soon as the kernel takes what it is to have. Older
    kernels (6.1) leave out CPUs that are offline when it is written (cpuset_cpus_allowed), and don't give them back: it is written again
    when these are back.
    """
    before, ours = _thread_so_far(known, now, cpus)
    is_others = known is not None and before is None
    before = now if before is None else before
    wanted = _apart(before, now, to_leave - cpus.partitioned, cpus)
    closed = cpus.hidden - cpus.offline
    is_written = ours in {(wanted,), _shown(wanted, cpus.offline)}
    if to_leave or closed:
        is_right = now <= wanted and now - cpus.offline == wanted - cpus.hidden
    else:
        is_right = now == wanted or (is_written and now == wanted - cpus.offline)
    written: CpuSet | None = wanted
    if not wanted - cpus.hidden:  # the kernel would refuse that (EINVAL)
        is_to_go = bool(now & to_leave - (cpus.partitioned - closed))
        written = cpus.host if is_to_go and cpus.host else None
    elif is_right and (is_others or is_written):
        written = None
    if written is not None:
        ours = _ending((cpus.possible, *_shown(written, cpus.offline), now, *ours), ours[-1])
    elif not is_right:
        ours = _ending((now, *ours), ours[-1])
    return _Found(before, ours, written, is_others)


def _shown(written: CpuSet, offline: CpuSet) -> tuple[CpuSet, ...]:
    """Return what a thread may show after this was written."""
    return _ending((written - offline or written,), written)


def _thread_so_far(known: Change | None, now: CpuSet, cpus: Cpus) -> tuple[CpuSet | None, tuple[CpuSet, ...]]:
    """Return what a thread goes back to, and what may have been written for it. None: somebody else has moved it."""
    if known is None:
        before = _whole(now, cpus)
        return before, _ending((cpus.possible,), before)
    fitting = tuple(value for value in known.ours if _may_show(value, now, cpus))
    if not fitting and not _may_show(cpus.possible, now, cpus):
        return None, (now,)
    is_moved = known.before == cpus.possible and all(now - cpus.hidden != value - cpus.hidden for value in known.ours)
    before = (_node_of(now, cpus) if is_moved else None) or known.before
    return before, fitting or _ending((cpus.possible, *known.ours), known.last)


def _may_show(written: CpuSet, now: CpuSet, cpus: Cpus) -> bool:
    """Whether a thread may have the affinity that it shows after this was the last that was written for it."""
    hidden = cpus.hidden | cpus.was_hidden
    given = (written, *(written & node or node for node in cpus.nodes))
    return now - hidden in {value - hidden for value in given} | {written - hidden or cpus.possible - hidden}


def _whole(now: CpuSet, cpus: Cpus) -> CpuSet:
    """Return what a thread goes back to of which nothing is known: what has all of a node's CPUs that there are has the node's."""
    if cpus.hidden - cpus.offline and now | cpus.hidden == cpus.possible:
        return cpus.possible
    return _node_of(now, cpus) or now


def _node_of(now: CpuSet, cpus: Cpus) -> CpuSet | None:
    """Return the node's CPUs, if a thread has just these. One that has lost them got all, and has the node's again when a CPU comes; one of
    an interrupt has all until that comes for the first time.
    """
    hidden = cpus.hidden | cpus.was_hidden
    fitting = (node for node in cpus.nodes if now <= node and now - hidden == node - hidden != cpus.possible - hidden)
    return next(fitting, None)


def _renamed(record: Record, facts: Mapping[Setting, Facts]) -> Record:
    """Give the queues of interfaces that have been renamed their new names."""
    names: dict[tuple[int | None, str], Setting] = {
        (of.instance, _in_interface(setting)): setting
        for setting, of in facts.items()
        if setting.kind is SettingKind.QUEUE and of.instance is not None
    }
    return {
        names.get((change.instance, _in_interface(setting)), setting)
        if setting.kind is SettingKind.QUEUE
        else setting: change
        for setting, change in record.items()
    }


def _in_interface(queue: Setting) -> str:
    return queue.name.partition("/")[2]


def _is_unread(setting: Setting, observed: Mapping[Setting, CpuSet], unread: AbstractSet[SettingKind]) -> bool:
    return setting.kind in unread or (setting.kind is SettingKind.UNIT and setting not in observed)


def _is_anywhere(setting: Setting, known: Change, now: CpuSet, cpus: Cpus) -> bool:
    """Whether the last of its CPUs has gone offline: the kernel lets an interrupt come anywhere then."""
    anywhere = cpus.possible - cpus.offline
    return setting.kind is SettingKind.IRQ and anywhere <= now and any(value <= cpus.offline for value in known.ours)


def _apart(before: CpuSet, now: CpuSet, alone: CpuSet, cpus: Cpus) -> CpuSet:
    """Take CPUs out of a setting. What has no other one that is online gets the host's."""
    if before.isdisjoint(alone):
        return before
    apart = before - alone
    return apart if apart & cpus.host else cpus.host or now


def _found(kind: SettingKind, known: Change | None, now: CpuSet) -> tuple[CpuSet, ...]:
    """Return what a setting may have: of the kernel's, what it shows; of a service, all that was sent, until the last of it is seen.

    systemd may do any of it until it has answered.
    """
    if known is None or kind not in OF_SERVICES:
        return (now,)
    return (known.last,) if now == known.last and kind is not SettingKind.UNIT else known.ours


def _ending(values: tuple[CpuSet, ...], last: CpuSet) -> tuple[CpuSet, ...]:
    return (*(value for value in dict.fromkeys(values) if value != last), last)


def _before(setting: Setting, now: CpuSet, interrupt: Facts, to_come: Change | None, cpus: Cpus) -> CpuSet:
    """Return what a setting goes back to that is not known.

    Args:
        setting: which.
        now: its value.
        interrupt: what is known of it, if it is one.
        to_come: what is recorded of the affinity of interrupts to come.
        cpus: of the machine.
    """
    if setting.kind is not SettingKind.IRQ or to_come is None:
        return now
    for given in to_come.ours:
        if now == _at_its_begin(given, interrupt, cpus):
            return _at_its_begin(to_come.before, interrupt, cpus)
        if now == given:  # nothing handles it yet
            return to_come.before
    return now


def _at_its_begin(given: CpuSet, interrupt: Facts, cpus: Cpus) -> CpuSet:
    """Return the affinity of an interrupt that something begins to handle, for a given one of interrupts to come.

    As irq_setup_affinity in kernel/irq/manage.c: the online ones, and of these those of the device's NUMA node, if there are any.
    """
    online = (given - cpus.offline) or (cpus.possible - cpus.offline)
    return online & interrupt.near or online


def _to_keep(changes: Record, *, keeps_threads: bool) -> dict[Setting, Change]:
    to_come = changes.get(NEW_IRQS)
    all_of = {SettingKind.IRQ} if to_come is not None and to_come.differs else set()
    all_of |= {SettingKind.THREAD} if keeps_threads else set()
    return {setting: change for setting, change in changes.items() if change.differs or setting.kind in all_of}
