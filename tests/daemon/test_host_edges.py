"""What the agent finds on the host, what it asks others to do to it, and how long that may take: a small host in a directory."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.core.host.settings import NEW_IRQS, Cpus, Facts, Setting, SettingKind
from nodeagent.core.model.idset import CpuSet
from nodeagent.daemon.host.host_edges import HostEdges, write_directly
from nodeagent.edge.kernel import irqbalance, kernel_threads
from nodeagent.edge.kernel.irqbalance import IrqbalanceError
from nodeagent.edge.kernel.kernel_threads import KernelThread, ThreadKey
from nodeagent.edge.systemd import units
from tests.edge.test_irqbalance import Daemon

IRQBALANCE, FIVE, SIX = Setting(SettingKind.IRQBALANCE), *(Setting(SettingKind.BALANCING, name) for name in "56")
SYSTEM, OWN = Setting(SettingKind.UNIT, "system.slice"), Setting(SettingKind.UNIT, "own.slice")
IRQ, THREAD = Setting(SettingKind.IRQ, "5"), Setting(SettingKind.THREAD, "41@9")
UNITS = tuple(Setting(SettingKind.UNIT, f"unit-{number}.slice") for number in range(20))
ALL = CpuSet.parse("0-7")
FILES = {
    "proc/irq/5/smp_affinity_list": "0-3\n",
    "proc/irq/6/smp_affinity_list": "4\n",
    "proc/irq/default_smp_affinity": "ff\n",
    "sys/devices/system/cpu/possible": "0-7\n",
    "sys/devices/system/cpu/online": "0-6\n",
    "sys/devices/system/node/has_cpu": "0-1\n",
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    **{f"sys/devices/system/node/node{cpu // 4}/cpu{cpu}/online": "1\n" for cpu in range(8)},
    "sys/devices/system/node/node1/cpulist": "4-6\n",
    "sys/devices/system/node/node2/cpulist": "\n",
    "sys/fs/cgroup/cpuset.cpus.effective": "0-3,6\n",
    "sys/fs/cgroup/system.slice/cpuset.cpus": "\n",
    "sys/fs/cgroup/own.slice/cpuset.cpus": "0-5\n",
    "sys/fs/cgroup/pods.slice/cpuset.cpus": "0-5\n",
}


class Launcher:
    """Writes down what it is asked to write, and answers as it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.answers: dict[str, str] = {}

    def __call__(self, writes: object) -> tuple[str | None, ...]:
        assert isinstance(writes, list)
        self.asked += writes
        return tuple(self.answers.get(place) for place, _ in writes)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    (tmp_path / "run/irqbalance").mkdir()
    return tmp_path


@pytest.fixture
def launcher() -> Launcher:
    return Launcher()


@pytest.fixture
def edges(root: Path, launcher: Launcher) -> HostEdges:
    return HostEdges(launcher, "/sys/fs/cgroup/pods.slice/pods.service", str(root))


