"""The same where the host is kept off exclusive CPUs: by partitions on Debian 13, by systemd on Debian 12. Everything else happens, too."""

import pytest

from integration.isolation import isolate, listed, wait_as, wait_forgotten
from integration.node import Node
from integration.overlap.disturbance import OF_ANY_NODE
from integration.overlap.proof import churn
from integration.test_no_overlap import DISTURBED_EVENTS, DISTURBED_EVERY, SEED, complaints, left_behind, problems
from tests.support.figures import Recorder, keep, report

pytestmark = [pytest.mark.long, pytest.mark.configures]

SEEDS = 2


@pytest.fixture(params=["two_sockets", "four_nodes"])
def node(request: pytest.FixtureRequest) -> Node:
    node = Node(request.getfixturevalue(request.param))
    isolate(node)
    return node


@pytest.mark.parametrize("part", range(SEEDS))
def test_no_process_of_another_container_runs_there_whatever_happens(
    node: Node, part: int, record_property: Recorder
) -> None:
    before, settings = left_behind(node), listed(node)

    evidence = churn(
        node.guest,
        events=DISTURBED_EVENTS,
        seed=SEED + 2_000 + part,
        disturbed_every=DISTURBED_EVERY,
        faults=OF_ANY_NODE,
    )

    report(record_property, "\n  ".join(evidence.lines()))
    assert evidence.gaps == ()
    assert evidence.pod_events == DISTURBED_EVENTS
    assert evidence.findings.faults == ()
    assert evidence.findings.untold == 0
    assert complaints(evidence.journal) == []
    node.wait(lambda _: problems(node) == [], "the agent to have no problem left")
    assert left_behind(node) == before
    wait_as(node, settings)
    wait_forgotten(node)
    # that it looked where there was something to see
    assert evidence.findings.owners >= DISTURBED_EVENTS // 4
    assert evidence.faults.keys() == set(OF_ANY_NODE)
    keep(
        "churn with faults and isolation",
        f"{node.guest.image.release}, part {part}",
        pod_events=DISTURBED_EVENTS,
        faults=sum(evidence.faults.values()),
        switches=evidence.findings.switches,
        overlaps=0,
    )
