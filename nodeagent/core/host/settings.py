"""Host settings that contain CPUs or belong to one CPU, and the record of their values before the agent changed them (D28).

While a pod needs it, a setting avoids certain CPUs or has a requested value. Afterwards its original value is restored. If another
program has set a value in the meantime, that newer value is restored instead.
"""

import enum
from collections.abc import Mapping, Set as AbstractSet
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.idset import CpuSet


class SettingKind(enum.StrEnum):
    """Kind of a host setting. The kind determines the meaning of the setting's name."""

    IRQ = "irq"
    """Affinity of an interrupt. The name is the interrupt's number."""
    NEW_IRQS = "new-irqs"
    """Default affinity of new interrupts. The setting has no name."""
    QUEUE = "queue"
    """CPUs that handle a queue of a network interface (RPS, XPS). The name is a path such as `eth0/queues/rx-0/rps_cpus`, with the current
    name of the interface.
    """
    IRQBALANCE = "irqbalance"
    """CPUs to which irqbalance may move interrupts. The setting has no name. irqbalance shows a new value only after its next scan."""
    BALANCING = "balancing"
    """CPUs to which irqbalance may move one interrupt. The value is either all CPUs of irqbalance or no CPU. The name is the interrupt's
    number.
    """
    WORKQUEUE = "workqueue"
    """CPUs of the kernel's unbound workqueues. The setting has no name. Each workqueue uses only those of these CPUs that are also in its
    own mask.
    """
    THREAD = "thread"
    """Affinity of a kernel thread that isn't bound to a CPU. The name is the thread's ID and its start time in clock ticks since boot
    (`45@1234`).
    """
    UNIT = "unit"
    """`AllowedCPUs` of a systemd unit. The name is the path of the unit's cgroup below the root cgroup. A stopped unit keeps the value
    for its next start.
    """
    IDLE_LATENCY = "idle-latency"
    """Longest time in microseconds that one CPU may take to leave an idle state. The name is the CPU's number. The value is the kernel's
    text, where `0` means no limit and `n/a` means that idle states aren't used at all.
    """
    GOVERNOR = "governor"
    """Frequency governor of one CPU. The name is the CPU's number. The setting doesn't exist for CPUs that share one governor."""
    MIN_FREQUENCY = "min-frequency"
    """Lowest frequency of one CPU in kHz. The name is the CPU's number. The setting doesn't exist for CPUs with a common frequency."""
    MAX_FREQUENCY = "max-frequency"
    BOOST = "boost"
    """Permission of one CPU to exceed its nominal frequency, either `1` or `0`. The name is the CPU's number."""
    MACHINE_BOOST = "machine-boost"
    """Boost of all CPUs. The name is the name of the kernel's file: `cpufreq/boost`, or `intel_pstate/no_turbo`, in which `1` means no
    boost.
    """


class Setting(Struct, frozen=True, order=True):
    kind: SettingKind
    name: str = ""


OF_SERVICES = frozenset({SettingKind.IRQBALANCE, SettingKind.BALANCING, SettingKind.UNIT})
"""Settings that a service applies on request. Even a failed call may have an effect later. For all other settings, a failed write has no
effect.
"""

OF_POLICY = frozenset({SettingKind.GOVERNOR, SettingKind.MIN_FREQUENCY, SettingKind.MAX_FREQUENCY, SettingKind.BOOST})
"""Settings of a cpufreq policy. Several CPUs may belong to one policy."""
OF_ONE_CPU = frozenset({SettingKind.IDLE_LATENCY, *OF_POLICY})
"""Settings that belong to one CPU, and are requested for this CPU."""
OF_FREQUENCY = frozenset({SettingKind.MIN_FREQUENCY, SettingKind.MAX_FREQUENCY})
"""Settings whose file shows the limit in effect. This limit is the nearest supported frequency, or a stricter limit of the kernel, for
instance because of heat. The file therefore doesn't show whether another program has written it.
"""
WITH_TEXT = OF_ONE_CPU | {SettingKind.MACHINE_BOOST}
"""Settings whose value is a text, not a set of CPUs."""

_SEEN_AGAIN = WITH_TEXT | {SettingKind.UNIT}
"""Settings that may be missing for a while, for instance while their CPU is offline. The agent assumes that a missing setting keeps its
value.
"""

NEW_IRQS = Setting(SettingKind.NEW_IRQS)

