"""What decisions on pods take: one observation for each that is asked of the topology manager, in kubelet's whole milliseconds."""

from pathlib import Path

import pytest

from nodeagent.core.admission import managers as core
from nodeagent.core.admission.managers import Admitted, Rejected
from nodeagent.core.metrics.agent_metrics import CONTAINER_INFO
from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import TOPOLOGY_REQUESTS
from nodeagent.core.metrics.totals import MetricTotals
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.turn.decision import admit_off_orphans
from nodeagent.daemon.reports.metrics_recorder import Stopwatch
from tests.support.builders import MACHINE_A, managers
from tests.support.daemon_model import Daemon, at_rest
from tests.support.pods import app, pod
from tests.support.world import SMALL, node


def test_each_decision_is_measured_in_whole_milliseconds_and_is_what_it_would_be() -> None:
    on = managers(MACHINE_A)
    times = iter([5.0, 5.0009, 7.0, 7.0128])
    watch, totals = Stopwatch(lambda: next(times)), MetricTotals()
    promises, nobody = core.initial(on), CpuSet()
    for one, outcome in ((pod("p", app("a", "2")), Admitted), (pod("q", app("a", "99")), Rejected)):
        decision = watch.decide(on, promises, one, nobody)
        assert isinstance(decision, outcome)
        assert decision == admit_off_orphans(on, promises, one, nobody)
        totals.add(decision.deltas)
    assert watch.took_ms == [0, 12]
    assert totals.snapshot({}).counters[Series(TOPOLOGY_REQUESTS)] == len(watch.took_ms)


def test_who_waits_for_strangers_cpus_is_one_admission() -> None:
    """With all CPUs used by orphans it is decided twice: without them, and as if they were free."""
    on = managers(MACHINE_A)
    watch = Stopwatch()
    decision = watch.decide(on, core.initial(on), pod("p", app("a", "2")), MACHINE_A.online)
    assert isinstance(decision, Admitted)
    assert [delta.amount for delta in decision.deltas if delta.series == Series(TOPOLOGY_REQUESTS)] == [1]
    assert len(watch.took_ms) == 1


def test_each_container_has_a_series_that_says_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with at_rest(
        monkeypatch, tmp_path, node(SMALL), (pod("alone", app(cpu="2")), pod("shares", app(cpu="100m")))
    ) as daemon:
        cpus = own_set_of(daemon.agent.state.promises, "uid-alone", "app")
        there = info(daemon)
        daemon.files.pods = ()
        daemon.rest()
    assert cpus is not None
    assert there == {
        f'container="app",cpus="{cpus}",mems="",namespace="default",pod="alone"',
        'container="app",cpus="",mems="",namespace="default",pod="shares"',
    }
    assert info(daemon) == set(), "no series stays of a pod that is gone"


def info(daemon: Daemon) -> set[str]:
    lines = daemon.agent.metrics.exposition.text().decode().splitlines()
    return {line.split("{")[1].split("}")[0] for line in lines if line.startswith(f"{CONTAINER_INFO}{{")}
