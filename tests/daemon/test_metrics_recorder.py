"""What decisions on pods take: one observation for each that is asked of the topology manager, in kubelet's whole milliseconds."""

from nodeagent.core.admission import managers as core
from nodeagent.core.admission.managers import Admitted, Rejected
from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import TOPOLOGY_REQUESTS
from nodeagent.core.metrics.totals import MetricTotals
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.turn.step import admitted_beside
from nodeagent.daemon.metrics_recorder import Stopwatch
from tests.support.builders import MACHINE_A, app, managers, pod


def test_each_decision_is_measured_in_whole_milliseconds_and_is_what_it_would_be() -> None:
    node = managers(MACHINE_A)
    times = iter([5.0, 5.0009, 7.0, 7.0128])
    watch, totals = Stopwatch(lambda: next(times)), MetricTotals()
    promises, nobody = core.initial(node), CpuSet()
    for one, outcome in ((pod("p", app("a", "2")), Admitted), (pod("q", app("a", "99")), Rejected)):
        decision = watch.decide(node, promises, one, nobody)
        assert isinstance(decision, outcome)
        assert decision == admitted_beside(node, promises, one, nobody)
        totals.move(decision.moves)
    assert watch.took_ms == [0, 12]
    assert totals.snapshot({}).counters[Series(TOPOLOGY_REQUESTS)] == len(watch.took_ms)


def test_who_waits_for_strangers_cpus_is_one_admission() -> None:
    """With all CPUs used by strangers it is decided twice: without them, and as if they were free."""
    node = managers(MACHINE_A)
    watch = Stopwatch()
    decision = watch.decide(node, core.initial(node), pod("p", app("a", "2")), MACHINE_A.online)
    assert isinstance(decision, Admitted)
    assert [move.amount for move in decision.moves if move.series == Series(TOPOLOGY_REQUESTS)] == [1]
    assert len(watch.took_ms) == 1
