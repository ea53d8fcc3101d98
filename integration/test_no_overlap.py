"""No process of another container runs on an exclusive CPU while its owner runs, over random arrivals and departures of pods."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from integration.guest.guest import Guest
from integration.overlap.proof import churn, guest_module, put_tools
from tests.support.figures import Recorder, keep, tell

CHURN_EVENTS, CHURN_EVENTS_LONG = 120, 300
SOAK_EVENTS = 1_000
SOAK_PARTS = 10
"""A soak of hours is in parts: one that is broken off keeps those that it has done, and `-k "[3]"` does one alone."""
CONTROL_EVENTS = 30
DISTURBED_EVENTS = 40
DISTURBED_EVERY = 8
"""So many pod events from one kill of the agent, or one CPU that goes and comes back, to the next."""
SEED = 20_260
_CONTROL_UNIT = "nodeagent-kubelet-order.service"
_CONFIG = "/etc/nodeagent/config.yaml"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "part" in metafunc.fixturenames:
        metafunc.parametrize("part", range(SOAK_PARTS if metafunc.config.getoption("--soak") else 1))


def test_no_foreign_process_runs_on_an_exclusive_cpu(
    two_sockets: Guest, part: int, request: pytest.FixtureRequest, record_property: Recorder
) -> None:
    usual = CHURN_EVENTS_LONG if request.config.getoption("--long") else CHURN_EVENTS
    events = SOAK_EVENTS if request.config.getoption("--soak") else usual

    evidence = churn(two_sockets, events=events, seed=SEED + part)

    tell(record_property, "\n  ".join(evidence.lines()))
    assert evidence.gaps == ()
    assert evidence.pod_events == events
    assert evidence.findings.faults == ()
    assert evidence.findings.untold == 0
    # that it looked where there was something to see
    assert evidence.findings.owners >= events // 4
    assert evidence.findings.handovers >= evidence.findings.owners // 4
    assert evidence.findings.switches >= events * 10
    keep("churn", f"part {part}", pod_events=events, switches=evidence.findings.switches, overlaps=0)


@pytest.mark.long
def test_nor_while_the_agent_is_killed_and_cpus_go_and_come_back(
    two_sockets: Guest, part: int, request: pytest.FixtureRequest, record_property: Recorder
) -> None:
    events = SOAK_EVENTS if request.config.getoption("--soak") else DISTURBED_EVENTS

    evidence = churn(two_sockets, events=events, seed=SEED + 1_000 + part, disturbed_every=DISTURBED_EVERY)

    tell(record_property, "\n  ".join(evidence.lines()))
    assert evidence.gaps == ()
    assert evidence.pod_events == events
    assert evidence.findings.faults == ()
    assert evidence.findings.untold == 0
    assert evidence.findings.owners >= events // 4
    disturbances = events // DISTURBED_EVERY
    assert min(evidence.kills, evidence.hotplugs) >= disturbances // 2 - 1
    keep(
        "churn with faults",
        f"part {part}",
        pod_events=events,
        kills_of_the_agent=evidence.kills,
        hotplugs=evidence.hotplugs,
        switches=evidence.findings.switches,
        overlaps=0,
    )


def test_kubelets_order_of_writes_is_caught(two_sockets: Guest, record_property: Recorder) -> None:
    """The negative control: the same churn and the same judge, an agent that moves shared containers at its next reconcile only."""
    with kubelets_order(two_sockets):
        evidence = churn(two_sockets, events=CONTROL_EVENTS, seed=SEED)

    tell(record_property, "\n  ".join(evidence.lines()))
    assert evidence.gaps == ()
    assert evidence.findings.overlap_count >= 3
    longest_ns = max(found.duration_ns for found in evidence.findings.overlaps)
    assert longest_ns >= 1_000_000, "milliseconds of a busy process, not the end of a switch"


@contextmanager
def kubelets_order(guest: Guest) -> Iterator[None]:
    """Another agent in the place of nodeagent.service."""
    put_tools(guest)
    unit = (
        f"systemd-run --unit={_CONTROL_UNIT} --service-type=notify -p NotifyAccess=main -p RuntimeDirectory=nodeagent"
    )
    guest.run("systemctl stop nodeagent")
    try:
        guest.run(f"{unit} {' '.join(guest_module('kubelet_order', _CONFIG))}")
        yield
    finally:
        guest.run(f"systemctl stop {_CONTROL_UNIT}", check=False)
        guest.run("systemctl start nodeagent")
