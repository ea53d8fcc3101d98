"""Interrupts and the kernel's work leave exclusive CPUs while pods have them, and come back: the daemon's turns (D28)."""

import errno
import io
from collections.abc import Collection, Iterator, Mapping, Set as AbstractSet
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.core.host.irq_owners import InterruptRequest
from nodeagent.core.host.settings import NEW_IRQS, Cpus, Facts, Setting, SettingKind
from nodeagent.core.model.cgroup import MEMBER, Attribute
from nodeagent.core.model.cgroup_layout import ABOVE
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.quiet import Profile, QuietRequest, QuietSettings
from nodeagent.core.resources.cpu.holdings import exclusive_cpus
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.daemon.host.host_edges import Reading
from nodeagent.daemon.host.host_settings import (
    HOST_SETTINGS,
    PUT_BACK,
    HostSettings,
    WantedSettings,
    cpus_to_avoid,
    put_back,
)
from nodeagent.daemon.reports.logs import make_log
from nodeagent.daemon.start.startup import CPU_CHECKPOINT, MEMORY_CHECKPOINT, STATE_FILE
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.host_files import describe_setting
from tests.support.builders import hybrid
from tests.support.daemon_model import Daemon, HostSettingsModel, Steps, watched
from tests.support.node_model import Machine, Unit
from tests.support.pods import app, pod, unit
from tests.support.world import SMALL, node

QUIET = node(SMALL, config={"interrupt_isolation": "affinity", "host_isolation": "partition"})
WEB = pod("web", app(cpu="2"))
IRQ, FEW = Setting(SettingKind.IRQ, "24"), Setting(SettingKind.IRQ, "25")
QUEUE, WORK = Setting(SettingKind.QUEUE, "eth0/queues/rx-0/rps_cpus"), Setting(SettingKind.WORKQUEUE)
THREAD, UNIT = Setting(SettingKind.THREAD, "7@1"), Setting(SettingKind.UNIT, "system.slice")
IRQBALANCE, BALANCING = Setting(SettingKind.IRQBALANCE), Setting(SettingKind.BALANCING, "25")


class Life:
    """A node whose pod has exclusive CPUs, and what its settings were before."""

    def __init__(self, directory: Path, patches: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine = Machine(QUIET)
        self.before = dict(self.machine.settings)
        self.steps = Steps()
        self.daemon = Daemon(self.machine, directory, steps=self.steps)
        self.record = directory / HOST_SETTINGS
        self._watch = lambda: patches.enter_context(watched(monkeypatch, self.machine, self.steps))

    def start(self, one: Pod = WEB) -> CpuSet:
        self._watch()
        self.daemon.start()
        self.daemon.files.pods = (one,)
        self.daemon.rest()
        return exclusive_cpus(self.daemon.agent.state.promises)

    def remove(self) -> None:
        self.daemon.files.pods = ()
        self.daemon.rest()
        assert exclusive_cpus(self.daemon.agent.state.promises) == CpuSet()

    def configure(self, **config: str) -> None:
        agent = self.daemon.agent
        agent.change_node(replace(agent.node, config=replace(agent.node.config, **config)))
        self.daemon.turn(WakeUpReason.RELOAD)

    def said(self, event: str) -> list[dict]:
        return [line for line in self.daemon.said() if line["event"] == event]


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Life]:
    with ExitStack() as patches:
        yield Life(tmp_path, patches, monkeypatch)


def test_they_leave_and_come_back(life: Life) -> None:
    own = life.start()
    online = QUIET.managers.topology.online
    assert own
    settings = life.machine.settings
    assert (settings[IRQ], settings[NEW_IRQS], settings[WORK]) == (online - own,) * 3
    assert settings[FEW] == life.before[FEW] - own or online - own
    assert settings[QUEUE] == CpuSet(), "it was off"
    assert life.record.exists()
    life.remove()
    assert life.machine.settings == life.before
    life.daemon.turn(WakeUpReason.TIMER)
    assert not life.record.exists(), "irqbalance shows that it has its CPUs back"


STILL = pod("still", app(cpu="2"), quiet=QuietRequest("quiet"))
QUIET_SETTINGS = {SettingKind.IDLE_LATENCY: "5", SettingKind.GOVERNOR: "performance"}


def quiet_cpus(life: Life) -> CpuSet:
    by_kind = (
        CpuSet.from_ids(int(s.name) for s, value in life.machine.values.items() if (s.kind, value) == quiet)
        for quiet in QUIET_SETTINGS.items()
    )
    (cpus,) = set(by_kind)
    return cpus


