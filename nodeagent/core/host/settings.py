"""Decisions on host settings that contain CPUs or apply to one CPU, and records of their original values (D28).

While a pod needs it, a setting avoids certain CPUs or has a requested value. Afterwards its original value is restored. If another program
has changed the setting in the meantime, that program's value counts as the original one.
"""

import enum
from collections.abc import Mapping, Set as AbstractSet
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.idset import CpuSet


class SettingKind(enum.StrEnum):
    """Kind of a host setting. The kind determines what the name of the setting identifies."""

    IRQ = "irq"
    """Affinity of an interrupt. The name is the interrupt's number."""
    NEW_IRQS = "new-irqs"
    """Default affinity of new interrupts. The setting has no name."""
    QUEUE = "queue"
    """CPUs that handle a queue of a network interface (RPS, XPS). The name is a path such as `eth0/queues/rx-0/rps_cpus`, with the current
    name of the interface.
    """
    IRQBALANCE = "irqbalance"
    """CPUs to which the irqbalance daemon may move interrupts. The setting has no name. irqbalance shows a new value only after its next
    scan.
    """
    BALANCING = "balancing"
    """CPUs to which the irqbalance daemon may move one interrupt: either all its CPUs, or none. The name is the interrupt's number."""
    WORKQUEUE = "workqueue"
    """CPUs of the kernel's unbound workqueues. The setting has no name. Each workqueue uses the intersection of these CPUs and its own
    mask.
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
    """Longest time in microseconds that a CPU may need to leave an idle state. The name is the CPU's number. The value is the kernel's
    text, in which `0` means no limit, and `n/a` means that the CPU uses no idle states.
    """
    GOVERNOR = "governor"
    """Frequency governor of one CPU. The name is the CPU's number. CPUs that share one governor don't have this setting."""
    MIN_FREQUENCY = "min-frequency"
    """Lowest frequency of one CPU in kHz. The name is the CPU's number. CPUs that share one frequency don't have this setting."""
    MAX_FREQUENCY = "max-frequency"
    BOOST = "boost"
    """Permission of one CPU to exceed its nominal frequency, either `1` or `0`. The name is the CPU's number."""
    MACHINE_BOOST = "machine-boost"
    """Permission of all CPUs to exceed their nominal frequency. The name is the kernel's file, `cpufreq/boost` or `intel_pstate/no_turbo`.
    In the latter, `1` means no boost.
    """


class Setting(Struct, frozen=True, order=True):
    kind: SettingKind
    name: str = ""


OF_SERVICES = frozenset({SettingKind.IRQBALANCE, SettingKind.BALANCING, SettingKind.UNIT})
"""Settings that another service (irqbalance or systemd) applies when it is called. Such a call may take effect later even if it failed. For
all other settings, a failed write has no effect.
"""

OF_POLICY = frozenset({SettingKind.GOVERNOR, SettingKind.MIN_FREQUENCY, SettingKind.MAX_FREQUENCY, SettingKind.BOOST})
"""Settings of a cpufreq policy, which the kernel applies to a group of CPUs."""
OF_ONE_CPU = frozenset({SettingKind.IDLE_LATENCY, *OF_POLICY})
"""Settings that apply to a single CPU, and are requested for this CPU."""
OF_FREQUENCY = frozenset({SettingKind.MIN_FREQUENCY, SettingKind.MAX_FREQUENCY})
"""Settings whose file shows the frequency limit in effect instead of the written value. The two differ if the CPU doesn't support the
written frequency, or if the kernel sets a stricter limit, for instance because of heat. The file therefore doesn't show whether another
program has changed the setting.
"""
WITH_TEXT = OF_ONE_CPU | {SettingKind.MACHINE_BOOST}
"""Settings whose value is a text instead of a set of CPUs."""

_SEEN_AGAIN = WITH_TEXT | {SettingKind.UNIT}
"""Settings that can disappear for a while, for instance while their CPU is offline. The agent assumes that such a setting keeps
its value.
"""

NEW_IRQS = Setting(SettingKind.NEW_IRQS)