Value = CpuSet | str
"""Value of a setting: a text for the kinds in `WITH_TEXT`, otherwise a set of CPUs."""
_V = TypeVar("_V", bound=Value)


class Change(Struct, Generic[_V], frozen=True):
    """Record of one setting, with its original value and the values that the agent may have given it."""

    before: _V
    """Value before the agent's first change, which the agent restores in the end. For the thread of an interrupt, an empty set means that
    the thread had the affinity of its interrupt.
    """
    ours: tuple[_V, ...]
    """Values that the setting may have because of the agent. After a crash, each of them is possible. The last element is the value that
    the agent found or wrote last.

    irqbalance shows a new value only with a delay, so the last element may differ from the shown value. For a kernel thread, the elements
    are the affinities that the kernel may remember. A thread without a remembered affinity may use all CPUs.
    """
    instance: int | None = None
    """Identity of the interrupt or interface (see `Facts.instance`)."""

    def is_of(self, facts: "Facts") -> bool:
        """Whether the record may belong to this interrupt or queue, rather than to an earlier one with the same name."""
        return None in {self.instance, facts.instance} or self.instance == facts.instance

    def is_ours(self, now: _V) -> bool:
        """Whether the agent found or wrote this value last. The values before the last write don't count."""
        return now in self.ours

    @property
    def last(self) -> _V:
        return self.ours[-1]

    def is_settled(self, kind: SettingKind, wanted: _V) -> bool:
        """Whether the setting needs no write to get the wanted value. As long as systemd hasn't answered a call, it may still apply an
        older value.
        """
        return self.ours == (wanted,) if kind is SettingKind.UNIT else self.last == wanted

    @property
    def differs(self) -> bool:
        return any(value != self.before for value in self.ours)


class Facts(Struct, frozen=True):
    """Further facts that the kernel reports about an interrupt, a network queue or a kernel thread."""

    instance: int | None = None
    """Identity of an interrupt, or of a queue's interface. It detects a reused interrupt number and a renamed interface."""
    near: CpuSet = CpuSet()
    """CPUs of the interrupt's NUMA node, which the kernel prefers for a new interrupt. The set is empty if the interrupt has no node."""
    interrupt: Setting | None = None
    """Number of the interrupt that a thread handles."""
    follows: CpuSet = CpuSet()
    """CPUs of the interrupt that the thread handles. After the interrupt was moved, the kernel moves the thread to these CPUs at the next
    interrupt.
    """


Record = Mapping[Setting, Change[Any]]
"""Records of all settings that differ from their original value.

While the default affinity of new interrupts is changed, all existing interrupts are recorded, too. An interrupt without a record is then
newer than the change. Its original value is the affinity that the kernel would have given it. While kernel threads avoid CPUs, all kernel
threads are recorded.
"""


def assume_restored(record: Record) -> Record:
    """Return the record after another process may have restored settings. From then on, each setting may also have its original value."""
    return {s: replace(c, ours=_put_last((c.before, *c.ours), c.last)) for s, c in record.items()}


class HostPlan(Struct, frozen=True):
    record: Record
    """Record to save before the first write."""
    writes: Mapping[Setting, Value]
    changed_by_others: Mapping[Setting, Value]
    """Settings that another program has changed since the agent's change, with the new values."""
    keeps_threads: bool = False
    """Whether kernel threads avoid CPUs, because of the agent or of a partition that still exists. All kernel threads are then recorded."""
    unread: frozenset[Setting] = frozenset()
    """Settings that couldn't be read. Their records stay unchanged."""
    offline: CpuSet = CpuSet()
    """CPUs that may be missing when the kernel shows a thread's affinity after a write."""

    def without(self, refused: AbstractSet[Setting]) -> "HostPlan":
        """Return the plan without the writes of these settings."""
        changes = {s: replace(c, ours=(c.last,)) if s in refused else c for s, c in self.record.items()}
        writes = {setting: value for setting, value in self.writes.items() if setting not in refused}
        return replace(self, record=self._kept(changes), writes=writes)

    def after(self, failed: AbstractSet[Setting]) -> Record:
        """Return the record to save after the writes, given the settings whose writes failed."""
        return self._kept({s: self._after(s, change, has_failed=s in failed) for s, change in self.record.items()})

    def _kept(self, changes: Record) -> Record:
        read = {setting: change for setting, change in changes.items() if setting not in self.unread}
        unread = {setting: self.record[setting] for setting in self.unread}
        return _select_record(read, keeps_threads=self.keeps_threads) | unread

    def _after(self, setting: Setting, change: Change[Any], *, has_failed: bool) -> Change[Any]:
        written = self.writes.get(setting)
        if written is None:
            return change
        if has_failed:
            may_be_any = setting.kind in OF_SERVICES or setting.kind is SettingKind.THREAD
            return change if may_be_any else replace(change, ours=(change.last,))
        if setting.kind is SettingKind.THREAD and isinstance(written, CpuSet):
            return replace(change, ours=_list_possible_affinities(written, self.offline))
        shown_later = change.ours if setting.kind is SettingKind.IRQBALANCE else ()
        return replace(change, ours=_put_last(shown_later, written))


