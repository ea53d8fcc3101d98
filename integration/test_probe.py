"""`nodeagent probe` on a real kernel: rt-tests measure within a pod whose CPUs nobody else can enter, and memory is told by node."""

import json

import pytest

from integration.guest.guest import Guest
from integration.node import Document, Node, container, pod
from tests.support import json_schema

pytestmark = pytest.mark.configures

CONFIG = """
cpuManagerPolicy: static
reservedSystemCPUs: "0"
hostIsolation: partition
topologyManagerPolicy: single-numa-node
memoryManagerPolicy: Static
evictionHard: {memory.available: 100Mi}
reservedMemory:
  - {numaNode: 0, limits: {memory: 100Mi}}
"""
SLOT = pod("slot", container("app", None, cpu="2"), terminationGracePeriodSeconds=1)
PROBE = "systemd-run -q --collect --unit=probe -p StandardOutput=truncate:/run/probed -p StandardError=truncate:/run/probed nodeagent probe"
ENDED = "until ! systemctl is-active -q probe; do sleep 0.1; done"


@pytest.fixture
def node(four_nodes: Guest) -> Node:
    """With a pod that has CPUs, closed to everybody else, and no process."""
    node = Node(four_nodes)
    node.configure(CONFIG)
    node.apply(SLOT)
    node.wait_running("slot")
    return node


def cpus_of(node: Node) -> str:
    found: str = node.state()["promises"]["pods"]["uid-slot"]["cpus"]["app"]
    return found


def measuring(node: Node) -> None:
    """Begin to measure for longer than any test takes, and wait for a thread on each CPU, and one that waits beside them."""
    node.run(f"{PROBE} slot --latency --seconds 600")
    script = f"read -r pid <{node.cgroup('slot', 'app')}/payload/cgroup.procs; grep -h Cpus_allowed_list /proc/$pid/task/*/status"
    first, last = cpus_of(node).split("-")

    def look() -> bool | None:
        """Threads come and go: it warms up before it measures."""
        found = node.run(f"{script} | cut -f 2", check=False).stdout.split()
        return sorted(found) == sorted([first, first, last]) or None

    node.until(look, lambda: f"no threads on CPUs {first} and {last}")


@pytest.mark.long  # the short form is docs/how-to/latency-test.md, which is typed as it is written
def test_latency_is_measured_on_a_pods_closed_cpus_and_shown_beside_that_of_others(node: Node) -> None:
    node.run("nodeagent probe --cpus 0 --seconds 1 -o json >/run/before.json")
    found: Document = json.loads(
        node.run("nodeagent probe slot --latency --seconds 1 --compare /run/before.json -o json").stdout
    )
    json_schema.check(found, "probe")
    latency, before = found["latency"], found["before"]
    assert (latency["cpus"], latency["container"], latency["processes"]) == (cpus_of(node), "app", 0)
    assert (before["cpus"], before["pod"]) == ("0", None)
    for one in (latency, before):
        for measured in (*one["busy"], *one["waking"]):
            assert measured["samples"] > 0
            assert measured["worstMicroseconds"] > 0
    assert node.inspect()["differences"] == []
    refused = node.run(f"nodeagent probe --cpus {cpus_of(node)}", check=False)
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (
        1,
        f"nodeagent: CPUs {cpus_of(node)} are exclusive to default/slot",
    )


@pytest.mark.long  # whoever looks shares with two emulated CPUs that spin; what the agent itself sees is in the next test
def test_nobody_complains_while_it_measures(node: Node) -> None:
    measuring(node)
    seen = node.inspect()
    assert (seen["differences"], seen["node"]["problems"]) == ([], [])
    node.run(f"systemctl stop probe; {ENDED}")


def test_its_threads_are_on_these_cpus_nobody_complains_and_they_end_with_it_and_with_the_pod(node: Node) -> None:
    cursor = node.cursor()
    measuring(node)

    node.run(f"systemctl kill -s KILL --kill-whom=main probe; {ENDED}")
    node.run(f"until grep -q 'populated 0' {node.cgroup('slot', 'app')}/cgroup.events; do sleep 0.1; done")

    assert [line["event"] for line in node.log(cursor) if line["level"] != "info"] == []

    measuring(node)
    node.delete("slot")
    node.wait_gone("slot")
    node.run(ENDED)
    told = node.guest.get("/run/probed").decode()
    assert told.startswith("nodeagent: oslat "), "it may heed SIGTERM, or wait for SIGKILL while it warms up"
    assert "hint: did the pod end meanwhile?" in told


def test_memory_that_is_not_where_it_was_promised_is_told(node: Node) -> None:
    node.apply(pod("web", container("app", ["sleep", "infinity"], cpu="2")))
    node.wait_running("web")
    kept = node.run("nodeagent probe web -o json")
    (where,) = json.loads(kept.stdout)["memory"]
    home = where["promised"]
    assert (home in {"0", "1"}, where["elsewhereBytes"]) == (True, 0)
    assert sum(one["bytes"] for one in where["nodes"]) > 0

    (pid,) = node.pids(node.cgroup("web", "app"))
    node.run(f"migratepages {pid} {home} 3")

    done = node.run("nodeagent probe web -o json", check=False)
    (where,) = json.loads(done.stdout)["memory"]
    assert (done.returncode, where["elsewhereBytes"]) == (2, where["nodes"][3]["bytes"])
    assert where["elsewhereBytes"] > 0
    refused = node.run("nodeagent probe web --latency", check=False)
    assert "1 process of default/web may run on CPUs" in refused.stderr
