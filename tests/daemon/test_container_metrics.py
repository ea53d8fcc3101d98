"""Series of a node's room and of each container with exclusive CPUs, as a scrape has them."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.core.metrics import agent_metrics as names
from nodeagent.daemon.reports import container_pressure
from nodeagent.daemon.reports.container_pressure import ContainerPressure
from nodeagent.daemon.reports.cpu_counters import Holder
from nodeagent.edge.kernel.usage import PressureText
from nodeagent.formats.config.config_text import hash_config
from tests.daemon.test_memory_changes import MEMORY, with_memory
from tests.support.builders import GIB
from tests.support.daemon_model import Daemon, at_rest
from tests.support.pods import app, pod
from tests.support.world import node

WEB = Holder("uid-web", "default", "web", "app")


def scraped(daemon: Daemon, name: str) -> dict[str, float]:
    text = daemon.agent.metrics.exposition.text().decode()
    return {labels: float(value) for labels, value in re.findall(rf"^{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE)}


def total(daemon: Daemon, name: str) -> float:
    return sum(scraped(daemon, name).values())


def test_free_cpus_and_whole_cores_follow_the_allocations(daemon: Daemon) -> None:
    cpus, cores = total(daemon, names.FREE_CPUS), total(daemon, names.FREE_CORES)
    daemon.files.pods = (pod("web", app(cpu="1")),)
    daemon.rest()
    assert (total(daemon, names.FREE_CPUS), total(daemon, names.FREE_CORES)) in {
        (cpus - 1, cores - 1),
        (cpus - 1, cores),  # on a core that is partly reserved
    }
    assert scraped(daemon, names.FREE_CPUS).keys() == {
        f'numa_node="{one.id}"' for one in daemon.agent.node.topology.numa
    }
    daemon.files.pods = ()
    daemon.rest()
    assert (total(daemon, names.FREE_CPUS), total(daemon, names.FREE_CORES)) == (cpus, cores)


def test_pods_are_counted_by_phase_and_qos(daemon: Daemon) -> None:
    daemon.files.pods = (pod("web", app(cpu="1")), pod("shares", app("app")), pod("huge", app(cpu="99")))
    daemon.rest()
    found = {labels: count for labels, count in scraped(daemon, names.PODS).items() if count}
    assert found == {
        'phase="Running",qos="Guaranteed"': 1.0,
        'phase="Running",qos="BestEffort"': 1.0,
        'phase="Failed",qos="Guaranteed"': 1.0,
    }


def test_nodes_with_the_same_configuration_have_the_same_hash(daemon: Daemon) -> None:
    (label,) = scraped(daemon, names.CONFIG_INFO)
    config = daemon.agent.node.config
    assert label == f'hash="{hash_config(config)}"'
    assert hash_config(replace(config, max_pods=7)) != hash_config(config) == hash_config(replace(config))


def write(cgroup: Path, throttled: int, waited_us: int) -> None:
    cgroup.mkdir(exist_ok=True)
    (cgroup / "cpu.stat").write_text(f"usage_usec 1\nnr_throttled {throttled}\n")
    for resource in ("cpu", "memory"):
        (cgroup / f"{resource}.pressure").write_text(f"some total={waited_us}\nfull total=0\n")


def test_throttling_and_pressure_are_read_once_a_second_for_those_who_have_cpus(tmp_path: Path) -> None:
    now = 0.0
    pressure = ContainerPressure(lambda: now)
    write(tmp_path / "web", 3, 2_500_000)
    assert pressure.values() == {}
    pressure.follow({WEB: str(tmp_path / "web")})
    found = {
        (s.name, dict(s.labels).get("resource"), dict(s.labels).get("share")): v for s, v in pressure.values().items()
    }
    assert found == {
        (names.THROTTLED_PERIODS, None, None): 3,
        (names.PRESSURE, "cpu", "some"): 2.5,
        (names.PRESSURE, "cpu", "full"): 0.0,
        (names.PRESSURE, "memory", "some"): 2.5,
        (names.PRESSURE, "memory", "full"): 0.0,
    }
    write(tmp_path / "web", 4, 2_500_000)
    assert 4 not in pressure.values().values(), "a second has not passed"
    now = 1.0
    assert 4 in pressure.values().values()
    pressure.follow({})
    assert pressure.values() == {}


def test_series_of_containers_can_be_switched_off(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.files.pods = (pod("web", app(cpu="1")),)
    daemon.rest()
    read: list[str] = []
    monkeypatch.setattr(container_pressure, "read_pressure", lambda path: read.append(path) or PressureText(None, {}))
    daemon.agent.metrics.pressure.values()
    assert [path.rpartition("/pod")[2] for path in read] == ["uid-web/app"]
    off = replace(daemon.agent.node, config=replace(daemon.agent.node.config, metrics_containers=False))
    daemon.agent.change_node(off)
    daemon.turn()
    assert daemon.agent.metrics.pressure.values() == {}
    assert len(read) == 1
    assert scraped(daemon, names.EXCLUSIVE_CPU_INTERRUPTS) == {}
    assert len(scraped(daemon, names.CONTAINER_INFO)) == 1


def test_memory_is_shown_by_node_and_resource(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with at_rest(
        monkeypatch, tmp_path, node(with_memory(8 * GIB, 8 * GIB), **MEMORY), (pod("web", app(cpu="1", memory="1Gi")),)
    ) as daemon:
        allocated, free = scraped(daemon, names.MEMORY_ALLOCATED), scraped(daemon, names.MEMORY_FREE)
        assert allocated.keys() == free.keys() >= {f'numa_node="{number}",resource="memory"' for number in (0, 1)}
        assert sum(allocated.values()) == GIB
        daemon.files.pods = ()
        daemon.rest()
        assert total(daemon, names.MEMORY_ALLOCATED) == 0
        assert total(daemon, names.MEMORY_FREE) == sum(free.values()) + GIB
