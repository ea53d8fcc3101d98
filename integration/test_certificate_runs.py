"""Many short runs, each with a certificate: none that nothing disturbs is disturbed, and what disturbs the others is named first."""

import pytest

from integration.guest.guest import Guest
from integration.isolation import isolate
from integration.node import Node
from integration.test_certificate import DISTURBANCES, SHORT, assert_named_first, run_disturbed, run_repeatedly
from tests.support.figures import keep

REPEATS = 5
"""Runs of one job, which a slow guest has done before anybody gives up."""


@pytest.fixture
def node(two_sockets: Guest) -> Node:
    return Node(two_sockets)


@pytest.mark.long  # the short form is that of test_certificate.py: a process, in one run
@pytest.mark.configures
@pytest.mark.parametrize("kind", DISTURBANCES)
def test_a_disturbance_is_named_first_in_nine_runs_of_ten(node: Node, kind: str) -> None:
    isolate(node, DISTURBANCES[kind].host, interrupts="none")
    found = [one for _ in range(10 // REPEATS) for one in run_disturbed(node, kind, REPEATS)]
    named = assert_named_first(kind, found, 9)
    keep("disturbed runs", kind, runs=len(found), named_first=named)


@pytest.mark.long  # the short form is that of test_certificate.py: one run
@pytest.mark.configures
def test_a_hundred_runs_that_nothing_disturbs_are_clean(node: Node) -> None:
    """With the isolation. Without it, the kernel's threads and the measurement of the guest's pace come to their CPUs."""
    isolate(node)
    found = [
        one
        for _ in range(100 // REPEATS)
        for one in run_repeatedly(node, "--cpus 2 --memory 64Mi", SHORT.format(), REPEATS)
    ]
    assert [(one["verdict"], one["disturbances"]) for one in found if one["verdict"] != "clean"] == []
    keep("undisturbed runs", "isolated", runs=len(found), clean=len(found))