Value = CpuSet | str
"""Value of a setting: a text for the kinds in `WITH_TEXT`, a set of CPUs for all others."""
_V = TypeVar("_V", bound=Value)


class Change(Struct, Generic[_V], frozen=True):
    """Record of a setting that the agent may have changed."""

    before: _V
    """Value that the agent restores in the end. For the thread of an interrupt, an empty set means that the thread had the same affinity as
    its interrupt.
    """
    ours: tuple[_V, ...]
    """Values that the setting may have because of the agent. After a crash, each of them is possible. The last one is the value that the
    agent found or wrote last.

    irqbalance shows a new value with a delay, so the last value may differ from the shown one. For a kernel thread, these are the
    affinities that the kernel may have stored. A thread without a stored affinity may use all CPUs.
    """
    instance: int | None = None
    """Identity of the interrupt or network interface (see `Facts.instance`)."""

    def is_of(self, facts: "Facts") -> bool:
        """Return whether the record belongs to this interrupt or queue, and not to an earlier one with the same name. If an identity is
        unknown, the result is true.
        """
        return None in {self.instance, facts.instance} or self.instance == facts.instance

    def is_ours(self, now: _V) -> bool:
        """Return whether the value may come from the agent, so that no other program has changed the setting."""
        return now in self.ours

    @property
    def last(self) -> _V:
        return self.ours[-1]

    def is_settled(self, kind: SettingKind, wanted: _V) -> bool:
        """Return whether the setting needs no write to get the wanted value. For a unit, this also requires that systemd has answered the
        last call, because it may otherwise still apply an older value.
        """
        return self.ours == (wanted,) if kind is SettingKind.UNIT else self.last == wanted

    @property
    def differs(self) -> bool:
        return any(value != self.before for value in self.ours)


class Facts(Struct, frozen=True):
    """Properties of an interrupt, a network queue or a kernel thread, as read from the kernel."""

    instance: int | None = None
    """Number that identifies an interrupt or a queue's network interface. It shows whether an interrupt number was reused, or an interface
    renamed.
    """
    near: CpuSet = CpuSet()
    """CPUs of the interrupt's NUMA node, which the kernel prefers for a new interrupt. The set is empty if the node is unknown."""
    interrupt: Setting | None = None
    """Affinity setting of the interrupt that the thread handles. None means that the thread handles no interrupt."""
    follows: CpuSet = CpuSet()
    """CPUs of the interrupt that the thread handles. When the affinity of an interrupt has changed, the kernel moves the thread to these
    CPUs at the next interrupt.
    """


Record = Mapping[Setting, Change[Any]]
"""Records of all settings that differ from their original values.

While the default affinity of new interrupts is changed, all existing interrupts are recorded, too. An interrupt without a record is then
known to be newer than the change, and its original value is the affinity that the kernel would have given it without the change. While
kernel threads avoid CPUs, all of them are recorded.
"""


def assume_restored(record: Record) -> Record:
    """Return the record that applies once another process may have restored the settings. Each setting may then have its original value,
    too.
    """
    return {s: replace(c, ours=_put_last((c.before, *c.ours), c.last)) for s, c in record.items()}


