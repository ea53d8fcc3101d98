"""The last CPU of a container is taken offline, or refuses to go: not even then do its processes come to anybody else's CPUs.

The kernel lets a process whose CPUs have all gone run on the lowest that it may fall back on: here the lowest CPU of all is somebody's.
"""

import re

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


def promised(state: Document, name: str) -> CpuSet:
    return CpuSet.parse(state["promises"]["pods"][f"uid-{name}"]["cpus"]["app"])


@pytest.mark.parametrize(
    ("guest", "host"),
    [
        pytest.param("two_sockets", "none", id="Debian 12"),
        pytest.param("four_nodes", "none", id="Debian 13", marks=pytest.mark.long),
        pytest.param("four_nodes", "partition", id="Debian 13, partitions"),
    ],
)
def test_its_processes_go_to_the_reserved_ones(request: pytest.FixtureRequest, guest: str, host: str) -> None:
    machine: Guest = request.getfixturevalue(guest)
    node = Node(machine)
    node.configure(
        re.sub(r'^(reservedSystemCPUs: )"0"', rf'\1"{RESERVED}"', configuration(host, "none"), flags=re.MULTILINE)
    )
    names = ("first", "second", "third")
    node.apply(*(pod(name, container("app", SLEEP, cpu="4")) for name in names))
    state = node.wait_running(*names)
    others = [cpu for name in names for cpu in promised(state, name)]
    assert 0 in others
    node.apply(pod("one", container("app", SPIN, cpu="1")))
    own = promised(node.wait_running("one"), "one")
    cpu, (pid,) = min(own), node.pids(node.cgroup("one", "app"))
    before, cursor = node.footprint(), node.cursor()
    online = f"/sys/devices/system/cpu/cpu{cpu}/online"
    try:
        node.run(
            f"mkdir {TRACE}; cd {TRACE}; echo 'pid == {pid}' >events/sched/sched_migrate_task/filter;"
            " echo 1 >events/sched/sched_migrate_task/enable"
        )
        has_gone = node.run(f"echo 0 >{online}", check=False).returncode == 0
        # of a partition's last CPU, kernel 6.12 refuses that when it has driven the processes away
        node.wait_log(cursor, "promise_short" if has_gone else "processes_gathered")
        moved = [int(cpu) for cpu in re.findall(r" dest_cpu=(\d+)", node.run(f"cat {TRACE}/trace").stdout)]
    finally:
        node.run(f"echo 1 >{online}; rmdir {TRACE}")

    assert moved[0] in RESERVED
    assert not set(moved) & set(others)
    node.wait(lambda _: node.allowed(pid)[0] == str(own), "the process to be back on its own CPU")
    node.wait(lambda _: node.footprint() == before, "every value to be as before")
    assert node.inspect()["differences"] == []
