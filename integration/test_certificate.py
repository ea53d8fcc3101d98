"""The certificate of a run says whether anything disturbed it, and names it, on a real kernel."""

import json

import pytest

from integration.guest.guest import Guest
from integration.isolation import isolate
from integration.node import CONFIG, Document, Node
from integration.test_interference import INSTANCES, INTRUDER, NOW_AND_THEN, WITHOUT_END, last_of
from integration.test_job import BOUNDS

JOB = "nodeagent job --cpus 2 --memory 64Mi"
SHORT = "for i in {1..20000}; do :; done"
FAR = 'for node in 0 1; do numactl --membind=$node python3 -c "import time; held = bytearray(30 << 20); time.sleep(0.3)"; done'
"""One of these nodes is not that of its CPUs."""
WORK = "-- bash -c 'until [ $SECONDS -ge 2 ]; do :; done'"


@pytest.fixture
def node(two_sockets: Guest) -> Node:
    return Node(two_sockets)


def report(node: Node, file: str) -> Document:
    document: Document = json.loads(node.run(f"cat {file}").stdout)
    return document


def test_a_quiet_run_is_clean_and_a_process_on_its_cpus_is_named_first(node: Node) -> None:
    done = node.run(f"{JOB} --report /run/clean.json --require-clean {WORK}", check=False)
    clean = report(node, "/run/clean.json")
    assert (done.returncode, clean["verdict"]) == (0, "clean"), (done.stderr, clean)
    assert clean["others"]["complete"]
    assert clean["cgroup"]["cpuMicroseconds"] > 1_000_000
    assert clean["exit"] == {"status": 0, "signal": None}
    assert clean["mainThread"]["migrations"] is not None
    assert clean["node"]["kernel"] == node.run("uname -r").stdout.strip()
    assert clean["node"]["configurationHash"]

    for intruder in (NOW_AND_THEN, WITHOUT_END):
        node.run((INTRUDER + intruder).format(cpu=last_of(clean["exclusiveCPUs"])))
        done = node.run(f"{JOB} --report /run/disturbed.json --require-clean {WORK}", check=False)
        node.run("systemctl stop intruder")
        disturbed = report(node, "/run/disturbed.json")
        assert (done.returncode, disturbed["verdict"]) == (123, "disturbed"), (done.stderr, disturbed)
        assert disturbed["exclusiveCPUs"] == clean["exclusiveCPUs"]
        assert (disturbed["disturbances"][0]["name"], disturbed["disturbances"][0]["source"]) == ("other-tasks", "bash")
        assert disturbed["others"]["tasks"][0]["of"] == "/system.slice/intruder.service"
        said = node.run("nodeagent report compare /run/clean.json /run/disturbed.json").stdout
        assert "\n  1. other tasks took " in said
    assert node.run(f"ls {INSTANCES}").stdout == "", "nothing is left of it in the kernel"


def test_a_user_without_rights_gets_all_that_may_be_known(node: Node) -> None:
    """The kernel counts no tasks then. Bound kernel threads have some of the time that isn't the job's."""
    node.run("groupadd -f runners; id runner || useradd -m -G runners runner")
    usual = node.guest.get(CONFIG)
    node.guest.put(CONFIG, usual.replace(b"jobs: ", BOUNDS))
    try:
        node.restart_agent()
        node.run(f"cd /tmp; runuser -u runner -- {JOB} --report one.json {WORK}")
    finally:
        node.guest.put(CONFIG, usual)
        node.restart_agent()
    found = report(node, "/tmp/one.json")
    assert found["others"]["microseconds"] is not None
    assert not found["others"]["complete"]
    assert not [one for one in found["others"]["tasks"] if (one["of"] or "").endswith("/payload")], "its own"
    reasons = {one["field"]: one["reason"] for one in found["unknown"]}
    assert reasons["others.tasks"].startswith("only root may have the kernel count each task")


@pytest.mark.long  # the short form is the first test: one run of each kind
@pytest.mark.configures
def test_short_runs_that_nothing_disturbs_are_clean(node: Node) -> None:
    """Without the isolation, they are disturbed indeed: the kernel's threads and the measurement of the guest's pace come there."""
    isolate(node)
    said = []
    for _ in range(10):
        node.run(f"cd /run; {JOB} --report short.json --repeat 10 -- bash -c '{SHORT}'", timeout_seconds=120)
        said += [report(node, f"/run/short-{number}.json") for number in range(1, 11)]
    assert [(one["verdict"], one["disturbances"]) for one in said if one["verdict"] != "clean"] == []


@pytest.mark.long  # the short form is the first test: one run of each kind
@pytest.mark.parametrize(
    ("kind", "options", "before", "work"),
    [
        ("other-tasks", "--cpus 2", INTRUDER + NOW_AND_THEN, SHORT),
        ("throttling", "--cpus 500m", "true", SHORT),
        ("remote-memory", "--cpus 2", "true", FAR),
    ],
)
def test_a_disturbance_is_named_first_in_nine_runs_of_ten(
    node: Node, kind: str, options: str, before: str, work: str
) -> None:
    node.run(f"{JOB} --report /run/clean.json -- true")
    node.run(before.format(cpu=last_of(report(node, "/run/clean.json")["exclusiveCPUs"])))
    command = f"nodeagent job {options} --memory 64Mi --report /run/ten.json --repeat 10 -- bash -c '{work}'"
    node.run(command, timeout_seconds=120)
    node.run("systemctl stop intruder", check=False)
    found = [report(node, f"/run/ten-{number}.json") for number in range(1, 11)]
    first = [one["disturbances"][0]["name"] for one in found if one["verdict"] == "disturbed"]
    assert first.count(kind) >= 9, [(one["verdict"], one["disturbances"]) for one in found]