def test_the_cores_of_a_quiet_pod_are_quiet_while_it_runs(life: Life) -> None:
    cpu = next(iter(life.start()))
    assert quiet_cpus(life) == CpuSet(), "the pod asks for nothing"
    life.machine.values[Setting(SettingKind.IDLE_LATENCY, str(cpu))] = "70"
    before = dict(life.machine.values)
    life.daemon.files.pods = (STILL,)
    life.daemon.rest()
    cores = QUIET.managers.topology.cores
    own = exclusive_cpus(life.daemon.agent.state.promises)
    assert quiet_cpus(life) == CpuSet.from_ids(c for core in cores.values() if core & own for c in core)
    life.remove()
    assert life.machine.values == before, "also the limit that someone had set"


def test_a_stricter_limit_of_another_program_stays(life: Life) -> None:
    life.start()
    life.machine.values |= {Setting(SettingKind.IDLE_LATENCY, str(cpu)): "2" for cpu in QUIET.managers.topology.online}
    life.machine.values |= {
        Setting(SettingKind.MAX_FREQUENCY, str(cpu)): "2000000" for cpu in QUIET.managers.topology.online
    }
    before = dict(life.machine.values)
    asked = QuietSettings(idle_latency_us=5, min_frequency_mhz=900, max_frequency_mhz=2400)
    life.daemon.files.pods = (pod("still", app(cpu="2"), quiet=QuietRequest("", asked)),)
    life.daemon.rest()
    changed = {s.kind: value for s, value in life.machine.values.items() if value != before[s]}
    assert changed == {SettingKind.MIN_FREQUENCY: "900000"}
    assert set(life.daemon.agent.edges.host_settings.in_effect.values()) == {"2", "900000", "2000000"}
    life.remove()
    assert life.machine.values == before


def test_a_limit_that_the_kernel_lowers_by_itself_is_no_foreign_change(life: Life) -> None:
    """The file shows the lowest of all limits, such as that of a machine without boost."""
    before = dict(life.machine.values)
    asked = QuietSettings(max_frequency_mhz=3000)
    life.start(pod("fast", app(cpu="2"), quiet=QuietRequest("", asked)))
    limited = [s for s, value in life.machine.values.items() if value == "3000000"]
    assert limited
    life.machine.values |= dict.fromkeys(limited, "2400000")
    life.steps.done.clear()
    life.daemon.turn(WakeUpReason.TIMER)
    assert [step for step in life.steps.done if "frequency" in step] == []
    assert set(life.daemon.agent.edges.host_settings.in_effect.values()) == {"2400000"}
    life.remove()
    assert life.said("host_setting_changed_by_others") == []
    assert life.machine.values == before


@pytest.mark.parametrize(("file", "off"), [("cpufreq/boost", "0"), ("intel_pstate/no_turbo", "1")])
def test_boost_of_the_whole_machine_is_switched_only_where_the_node_agrees(life: Life, file: str, off: str) -> None:
    of_machine = Setting(SettingKind.MACHINE_BOOST, file)
    life.machine.values = {s: v for s, v in life.machine.values.items() if "boost" not in s.kind}
    life.machine.values[of_machine] = "1" if off == "0" else "0"
    before = dict(life.machine.values)
    life.start(pod("steady", app(cpu="2"), quiet=QuietRequest("", QuietSettings(boost=False))))
    host = life.daemon.agent.edges.host_settings
    assert life.machine.values == before
    assert {setting.kind for setting in host.unavailable} == {SettingKind.BOOST}
    life.configure(machine_wide_boost=True)
    assert life.machine.values[of_machine] == off
    assert (host.unavailable, host.in_effect) == ({}, {of_machine: off})
    del life.machine.values[of_machine]
    life.daemon.turn(WakeUpReason.TIMER)
    assert list(host.unavailable.values()) == ["this machine or kernel doesn't have it"]
    life.machine.values[of_machine] = off
    life.remove()
    assert life.machine.values == before


def test_a_pod_follows_its_profile(life: Life) -> None:
    before = dict(life.machine.values)
    life.start(pod("steady", app(cpu="2"), quiet=QuietRequest("fast")))
    assert life.machine.values == before
    assert "steady's cores are unchanged: there is no profile fast" in " ".join(life.daemon.agent.view.problems)
    life.configure(profiles=(("fast", Profile(QuietSettings(governor="schedutil"))),))
    assert "schedutil" in life.machine.values.values()
    assert life.daemon.agent.view.problems == ()
    life.remove()
    assert life.machine.values == before


def test_without_an_agent_quiet_cores_are_put_back(life: Life) -> None:
    before = dict(life.machine.values)
    life.start(STILL)
    assert quiet_cpus(life)
    back(life)
    assert life.machine.values == before


def test_a_limit_that_the_kernel_refuses_is_known_and_asked_for_once(life: Life) -> None:
    life.machine.immovable = set(life.machine.values)
    life.start(STILL)
    assert set(life.daemon.agent.edges.host_settings.unavailable.values()) == {"Input/output error"}
    (said,) = life.said("host_settings_stay")
    assert said["problem"] == "Input/output error"
    life.steps.done.clear()
    life.daemon.turn(WakeUpReason.TIMER)
    assert [step for step in life.steps.done if "latency" in step] == []
    assert set(life.daemon.agent.edges.host_settings.unavailable.values()) == {"the kernel has refused it"}