class HostPlan(Struct, frozen=True):
    record: Record
    """Record that must be saved before the first write, so that a restarted agent can restore the settings after a crash."""
    writes: Mapping[Setting, Value]
    changed_by_others: Mapping[Setting, Value]
    """Settings that another program has changed after the agent did, with the new values."""
    keeps_threads: bool = False
    """Whether kernel threads avoid CPUs now, because of the agent's writes or because of a partition. All kernel threads are then
    recorded.
    """
    unread: frozenset[Setting] = frozenset()
    """Settings that can't be read now. Their records stay unchanged."""
    offline: CpuSet = CpuSet()
    """CPUs that may be missing in the affinity that the kernel shows for a thread after a write."""

    def without(self, refused: AbstractSet[Setting]) -> "HostPlan":
        """Return the plan without the writes of these settings."""
        changes = {s: replace(c, ours=(c.last,)) if s in refused else c for s, c in self.record.items()}
        writes = {setting: value for setting, value in self.writes.items() if setting not in refused}
        return replace(self, record=self._kept(changes), writes=writes)

    def after(self, failed: AbstractSet[Setting]) -> Record:
        """Return the record to save after the writes. `failed` are the settings whose writes failed."""
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
    """Sets of the machine's CPUs on which the decisions about settings depend."""

    possible: CpuSet
    """All CPUs that the machine can have. A setting with these CPUs is unrestricted."""
    host: CpuSet
    """Online CPUs that remain for the host. They are the value of a setting that would otherwise contain no CPU. If the set is empty, such
    a setting stays unchanged.
    """
    hidden: CpuSet = CpuSet()
    """CPUs that the kernel doesn't accept in a kernel thread's affinity, because they are offline or in a cpuset partition."""
    offline: CpuSet = CpuSet()
    partitioned: CpuSet = CpuSet()
    """CPUs to avoid that are in a partition now, or will be in one. The kernel itself moves its threads off these CPUs."""
    was_hidden: CpuSet = CpuSet()
    """CPUs that were in `hidden` at any time since the last scan. They may still be missing in the affinity of a kernel thread."""
    nodes: tuple[CpuSet, ...] = ()
    """CPUs of each NUMA node, including offline CPUs. A kernel thread that works for a node gets the node's CPUs from the kernel."""
    uevents: int = 0
    """Number of device events (uevents) that the kernel has sent. If the number has changed since the last scan, CPUs may have gone offline
    and come back.
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
    """Decide which settings to write. A setting should contain no CPU to avoid, unless the container that owns the CPU requests it. A
    setting of a single CPU should have the requested value.

    Args:
        record: the record of the agent's earlier changes.
        observed: the present values of all settings that can be changed. An empty set of CPUs means that the setting is off, and it stays
            off.
        to_avoid: CPUs to avoid, by kind. Settings of kinds that aren't listed are restored.
        cpus: the machine's CPUs.
        requested: the settings, such as interrupts, that a container requests for its own CPUs, with these CPUs.
        values: the requested values of settings of single CPUs. All other settings of single CPUs are restored.
        spared: the CPUs that a setting need not avoid. For example, the slices that contain a pinned unit may contain the unit's CPUs.
        facts: the properties of the observed interrupts, queues and threads.
        unread: the kinds of settings that can't be read now. These settings stay unchanged.
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
    """Values that the setting may have until the write is complete (see `Change.ours`)."""
    written: _V | None
    is_others: bool


def _decide_value(kind: SettingKind, known: Change[str] | None, now: str, requested: str | None) -> _Decision[str]:
    """Decide on a setting whose value is a text. If no value is requested, the original value is restored. If the original value is a
    stricter limit than the requested one, it stays in effect.
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
    """Return the stricter of two limits. For a setting that isn't a limit, return the requested value."""
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
    """Decide on a setting that keeps its value once it is written. Kernel threads don't keep their affinities, so `_decide_thread` decides
    on these.
    """
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
    """Decide on the affinity of a kernel thread, which may handle an interrupt.

    The thread of an interrupt may use all CPUs until the first interrupt, and then follows the interrupt's affinity. If another program has
    changed the thread's affinity, the value isn't preserved, because the kernel would replace it as soon as the interrupt moves.
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
    """Decide on the affinity of a kernel thread, regardless of any interrupt.

    The kernel stores the affinity written for a thread. Whenever a partition changes, the kernel removes the CPUs of partitions from this
    affinity, and restores them later. If no CPU is left, the thread may use all CPUs outside of partitions. One write of the affinity is
    therefore enough in most cases.

    There are two exceptions. A thread without any online CPU gets all CPUs, and the kernel drops the stored affinity. When a CPU comes
    online, threads that work for a NUMA node get the node's CPUs, even those in a partition (kcompactd_cpu_online in mm/compaction.c). A
    wrong affinity is corrected as soon as the kernel accepts the value. Older kernels (6.1) drop CPUs that are offline at the write
    (cpuset_cpus_allowed), so the affinity is written once more when these CPUs return.
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
    """Return the affinities that the kernel may show once this affinity was written."""
    return _put_last((written - offline or written,), written)


