"""A pod gets other amounts while it runs: its process stays the same, and who shares has left its new CPUs before they are its own."""

import pytest

from integration.guest.guest import Guest
from integration.isolation import configuration
from integration.node import Document, Node, container, pod
from nodeagent.core.model.idset import CpuSet

SLEEP = ["sleep", "infinity"]
EATS = ["sh", "-c", "x=$(head -c 40000000 /dev/zero | tr '\\0' a); sleep infinity"]
"""Some 40 MB of memory that it doesn't give back."""


def promised(state: Document, name: str) -> CpuSet:
    return CpuSet.parse(state["promises"]["pods"][f"uid-{name}"]["cpus"]["app"])


def grown(cpu: str) -> Document:
    return pod("grows", container("app", SLEEP, cpu=cpu))


@pytest.mark.parametrize(
    ("guest", "host"),
    [
        pytest.param("two_sockets", "none", marks=pytest.mark.long),
        ("four_nodes", "none"),
        pytest.param("four_nodes", "partition", marks=pytest.mark.long),
    ],
)
@pytest.mark.configures
def test_cpus_come_and_go_under_a_process_that_runs(request: pytest.FixtureRequest, guest: str, host: str) -> None:
    found: Guest = request.getfixturevalue(guest)
    node = Node(found)
    node.configure(configuration(host, "none"))
    node.apply(grown("2"), pod("shares", container("app", SLEEP, cpu="500m")))
    first = promised(node.wait_running("grows", "shares"), "grows")
    own, shared = node.cgroup("grows", "app"), node.cgroup("shares", "app")
    (pid,) = node.pids(own)

    def wait_given(count: int) -> CpuSet:
        def is_decided(state: Document) -> bool:
            return len(promised(state, "grows")) == count and "refusedChange" not in node.entry("grows")

        cpus = promised(node.wait(is_decided, f"{count} CPUs", of=("grows",)), "grows")
        node.until(
            lambda: CpuSet.parse(node.value(own, "cpuset.cpus.effective")) == cpus or None,
            lambda: f"{own} to be on {cpus}: {node.value(own, 'cpuset.cpus.effective')}",
        )
        return cpus

    cursor = node.cursor()
    node.apply(grown("6"))
    more = wait_given(6)
    assert first <= more
    assert node.pids(own) == [pid]
    assert CpuSet.parse(node.allowed(pid)[0]) == more
    assert not CpuSet.parse(node.value(shared, "cpuset.cpus.effective")) & more
    assert node.wait_log(cursor, "pod_resized")["changes"] == f"app: CPUs {first} → {more}"
    node.kill_agent()
    node.apply(grown("2"))
    assert wait_given(2) == first
    assert node.pids(own) == [pid]
    assert more - first <= CpuSet.parse(node.value(shared, "cpuset.cpus.effective"))
    node.apply(grown("1"))
    refused = node.wait(
        lambda state: any("refusedChange" in entry for entry in state["entries"]),
        "the resize to be refused",
        of=("grows",),
    )
    (change,) = (entry["refusedChange"] for entry in refused["entries"] if "refusedChange" in entry)
    assert change["refusal"][0] == "ResizeInfeasible"
    node.apply(grown("2"))
    assert wait_given(2) == first
    assert node.inspect()["differences"] == []
    node.delete("grows", "shares")
    node.wait_gone("grows", "shares")


@pytest.mark.configures
def test_a_memory_limit_goes_no_lower_than_what_is_in_use(four_nodes: Guest) -> None:
    node = Node(four_nodes)
    node.configure(configuration("none", "none"))

    def eating(memory: str) -> Document:
        return pod("eats", container("app", EATS, cpu="500m", memory=memory))

    node.apply(eating("256Mi"))
    node.wait_running("eats")
    cgroup = node.cgroup("eats", "app")
    node.until(
        lambda: int(node.value(cgroup, "memory.current")) > 40_000_000 or None, lambda: "it to use its memory", 60
    )
    (pid, *_) = node.pids(cgroup)

    def resize(memory: str) -> None:
        def is_decided(state: Document) -> bool:
            (entry,) = state["entries"]
            limit: str = entry["pod"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
            return limit == memory

        node.apply(eating(memory))
        node.wait(is_decided, f"{memory} of memory", of=("eats",))

    def problems() -> list[str]:
        found: list[str] = node.inspect()["node"]["problems"]
        return found

    resize("16Mi")
    node.until(
        lambda: any("was not lowered: more than" in problem for problem in problems()) or None,
        lambda: f"the problem: {node.inspect()['problems']}",
    )
    assert node.value(cgroup, "memory.max") == str(256 << 20)
    assert pid in node.pids(cgroup)
    resize("128Mi")
    node.until(
        lambda: node.value(cgroup, "memory.max") == str(128 << 20) or None, lambda: node.value(cgroup, "memory.max")
    )
    assert pid in node.pids(cgroup)
    node.delete("eats")
    node.wait_gone("eats")
