"""Settings of the host leave the CPUs that are to be left alone, and go back, whatever happens in between (D28)."""

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from nodeagent.core.host.settings import (
    NEW_IRQS,
    Change,
    Cpus,
    Facts,
    HostPlan,
    Record,
    Setting,
    SettingKind,
    plan_settings,
)
from nodeagent.core.model.idset import CpuMask, CpuSet

IRQ, OTHER_IRQ = Setting(SettingKind.IRQ, "24"), Setting(SettingKind.IRQ, "25")
QUEUE = Setting(SettingKind.QUEUE, "eth0/queues/rx-0/rps_cpus")
WORK = Setting(SettingKind.WORKQUEUE)
ALL = CpuSet.parse("0-3")


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def off(text: str) -> dict[SettingKind, CpuSet]:
    return dict.fromkeys(SettingKind, cpus(text))


class Host:
    """A host whose settings are kept as the agent does it. A crash is a write that does not come."""

    def __init__(self, values: dict[Setting, CpuSet]) -> None:
        self.values = dict(values)
        self.record: Record = {}
        self.facts: dict[Setting, Facts] = {}
        self.offline = CpuSet()

    def come(self, name: str, instance: int, near: str = "") -> Setting:
        """Have something begin to handle an interrupt, as the kernel does it: online CPUs, and those of its device's node if it can."""
        setting, node = Setting(SettingKind.IRQ, name), cpus(near)
        online = self.values[NEW_IRQS] - self.offline
        self.values[setting] = online & node or online
        self.facts[setting] = Facts(instance, node)
        return setting

    def keep(
        self,
        alone: dict[SettingKind, CpuSet],
        host: str = "0-3",
        dies_after: int | None = None,
        claims: dict[Setting, CpuSet] | None = None,
        spared: dict[Setting, CpuSet] | None = None,
    ) -> HostPlan:
        planned = plan_settings(
            self.record,
            self.values,
            to_avoid=alone,
            cpus=Cpus(ALL, cpus(host), offline=self.offline),
            requested=claims or {},
            spared=spared or {},
            facts=self.facts,
        )
        if planned.record != self.record:
            self.record = planned.record
        for count, (setting, value) in enumerate(planned.writes.items()):
            if count == dies_after:
                return planned
            self.values[setting] = value
        self.record = planned.after(frozenset())
        return planned


def test_it_leaves_and_comes_back() -> None:
    host = Host({IRQ: ALL, OTHER_IRQ: cpus("0"), NEW_IRQS: ALL})
    host.keep(off("2-3"))
    assert host.values == {IRQ: cpus("0-1"), OTHER_IRQ: cpus("0"), NEW_IRQS: cpus("0-1")}
    assert not host.keep(off("2-3")).writes
    host.keep(off("1-3"))
    assert host.values[IRQ] == cpus("0")
    host.keep({})
    assert host.values == {IRQ: ALL, OTHER_IRQ: cpus("0"), NEW_IRQS: ALL}
    assert host.record == {}


def test_what_has_no_cpu_left_gets_the_hosts() -> None:
    host = Host({IRQ: cpus("3")})
    host.keep(off("2-3"), host="0-1")
    assert host.values[IRQ] == cpus("0-1")
    host.keep({})
    assert host.values[IRQ] == cpus("3")


def test_without_a_cpu_for_the_host_it_stays() -> None:
    assert not plan_settings({}, {IRQ: cpus("3")}, to_avoid=off("0-3"), cpus=Cpus(ALL, CpuSet())).writes


def test_what_is_off_stays_off() -> None:
    assert not plan_settings({}, {QUEUE: CpuSet()}, to_avoid=off("2-3"), cpus=Cpus(ALL, cpus("0-1"))).writes


def test_what_somebody_else_sets_meanwhile_is_kept_off_and_what_it_goes_back_to() -> None:
    host = Host({IRQ: ALL})
    host.keep(off("2-3"))
    host.values[IRQ] = cpus("1-2")
    assert host.keep(off("2-3")).changed_by_others == {IRQ: cpus("1-2")}
    assert host.values[IRQ] == cpus("1")
    host.keep({})
    assert host.values[IRQ] == cpus("1-2")


