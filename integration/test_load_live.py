"""Many pods at once on a real kernel: all run, nothing is lost over a restart, and nothing is left when they go."""

import json
import time
from functools import partial

import pytest

from integration.guest.guest import Guest
from integration.node import MANIFESTS, ROOT, Document, Node, container, pod
from tests.support.figures import Recorder, keep, report

PODS = 20
PODS_LONG = 250
EXCLUSIVE = 3


@pytest.fixture
def node(two_sockets: Guest) -> Node:
    return Node(two_sockets)


def template(*, cpu: str | None) -> str:
    return json.dumps(pod("p@", container("app", ["sleep", "infinity"], cpu=cpu, memory="4Mi")))


def test_many_pods_at_once(node: Node, request: pytest.FixtureRequest, record_property: Recorder) -> None:
    count = PODS_LONG if request.config.getoption("--long") else PODS
    node.guest.put("/run/exclusive.json", template(cpu="2"))
    node.guest.put("/run/shared.json", template(cpu=None))
    began, pid = time.monotonic(), node.main_pid()
    node.run(
        f"rm -rf /run/many; mkdir /run/many; for i in $(seq {count}); do kind=shared; [ $i -gt {EXCLUSIVE} ] || kind=exclusive;"
        f" sed s/p@/p$i/g /run/$kind.json >/run/many/p$i.json; done; mv /run/many/* {MANIFESTS}/",
    )
    for so_many in range(PODS, count, PODS):
        node.wait(partial(has_started, so_many), f"{so_many} pods of {count} to be started")
    state = node.wait(lambda s: started(s) == count, f"{count} pods to be started")
    node.wait_running(*(entry["pod"]["metadata"]["name"] for entry in state["entries"]))
    took = time.monotonic() - began
    assert [e for e in state["entries"] if "refusal" in e] == []
    owned = [p["cpus"]["app"] for p in state["promises"]["pods"].values() if p.get("cpus")]
    assert len(owned) == len(set(owned)) == EXCLUSIVE
    assert node.inspect()["differences"] == []
    processes = f"cat $(find {ROOT} -path '*/pod*/cgroup.procs') | sort -n"
    before = node.run(processes).stdout
    assert len(before.split()) == count
    assert node.main_pid() == pid, "the watchdog was content"

    began = time.monotonic()
    node.restart_agent()
    restarted = time.monotonic() - began
    assert node.run(processes).stdout == before
    memory_kib = int(node.run(f"awk '/^VmHWM/ {{print $2}}' /proc/{node.main_pid()}/status").stdout)

    assert memory_kib < 150 * 1024

    began = time.monotonic()
    node.run(f"rm {MANIFESTS}/*.json")
    for so_many in range(count - PODS, 0, -PODS):
        node.wait(partial(has_at_most, so_many), f"all but {so_many} pods to go")
    node.wait(lambda s: not s["entries"], "all pods to go")
    node.run(f"until [ $(find {ROOT} -name 'pod*' 2>/dev/null | wc -l) = 0 ]; do sleep 0.2; done")
    gone = time.monotonic() - began
    assert node.unit("NRestarts")["NRestarts"] == "0", "and while they went"
    report(
        record_property,
        f"load in a guest: {count} pods at once: {took:.0f} s until all ran, {restarted:.0f} s for a restart, {gone:.0f} s until all "
        f"were gone; the agent took {memory_kib // 1024} MiB",
    )
    keep("load in a guest", "at once", pods=count)


def has_started(count: int, state: Document) -> bool:
    return started(state) >= count


def has_at_most(count: int, state: Document) -> bool:
    return len(state["entries"]) <= count


def started(state: Document) -> int:
    return sum("attempt" in status for entry in state["entries"] for status in entry["containers"])