def test_a_turn_in_which_nothing_changes_writes_nothing(life: Life) -> None:
    life.start()
    life.daemon.turn(WakeUpReason.TIMER)
    life.steps.done.clear()
    life.daemon.turn(WakeUpReason.TIMER)
    assert [step for step in life.steps.done if "setting" in step] == []


@pytest.mark.parametrize(
    ("field", "kept"),
    [("interrupt_isolation", {WORK, THREAD}), ("host_isolation", {IRQ, FEW, NEW_IRQS, IRQBALANCE})],
    ids=["interrupts", "work"],
)
def test_what_is_switched_off_comes_back_at_once(life: Life, field: str, kept: set[Setting]) -> None:
    own = life.start()
    life.configure(**{field: "none"})
    shown = life.machine.shown_settings()
    for setting, before in life.before.items():
        assert shown[setting].isdisjoint(own) if setting in kept else life.machine.settings[setting] == before


def test_by_default_none_is_read_or_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, steps = Machine(node(SMALL)), Steps()
    before = dict(machine.settings)
    with watched(monkeypatch, machine, steps), monkeypatch.context() as patched:
        patched.setattr(HostSettingsModel, "read", lambda *_: pytest.fail("it was read"))
        daemon = Daemon(machine, tmp_path, steps=steps)
        daemon.start()
        daemon.files.pods = (WEB,)
        daemon.rest()
    assert exclusive_cpus(daemon.agent.state.promises)
    assert machine.settings == before


def test_what_others_change_is_moved_off_told_once_and_theirs_in_the_end(life: Life) -> None:
    own = life.start()
    for _ in range(2):
        life.machine.settings[IRQ] = QUIET.managers.topology.online - CpuSet.of(0)
        life.daemon.turn(WakeUpReason.TIMER)
        assert life.machine.settings[IRQ].isdisjoint(own)
    (told,) = life.said("host_setting_changed_by_others")
    assert told["setting"] == "interrupt 24"
    life.remove()
    assert life.machine.settings[IRQ] == QUIET.managers.topology.online - CpuSet.of(0)


def test_who_changes_it_again_and_again_is_told_of_once(life: Life) -> None:
    life.start()
    theirs = QUIET.managers.topology.online - CpuSet.of(0)
    for found in (theirs, None, theirs, CpuSet.of(0), theirs):
        life.machine.settings[IRQ] = found or life.machine.settings[IRQ]
        life.daemon.turn(WakeUpReason.TIMER)
    told = [line["found"] for line in life.said("host_setting_changed_by_others")]
    assert told == [str(theirs), "0"]


def test_who_sets_it_back_to_what_it_was_is_told_of_once(life: Life) -> None:
    own = life.start()
    for _ in range(2):
        life.machine.settings[IRQ] = life.before[IRQ]
        life.daemon.turn(WakeUpReason.TIMER)
        assert life.machine.settings[IRQ].isdisjoint(own)
    (told,) = life.said("host_setting_changed_by_others")
    assert (told["setting"], told["found"]) == (describe_setting(IRQ), str(life.before[IRQ]))
    life.remove()
    assert life.machine.settings == life.before


def test_what_the_kernel_lets_nobody_move_is_told_once(life: Life) -> None:
    life.machine.immovable.add(IRQ)
    own = life.start()
    life.daemon.turn(WakeUpReason.TIMER)
    life.steps.done.clear()
    life.daemon.turn(WakeUpReason.TIMER)
    assert life.steps.done == [], "it is neither written nor recorded again"
    assert own <= life.machine.settings[IRQ]
    (told,) = life.said("host_settings_stay")
    assert told["settings"] == ["interrupt 24"]
    assert not life.daemon.agent.view.problems
    life.remove()
    assert life.machine.settings == life.before


def test_a_new_process_goes_on_with_the_record(life: Life) -> None:
    own = life.start()
    life.daemon.start()
    life.daemon.rest()
    assert life.machine.settings[IRQ].isdisjoint(own)
    life.remove()
    assert life.machine.settings == life.before


def test_a_device_that_goes_and_comes_again_goes_back_to_what_the_kernel_would_have_given_it(life: Life) -> None:
    life.machine.facts[FEW] = Facts(1)
    own = life.start()
    node = CpuSet.from_ids(list(own)[:1]) | CpuSet.of(0)
    life.machine.facts[FEW] = Facts(2, node)
    life.machine.settings[FEW] = life.machine.settings[NEW_IRQS] & node
    life.daemon.start()
    life.daemon.rest()
    assert life.machine.settings[FEW] == CpuSet.of(0)
    assert life.said("host_setting_changed_by_others") == []
    life.remove()
    assert life.machine.settings == life.before | {FEW: node}