@pytest.mark.parametrize("setting", [IRQ, QUEUE, WORK, Setting(SettingKind.UNIT, "a.slice")])
def test_who_sets_it_to_what_it_was_before_is_told(setting: Setting) -> None:
    """So is who lets a write have no effect, as a drop-in of systemd's that counts more."""
    host = Host({setting: ALL})
    host.keep(off("2-3"))
    host.values[setting] = ALL
    assert host.keep(off("2-3")).changed_by_others == {setting: ALL}
    assert host.values[setting] == cpus("0-1")
    host.keep({})
    assert (host.values, host.record) == ({setting: ALL}, {})


@pytest.mark.parametrize("dies_after", [0, 1])
def test_what_a_crash_leaves_as_it_was_is_nobody_elses(dies_after: int) -> None:
    host = Host({IRQ: ALL, WORK: ALL})
    host.keep(off("2-3"), dies_after=dies_after)
    assert host.keep(off("2-3")).changed_by_others == {}
    host.keep(off("3"), dies_after=dies_after)
    assert host.keep({}).changed_by_others == {}


def test_what_a_crash_has_left_is_remembered_if_it_cannot_be_put_back_at_once() -> None:
    host = Host({IRQ: ALL, WORK: ALL})
    host.keep(off("2-3"), dies_after=1)
    planned = plan_settings(host.record, host.values, to_avoid={}, cpus=Cpus(ALL, ALL))
    host.record = planned.after({IRQ})
    host.keep({})
    assert (host.values, host.record) == ({IRQ: ALL, WORK: ALL}, {})


def test_what_somebody_else_sets_last_is_left() -> None:
    host = Host({IRQ: ALL})
    host.keep(off("2-3"))
    host.values[IRQ] = cpus("3")
    assert host.keep({}).changed_by_others == {IRQ: cpus("3")}
    assert (host.values[IRQ], host.record) == (cpus("3"), {})


def test_what_a_container_claims_is_on_its_cpus_while_it_does() -> None:
    host = Host({IRQ: ALL, OTHER_IRQ: cpus("0-1")})
    host.keep(off("2-3"), claims={OTHER_IRQ: cpus("3")})
    assert host.values == {IRQ: cpus("0-1"), OTHER_IRQ: cpus("3")}
    host.values[OTHER_IRQ] = cpus("1")
    host.keep(off("2-3"), claims={OTHER_IRQ: cpus("2")})
    assert host.values[OTHER_IRQ] == cpus("2")
    host.keep(off("2"))
    assert host.values == {IRQ: cpus("0-1,3"), OTHER_IRQ: cpus("1")}


def test_an_interrupt_that_came_later_goes_back_to_what_it_would_have_been() -> None:
    host = Host({IRQ: ALL, OTHER_IRQ: cpus("0-1"), NEW_IRQS: ALL})
    host.keep(off("2-3"))
    new = Setting(SettingKind.IRQ, "26")
    host.values[new] = host.values[NEW_IRQS]
    host.keep(off("2-3"))
    assert host.values[new] == cpus("0-1")
    host.keep({})
    assert (host.values[new], host.values[OTHER_IRQ]) == (ALL, cpus("0-1"))


@pytest.mark.parametrize(
    ("near", "alone", "shown", "back"),
    [
        ("", "2-3", "0-1", "0-3"),
        ("1-2", "2-3", "1", "1-2"),
        ("2-3", "2-3", "0-1", "2-3"),
        ("0-1", "2-3", "0-1", "0-1"),
    ],
    ids=["no node", "part of its node", "nothing of its node", "all of its node"],
)
def test_an_interrupt_that_came_later_goes_back_to_its_devices_node(
    near: str, alone: str, shown: str, back: str
) -> None:
    host = Host({NEW_IRQS: ALL})
    host.keep(off(alone))
    new = host.come("26", 1, near)
    assert host.values[new] == cpus(shown)
    host.keep(off(alone), host="0-1")
    assert host.values[new].isdisjoint(cpus(alone))
    assert host.keep({}).changed_by_others == {}
    assert (host.values, host.record) == ({NEW_IRQS: ALL, new: cpus(back)}, {})