@pytest.fixture
def systemctl(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that writes its last two arguments down and does no more, until somebody writes another."""
    program = root / "bin/systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\necho "$@" >>{root}/calls\n')
    program.chmod(0o755)
    monkeypatch.setattr(units, "ENVIRONMENT", {"PATH": f"{program.parent}:/usr/bin:/bin"})
    return program


def calls(root: Path) -> list[str]:
    return (root / "calls").read_text().splitlines()


# What is found


def test_the_machines_cpus_are_told_from_those_that_are_hidden_and_those_that_are_offline(edges: HostEdges) -> None:
    hidden = CpuSet.parse("4-5,7")  # not for what is in no partition
    nodes = (CpuSet.parse("0-3"), CpuSet.parse("4-7"))  # offline ones too
    assert edges.cpus(CpuSet.of(0)) == Cpus(ALL, CpuSet.of(0), hidden=hidden, offline=CpuSet.of(7), nodes=nodes)


def test_the_cpus_of_nodes_are_read_again_after_an_event_and_always_where_events_are_not_counted(
    edges: HostEdges, root: Path
) -> None:
    def grow(node: int, cpu: int) -> int:
        """Give a node one more CPU, and return the number of CPUs that are found in all nodes."""
        (root / f"sys/devices/system/node/node{node}/cpu{cpu}").mkdir()
        return sum(map(len, edges.cpus(CpuSet()).nodes))

    assert [grow(0, 8), grow(0, 9)] == [9, 10]
    count = root / "sys/kernel/uevent_seqnum"
    count.parent.mkdir(exist_ok=True)
    count.write_text("1041\n")
    assert [grow(1, 10), grow(1, 11)] == [11, 11]
    count.write_text("1042\n")
    assert grow(1, 12) == 13


def test_interrupts_are_found_with_what_is_known_of_them(edges: HostEdges) -> None:
    reading = edges.read({SettingKind.IRQ, SettingKind.NEW_IRQS})
    assert reading.settings == {
        IRQ: CpuSet.parse("0-3"),
        Setting(SettingKind.IRQ, "6"): CpuSet.of(4),
        NEW_IRQS: ALL,
    }
    assert reading.facts == dict.fromkeys((IRQ, Setting(SettingKind.IRQ, "6")), Facts())


def test_of_kernel_threads_those_are_found_that_can_be_moved_and_where_the_interrupts_come_that_they_handle(
    edges: HostEdges, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = {
        ThreadKey(41, 9): KernelThread("kswapd0", CpuSet.of(1)),
        ThreadKey(42, 9): KernelThread("irq/5-eth0", ALL),
        ThreadKey(44, 9): KernelThread("irq/6-s-eth0", ALL),
        ThreadKey(45, 9): KernelThread("irq/7-gone", ALL),
    }
    monkeypatch.setattr(kernel_threads.KernelThreads, "find", lambda _, **__: threads)
    (root / "proc/irq/5/effective_affinity_list").write_text("2\n")
    reading = edges.read({SettingKind.THREAD})
    eth0, second, gone = (Setting(SettingKind.THREAD, name) for name in ("42@9", "44@9", "45@9"))
    assert reading.settings == {THREAD: CpuSet.of(1), eth0: ALL, second: ALL, gone: ALL}
    assert reading.facts == {
        eth0: Facts(interrupt=IRQ, follows=CpuSet.of(2)),
        second: Facts(interrupt=Setting(SettingKind.IRQ, "6"), follows=CpuSet.of(4)),
        gone: Facts(interrupt=Setting(SettingKind.IRQ, "7")),
    }


def test_of_units_all_are_found_but_the_pods(edges: HostEdges) -> None:
    assert edges.read({SettingKind.UNIT}).settings == {SYSTEM: ALL, OWN: CpuSet.parse("0-5")}


def test_units_whose_processes_the_agent_places_are_left_out(root: Path, launcher: Launcher) -> None:
    edges = HostEdges(launcher, "/sys/fs/cgroup/pods.slice/pods.service", str(root), beside=frozenset({"own.slice"}))
    reading = edges.read({SettingKind.UNIT})
    assert (reading.settings, reading.released) == ({SYSTEM: ALL}, frozenset())
    reading = edges.read({SettingKind.UNIT}, known={OWN})
    assert (reading.settings, reading.released) == ({SYSTEM: ALL, OWN: CpuSet.parse("0-5")}, {OWN})


def test_without_systemd_there_is_nothing_that_keeps_the_host_off(edges: HostEdges, root: Path) -> None:
    (root / "run/systemd/system").rmdir()
    reading = edges.read({SettingKind.UNIT})
    assert reading.settings == {}
    assert "systemd doesn't run as process 1" in reading.failed[SettingKind.UNIT].message


def test_what_cannot_be_read_is_named_and_the_rest_is_there(edges: HostEdges, root: Path) -> None:
    (root / "sys/fs/cgroup/own.slice/cpuset.cpus").write_text("all\n")
    reading = edges.read({SettingKind.UNIT, SettingKind.NEW_IRQS})
    assert reading.settings == {NEW_IRQS: ALL}
    assert reading.failed.keys() == {SettingKind.UNIT}
    assert "own.slice" in reading.failed[SettingKind.UNIT].message


# What is written


def test_the_launcher_writes_files_and_moves_threads_and_what_has_ended_meanwhile_is_no_matter(
    edges: HostEdges, launcher: Launcher
) -> None:
    launcher.answers = {
        "thread 41@9": os.strerror(errno.ESRCH),
        "/proc/irq/5/smp_affinity_list": os.strerror(errno.ENOENT),
        "/proc/irq/default_smp_affinity": os.strerror(errno.EIO),
    }
    assert edges.write(dict.fromkeys((IRQ, NEW_IRQS, THREAD), CpuSet.parse("0-1"))) == {
        NEW_IRQS: os.strerror(errno.EIO)
    }
    assert launcher.asked == [
        ("/proc/irq/5/smp_affinity_list", "0-1"),
        ("/proc/irq/default_smp_affinity", "00000003"),
        ("thread 41@9", "0-1"),
    ]


def test_without_the_launcher_each_place_has_its_own_result(root: Path) -> None:
    file = root / "proc/irq/5/smp_affinity_list"
    results = write_directly([(str(file), "1"), (f"{file}/no", "1"), ("thread 999999999@1", "0")])
    assert results == (None, os.strerror(errno.ENOTDIR), os.strerror(errno.ENOENT))
    assert file.read_text() == "1"


@pytest.mark.usefixtures("systemctl")
def test_systemd_is_told_which_cpus_a_unit_may_use_or_that_it_may_use_any(
    edges: HostEdges, root: Path, launcher: Launcher
) -> None:
    assert edges.write({SYSTEM: CpuSet.parse("0-3")}) == {}
    assert edges.write({OWN: ALL}) == {}
    assert calls(root) == ["system.slice AllowedCPUs=0-3", "own.slice AllowedCPUs=0-7", "own.slice AllowedCPUs="]
    assert launcher.asked == []


def test_what_systemd_says_is_why_a_unit_stays(edges: HostEdges, systemctl: Path) -> None:
    systemctl.write_text('#!/bin/sh\ncase "$*" in *own.slice*) echo "no such unit" >&2; exit 1;; esac\n')
    refused = edges.write(dict.fromkeys((SYSTEM, OWN), CpuSet.of(0)))
    assert refused == {OWN: "cannot set AllowedCPUs=0 of own.slice: no such unit"}


@pytest.mark.parametrize("cpus", [CpuSet.of(0), ALL], ids=["set", "cleared"])
def test_a_systemd_that_hangs_costs_one_limit_however_many_units_there_are(
    edges: HostEdges, root: Path, systemctl: Path, monkeypatch: pytest.MonkeyPatch, cpus: CpuSet
) -> None:
    systemctl.write_text(f"#!/bin/sh\necho >>{root}/calls\nexec sleep 60\n")
    monkeypatch.setattr(units, "CALL_SECONDS", 2.0)
    refused = edges.write(dict.fromkeys(UNITS, cpus))
    assert refused.keys() == set(UNITS)
    assert all(why.endswith("systemd has not answered for 2 s") for why in refused.values())
    assert len(calls(root)) == 8, "those that were asked at once, and no other"


# irqbalance


@pytest.fixture
def balancer(root: Path) -> Iterator[Daemon]:
    """An irqbalance, on a machine with interrupts 5 and 6, that leaves 6 alone."""
    daemon = Daemon(root / "run/irqbalance/irqbalance7.sock")
    daemon.answer = b"SLEEP 10 IRQ 6 LOAD 0 DIFF 0 CLASS 0 BANNED 00000000"
    yield daemon
    daemon.close()


def requests(balancer: Daemon) -> list[bytes]:
    return [asked for asked in balancer.asked if asked != b"setup"]


def test_without_irqbalance_nothing_of_it_is_found(edges: HostEdges) -> None:
    reading = edges.read({SettingKind.IRQBALANCE, SettingKind.BALANCING})
    assert (reading.settings, reading.failed) == ({}, {})


def test_irqbalance_is_asked_once_what_it_leaves_alone(edges: HostEdges, balancer: Daemon) -> None:
    found = edges.read({SettingKind.IRQBALANCE, SettingKind.BALANCING}).settings
    assert found == {IRQBALANCE: ALL, FIVE: ALL, SIX: CpuSet()}
    assert balancer.asked == [b"setup"]
    assert edges.read({SettingKind.IRQBALANCE}).settings == {IRQBALANCE: ALL}


def test_what_irqbalance_bans_is_what_it_may_not_use(edges: HostEdges, balancer: Daemon) -> None:
    balancer.answer = b"SLEEP 10 BANNED 000000c0"
    assert edges.read({SettingKind.IRQBALANCE}).settings == {IRQBALANCE: CpuSet.parse("0-5")}
    assert edges.write({IRQBALANCE: CpuSet.parse("0-5")}) == {}
    assert edges.write({IRQBALANCE: ALL}) == {}
    assert requests(balancer) == [b"settings cpus 6-7", b"settings cpus NULL"]


def test_what_irqbalance_leaves_alone_anyway_stays_so(edges: HostEdges, balancer: Daemon) -> None:
    assert edges.write({FIVE: CpuSet()}) == {}
    balancer.answer = b"SLEEP 10 IRQ 5 LOAD 0 DIFF 0 CLASS 0 IRQ 6 LOAD 0 DIFF 0 CLASS 0 BANNED 00000000"
    assert edges.write({FIVE: ALL}) == {}
    assert requests(balancer) == [b"settings ban irqs 5 6", b"settings ban irqs 6"]


def test_an_irqbalance_that_says_something_else_is_named_for_all_that_it_has(
    edges: HostEdges, balancer: Daemon
) -> None:
    balancer.answer = b"hello"
    failed = edges.read({SettingKind.IRQBALANCE, SettingKind.BALANCING}).failed
    assert failed.keys() == {SettingKind.IRQBALANCE, SettingKind.BALANCING}
    assert edges.write({FIVE: CpuSet()}).keys() == {FIVE}


def test_an_irqbalance_that_hangs_costs_one_limit(
    edges: HostEdges, balancer: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(*_: object) -> None:
        raise IrqbalanceError("no answer", hint="see it")

    monkeypatch.setattr(irqbalance, "ban", hang)
    assert edges.write({FIVE: CpuSet(), IRQBALANCE: CpuSet()}) == dict.fromkeys((FIVE, IRQBALANCE), "no answer")
    assert balancer.asked == []


def test_units_in_the_slices_around_some_are_read_and_written_by_their_names(
    edges: HostEdges, root: Path, systemctl: Path
) -> None:
    for name, cpus in {"db": "2", "web": "0-5", "_cpu": ""}.items():
        directory = root / f"sys/fs/cgroup/system.slice/{name}.service"
        directory.mkdir()
        (directory / "cpuset.cpus").write_text(f"{cpus}\n")
    beside, web, cpu = (
        ("system.slice/db.service"),
        *(Setting(SettingKind.UNIT, f"system.slice/{name}.service") for name in ("web", "_cpu")),
    )
    found = {SYSTEM: ALL, OWN: CpuSet.parse("0-5"), web: CpuSet.parse("0-5"), cpu: ALL}
    assert edges.read({SettingKind.UNIT}, pinned={beside: CpuSet.of(2)}).settings == found
    assert edges.read({SettingKind.UNIT}, pinned={beside: CpuSet()}).settings.keys() == {SYSTEM, OWN}
    assert edges.read({SettingKind.UNIT}).settings.keys() == {SYSTEM, OWN}
    systemctl.write_text(
        systemctl.read_text().replace("while", "[ $2 != show ] || exec printf 'Id=a\\nLoadState=not-found\\n'\nwhile")
    )
    known = Setting(SettingKind.UNIT, "system.slice/gone.service")
    assert edges.read({SettingKind.UNIT}, known=(known, IRQ)).settings.keys() >= {web, cpu}
    assert edges.write({web: CpuSet.of(1), cpu: CpuSet.of(1)}) == {}
    assert sorted(calls(root)) == ["cpu.service AllowedCPUs=1", "web.service AllowedCPUs=1"]


def test_a_known_unit_that_is_inactive_has_what_it_starts_with_and_goes_back(
    edges: HostEdges, root: Path, systemctl: Path
) -> None:
    off, unknown = (Setting(SettingKind.UNIT, f"{name}.slice") for name in ("off", "unknown"))
    for state, expected in (("0-3", CpuSet.parse("0-3")), ("", ALL)):
        answer = f"Id=off.slice\\nLoadState=loaded\\nActiveState=inactive\\nAllowedCPUs={state}\\n\\n"
        none = "Id=unknown.slice\\nLoadState=not-found\\nActiveState=inactive\\n"
        systemctl.write_text(f"#!/bin/sh\nprintf '{answer}{none}'\n")
        found = edges.read({SettingKind.UNIT}, known=(off, unknown, SYSTEM, IRQ)).settings
        assert found == {SYSTEM: ALL, OWN: CpuSet.parse("0-5"), off: expected}
    assert off not in edges.read({SettingKind.UNIT}, pinned={"off.slice": CpuSet()}, known=(off, unknown)).settings