def test_after_a_reboot_the_record_is_of_no_use(life: Life) -> None:
    life.start()
    theirs = {**life.before, IRQ: CpuSet.of(0)}
    life.machine.settings = dict(theirs)
    life.daemon.boot = "another"
    life.daemon.config = {"interrupt_isolation": "none", "host_isolation": "none"}
    life.daemon.start()
    life.daemon.turn(WakeUpReason.START)
    assert not life.record.exists()
    life.daemon.rest()
    life.remove()
    assert life.machine.settings == theirs


def test_a_damaged_record_is_set_aside_and_told_until_the_agent_starts_again(life: Life) -> None:
    own = life.start()
    content = life.record.read_bytes()
    life.record.write_bytes(content[:-9])
    life.daemon.start()
    life.daemon.turn(WakeUpReason.START)
    aside = life.record.with_name(f"{HOST_SETTINGS}.aside-1")
    assert aside.read_bytes() == content[:-9]
    assert life.machine.settings[IRQ].isdisjoint(own), "it is recorded anew at once"
    for reason in (WakeUpReason.MANIFESTS, WakeUpReason.TIMER):
        (problem,) = life.daemon.agent.view.problems
        assert problem.startswith("the record of changed host settings cannot be read: ")
        assert f"; it is now {aside} (the original settings are unknown: " in problem
        life.daemon.turn(reason)
    (told,) = life.said("state_set_aside")
    assert told["aside"] == str(aside)
    life.daemon.start()
    life.daemon.rest()
    assert life.daemon.agent.view.problems == ()


def test_without_room_for_the_record_only_what_it_has_already_is_changed(life: Life) -> None:
    own, online = life.start(), QUIET.managers.topology.online
    is_full = True
    life.steps.fails = lambda _number, call: errno.ENOSPC if is_full and call == "write" else None
    life.configure(interrupt_isolation="none")
    assert life.machine.settings[IRQ] == life.before[IRQ]
    assert life.machine.settings[WORK].isdisjoint(own)
    assert "No space left on device" in " ".join(life.daemon.agent.view.problems)
    new = Setting(SettingKind.IRQ, "26")
    life.machine.settings[new] = online
    life.configure(interrupt_isolation="affinity")
    assert life.machine.settings[new] == online
    assert "No space left on device" in " ".join(life.daemon.agent.view.problems)
    assert life.said("host_setting_changed_by_others") == []
    is_full = False
    life.daemon.turn(WakeUpReason.TIMER)
    assert life.machine.settings[IRQ].isdisjoint(own)
    assert life.machine.settings[new].isdisjoint(own)
    assert life.daemon.agent.view.problems == ()


def test_without_a_launcher_it_is_tried_again(life: Life) -> None:
    life.machine.launcher_answers = False
    own = life.start()
    assert "it does not answer" in " ".join(life.daemon.agent.view.problems)
    assert life.daemon.turn() < QUIET.config.rescan_period_ms / 1000
    life.machine.launcher_answers = True
    life.daemon.turn()
    assert life.machine.settings[IRQ].isdisjoint(own)
    life.remove()
    assert life.machine.settings == life.before


def back(life: Life) -> tuple[int, tuple[str, ...]]:
    return put_back(HostSettingsModel(life.machine, Steps()), str(life.record.parent), "boot")


def test_without_a_turn_all_can_be_put_back_and_the_agent_goes_on_from_there(life: Life) -> None:
    own = life.start()
    moved = dict(life.machine.settings)
    changed = sum(moved[setting] != life.before[setting] for setting in moved)
    assert back(life) == (changed, ())
    assert life.machine.settings == life.before
    assert back(life) == (0, ())
    life.daemon.turn(WakeUpReason.TIMER)
    assert life.machine.settings == moved
    assert life.said("host_setting_changed_by_others") == []
    assert not life.record.with_name(PUT_BACK).exists()
    life.machine.settings[IRQ] = life.before[IRQ]
    life.daemon.turn(WakeUpReason.TIMER)
    assert len(life.said("host_setting_changed_by_others")) == 1, "that was somebody else"
    assert own
    life.remove()
    assert life.machine.settings == life.before


def test_what_others_have_set_is_not_put_back(life: Life) -> None:
    life.start()
    life.machine.settings[IRQ] = CpuSet.of(0)
    back(life)
    assert life.machine.settings == life.before | {IRQ: CpuSet.of(0)}


def test_what_cannot_be_put_back_is_named(life: Life) -> None:
    life.start()
    life.machine.immovable.add(IRQ)
    assert back(life)[1] == ("interrupt 24: Input/output error",)


# Where the kernel has no partitions


@pytest.fixture
def old_kernel(life: Life) -> Life:
    life.machine.has_partitions = False
    del life.machine.groups[ABOVE]
    return life


