"""Exclusive CPUs on a busy host, counted by the kernel: with the host kept off nothing runs there that could run elsewhere."""

import json
from collections.abc import Iterator

import pytest

from integration.guest.guest import Guest
from integration.isolation import isolate
from integration.node import Document, Node, container, pod
from nodeagent.core.model.idset import CpuSet
from tests.support.figures import Recorder, report

pytestmark = pytest.mark.configures

BUSY = """
import os, threading, time

def work(cpu):
    os.sched_setaffinity(0, {cpu})
    while True:
        time.sleep(0.02)

def write():
    disk = os.open("/var/tmp/busy", os.O_CREAT | os.O_WRONLY)
    while True:
        os.pwrite(disk, bytes(65536), 0)
        os.fsync(disk)
        print("x" * 80, file=serial, flush=True)
        time.sleep(0.02)

serial = open("/dev/ttyS0", "w")
for cpu in os.sched_getaffinity(0):
    threading.Thread(target=work, args=(cpu,)).start()
threading.Thread(target=write).start()
print("busy", file=open("/run/busy", "w"), flush=True)
"""
"""A thread that runs on each CPU again and again, work for the disk and its queues, and interrupts of the serial port."""


@pytest.fixture(params=[pytest.param("two_sockets", marks=pytest.mark.long), "four_nodes"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    guest: Guest = request.getfixturevalue(request.param)
    guest.put("/run/busy.py", BUSY.encode())
    yield Node(guest)
    guest.run("systemctl stop busy; rm -f /run/busy /run/busy.py /var/tmp/busy", check=False)


def counted(node: Node, seconds: int) -> tuple[int, Document]:
    """What ran on the exclusive CPUs of a pod that sleeps, beside work on every CPU that began before it came."""
    node.run("rm -f /run/busy; systemd-run -q --collect --unit=busy /opt/nodeagent/bin/python /run/busy.py")
    assert node.wait_line("/run/busy") == "busy"
    node.apply(pod("quiet", container("app", ["sleep", "infinity"], cpu="2")))
    node.wait_running("quiet")
    node.metrics()
    done = node.run(
        f"nodeagent interference quiet -o json --seconds {seconds}", check=False, timeout_seconds=seconds + 60
    )
    assert done.returncode in {0, 2}, done.stderr
    found: Document = json.loads(done.stdout)
    (claim,) = found["cpus"]
    return done.returncode, claim


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.long)])
def test_nothing_that_could_run_elsewhere_runs_there(node: Node, seconds: int, record_property: Recorder) -> None:
    isolate(node, "none", "none")
    status, claim = counted(node, seconds)
    assert status == 2, "the negative control"
    assert [task["name"] for task in claim["tasks"] if task["of"] == "/system.slice/busy.service"] == ["python"]
    report(record_property, f"without isolation: {names(claim)}")
    node.run("systemctl stop busy")

    isolate(node)
    status, claim = counted(node, seconds)
    report(record_property, f"with isolation: {names(claim)}")
    assert (status, claim["alone"]) == (0, True), names(claim)
    assert CpuSet.parse(claim["cpus"])


def names(claim: Document) -> str:
    return ", ".join(
        f"{one['name']} ({one.get('kind', kind)}) {one['times']} times"
        for kind in ("tasks", "interrupts", "softirqs")
        for one in claim[kind]
    )
