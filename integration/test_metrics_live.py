"""The metrics of a real node, as a scraper and as promtool see them."""

import re

import pytest

from integration.contrib import METRICS_PAGE
from integration.guest.guest import Guest
from integration.node import ROOT, Node, container, pod
from integration.promtool_findings import check_findings

SLEEP = ["sleep", "infinity"]
BUSY = ["sh", "-c", "while :; do :; done"]
"""The timer interrupts what runs."""
COUNTED = 'nodeagent_exclusive_cpu_{}_total{{container="app",kind="{}",namespace="default",pod="two"}}'


@pytest.fixture(params=["two_sockets", pytest.param("four_nodes", marks=pytest.mark.long)])
def node(request: pytest.FixtureRequest) -> Node:
    guest: Guest = request.getfixturevalue(request.param)
    return Node(guest)


def test_promtool_finds_nothing_but_kubelets_own_names(node: Node) -> None:
    node.apply(pod("one", container("app", SLEEP, cpu="2")))
    node.wait_running("one")

    def run(command: tuple[str, ...]) -> tuple[int, str]:
        done = node.guest.run(command, check=False)
        return done.returncode, done.stderr

    check_findings(run)


def test_an_admission_and_a_departure_move_what_kubelet_would_move(node: Node) -> None:
    before = node.metrics()
    node.apply(pod("two", container("app", BUSY, cpu="2")), pod("free", container("app", SLEEP)))
    node.wait_running("two", "free")
    node.apply(pod("huge", container("app", SLEEP, cpu="100")))
    node.wait_refused("huge")
    during = node.metrics()
    assert during[COUNTED.format("interrupts", "timer")] >= 0
    node.wait_metric(COUNTED.format("interrupts", "timer"), 0)
    node.wait_metric(COUNTED.format("softirqs", "timer"), 0)
    told = re.search(r"with exclusive CPUs has (\d+) series", METRICS_PAGE.read_text())
    assert told is not None
    own = [one for one in node.metrics() if 'pod="two"' in one and not one.startswith("nodeagent_container_info")]
    has_irq_pressure = node.run(f"test -e {ROOT}/poduid-two/app/irq.pressure", check=False).returncode == 0
    assert len(own) == int(told[1]) - (not has_irq_pressure)
    node.delete("two", "huge")
    node.wait_gone("two", "huge")
    after = node.metrics()

    def moved(series: str) -> tuple[float, float]:
        return during[series] - before[series], after[series] - before[series]

    assert moved("kubelet_cpu_manager_pinning_requests_total") == (1, 1)
    assert moved("cpu_manager_pinning_requests_total") == (1, 1), "the name without the prefix is an alias"
    assert moved("kubelet_cpu_manager_pinning_errors_total") == (0, 0)
    assert moved("kubelet_topology_manager_admission_requests_total") == (2, 2), "the third did not come that far"
    assert moved("kubelet_topology_manager_admission_duration_ms_count") == (2, 2)
    assert moved("kubelet_cpu_manager_exclusive_cpu_allocation_count") == (2, 0)
    assert moved("kubelet_cpu_manager_shared_pool_size_millicores") == (-2000, 0)
    assert moved('nodeagent_pod_refusals_total{reason="OutOfcpu"}') == (1, 1)
    assert moved('nodeagent_containers{isolation="container"}')[1] == 0
    assert moved("nodeagent_event_duration_seconds_count")[0] >= 2
    assert after["nodeagent_launcher_up"] == 1
    assert [series for series in (*before, *after) if 'pod="two"' in series] == []


def test_the_metrics_are_on_the_loopback_address_only(node: Node) -> None:
    listening = node.run("ss -Htln").stdout
    addresses = [line.split()[3] for line in listening.splitlines() if line.split()[3].endswith(":9753")]
    assert addresses == ["127.0.0.1:9753"]