def test_where_the_kernel_has_no_partitions_systemds_units_leave_too(old_kernel: Life) -> None:
    life = old_kernel
    own = life.start()
    assert life.machine.settings[UNIT] == QUIET.managers.topology.online - own
    assert life.daemon.agent.view.problems == ()
    life.remove()
    assert life.machine.settings == life.before


def test_where_there_is_no_systemd_either_that_is_told_while_it_matters(old_kernel: Life) -> None:
    life = old_kernel
    life.machine.unreadable[SettingKind.UNIT] = NodeAgentError("nothing keeps the host off", hint="see it")
    own = life.start()
    assert life.daemon.agent.view.problems == ("nothing keeps the host off (see it)",)
    assert life.machine.settings[WORK].isdisjoint(own), "all others leave"
    assert life.daemon.turn() == QUIET.config.rescan_period_ms / 1000, "there is no haste"
    life.remove()
    assert life.daemon.agent.view.problems == ()


def test_where_it_has_them_units_stay(life: Life) -> None:
    life.start()
    assert life.machine.settings[UNIT] == life.before[UNIT]


PARTITION = ("poduid-web", Attribute.CPUSET_CPUS_PARTITION)


def test_of_a_partition_that_the_kernel_refuses_systemd_keeps_the_host_off_until_it_begins(life: Life) -> None:
    life.machine.broken[PARTITION] = "the kernel refuses"
    own = life.start()
    online = QUIET.managers.topology.online
    assert life.machine.partitions() == ()
    assert life.machine.settings[UNIT] == online - own
    told = life.daemon.agent.view.problems
    assert [f"no cpuset partition could be created for CPUs {own}" in problem for problem in told] == [True, False]
    assert "the kernel refuses" in told[1]
    setting, start = life.steps.done.index(f"setting {describe_setting(UNIT)}"), f"start {life.machine.starts[0]}"
    assert setting < life.steps.done.index(start), "before anything of the pod runs"
    for again in (life.daemon.start, lambda: None):
        again()
        life.steps.done.clear()
        life.daemon.turn(WakeUpReason.START)
        assert f"setting {describe_setting(UNIT)}" not in life.steps.done, (
            "not even a new process lets them back for a moment"
        )
    life.machine.broken.clear()
    life.daemon.turn(WakeUpReason.TIMER)
    assert life.machine.partitions() == ("poduid-web",)
    assert life.machine.settings[UNIT] == life.before[UNIT]
    assert life.daemon.agent.view.problems == ()
    life.remove()
    assert life.machine.settings == life.before


def test_a_partition_that_somebody_has_ended_begins_again_without_systemd(life: Life) -> None:
    life.start()
    life.machine.groups["poduid-web"].values[Attribute.CPUSET_CPUS_PARTITION] = MEMBER
    life.steps.done.clear()
    life.daemon.turn(WakeUpReason.CGROUPS)
    assert life.machine.partitions() == ("poduid-web",)
    assert f"setting {describe_setting(UNIT)}" not in life.steps.done


def test_where_it_has_them_units_are_never_written_when_pods_come_and_go(life: Life) -> None:
    life.start()
    life.daemon.files.pods = (WEB, pod("more", app(cpu="2")))
    life.daemon.rest()
    life.remove()
    assert f"setting {describe_setting(UNIT)}" not in life.steps.done


def test_what_systemd_refuses_is_told_and_tried_again(old_kernel: Life) -> None:
    life = old_kernel
    life.machine.immovable.add(UNIT)
    own = life.start()
    assert own <= life.machine.settings[UNIT]
    assert life.daemon.agent.view.problems == (
        "can't be kept off exclusive CPUs: system.slice: Input/output error (the agent tries again)",
    )
    life.daemon.turn()
    assert len(life.daemon.agent.view.problems) == 1, "it is told as long as it lasts, and systemd not asked each time"
    life.machine.immovable.clear()
    life.daemon.turn(WakeUpReason.TIMER)
    assert life.machine.settings[UNIT].isdisjoint(own)
    assert life.daemon.agent.view.problems == ()
    life.remove()
    assert life.machine.settings == life.before


@pytest.mark.parametrize("service", [UNIT, IRQBALANCE])
def test_a_service_that_does_not_answer_is_not_asked_again_before_the_next_rescan(
    old_kernel: Life, service: Setting
) -> None:
    """Each time may hold the agent up for seconds."""
    life = old_kernel
    life.machine.immovable.add(service)
    life.start()
    life.steps.done.clear()
    life.daemon.files.pods = (WEB, pod("more", app(cpu="2")))
    life.daemon.rest()
    life.daemon.files.pods = (WEB,)
    life.daemon.rest()
    asked = f"setting {describe_setting(service)}"
    assert asked not in life.steps.done
    assert "setting interrupt 24" in life.steps.done, "all others follow"
    assert len(life.daemon.agent.view.problems) == 1
    life.daemon.turn(WakeUpReason.TIMER)
    assert life.steps.done.count(asked) == 1
    life.machine.immovable.clear()
    life.daemon.turn(WakeUpReason.TIMER)
    assert life.machine.settings[service].isdisjoint(exclusive_cpus(life.daemon.agent.state.promises))
    assert life.daemon.agent.view.problems == ()
    life.remove()
    life.daemon.turn(WakeUpReason.TIMER)
    assert (life.machine.settings, life.record.exists()) == (life.before, False)