def _find_original_affinity(
    known: Change[CpuSet] | None, now: CpuSet, cpus: Cpus
) -> tuple[CpuSet | None, tuple[CpuSet, ...]]:
    """Return the affinity to restore for a thread, and the affinities that the agent may have written. The affinity to restore is None if
    another program has changed the thread's affinity.
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
    """Return whether the kernel may show the affinity `now` for a thread whose last written affinity was `written`."""
    hidden = cpus.hidden | cpus.was_hidden
    given = (written, *(written & node or node for node in cpus.nodes))
    return now - hidden in {value - hidden for value in given} | {written - hidden or cpus.possible - hidden}


def _find_node(now: CpuSet, cpus: Cpus) -> CpuSet | None:
    """Return the NUMA node's CPUs if the thread's affinity consists of exactly the CPUs of one node. They are then likely to be the
    thread's original affinity. None means that there is no such node.

    A thread that works for a node has all CPUs after it lost the node's CPUs, until another CPU comes online. The thread of an interrupt
    has all CPUs until the first interrupt.
    """
    hidden = cpus.hidden | cpus.was_hidden
    fitting = (node for node in cpus.nodes if now <= node and now - hidden == node - hidden != cpus.possible - hidden)
    return next(fitting, None)


def _rename_queues(record: Record, facts: Mapping[Setting, Facts]) -> Record:
    """Return the record with the present names of queues whose network interfaces were renamed."""
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
    """Return whether the interrupt may use any CPU, because all CPUs in its affinity have gone offline."""
    anywhere = cpus.possible - cpus.offline
    return setting.kind is SettingKind.IRQ and anywhere <= now and any(value <= cpus.offline for value in known.ours)


def _remove_cpus(before: CpuSet, now: CpuSet, to_avoid: CpuSet, cpus: Cpus) -> CpuSet:
    """Remove CPUs from a setting's original value. If no online CPU is left, return `cpus.host` instead."""
    if before.isdisjoint(to_avoid):
        return before
    remaining = before - to_avoid
    return remaining if remaining & cpus.host else cpus.host or now


def _list_possible_values(kind: SettingKind, known: Change[CpuSet] | None, now: CpuSet) -> tuple[CpuSet, ...]:
    """Return the values that a setting may have at present.

    A kernel setting has the value that it shows. irqbalance may apply each value that was sent to it, until it shows the last one. systemd
    may do so until it has answered.
    """
    if known is None or kind not in OF_SERVICES:
        return (now,)
    return (known.last,) if now == known.last and kind is not SettingKind.UNIT else known.ours


def _put_last(values: tuple[_V, ...], last: _V) -> tuple[_V, ...]:
    return (*(value for value in dict.fromkeys(values) if value != last), last)


def _find_original_value(
    setting: Setting, now: CpuSet, interrupt: Facts, new_irqs: Change[CpuSet] | None, cpus: Cpus
) -> CpuSet:
    """Return the original value of a setting that has no record.

    Args:
        setting: the setting.
        now: the setting's present value.
        interrupt: the properties of the interrupt, if the setting is an interrupt's affinity.
        new_irqs: the record of the default affinity of new interrupts. None means that the agent hasn't changed it.
        cpus: the machine's CPUs.
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
    """Return the affinity that the kernel gives a new interrupt if the default affinity is `given`.

    As in irq_setup_affinity (kernel/irq/manage.c), this is the online part of the default affinity, limited to the device's NUMA node if
    possible.
    """
    online = (given - cpus.offline) or (cpus.possible - cpus.offline)
    return online & interrupt.near or online


def _select_record(changes: Record, *, keeps_threads: bool) -> dict[Setting, Change[Any]]:
    """Return the records of changed settings, and all records of the kinds that must be recorded completely (see `Record`)."""
    new_irqs = changes.get(NEW_IRQS)
    whole_kinds = {SettingKind.IRQ} if new_irqs is not None and new_irqs.differs else set()
    whole_kinds |= {SettingKind.THREAD} if keeps_threads else set()
    return {setting: one for setting, one in changes.items() if one.differs or setting.kind in whole_kinds}