class Cpus(Struct, frozen=True):
    """Sets of CPUs of the machine."""

    possible: CpuSet
    """All CPUs that the machine can have. A setting with all these CPUs is unrestricted."""
    host: CpuSet
    """Online CPUs that settings may contain. A setting that would otherwise contain no CPU gets these CPUs. If there are none, such a
    setting stays unchanged.
    """
    hidden: CpuSet = CpuSet()
    """CPUs that the kernel doesn't accept for a kernel thread, because they are offline or in a cpuset partition."""
    offline: CpuSet = CpuSet()
    partitioned: CpuSet = CpuSet()
    """CPUs to avoid that are in a partition, or soon will be. The kernel itself moves its threads off these CPUs."""
    was_hidden: CpuSet = CpuSet()
    """CPUs that were hidden at any time since the last scan. They may still be missing in a kernel thread's affinity."""
    nodes: tuple[CpuSet, ...] = ()
    """CPUs of each NUMA node, including offline CPUs. Kernel threads that work for a node get the node's CPUs from the kernel."""
    uevents: int = 0
    """Number of device events that the kernel has sent. If the number changes between two scans, CPUs may have gone offline
    and returned.
    """


def plan_settings(
    record: Record,
    observed: Mapping[Setting, Value],
    *,
    to_avoid: Mapping[SettingKind, CpuSet],
    cpus: Cpus,
    requested: Mapping[Setting, CpuSet] = {},
    values: Mapping[Setting, str] = {},
    spared: Mapping[Setting, CpuSet] = {},
    facts: Mapping[Setting, Facts] = {},
    unread: AbstractSet[SettingKind] = frozenset(),
) -> HostPlan:
    """Decide which settings to write. Settings should not contain CPUs to avoid, unless the CPU's owner requests it. Settings of one CPU
    should have the requested values.

    Args:
        record: the record of earlier changes.
        observed: every setting that exists and can be changed. A setting without any CPU is off, and stays off.
        to_avoid: CPUs to avoid, by kind. Settings of kinds that aren't listed are restored.
        cpus: the CPUs of the machine.
        requested: the settings that a container wants on its own CPUs, with these CPUs.
        values: the requested values of settings of one CPU. Other such settings are restored.
        spared: CPUs that a setting need not avoid. For example, the slices around a pinned unit may contain the unit's CPUs.
        facts: further facts about the observed settings.
        unread: kinds of settings that couldn't be read now. Such settings stay unchanged.
    """
    record = _rename_queues(record, facts)
    changes: dict[Setting, Change[Any]] = {}
    writes: dict[Setting, Value] = {}
    others: dict[Setting, Value] = {}
    keeps_threads = bool(to_avoid.get(SettingKind.THREAD)) or bool(cpus.hidden - cpus.offline)
    for setting, now in observed.items():
        fact = facts.get(setting, Facts())
        known = record.get(setting)
        known = known if known is not None and known.is_of(fact) else None
        avoided = to_avoid.get(setting.kind, CpuSet()) - spared.get(setting, CpuSet())
        found: _Decision[Any]
        if isinstance(now, str):
            found = _decide_value(setting.kind, known, now, values.get(setting))
        elif setting.kind is SettingKind.THREAD:
            if known is None and not (keeps_threads and now):
                continue
            left = avoided if fact.interrupt is None else avoided - requested.get(fact.interrupt, CpuSet())
            found = _decide_interrupt_thread(known, now, left, cpus, fact.follows, keeps_threads=keeps_threads)
        else:
            found = _decide_setting(
                setting, known, now, fact, record.get(NEW_IRQS), requested.get(setting), avoided, cpus
            )
        changes[setting] = Change(found.before, found.ours, fact.instance)
        if found.written is not None:
            writes[setting] = found.written
        if found.is_others:
            others[setting] = now
    kept = {
        setting: change
        for setting, change in record.items()
        if setting.kind in unread or (setting.kind in _SEEN_AGAIN and setting not in observed)
    }
    return HostPlan(
        _select_record(changes, keeps_threads=keeps_threads) | kept,
        writes,
        others,
        keeps_threads,
        frozenset(kept),
        cpus.offline,
    )