def test_what_cannot_be_read_for_a_while_is_not_forgotten(old_kernel: Life) -> None:
    life = old_kernel
    own = life.start()
    life.machine.unreadable[SettingKind.IRQBALANCE] = NodeAgentError("no answer from irqbalance", hint="see it")
    life.daemon.turn(WakeUpReason.TIMER)
    assert life.daemon.agent.view.problems == ("no answer from irqbalance (see it)",)
    life.daemon.start()
    life.daemon.turn(WakeUpReason.START)
    assert life.machine.settings[IRQBALANCE].isdisjoint(own)
    life.machine.unreadable.clear()
    life.remove()
    assert life.machine.settings == life.before


# Claims


def test_a_pod_claims_a_devices_interrupts_by_annotation(life: Life) -> None:
    own = life.start(claiming(WEB, "eth0", "eth7"))
    assert (life.machine.settings[FEW], life.machine.settings[IRQ] & own) == (own, CpuSet())
    assert life.machine.settings[BALANCING] == CpuSet(), "else irqbalance would move it back"
    (problem,) = life.daemon.agent.view.problems
    assert problem.startswith("eth7: a pod's annotation claims its interrupts")
    life.remove()
    assert life.machine.settings == life.before
    assert life.daemon.agent.view.problems == ()


def claiming(one: Pod, *devices: str) -> Pod:
    (container,) = one.containers
    return replace(one, containers=(replace(container, interrupts=devices),))


def test_of_two_pods_that_claim_a_device_the_first_has_its_interrupts(life: Life) -> None:
    own = life.start(claiming(WEB, "eth0"))
    for name in ("another", "zebra"):
        life.machine.now_ms += 1
        late = claiming(pod(name, app(cpu="2")), "eth0")
        life.daemon.files.pods = (claiming(WEB, "eth0"), late)
        life.daemon.rest()
        assert life.machine.settings[FEW] == own
        (problem,) = life.daemon.agent.view.problems
        assert problem.startswith(
            f"the interrupts of eth0 are not delivered to container app of pod default/{name}: container app of pod default/web has them"
        )
    life.daemon.files.pods = (late,)
    life.daemon.rest()
    assert life.machine.settings[FEW] == exclusive_cpus(life.daemon.agent.state.promises)
    assert life.daemon.agent.view.problems == ()


@pytest.mark.parametrize("beside", [(), (WEB,)], ids=["alone", "beside exclusive CPUs"])
def test_a_container_without_cpus_of_its_own_gets_no_interrupts_and_that_is_told(
    life: Life, beside: tuple[Pod, ...]
) -> None:
    life.start(claiming(pod("shared", app(cpu="500m")), "eth0"))
    life.daemon.files.pods = (*life.daemon.files.pods, *beside)
    life.daemon.rest()
    assert life.machine.settings[FEW].isdisjoint(exclusive_cpus(life.daemon.agent.state.promises))
    (problem,) = life.daemon.agent.view.problems
    assert problem.startswith(
        "the interrupts of eth0 are not delivered to container app of pod default/shared, which has no exclusive CPUs"
    )
    life.configure(interrupt_isolation="none")
    assert life.daemon.agent.view.problems == (), "inspect says it of the container"


def test_a_claimed_devices_interrupts_are_on_the_containers_cpus(tmp_path: Path) -> None:
    machine = Machine(QUIET)
    before, own = dict(machine.settings), CpuSet.of(5, 6)
    log = io.StringIO()
    settings = HostSettings(HostSettingsModel(machine, Steps()), str(tmp_path), "boot", make_log(log))
    host = QUIET.managers.topology.online - own
    alone = cpus_to_avoid(QUIET.config, QUIET.managers.topology, own, own)
    asked = tuple(InterruptRequest(device, "container app", own) for device in ("eth0", "eth1"))
    assert settings.keep(WantedSettings(alone, host, asked), rescan=False) == ()
    assert (machine.settings[FEW], machine.settings[IRQ]) == (own, host)
    assert settings.keep(WantedSettings({}, host), rescan=False) == ()
    assert machine.settings == before


KUBEPODS = Setting(SettingKind.UNIT, "kubepods.slice")