def test_an_interrupt_that_came_later_while_a_cpu_was_offline_goes_back_to_those_that_were_not() -> None:
    host = Host({NEW_IRQS: ALL})
    host.offline = cpus("0")
    host.keep(off("3"), host="1-2")
    new = host.come("26", 1)
    host.keep(off("3"), host="1-2")
    host.keep({}, host="1-3")
    assert host.values[new] == cpus("1-3")


def test_what_a_driver_gives_its_new_interrupt_is_what_that_goes_back_to() -> None:
    host = Host({NEW_IRQS: ALL})
    host.keep(off("3"))
    new = host.come("26", 1, "2-3")
    host.values[new] = cpus("3")
    host.keep(off("3"), host="0-2")
    assert host.values[new] == cpus("0-2")
    host.keep({})
    assert host.values[new] == cpus("3")


@pytest.mark.parametrize("before", ["0-3", "2-3", "0", "2"])
def test_an_interrupt_with_the_number_of_an_earlier_one_is_another(before: str) -> None:
    host = Host({NEW_IRQS: ALL})
    old = host.come("26", 1)
    host.values[old] = cpus(before)
    host.keep(off("2-3"), host="0-1")
    new = host.come("26", 2, "1-3")
    assert host.keep(off("2-3"), host="0-1").changed_by_others == {}
    assert host.values[new] == cpus("1")
    host.keep({})
    assert (host.values[new], host.record) == (cpus("1-3"), {})


def test_a_queue_goes_back_under_the_new_name_of_its_interface() -> None:
    queue = {name: Setting(SettingKind.QUEUE, f"{name}/queues/rx-0/rps_cpus") for name in ("eth0", "eth1", "lan0")}
    host = Host({queue["eth0"]: cpus("2-3"), queue["eth1"]: ALL})
    host.facts = {queue["eth0"]: Facts(2), queue["eth1"]: Facts(3)}
    host.keep(off("3"))
    host.values = {queue["lan0"]: cpus("2"), queue["eth0"]: cpus("0-2")}
    host.facts = {queue["lan0"]: Facts(2), queue["eth0"]: Facts(3)}
    assert host.keep(off("3")).changed_by_others == {}
    host.keep({})
    assert (host.values, host.record) == ({queue["lan0"]: cpus("2-3"), queue["eth0"]: ALL}, {})


def test_a_queue_of_another_interface_with_the_name_of_an_earlier_one_is_another() -> None:
    host = Host({QUEUE: ALL})
    host.facts = {QUEUE: Facts(2)}
    host.keep(off("3"))
    host.values, host.facts = {QUEUE: cpus("1")}, {QUEUE: Facts(7)}
    assert host.keep(off("3")).changed_by_others == {}
    host.keep({})
    assert (host.values, host.record) == ({QUEUE: cpus("1")}, {})


def test_a_record_without_instances_is_of_the_interrupts_that_are_there() -> None:
    host = Host({NEW_IRQS: ALL})
    old = host.come("26", 1)
    host.values[old] = cpus("3")
    host.keep(off("2-3"), host="0-1")
    host.record = {setting: replace(change, instance=None) for setting, change in host.record.items()}
    host.keep(off("2"))
    assert host.values[old] == cpus("3")


def test_what_cannot_be_written_is_recorded_as_it_is() -> None:
    planned = plan_settings({}, {IRQ: ALL, OTHER_IRQ: ALL}, to_avoid=off("3"), cpus=Cpus(ALL, cpus("0-2")))
    assert planned.after({IRQ}) == {OTHER_IRQ: Change(ALL, (cpus("0-2"),))}


def test_of_what_cannot_be_read_the_record_stays() -> None:
    host = Host({IRQ: ALL, WORK: ALL})
    host.keep(off("3"))
    del host.values[WORK]
    kept = host.record[WORK]
    planned = plan_settings(host.record, host.values, to_avoid={}, cpus=Cpus(ALL, ALL), unread={SettingKind.WORKQUEUE})
    assert (planned.record[WORK], planned.after(frozenset())) == (kept, {WORK: kept})


def test_what_has_gone_is_forgotten() -> None:
    host = Host({IRQ: ALL})
    host.keep(off("3"))
    del host.values[IRQ]
    host.keep(off("3"))
    assert host.record == {}