class _Decision(Struct, Generic[_V], frozen=True):
    before: _V
    ours: tuple[_V, ...]
    """Values that the setting may have before the write (see `Change.ours`)."""
    written: _V | None
    is_others: bool


def _decide_value(kind: SettingKind, known: Change[str] | None, now: str, requested: str | None) -> _Decision[str]:
    """Decide on a setting whose value is a text. Without a requested value, the original value is restored. If another program has set a
    stricter limit, this limit stays.
    """
    if known is not None and kind in OF_FREQUENCY:
        wanted = known.before if requested is None else _select_stricter(kind, known.before, requested)
        is_set = known.ours == (wanted,)
        ours = known.ours if is_set else _put_last((wanted, *known.ours), known.last)
        return _Decision(known.before, ours, None if is_set else wanted, is_others=False)
    is_ours = known is not None and known.is_ours(now)
    before = known.before if known is not None and is_ours else now
    wanted = before if requested is None else _select_stricter(kind, before, requested)
    ours = (now,) if wanted == now else (wanted, now)
    is_others = known is not None and known.differs and not is_ours
    return _Decision(before, ours, None if wanted == now else wanted, is_others)


def _select_stricter(kind: SettingKind, before: str, requested: str) -> str:
    """Return the stricter of two limits. If the setting isn't a limit, return the requested value."""
    match kind:
        case SettingKind.IDLE_LATENCY:
            is_stricter = before == "n/a" or (before.isdecimal() and 0 < int(before) < int(requested))
        case SettingKind.MIN_FREQUENCY:
            is_stricter = before.isdecimal() and int(before) > int(requested)
        case SettingKind.MAX_FREQUENCY:
            is_stricter = before.isdecimal() and int(before) < int(requested)
        case _:
            is_stricter = False
    return before if is_stricter else requested


def _decide_setting(
    setting: Setting,
    known: Change[CpuSet] | None,
    now: CpuSet,
    fact: Facts,
    new_irqs: Change[CpuSet] | None,
    requested: CpuSet | None,
    avoided: CpuSet,
    cpus: Cpus,
) -> _Decision[CpuSet]:
    """Decide on a setting that keeps a written value, as all settings except those of kernel threads do."""
    is_ours = known is not None and (known.is_ours(now) or _may_run_anywhere(setting, known, now, cpus))
    before = known.before if known is not None and is_ours else now
    if known is None:
        before = _find_original_value(setting, now, fact, new_irqs, cpus)
    wanted = _remove_cpus(before, now, avoided, cpus) if requested is None else requested
    is_written = wanted != now or (known is not None and is_ours and not known.is_settled(setting.kind, wanted))
    found = _list_possible_values(setting.kind, known if is_ours else None, now)
    if is_written:
        last = found[-1]
        if setting.kind is SettingKind.IRQBALANCE:
            last = next((value for value in (wanted, *found) if value != now), last)
        found = _put_last((wanted, *found), last)
    is_others = known is not None and known.differs and not is_ours
    return _Decision(before, found, wanted if is_written else None, is_others)


def _decide_interrupt_thread(
    known: Change[CpuSet] | None, now: CpuSet, avoided: CpuSet, cpus: Cpus, follows: CpuSet, *, keeps_threads: bool
) -> _Decision[CpuSet]:
    """Decide on a kernel thread, which may handle an interrupt.

    Until its first interrupt, the thread of an interrupt may use all CPUs. Afterwards it follows the interrupt's affinity. A value that
    another program has set isn't preserved, because this value would last only until the interrupt moves.
    """
    if not follows:
        return _decide_thread(known, now, avoided, cpus)
    cpus_with_interrupt = replace(cpus, nodes=(*cpus.nodes, follows))
    if known is not None and not known.before:
        known = replace(known, before=follows)
    found = _decide_thread(known, now, avoided, cpus_with_interrupt)
    if found.is_others or (known is not None and now == follows and now not in known.ours):
        found = _decide_thread(Change(follows, (now, cpus.possible)), now, avoided, cpus_with_interrupt)
    is_over = not keeps_threads and found.ours == (follows,) and found.written is None
    return found if found.before != follows or is_over else replace(found, before=CpuSet())