def test_a_unit_whose_processes_the_agent_places_by_now_is_opened_again_and_left_alone_from_then_on(
    tmp_path: Path,
) -> None:
    machine, online = Machine(QUIET), QUIET.managers.topology.online
    machine.settings[KUBEPODS] = online
    own = CpuSet.of(5, 6)
    wanted = WantedSettings(cpus_to_avoid(QUIET.config, QUIET.managers.topology, own, CpuSet()), online - own)
    HostSettings(HostSettingsModel(machine, Steps()), str(tmp_path), "boot", make_log(io.StringIO())).keep(
        wanted, rescan=True
    )
    assert machine.settings[KUBEPODS] == online - own, "nobody places what is in there"
    others = {setting: cpus for setting, cpus in machine.settings.items() if setting != KUBEPODS}
    places = HostSettingsModel(machine, Steps(), frozenset({KUBEPODS}))
    settings = HostSettings(places, str(tmp_path), "boot", make_log(io.StringIO()))
    for _ in range(2):
        assert settings.keep(wanted, rescan=True) == ()
        assert machine.settings == others | {KUBEPODS: online}
    machine.settings[KUBEPODS] = CpuSet.of(1)
    assert settings.keep(wanted, rescan=True) == ()
    assert machine.settings[KUBEPODS] == CpuSet.of(1), "that is somebody else's"


# Beside pinned units of systemd's


def test_a_unit_that_left_pinned_cpus_before_it_was_pinned_itself_goes_back_to_all_cpus(life: Life) -> None:
    """Its pod restores the narrowed settings that it found. The isolation knows them, and takes the pod's for nobody's."""
    db, web = (pod(name, unit(f"{name}.service", "2")) for name in ("db", "web"))
    units = life.machine.units = {"db.service": Unit(), "web.service": Unit()}
    own = life.start(db)
    online = QUIET.managers.topology.online
    assert units["web.service"].settings.allowed_cpus == online - own
    for pods in ((db, web), (db,), ()):
        life.daemon.files.pods = pods
        life.daemon.rest()
        life.daemon.turn(WakeUpReason.TIMER)
        pinned = units["web.service"].settings.allowed_cpus
        assert (len(pinned) == 2) is (web in pods)
    assert units == {"db.service": Unit(), "web.service": Unit()}
    assert life.machine.settings == life.before
    assert life.said("host_setting_changed_by_others") == []


def test_a_pinned_unit_is_no_concern_of_the_isolation_while_its_pod_is_unknown(life: Life) -> None:
    db, web = (pod(name, unit(f"{name}.service", "2")) for name in ("db", "web"))
    units = life.machine.units = {"db.service": Unit(), "web.service": Unit()}
    life.start(db)
    life.daemon.files.pods = (db, web)
    life.daemon.rest()
    for name in (STATE_FILE, CPU_CHECKPOINT, MEMORY_CHECKPOINT):
        life.record.with_name(name).unlink()
    life.daemon.files.look_again, life.daemon.files.pods = PodSource(is_blind=True), ()
    life.daemon.start()
    life.daemon.rest()
    life.daemon.turn(WakeUpReason.TIMER)
    assert len(units["web.service"].settings.allowed_cpus) == 2
    life.daemon.files.look_again = None
    life.daemon.rest()
    life.daemon.turn(WakeUpReason.TIMER)
    assert units == {"db.service": Unit(), "web.service": Unit()}
    assert life.said("host_setting_changed_by_others") == []


DB, BESIDE = Setting(SettingKind.UNIT, "system.slice/db.service"), Setting(SettingKind.UNIT, "system.slice/web.service")
ELSEWHERE = Setting(SettingKind.UNIT, "own.slice/a.service")
PINNED = CpuSet.of(5, 6)


class Beside:
    """A host on which system.slice has a pinned unit and another one."""

    def __init__(self, directory: Path) -> None:
        self.machine, self.directory = Machine(QUIET), directory
        self.online = QUIET.managers.topology.online
        self.machine.settings |= {DB: PINNED, BESIDE: self.online, ELSEWHERE: self.online}
        self.before = dict(self.machine.settings)
        self.settings = self.agent()

    def agent(self) -> HostSettings:
        """A new process."""
        return HostSettings(self.places(), str(self.directory), "boot", make_log(io.StringIO()))

    def places(self) -> HostSettingsModel:
        return HostSettingsModel(self.machine, Steps())

    def keep(self, own: CpuSet = PINNED, **pinned: CpuSet) -> None:
        alone = cpus_to_avoid(QUIET.config, QUIET.managers.topology, own, CpuSet())
        wanted = WantedSettings(alone, self.online - own, pinned=pinned)
        assert self.settings.keep(wanted, rescan=True) == ()

    @property
    def units(self) -> dict[str, CpuSet]:
        return {
            setting.name: cpus for setting, cpus in self.machine.settings.items() if setting.kind is SettingKind.UNIT
        }


@pytest.fixture
def around(tmp_path: Path) -> Beside:
    return Beside(tmp_path)


