"""No process of another container runs on an exclusive CPU while its owner runs, over random arrivals and departures of pods."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from integration.guest.guest import Guest
from integration.node import ROOT, STATE, Node
from integration.overlap.disturbance import OF_ANY_NODE, Fault
from integration.overlap.exceptions import Line
from integration.overlap.proof import churn, guest_module, put_tools
from tests.support.figures import Recorder, keep, report

CHURN_EVENTS, CHURN_EVENTS_LONG = 120, 300
MOST_UNKNOWN_NS = 5_000_000_000
"""Far less than the ten seconds after which kubelet's order would have moved who shares."""
SOAK_EVENTS = 1_000
SOAK_PARTS = 10
"""A soak of hours is in parts: one that is broken off keeps those that it has done, and `-k "[3]"` does one alone."""
CONTROL_EVENTS = 30
CONTROL_ROUNDS = 8
"""Where tasks are when their CPUs are given away is up to the scheduler: of so many events some cause dozens of overlaps, some none."""
OVERLAPS, BUSY_NS = 3, 1_000_000
"""What shows that the judge sees: several, and milliseconds of a busy process, not just the end of a switch."""
DISTURBED_EVENTS = 100
DISTURBED_EVERY = 3
"""So many pod events from one fault, or several at once, to the next."""
LAUNCHER_STATE = "/var/lib/nodeagent-pods"
_ERROR = 3
"""syslog's priority."""
DEATHS = (Fault.AGENT_KILLED, Fault.AGENT_RESTARTED, Fault.LAUNCHER_KILLED, Fault.SYSTEMD_RELOADED, Fault.CLOCK_SET)
"""What takes no CPU from anybody: a container whose CPU is away is not resized until it is back."""
_NEVER = {
    "crashed",
    "record_empty",
    "record_set_aside",
    "record_unreadable",
    "record_not_written",
    "record_not_removed",
    "pod_refused",
}
"""Events that none of these faults is a reason for."""
_WHY_RECOVERED = ("CPUs or memory allocated to pods are gone", "differs from nodeagent_state: accepted")
"""Why an agent may begin with another state than it finds: CPUs went while it was away. Pods without processes get others then
(`promise_changed`); that all others keep theirs, the judge sees.
"""
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

    report(record_property, "\n  ".join(evidence.lines()))
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
@pytest.mark.parametrize("faults", [(), DEATHS], ids=["alone", "among deaths"])
def test_nor_while_running_pods_get_other_cpus(
    two_sockets: Guest, faults: tuple[Fault, ...], request: pytest.FixtureRequest, record_property: Recorder
) -> None:
    events = CHURN_EVENTS_LONG if request.config.getoption("--long") else CHURN_EVENTS
    every = DISTURBED_EVERY if faults else 0

    evidence = churn(
        two_sockets, events=events, seed=SEED + 2_000, with_resizes=True, disturbed_every=every, faults=faults
    )

    found = evidence.findings
    report(record_property, "\n  ".join(evidence.lines()))
    assert evidence.gaps == ()
    assert evidence.pod_events == events
    assert found.faults == ()
    assert found.untold == 0
    # that it looked where there was something to see
    assert found.granted >= events // 20
    assert found.given_up >= events // 30
    assert max(found.longest_unknown_ns, found.longest_leaving_ns) < MOST_UNKNOWN_NS
    assert evidence.faults.keys() == set(faults)
    keep(
        "churn with resizes" + (" and deaths" if faults else ""),
        "part 0",
        **({"faults": sum(evidence.faults.values())} if faults else {}),
        pod_events=events,
        CPUs_granted=found.granted,
        CPUs_given_up=found.given_up,
        ms_between_looks_at_most=round(found.longest_unknown_ns / 1e6),
        ms_until_left_at_most=round(found.longest_leaving_ns / 1e6),
        switches=found.switches,
        overlaps=0,
    )


@pytest.mark.long
def test_nor_while_everything_else_happens_at_once(
    two_sockets: Guest, part: int, request: pytest.FixtureRequest, record_property: Recorder
) -> None:
    events = SOAK_EVENTS if request.config.getoption("--soak") else DISTURBED_EVENTS
    node = Node(two_sockets)
    before = left_behind(node)

    evidence = churn(
        two_sockets, events=events, seed=SEED + 1_000 + part, disturbed_every=DISTURBED_EVERY, faults=OF_ANY_NODE
    )

    report(record_property, "\n  ".join(evidence.lines()))
    assert evidence.gaps == ()
    assert evidence.pod_events == events
    assert evidence.findings.faults == ()
    assert evidence.findings.untold == 0
    assert complaints(evidence.journal) == []
    node.wait(lambda _: problems(node) == [], "the agent to have no problem left")
    assert left_behind(node) == before
    # that it looked where there was something to see
    assert evidence.findings.owners >= events // 4
    assert evidence.faults.keys() == set(OF_ANY_NODE)
    keep(
        "churn with faults",
        f"part {part}",
        pod_events=events,
        faults=sum(evidence.faults.values()),
        switches=evidence.findings.switches,
        overlaps=0,
    )