def _decide_thread(known: Change[CpuSet] | None, now: CpuSet, avoided: CpuSet, cpus: Cpus) -> _Decision[CpuSet]:
    """Decide on the affinity of a kernel thread, by the rules for all kernel threads.

    The kernel remembers the affinity written for a thread. Whenever a partition changes, the kernel removes the CPUs of partitions from
    this affinity. If none is left, the thread may use all CPUs outside of partitions. One write of the affinity is therefore enough. The
    kernel itself keeps the thread off partitions, and restores the affinity later.

    There are two exceptions. A thread without any online CPU gets all CPUs, and the kernel forgets the written affinity. When a CPU comes
    online, threads that work for a NUMA node get the node's CPUs, even those in a partition (kcompactd_cpu_online in mm/compaction.c). A
    wrong affinity is corrected as soon as the kernel accepts the value. Older kernels (6.1) drop CPUs that are offline at the write
    (cpuset_cpus_allowed), so the affinity is written again when these CPUs return.
    """
    before, ours = _find_original_affinity(known, now, cpus)
    is_others = known is not None and before is None
    before = now if before is None else before
    wanted = _remove_cpus(before, now, avoided - cpus.partitioned, cpus)
    closed = cpus.hidden - cpus.offline
    is_written = ours in {(wanted,), _list_possible_affinities(wanted, cpus.offline)}
    if avoided or closed:
        is_right = now <= wanted and now - cpus.offline == wanted - cpus.hidden
    else:
        is_right = now == wanted or (is_written and now == wanted - cpus.offline)
    written: CpuSet | None = wanted
    if not wanted - cpus.hidden:  # the kernel refuses an affinity (EINVAL) whose CPUs are all offline or in partitions
        is_to_go = bool(now & avoided - (cpus.partitioned - closed))
        written = cpus.host if is_to_go and cpus.host else None
    elif is_right and (is_others or is_written):
        written = None
    if written is not None:
        ours = _put_last((cpus.possible, *_list_possible_affinities(written, cpus.offline), now, *ours), ours[-1])
    elif not is_right:
        ours = _put_last((now, *ours), ours[-1])
    return _Decision(before, ours, written, is_others)


def _list_possible_affinities(written: CpuSet, offline: CpuSet) -> tuple[CpuSet, ...]:
    """Return the affinities that the kernel may show after an affinity was written."""
    return _put_last((written - offline or written,), written)


def _find_original_affinity(
    known: Change[CpuSet] | None, now: CpuSet, cpus: Cpus
) -> tuple[CpuSet | None, tuple[CpuSet, ...]]:
    """Return the affinity to restore for a thread, and the affinities that the agent may have written. The first value is None if another
    program has moved the thread.
    """
    if known is None:
        # If a thread may run on all visible CPUs of a NUMA node, its original affinity is taken to be all CPUs of the node.
        is_everywhere = cpus.hidden - cpus.offline and now | cpus.hidden == cpus.possible
        before = cpus.possible if is_everywhere else _find_node(now, cpus) or now
        return before, _put_last((cpus.possible,), before)
    fitting = tuple(value for value in known.ours if _may_show_affinity(value, now, cpus))
    if not fitting and not _may_show_affinity(cpus.possible, now, cpus):
        return None, (now,)
    is_moved = known.before == cpus.possible and all(now - cpus.hidden != value - cpus.hidden for value in known.ours)
    before = (_find_node(now, cpus) if is_moved else None) or known.before
    return before, fitting or _put_last((cpus.possible, *known.ours), known.last)


def _may_show_affinity(written: CpuSet, now: CpuSet, cpus: Cpus) -> bool:
    """Whether a thread may show the affinity `now` if the last written affinity was `written`."""
    hidden = cpus.hidden | cpus.was_hidden
    given = (written, *(written & node or node for node in cpus.nodes))
    return now - hidden in {value - hidden for value in given} | {written - hidden or cpus.possible - hidden}