class Irqbalance:
    """It shows what it was told only after a scan; the last counts."""

    def __init__(self) -> None:
        self.shown = self.told = ALL
        self.record: Record = {}

    def keep(self, alone: str) -> HostPlan:
        kinds = off(alone) if alone else {}
        planned = plan_settings(self.record, {BALANCE: self.shown}, to_avoid=kinds, cpus=Cpus(ALL, ALL - cpus(alone)))
        self.told = planned.writes.get(BALANCE, self.told)
        self.record = planned.after(frozenset())
        return planned

    def scan(self) -> None:
        self.shown = self.told


BALANCE = Setting(SettingKind.IRQBALANCE)


def test_irqbalance_is_untold_although_it_has_not_shown_yet_what_it_was_told() -> None:
    service = Irqbalance()
    service.keep("2-3")
    service.keep("")
    service.scan()
    assert service.shown == ALL
    service.keep("")
    assert service.record == {}


def test_irqbalance_is_untold_what_it_may_have_been_told_before_a_crash() -> None:
    service = Irqbalance()
    planned = plan_settings({}, {BALANCE: ALL}, to_avoid=off("3"), cpus=Cpus(ALL, cpus("0-2")))
    service.told, service.record = planned.writes[BALANCE], planned.record
    service.record = plan_settings(service.record, {BALANCE: ALL}, to_avoid={}, cpus=Cpus(ALL, ALL)).record
    service.keep("")
    service.scan()
    service.keep("")
    assert (service.shown, service.record) == (ALL, {})


def test_what_irqbalance_has_been_told_before_is_not_somebody_elses() -> None:
    service = Irqbalance()
    service.keep("3")
    service.scan()
    for alone in ("2-3", "1-3", "3"):
        assert not service.keep(alone).changed_by_others
    service.scan()
    assert service.shown == cpus("0-2")
    service.keep("")
    assert not service.keep("").changed_by_others
    service.scan()
    service.keep("")
    assert (service.shown, service.record) == (ALL, {})


@pytest.mark.parametrize("does_it_later", [True, False])
def test_a_service_that_failed_may_do_it_later(does_it_later: bool) -> None:
    now, unit = ALL, Setting(SettingKind.UNIT, "system.slice")
    planned = plan_settings({}, {unit: now}, to_avoid=off("3"), cpus=Cpus(ALL, cpus("0-2")))
    record = planned.after({unit})
    now = planned.writes[unit] if does_it_later else now
    planned = plan_settings(record, {unit: now}, to_avoid=off("3"), cpus=Cpus(ALL, cpus("0-2")))
    assert planned.writes == {unit: cpus("0-2")}, "until it has said that it has done it"
    record = planned.after(frozenset())
    back = plan_settings(record, {unit: cpus("0-2")}, to_avoid={}, cpus=Cpus(ALL, ALL))
    assert (back.writes, back.after(frozenset())) == ({unit: ALL}, {})
    again = plan_settings(back.after({unit}), {unit: ALL}, to_avoid={}, cpus=Cpus(ALL, ALL))
    assert again.writes == {unit: ALL}, "half of it may be done"


def test_what_systemd_does_late_is_taken_back_although_nothing_seemed_to_be_changed() -> None:
    """It is told to keep a unit off CPU 3, doesn't answer, and does it when the pod has gone."""
    unit, free = Setting(SettingKind.UNIT, "system.slice"), Cpus(ALL, ALL)
    planned = plan_settings({}, {unit: ALL}, to_avoid=off("3"), cpus=Cpus(ALL, cpus("0-2")))
    for alone in ("2", "3"):
        planned = plan_settings(
            planned.after({unit}), {unit: ALL}, to_avoid=off(alone), cpus=Cpus(ALL, ALL - cpus(alone))
        )
    planned = plan_settings(planned.after({unit}), {unit: ALL}, to_avoid={}, cpus=free)
    assert planned.writes == {unit: ALL}, "whatever it does, this comes last"
    assert planned.after(frozenset()) == {}
    late = plan_settings(planned.after({unit}), {unit: cpus("0-1,3")}, to_avoid={}, cpus=free)
    assert (late.writes, late.changed_by_others, late.after(frozenset())) == ({unit: ALL}, {}, {})