def left_behind(node: Node) -> str:
    """All that pods could leave: files of agent and launcher, cgroups, processes."""
    return node.run(
        f"ls -A -I 'nodeagent_state*' {STATE} {LAUNCHER_STATE}; cd {ROOT} && find . -type d; find . -name cgroup.procs | xargs cat"
    ).stdout


def problems(node: Node) -> list[str]:
    document = node.inspect()
    return [*document["node"]["problems"], *map(str, document["differences"]), *map(str, document["pods"])]


def complaints(journal: Iterable[Line]) -> list[str]:
    """What agent and launcher logged as wrong, but for problems: those have to be over in the end."""
    return [f"{line.unit}: {line.text}" for line in journal if line.unit.startswith("nodeagent") and _is_wrong(line)]


def _is_wrong(line: Line) -> bool:
    event = line.event or line.text.partition(" ")[0]
    is_error = bool(line.event) and line.priority <= _ERROR and event != "trouble"
    is_killed_unasked = event == "exited" and "signal=9 " in line.text
    return is_error or is_killed_unasked or "Traceback" in line.text or event in _NEVER or _is_without_reason(line)


def _is_without_reason(line: Line) -> bool:
    """Whether the agent could not use a file, or a state, but not because CPUs had gone."""
    match line.event:
        case "state_recovered":
            return not all(problem.endswith(_WHY_RECOVERED) for problem in line.fields["problems"])
        case "state_set_aside":
            return bool(line.fields["file"] != "nodeagent_state")
        case _:
            return False


@pytest.mark.parametrize(
    "faults",
    [
        (),
        # those that such an agent is told of, or survives
        pytest.param(
            (Fault.CPU_OFFLINE, Fault.CPUS_WITHHELD, Fault.LAUNCHER_KILLED, Fault.CLOCK_SET), marks=pytest.mark.long
        ),
    ],
    ids=["alone", "among faults"],
)
def test_kubelets_order_of_writes_is_caught(
    two_sockets: Guest, faults: tuple[Fault, ...], record_property: Recorder
) -> None:
    """The negative control: the same churn and the same judge, an agent that moves shared containers at its next reconcile only."""
    every = DISTURBED_EVERY if faults else 0
    count = longest_ns = 0
    with kubelets_order(two_sockets):
        for number in range(CONTROL_ROUNDS):
            evidence = churn(
                two_sockets, events=CONTROL_EVENTS, seed=SEED + number, disturbed_every=every, faults=faults
            )
            report(record_property, "\n  ".join(evidence.lines()))
            assert evidence.gaps == ()
            count += evidence.findings.overlap_count
            longest_ns = max([longest_ns, *(found.duration_ns for found in evidence.findings.overlaps)])
            if count >= OVERLAPS and longest_ns >= BUSY_NS:
                break
    assert count >= OVERLAPS
    assert longest_ns >= BUSY_NS


@pytest.mark.long
def test_an_agent_that_grants_before_others_have_left_is_caught(two_sockets: Guest, record_property: Recorder) -> None:
    """The negative control of resizes: whoever has more CPUs has them at once, and others leave at the next reconcile. Of 30 events few
    grant CPUs, and of these few are where somebody runs just then: in one of two guests all rounds together had one overlap.
    """
    count = longest_ns = 0
    with kubelets_order(two_sockets, "--resizes-first"):
        for number in range(CONTROL_ROUNDS):
            evidence = churn(two_sockets, events=CHURN_EVENTS, seed=SEED + 2_000 + number, with_resizes=True)
            report(record_property, "\n  ".join(evidence.lines()))
            assert evidence.gaps == ()
            count += evidence.findings.granted_overlap_count
            longest_ns = max([longest_ns, *(found.duration_ns for found in evidence.findings.overlaps)])
            if count >= OVERLAPS and longest_ns >= BUSY_NS:
                break
    assert count >= OVERLAPS
    assert longest_ns >= BUSY_NS


@contextmanager
def kubelets_order(guest: Guest, *words: str) -> Iterator[None]:
    """Another agent in the place of nodeagent.service; words: more that it is told."""
    put_tools(guest)
    unit = (
        f"systemd-run --unit={_CONTROL_UNIT} --service-type=notify -p NotifyAccess=main -p RuntimeDirectory=nodeagent"
    )
    guest.run("systemctl stop nodeagent")
    try:
        guest.run(f"{unit} {' '.join(guest_module('kubelet_order', _CONFIG, *words))}")
        yield
    finally:
        guest.run(f"systemctl stop {_CONTROL_UNIT}", check=False)
        guest.run("systemctl start nodeagent")