def test_the_slice_around_a_pinned_unit_keeps_its_cpus_and_who_is_beside_it_leaves(around: Beside) -> None:
    around.keep(PINNED | CpuSet.of(7), **{DB.name: PINNED})
    rest = around.online - PINNED - CpuSet.of(7)
    assert around.units == {
        "system.slice": rest | PINNED,
        DB.name: PINNED,
        BESIDE.name: rest,
        ELSEWHERE.name: around.online,
    }
    around.keep(CpuSet())
    assert around.machine.settings == around.before


def test_the_topmost_unit_itself_may_be_the_pinned_one(around: Beside) -> None:
    around.keep(**{"system.slice": PINNED})
    assert around.units["system.slice"] == around.online, "systemd is told of it as of a pod's unit, and not here"
    assert around.units[BESIDE.name] == around.online


def test_of_two_pinned_units_in_a_slice_it_keeps_both_ones_cpus(around: Beside) -> None:
    more = CpuSet.of(3)
    around.keep(PINNED | more, **{DB.name: PINNED, BESIDE.name: more})
    assert around.units["system.slice"] == around.online
    assert around.units[BESIDE.name] == around.online, "it is the pod's"


def test_who_was_beside_it_comes_back_though_nothing_is_pinned_there_any_more(around: Beside) -> None:
    around.keep(**{DB.name: PINNED})
    assert around.units[BESIDE.name] == around.online - PINNED
    around.settings = around.agent()
    around.keep(CpuSet())
    assert around.machine.settings == around.before, "it is known from the record alone"


def test_without_an_agent_it_is_put_back_from_the_record(around: Beside) -> None:
    around.keep(**{DB.name: PINNED})
    count, problems = put_back(around.places(), str(around.directory), "boot")
    assert (count > 0, problems) == (True, ())
    assert around.machine.settings == around.before


class WhileACpuGoes(HostSettingsModel):
    """A CPU goes and comes within the first look at the threads after `is_to_go`: the kernel takes it from one of its own for so long."""

    uevents, is_to_go = 7, False

    def cpus(self, host: CpuSet) -> Cpus:
        return replace(super().cpus(host), uevents=self.uevents)

    def read(
        self,
        kinds: AbstractSet[SettingKind],
        *,
        pinned: Mapping[str, CpuSet] = {},
        known: Collection[Setting] = (),
        rescan: bool = True,
    ) -> Reading:
        reading = super().read(kinds, pinned=pinned, known=known, rescan=rescan)
        if not self.is_to_go:
            return reading
        self.is_to_go, self.uevents = False, self.uevents + 2
        return replace(reading, settings={**reading.settings, THREAD: reading.settings[THREAD] - CpuSet.of(0)})


def test_what_a_thread_lacks_while_a_cpu_is_away_is_nobodys_wish(tmp_path: Path) -> None:
    machine, said = Machine(QUIET), io.StringIO()
    places = WhileACpuGoes(machine, Steps())
    settings = HostSettings(places, str(tmp_path), "boot", make_log(said))
    before, own = machine.settings[THREAD], CpuSet.of(1)
    wanted = WantedSettings(
        cpus_to_avoid(QUIET.config, QUIET.managers.topology, own, CpuSet()), QUIET.managers.topology.online - own
    )
    settings.keep(wanted, rescan=True)
    places.is_to_go = True
    settings.keep(wanted, rescan=True)
    assert not places.is_to_go
    assert "host_setting_changed_by_others" not in said.getvalue()
    settings.keep(WantedSettings({}, QUIET.managers.topology.online), rescan=True)
    assert machine.settings[THREAD] == before


def test_the_host_is_on_the_cores_of_its_class() -> None:
    """Whether somebody has exclusive CPUs or not; interrupts are no work of the host's that could be slow."""
    machine = hybrid()
    fast, slow = machine.core_classes["performance"], machine.core_classes["efficiency"]
    config = Config(host_isolation="partition", interrupt_isolation="affinity", host_core_class="efficiency")
    assert cpus_to_avoid(config, machine, CpuSet(), CpuSet()) == dict.fromkeys(
        (SettingKind.WORKQUEUE, SettingKind.THREAD, SettingKind.UNIT), fast
    )
    own = CpuSet.from_ids([min(fast), min(slow)])
    alone = cpus_to_avoid(config, machine, own, CpuSet.of(min(fast)))
    assert alone[SettingKind.THREAD] == fast | own
    assert alone[SettingKind.UNIT] == (fast | own) - CpuSet.of(min(fast)), "the partition keeps units off by itself"
    assert alone[SettingKind.IRQ] == own
    elsewhere = QUIET.managers.topology
    assert cpus_to_avoid(config, elsewhere, CpuSet(), CpuSet()) == {}, "where all cores are alike it means nothing"
    assert cpus_to_avoid(
        replace(config, host_isolation="none", host_core_class="any"), machine, own, CpuSet()
    ).keys() == {*(kind for kind in alone if kind not in {SettingKind.WORKQUEUE, SettingKind.THREAD, SettingKind.UNIT})}
