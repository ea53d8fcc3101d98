"""Pods from manifests, jobs, pinned services and containerd's pods on one node, all at once: no process on another's exclusive CPU."""

import pytest

from integration.containerd import Containerd, plugged_in
from integration.guest.guest import Guest
from integration.node import Node
from integration.other_agent import other_agent
from integration.overlap.disturbance import OF_CONTAINERD, Fault
from integration.overlap.intervals import Presence
from integration.overlap.proof import churn
from integration.overlap.workload import Means
from integration.runtime_churn import RuntimeChurn
from integration.test_no_overlap import CONTROL_EVENTS, CONTROL_ROUNDS, complaints, left_behind, problems
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
    node.wait(lambda _: problems(node) == [], "the agent to have no problem left")
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


@pytest.mark.long
@pytest.mark.configures
def test_an_agent_that_does_not_wait_for_containerds_containers_is_caught(
    node: Node, record_property: Recorder
) -> None:
    """The negative control: the same churn and the same judge, an agent that takes a container for gone that it has told to go."""
    crossed: list[Presence] = []
    with Containerd(node) as containerd, other_agent(node, "careless_agent"), plugged_in(node, containerd):
        for number in range(CONTROL_ROUNDS):
            beside = RuntimeChurn(containerd, node, seed=SEED + number, events=CONTROL_EVENTS // 3, cpus=RUNTIMES_CPUS)
            evidence = churn(node.guest, events=CONTROL_EVENTS, seed=SEED + number, beside=beside)
            report(record_property, "\n  ".join(evidence.lines()))
            assert evidence.gaps == ()
            crossed += [one for one in evidence.findings.overlaps if one.intruder in beside.names]
            if crossed:
                break
    assert crossed, "a container of containerd that was still on a pod's CPUs"