def test_a_unit_that_goes_is_remembered_and_put_back_when_it_comes_again() -> None:
    unit = Setting(SettingKind.UNIT, "batch.slice")
    record = plan_settings({}, {unit: ALL}, to_avoid=off("3"), cpus=Cpus(ALL, cpus("0-2"))).after(frozenset())
    record = plan_settings(record, {}, to_avoid={}, cpus=Cpus(ALL, ALL)).after(frozenset())
    assert plan_settings(record, {unit: cpus("0-2")}, to_avoid={}, cpus=Cpus(ALL, ALL)).writes == {unit: ALL}


def test_an_interrupt_whose_last_cpu_goes_offline_is_not_somebody_elses() -> None:
    """The kernel lets it run anywhere then."""
    host = Host({IRQ: cpus("2-3")})
    host.keep(off("3"))
    assert host.values[IRQ] == cpus("2")
    gone = Cpus(ALL, cpus("0-1"), offline=cpus("2"))
    planned = plan_settings(host.record, {IRQ: ALL}, to_avoid=off("3"), cpus=gone)
    assert (planned.changed_by_others, planned.writes) == ({}, {IRQ: cpus("0-1")})
    assert planned.after(frozenset())[IRQ].before == cpus("2-3")


def test_an_interrupt_that_a_claim_left_in_irqbalance_is_told_of_if_somebody_else_lets_it_be_moved() -> None:
    balancing = Setting(SettingKind.BALANCING, "24")
    host = Host({balancing: ALL})
    host.keep(off("3"), claims={balancing: CpuSet()})
    host.values[balancing] = ALL
    assert host.keep(off("3"), claims={balancing: CpuSet()}).changed_by_others == {balancing: ALL}


def test_what_others_give_an_interrupt_is_theirs_although_its_own_cpu_goes_offline_then() -> None:
    host = Host({IRQ: cpus("2-3")})
    host.keep(off("3"))
    gone = Cpus(ALL, cpus("0-1"), offline=cpus("2"))
    assert plan_settings(host.record, {IRQ: cpus("1")}, to_avoid=off("3"), cpus=gone).changed_by_others == {
        IRQ: cpus("1")
    }


def test_what_would_have_only_offline_cpus_gets_the_hosts() -> None:
    planned = plan_settings({}, {IRQ: cpus("2-3")}, to_avoid=off("3"), cpus=Cpus(ALL, cpus("0-1"), offline=cpus("2")))
    assert planned.writes == {IRQ: cpus("0-1")}


class WholeHost:
    """All kinds of settings but kernel threads, on a machine whose CPUs go offline and come again."""

    def __init__(self, values: dict[Setting, CpuSet]) -> None:
        self.values = dict(values)
        """What each was set to."""
        self.wanted = dict(values)
        """What each is to be in the end."""
        self.shown_balance = values[BALANCE]
        self.offline = self.alone = CpuSet()
        self.record: Record = {}

    def shown(self) -> dict[Setting, CpuSet]:
        return self.values | {BALANCE: self.shown_balance}

    def scan(self) -> None:
        self.shown_balance = self.values[BALANCE]

    def change(self, setting: Setting, value: CpuSet) -> None:
        """Somebody else sets it: what can be told from what we do."""
        known = self.record.get(setting)
        if value == ALL or (known is not None and known.is_ours(value)):
            return
        self.values[setting] = self.wanted[setting] = value
        self.scan()

    def hotplug(self, offline: CpuSet) -> None:
        """The kernel lets interrupts run anywhere whose last CPU goes. It wakes the agent."""
        self.offline = offline
        for setting in (IRQ, OTHER_IRQ):
            if self.values[setting] <= offline:
                self.values[setting] = ALL - offline
                if setting not in self.record:
                    self.wanted[setting] = ALL - offline
        self.keep(self.alone)

    def keep(
        self,
        alone: CpuSet,
        *,
        claims: dict[Setting, CpuSet] | None = None,
        dies_after: int | None = None,
        fails: frozenset[Setting] = frozenset(),
    ) -> None:
        self.alone, host = alone, ALL - alone - self.offline
        planned = plan_settings(
            self.record,
            self.shown(),
            to_avoid=dict.fromkeys(SettingKind, alone) if alone else {},
            cpus=Cpus(ALL, host, offline=self.offline),
            requested=claims or {},
        )
        self.record = planned.record
        for count, (setting, value) in enumerate(planned.writes.items()):
            if count == dies_after:
                return
            if setting not in fails:
                self.values[setting] = value
        self.record = planned.after(fails & planned.writes.keys())
        for setting, value in self.values.items():
            if setting in (claims or {}):
                assert setting in fails or value == (claims or {})[setting]
            elif setting not in fails and host:
                assert not value & alone, setting


