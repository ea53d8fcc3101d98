"""Counters of interrupts and softirqs by container: they only grow while its CPUs change, and count nobody else's."""

from pathlib import Path

import pytest

from nodeagent.core.metrics.agent_metrics import EXCLUSIVE_CPU_INTERRUPTS, EXCLUSIVE_CPU_SOFTIRQS
from nodeagent.core.model.idset import CpuSet
from nodeagent.daemon.reports.cpu_counters import CpuCounters, Holder
from tests.support.daemon_model import at_rest
from tests.support.pods import app, pod
from tests.support.world import SMALL, node

WEB, DB = Holder("uid-web", "default", "web", "app"), Holder("uid-db", "default", "db", "app")


class Host:
    """The files of a host, on which time passes only between two looks."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, 0.0
        self.claims: dict[Holder, tuple[str, ...]] = {}
        (root / "proc/irq/30").mkdir(parents=True)
        (root / "proc/irq/30/smp_affinity").touch(0o444)
        self.counters = CpuCounters(root, self._clock)

    def _clock(self) -> float:
        return self.now

    def counts(self, cpus: str, *, eth0: str, nvme: str, net_rx: str) -> None:
        head = " ".join(f"CPU{cpu}" for cpu in CpuSet.parse(cpus))
        (self.root / "proc/interrupts").write_text(
            f"  {head}\n 24: {eth0} MSI 1-edge eth0\n 30: {nvme} MSI 2-edge nvme0q1\n"
        )
        (self.root / "proc/softirqs").write_text(f"  {head}\n NET_RX: {net_rx}\n")

    def look(self, **held: str) -> dict[str, int]:
        """Scrape a minute later: what is not 0, by pod and kind."""
        self.now += 60
        named = {"web": WEB, "db": DB}
        self.counters.follow({named[name]: CpuSet.parse(cpus) for name, cpus in held.items()}, self.claims)
        return self.shown()

    def shown(self) -> dict[str, int]:
        values = self.counters.values()
        return {f"{dict(one.labels)['pod']} {dict(one.labels)['kind']}": n for one, n in values.items() if n}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.counts("0-3", eth0="1000 1000 1000 1000", nvme="5 5 5 5", net_rx="9 9 9 9")
    return host


def test_each_cpu_counts_for_who_has_it(host: Host) -> None:
    assert host.look(web="1-2", db="3") == {}, "what was before is nobody's"
    host.counts("0-3", eth0="9000 1001 1002 1003", nvme="5 5 6 5", net_rx="9 9 9 19")
    expected = {"web device": 3, "web bound_device": 1, "db device": 3, "db network": 10}
    assert host.look(web="1-2", db="3") == expected


def test_softirqs_that_the_same_thing_keeps_away_share_one_series(host: Host) -> None:
    host.look(web="1")
    (host.root / "proc/softirqs").write_text(
        "  CPU0 CPU1\n NET_RX: 9 10\n TASKLET: 0 5\n NET_TX: 1 1\n SCHED: 5 5\n RCU: 5 5\n NEW: 0 7\n"
    )
    host.look(web="1")
    (host.root / "proc/softirqs").write_text(
        "  CPU0 CPU1\n NET_RX: 9 10\n TASKLET: 0 7\n NET_TX: 1 4\n SCHED: 5 7\n RCU: 5 9\n NEW: 0 8\n"
    )
    assert host.look(web="1") == {"web network": 5, "web tick": 16, "web other": 15}


def test_what_a_container_wants_is_of_a_kind_of_its_own_for_nobody_else(host: Host) -> None:
    (host.root / "sys/bus/pci/devices/0000:3b:00.0/msi_irqs/24").mkdir(parents=True)
    host.claims = {WEB: ("0000:3b:00.0", "gone0")}
    host.look(web="1-2", db="3")
    host.counts("0-3", eth0="9000 1001 1002 1003", nvme="5 5 6 5", net_rx="9 9 9 9")
    assert host.look(web="1-2", db="3") == {"web claimed": 3, "web bound_device": 1, "db device": 3}


def test_a_cpu_that_changes_hands_counts_for_nobody_until_the_next_look(host: Host) -> None:
    host.look(web="1-2", db="3")
    host.counts("0-3", eth0="1000 1001 1050 1001", nvme="5 5 5 5", net_rx="9 9 9 9")
    assert host.look(web="1", db="2-3") == {"web device": 1, "db device": 1}
    host.counts("0-3", eth0="1000 1001 1052 1001", nvme="5 5 5 5", net_rx="9 9 9 9")
    assert host.look(web="1", db="2-3") == {"web device": 1, "db device": 3}


def test_a_cpu_that_is_offline_for_a_while_takes_nothing_away(host: Host) -> None:
    host.look(web="1-2")
    host.counts("0-3", eth0="1000 1002 1002 1000", nvme="5 5 5 5", net_rx="9 9 9 9")
    assert host.look(web="1-2") == {"web device": 4}
    host.counts("0-1,3", eth0="1000 1003 1000", nvme="5 5 5", net_rx="9 9 9")
    assert host.look(web="1-2") == {"web device": 5}
    host.counts("0-3", eth0="1000 1003 1004 1000", nvme="5 5 5 5", net_rx="9 9 9 9")
    assert host.look(web="1-2") == {"web device": 5}, "it may have been reset"


def test_a_flood_of_scrapes_reads_once_a_second(host: Host) -> None:
    host.look(web="1")
    host.counts("0-3", eth0="1000 1002 1000 1000", nvme="5 5 5 5", net_rx="9 9 9 9")
    host.now += 0.9
    assert host.shown() == {}
    host.now += 0.1
    assert host.shown() == {"web device": 2}


def test_every_kind_has_a_series_from_the_first_scrape_on_and_they_go_with_the_pod(host: Host) -> None:
    host.counters.follow({WEB: CpuSet.of(1)}, {})
    series = host.counters.values()
    assert {one.name for one in series} == {EXCLUSIVE_CPU_INTERRUPTS, EXCLUSIVE_CPU_SOFTIRQS}
    assert (len(series), set(series.values())) == (10, {0})
    host.counters.follow({WEB: CpuSet.of(1)}, {WEB: ("eth0",)})
    (claimed,) = host.counters.values().keys() - series.keys()
    assert dict(claimed.labels)["kind"] == "claimed"
    host.counters.follow({}, {})
    assert host.counters.values() == {}


def test_who_comes_within_a_second_of_a_scrape_has_series_at_once(host: Host) -> None:
    assert host.counters.values() == {}
    host.counters.follow({WEB: CpuSet.of(1)}, {})
    assert host.counters.values() != {}


def test_without_the_kernels_file_there_are_no_series_rather_than_zeros(host: Host) -> None:
    (host.root / "proc/interrupts").unlink()
    (host.root / "proc/softirqs").write_text("nothing that is known\n")
    host.look(web="1")
    assert host.counters.values() == {}


def test_while_nobody_has_exclusive_cpus_nothing_is_read(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert host.look() == {}
    host.counts("0-3", eth0="7 7 7 7", nvme="5 5 5 5", net_rx="9 9 9 9")
    assert host.look(web="1") == {}


def test_the_agent_counts_for_containers_with_cpus_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at_rest(
        monkeypatch, tmp_path, node(SMALL), (pod("alone", app(cpu="2")), pod("shares", app(cpu="100m")))
    ) as daemon:
        there = daemon.agent.metrics.exposition.text().decode()
        daemon.files.pods = ()
        daemon.rest()
        gone = daemon.agent.metrics.exposition.text().decode()
    counted = [line for line in there.splitlines() if line.startswith(f"{EXCLUSIVE_CPU_INTERRUPTS}{{")]
    assert [line for line in counted if 'pod="alone"' in line]
    assert [line for line in counted if 'pod="shares"' in line] == []
    assert f"{EXCLUSIVE_CPU_INTERRUPTS}{{" not in gone
