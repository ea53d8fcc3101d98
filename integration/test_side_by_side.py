"""Pods from manifests, jobs, pinned services and containerd's pods on one node, all at once: no process on another's exclusive CPU."""

import pytest

from integration.containerd import Containerd, plugged_in
from integration.guest.guest import Guest
from integration.node import Node
from integration.overlap.disturbance import OF_CONTAINERD, Fault
from integration.overlap.proof import churn
from integration.overlap.workload import Means
from integration.runtime_churn import RuntimeChurn
from integration.test_no_overlap import complaints, left_behind, troubles
from tests.support.figures import Recorder, keep, report

EVENTS, OF_RUNTIME = 200, 100
EVERY = 5
RUNTIMES_CPUS = 4
SEED = 23_260
FAULTS = (
    Fault.AGENT_KILLED,
    Fault.AGENT_RESTARTED,
    Fault.LAUNCHER_KILLED,
    Fault.SYSTEMD_RELOADED,
    *OF_CONTAINERD,
)


@pytest.fixture
def node(four_nodes: Guest) -> Node:
    return Node(four_nodes)


@pytest.mark.long
@pytest.mark.configures
def test_no_process_of_another_workload_runs_on_an_exclusive_cpu(node: Node, record_property: Recorder) -> None:
    before = left_behind(node)
    with Containerd(node) as containerd, plugged_in(node, containerd):
        beside = RuntimeChurn(containerd, node, seed=SEED, events=OF_RUNTIME, cpus=RUNTIMES_CPUS)

        evidence = churn(
            node.guest,
            events=EVENTS,
            seed=SEED,
            disturbed_every=EVERY,
            faults=FAULTS,
            means=(Means.JOB, Means.UNIT),
            beside=beside,
        )

        report(record_property, "\n  ".join(evidence.lines()))
        report(record_property, f"containerd: {beside.done} events, {beside.refused} calls asked for again")
        assert evidence.gaps == ()
        assert evidence.findings.faults == ()
        assert evidence.findings.untold == 0
        assert complaints(evidence.journal) == []
        assert node.inspect()["differences"] == []
    node.wait(lambda _: troubles(node) == [], "the agent to have no trouble left")
    assert left_behind(node) == before
    # that it looked where there was something to see
    assert evidence.pod_events == EVENTS
    assert beside.done == OF_RUNTIME
    assert evidence.findings.owners >= (EVENTS + OF_RUNTIME) // 4
    assert evidence.faults.keys() == set(FAULTS)
    keep(
        "churn side by side",
        "",
        pod_events=EVENTS + OF_RUNTIME,
        faults=sum(evidence.faults.values()),
        switches=evidence.findings.switches,
        overlaps=0,
    )