WHOLE = (IRQ, OTHER_IRQ, NEW_IRQS, QUEUE, WORK, Setting(SettingKind.UNIT, "system.slice"), BALANCE)


def sets(least: int, most: int) -> st.SearchStrategy[CpuSet]:
    return st.integers(least, most).map(lambda bits: CpuSet(CpuMask(bits)))


KEEPS = st.fixed_dictionaries(
    {
        "alone": sets(0, 14),
        "claimed": st.sampled_from((None, IRQ, OTHER_IRQ)),
        "dies_after": st.none() | st.integers(0, 6),
        "fails": st.frozensets(st.sampled_from(WHOLE), max_size=2),
    }
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("keep"), KEEPS),
        st.tuples(st.just("change"), st.tuples(st.sampled_from(WHOLE), sets(1, 7))),
        st.tuples(st.just("hotplug"), st.sampled_from((CpuSet(), cpus("3")))),
        st.tuples(st.just("scan"), st.none()),
    ),
    max_size=10,
)


@given(st.fixed_dictionaries(dict.fromkeys(WHOLE, sets(1, 15))), STEPS)
def test_in_the_end_each_is_what_it_was_or_what_others_want(values: dict[Setting, CpuSet], steps: list[tuple]) -> None:
    host = WholeHost(values)
    for step in steps:
        match step:
            case "keep", {"alone": alone, "claimed": claimed, "dies_after": dies_after, "fails": fails}:
                claims = {claimed: alone} if claimed is not None and alone - host.offline else {}
                host.keep(alone, claims=claims, dies_after=dies_after, fails=fails)
            case "change", (setting, value):
                host.change(setting, value)
            case "hotplug", offline:
                host.hotplug(offline)
            case "scan", None:
                host.scan()
    host.hotplug(CpuSet())
    for _ in range(2):
        host.keep(CpuSet())
        host.scan()
    host.keep(CpuSet())
    assert (host.values, host.record) == (host.wanted, {})


@pytest.mark.parametrize("count", [0, 1, 2])
def test_after_a_crash_each_goes_back(count: int) -> None:
    host = Host({IRQ: ALL, OTHER_IRQ: cpus("2-3"), NEW_IRQS: ALL})
    host.keep(off("3"), dies_after=count)
    host.keep({}, dies_after=count)
    host.keep({})
    assert host.values == {IRQ: ALL, OTHER_IRQ: cpus("2-3"), NEW_IRQS: ALL}


def test_what_a_pinned_unit_is_in_keeps_its_cpus_and_leaves_all_others() -> None:
    around, beside = Setting(SettingKind.UNIT, "system.slice"), Setting(SettingKind.UNIT, "system.slice/web.service")
    before = {around: ALL, beside: ALL, Setting(SettingKind.UNIT, "user.slice"): ALL}
    host = Host(before)
    host.keep(off("1-3"), host="0", spared={around: cpus("2-3")})
    assert [str(value) for value in host.values.values()] == ["0,2-3", "0", "0"]
    assert not host.keep(off("1-3"), host="0", spared={around: cpus("2-3")}).writes
    host.keep(off("1"), host="0,2-3")
    assert [str(value) for value in host.values.values()] == ["0,2-3"] * 3, "the unit was given back"
    host.keep({})
    assert (host.values, host.record) == (before, {})


def test_cpus_that_are_spared_are_given_to_nobody() -> None:
    around = Setting(SettingKind.UNIT, "system.slice")
    host = Host({around: cpus("0-1")})
    host.keep(off("1-3"), host="0", spared={around: cpus("2-3")})
    assert host.values == {around: cpus("0")}, "it didn't have them before"
