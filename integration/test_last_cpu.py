"""The last CPU that a process may use is taken offline, or refuses to go: not even then does it come to anybody else's CPUs.

The kernel lets a process whose CPUs have all gone run on the lowest that it may fall back on: here the lowest CPU of all is somebody's.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from integration.guest.guest import Guest
from integration.isolation import configuration
from integration.node import Document, Node, container, pod
from nodeagent.core.model.idset import CpuSet

pytestmark = pytest.mark.configures

SLEEP = ["sleep", "infinity"]
SPIN = ["sh", "-c", "while :; do :; done"]
RESERVED = CpuSet.of(15)
TRACE = "/sys/kernel/tracing/instances/last-cpu"


GUESTS = pytest.mark.parametrize(
    ("guest", "host"),
    [
        ("two_sockets", "none"),
        pytest.param("four_nodes", "none", marks=pytest.mark.long),
        ("four_nodes", "partition"),
    ],
)


def promised(state: Document, name: str) -> CpuSet:
    return CpuSet.parse(state["promises"]["pods"][f"uid-{name}"]["cpus"]["app"])


def with_others(guest: Guest, host: str, cpus_each: int = 4) -> tuple[Node, CpuSet]:
    """Return a node and the exclusive CPUs of three pods on it."""
    node = Node(guest)
    node.configure(
        re.sub(r'^(reservedSystemCPUs: )"0"', rf'\1"{RESERVED}"', configuration(host, "none"), flags=re.MULTILINE)
    )
    names = ("first", "second", "third")
    node.apply(*(pod(name, container("app", SLEEP, cpu=str(cpus_each))) for name in names))
    state = node.wait_running(*names)
    others = CpuSet.from_ids(cpu for name in names for cpu in promised(state, name))
    assert 0 in others
    return node, others


@contextmanager
def offline(node: Node, cpu: int, pid: int) -> Iterator[tuple[bool, Callable[[], list[int]]]]:
    """Take a CPU offline and bring it back. Gives whether it has gone, and what returns where the kernel has moved a process since."""
    online = f"/sys/devices/system/cpu/cpu{cpu}/online"
    try:
        node.run(
            f"mkdir {TRACE}; cd {TRACE}; echo 'pid == {pid}' >events/sched/sched_migrate_task/filter;"
            " echo 1 >events/sched/sched_migrate_task/enable"
        )
        has_gone = node.run(f"echo 0 >{online}", check=False).returncode == 0
        yield (
            has_gone,
            lambda: [int(cpu) for cpu in re.findall(r" dest_cpu=(\d+)", node.run(f"cat {TRACE}/trace").stdout)],
        )
    finally:
        node.run(f"echo 1 >{online}; rmdir {TRACE}")


@GUESTS
def test_its_processes_go_to_the_reserved_ones(request: pytest.FixtureRequest, guest: str, host: str) -> None:
    node, others = with_others(request.getfixturevalue(guest), host)
    node.apply(pod("one", container("app", SPIN, cpu="1")))
    own = promised(node.wait_running("one"), "one")
    cpu, (pid,) = min(own), node.pids(node.cgroup("one", "app"))
    before, cursor = node.footprint(), node.cursor()

    with offline(node, cpu, pid) as (has_gone, moves):
        # of a partition's last CPU, kernel 6.12 refuses that when it has driven the processes away
        node.wait_log(cursor, "promise_short" if has_gone else "processes_gathered")
        moved = moves()

    assert moved[0] in RESERVED
    assert others.isdisjoint(CpuSet.from_ids(moved))
    node.wait(lambda _: node.allowed(pid)[0] == str(own), "the process to be back on its own CPU")
    node.wait(lambda _: node.footprint() == before, "every value to be as before")
    assert node.inspect()["differences"] == []


@GUESTS
def test_what_has_narrowed_itself_to_a_cpu_of_the_pool_stays_in_the_pool(
    request: pytest.FixtureRequest, guest: str, host: str
) -> None:
    node, others = with_others(request.getfixturevalue(guest), host)
    pool = CpuSet.parse("0-15") - others
    cpu = min(pool - RESERVED)
    node.apply(pod("shares", container("app", ["taskset", "-c", str(cpu), *SPIN])))
    node.wait_running("shares")
    (pid,) = node.pids(node.cgroup("shares", "app", qos="besteffort"))

    with offline(node, cpu, pid) as (has_gone, moves):
        node.wait(lambda _: node.allowed(pid)[0] == str(pool - CpuSet.of(cpu)), "the process to be let into the pool")
        moved = moves()

    assert has_gone
    assert moved
    assert others.isdisjoint(CpuSet.from_ids(moved))


def test_what_shares_the_only_cpu_outside_of_partitions_is_gathered_when_that_refuses_to_go(four_nodes: Guest) -> None:
    """The kernel finds no CPU to fall back on then, and lets it run on any."""
    node, others = with_others(four_nodes, "partition", cpus_each=5)
    assert others | RESERVED == CpuSet.parse("0-15")
    node.apply(pod("shares", container("app", SPIN)))
    node.wait_running("shares")
    (pid,) = node.pids(node.cgroup("shares", "app", qos="besteffort"))
    cursor = node.cursor()

    refused = node.run(f"echo 0 >/sys/devices/system/cpu/cpu{RESERVED}/online", check=False)

    assert "busy" in refused.stderr
    line = node.wait_log(cursor, "processes_gathered")
    assert (line["cgroup"], CpuSet.parse(line["found"]), line["cpus"]) == ("shared/pool", others, str(RESERVED))
    assert node.allowed(pid)[0] == str(RESERVED)
    assert node.inspect()["differences"] == []