def _find_node(now: CpuSet, cpus: Cpus) -> CpuSet | None:
    """Return the affinity of a thread if it consists of exactly the CPUs of a NUMA node.

    A thread that lost its node's CPUs has all CPUs until another CPU comes online. The thread of an interrupt has all CPUs until the first
    interrupt.
    """
    hidden = cpus.hidden | cpus.was_hidden
    fitting = (node for node in cpus.nodes if now <= node and now - hidden == node - hidden != cpus.possible - hidden)
    return next(fitting, None)


def _rename_queues(record: Record, facts: Mapping[Setting, Facts]) -> Record:
    """Return the record with new names for queues whose interfaces have been renamed."""
    names: dict[tuple[int | None, str], Setting] = {
        (fact.instance, _name_within_interface(setting)): setting
        for setting, fact in facts.items()
        if setting.kind is SettingKind.QUEUE and fact.instance is not None
    }
    return {
        names.get((change.instance, _name_within_interface(setting)), setting)
        if setting.kind is SettingKind.QUEUE
        else setting: change
        for setting, change in record.items()
    }


def _name_within_interface(queue: Setting) -> str:
    return queue.name.partition("/")[2]


def _may_run_anywhere(setting: Setting, known: Change[CpuSet], now: CpuSet, cpus: Cpus) -> bool:
    """Whether all CPUs of an interrupt have gone offline, so that the kernel now allows any CPU."""
    anywhere = cpus.possible - cpus.offline
    return setting.kind is SettingKind.IRQ and anywhere <= now and any(value <= cpus.offline for value in known.ours)


def _remove_cpus(before: CpuSet, now: CpuSet, to_avoid: CpuSet, cpus: Cpus) -> CpuSet:
    """Remove CPUs from a setting. If no online CPU is left, return the host's CPUs instead."""
    if before.isdisjoint(to_avoid):
        return before
    remaining = before - to_avoid
    return remaining if remaining & cpus.host else cpus.host or now


def _list_possible_values(kind: SettingKind, known: Change[CpuSet] | None, now: CpuSet) -> tuple[CpuSet, ...]:
    """Return the values that a setting may have.

    A kernel setting has the value that it shows. A service may apply any of the values sent to it, until it shows the last value. systemd
    may apply any of these values until it has answered.
    """
    if known is None or kind not in OF_SERVICES:
        return (now,)
    return (known.last,) if now == known.last and kind is not SettingKind.UNIT else known.ours


def _put_last(values: tuple[_V, ...], last: _V) -> tuple[_V, ...]:
    return (*(value for value in dict.fromkeys(values) if value != last), last)


def _find_original_value(
    setting: Setting, now: CpuSet, interrupt: Facts, new_irqs: Change[CpuSet] | None, cpus: Cpus
) -> CpuSet:
    """Return the value to restore for a setting without a record.

    Args:
        setting: the setting.
        now: the setting's current value.
        interrupt: further facts about the setting, if it is an interrupt.
        new_irqs: the record of the default affinity of new interrupts.
        cpus: the CPUs of the machine.
    """
    if setting.kind is not SettingKind.IRQ or new_irqs is None:
        return now
    for given in new_irqs.ours:
        if now == _find_initial_affinity(given, interrupt, cpus):
            return _find_initial_affinity(new_irqs.before, interrupt, cpus)
        if now == given:  # the affinity stays at this value until a driver requests the interrupt
            return new_irqs.before
    return now


def _find_initial_affinity(given: CpuSet, interrupt: Facts, cpus: Cpus) -> CpuSet:
    """Return the affinity that the kernel gives a new interrupt, for a given default affinity.

    As in irq_setup_affinity of kernel/irq/manage.c, this is the online part of the default affinity. If possible, it is limited to the
    device's NUMA node.
    """
    online = (given - cpus.offline) or (cpus.possible - cpus.offline)
    return online & interrupt.near or online


def _select_record(changes: Record, *, keeps_threads: bool) -> dict[Setting, Change[Any]]:
    """Return the records of changed settings, and the records of those kinds of settings that are recorded completely."""
    new_irqs = changes.get(NEW_IRQS)
    whole_kinds = {SettingKind.IRQ} if new_irqs is not None and new_irqs.differs else set()
    whole_kinds |= {SettingKind.THREAD} if keeps_threads else set()
    return {setting: one for setting, one in changes.items() if one.differs or setting.kind in whole_kinds}
