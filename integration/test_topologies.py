"""What the agent discovers on machines with other caches and nodes, and where it puts pods there."""

import json
import re

import pytest

from integration.guest.guest import Guest
from integration.node import CONFIG, Document, Node, container, pod

SLEEP = ["sleep", "infinity"]


def topology(node: Node) -> Document:
    document: Document = json.loads(node.run("nodeagent topology --root / -o json").stdout)
    return document


def test_four_caches_are_four_groups(four_caches: Guest) -> None:
    found = topology(Node(four_caches))
    groups: dict[int, list[int]] = {}
    for cpu in found["topology"]["cpus"]:
        groups.setdefault(cpu["uncore"], []).append(cpu["id"])
    assert sorted(map(sorted, groups.values())) == [list(range(n, n + 4)) for n in (0, 4, 8, 12)]
    assert len(found["numa"]) == 1


def test_whole_cores_are_taken_on_the_machine_with_four_caches(four_caches: Guest) -> None:
    node = Node(four_caches)
    node.apply(pod("four", container("app", SLEEP, cpu="4")), pod("two", container("app", SLEEP, cpu="2")))
    state = node.wait_running("four", "two")
    promised = state["promises"]["pods"]
    # CPU 0 is reserved, so the first whole cores begin at CPU 2
    assert promised["uid-four"]["cpus"]["app"] == "2-5"
    assert promised["uid-two"]["cpus"]["app"] == "6-7"
    (pid,) = node.pids(node.cgroup("four", "app"))
    assert node.allowed(pid) == ("2-5", "0")


def test_cpus_isolated_at_boot_are_shown_and_given_as_configured(four_caches: Guest) -> None:
    node = Node(four_caches)
    found = topology(node)
    assert (found["isolated"], found["nohzFull"]) == ("12-15", "12-15")
    assert node.inspect()["node"]["cpus"]["isolated"] == "12-15"
    assert "isolated CPUs (isolcpus): 12-15" in node.run("nodeagent topology").stdout
    usual = re.sub(r"^isolatedCPUs:.*\n", "", node.guest.get(CONFIG).decode(), flags=re.MULTILINE)
    for rule, expected in (("prefer", ["12-15", "2-3"]), ("only", ["12-15", None])):
        node.configure(f"{usual}\nisolatedCPUs: {rule}\n")
        node.apply(pod("first", container("app", SLEEP, cpu="4")))
        node.wait_running("first")
        node.apply(pod("second", container("app", SLEEP, cpu="2")))
        state = node.wait_decided()
        given = [
            state["promises"]["pods"].get(f"uid-{name}", {}).get("cpus", {}).get("app") for name in ("first", "second")
        ]
        assert given == expected, rule
        (pid,) = node.pids(node.cgroup("first", "app"))
        assert node.allowed(pid)[0] == "12-15"


def test_four_nodes_and_their_distances(four_nodes: Guest) -> None:
    found = topology(Node(four_nodes))
    assert [(cpu["numa"], cpu["socket"]) for cpu in found["topology"]["cpus"]] == [(n // 4, n // 4) for n in range(16)]
    assert [n["distances"] for n in found["numa"]] == [
        [10, 16, 32, 22],
        [16, 10, 22, 32],
        [32, 22, 10, 16],
        [22, 32, 16, 10],
    ]


def test_a_pinned_pod_on_debian_13(four_nodes: Guest) -> None:
    node = Node(four_nodes)
    node.run("rm -f /run/pinned")
    tell = (
        "grep -h _allowed_list /proc/self/status | tr '\\n' ' ' >/run/pinned; echo >>/run/pinned; exec sleep infinity"
    )
    node.apply(pod("pinned", container("app", ["sh", "-c", tell], cpu="4")), pod("shared", container("app", SLEEP)))
    state = node.wait_running("pinned", "shared")
    promised = state["promises"]["pods"]["uid-pinned"]["cpus"]["app"]
    assert promised == "4-7", "a whole socket: the one of CPU 0 is not whole any more"
    assert node.wait_line("/run/pinned").split() == ["Cpus_allowed_list:", promised, "Mems_allowed_list:", "0-3"]
    before = node.footprint()
    node.restart_agent()
    node.kill_agent()
    assert node.footprint() == before


@pytest.mark.parametrize("narrowed", [pytest.param("0", marks=pytest.mark.long), "0,12-13"])
def test_an_own_affinity_survives_changes_of_the_pool_on_debian_13(four_nodes: Guest, narrowed: str) -> None:
    """Kernel 6.12 keeps the requested affinity of a thread, even when its cpuset changes."""
    node = Node(four_nodes)
    node.apply(pod("shared", container("app", SLEEP)))
    node.wait_running("shared")
    (pid,) = node.pids(node.cgroup("shared", "app", qos="besteffort"))
    node.run(f"taskset -pc {narrowed} {pid}")
    node.apply(pod("pinned", container("app", SLEEP, cpu="4")))
    node.wait_running("pinned")
    node.run("systemctl daemon-reload")
    assert node.allowed(pid)[0] == narrowed
