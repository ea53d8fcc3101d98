"""`interruptIsolation: affinity` and the kernel's work queues on real kernels: they leave exclusive CPUs, and everything is put back."""

import random
import re
from collections.abc import Mapping

import pytest

from integration.guest.guest import Guest
from integration.node import CONFIG, Node, container, pod
from nodeagent.core.model.idset import CpuMask, CpuSet
from tests.support.figures import Recorder, report

KILLS = 50
LONGEST_SECONDS = 2.0
"""From a change of the manifests to the kill; a turn takes about one."""
SLEEP = ["sleep", "infinity"]
IRQS, NEW_IRQS = "/proc/irq/*/smp_affinity_list", "/proc/irq/default_smp_affinity"
WORK = "/sys/devices/virtual/workqueue/cpumask"
PARTITIONS = "/sys/fs/cgroup/cpuset.cpus.effective"
"""Of the root: all CPUs but those of partitions."""
QUEUES = "/sys/class/net/*/queues/*/[rx]ps_cpus"
RECORD = "/var/lib/nodeagent/host_settings"
THREADS = """
import os, pathlib
for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
    try:
        name, fields = stat.read_text().split("(", 1)[1].rsplit(")", 1)
        flags, pid = int(fields.split()[6]), int(stat.parent.name)
        # of the kernel, not bound, no worker, and not the thread of an interrupt, which follows that
        if flags & 0x200000 and not flags & 0x4000000 and not name.startswith("irq/"):
            cpus = sorted(os.sched_getaffinity(pid))
            print(f"{pid} {name.replace(':', '_')}:{','.join(map(str, cpus))}")
    except (FileNotFoundError, ProcessLookupError):
        pass
"""
SERIAL = "/proc/irq/4/smp_affinity_list"
"""Of the serial port: it can be moved."""


@pytest.fixture(params=["two_sockets", "four_nodes"])
def node(request: pytest.FixtureRequest) -> Node:
    guest: Guest = request.getfixturevalue(request.param)
    node = Node(guest)
    guest.put("/run/threads.py", THREADS.encode())
    fields = ("hostIsolation", "interruptIsolation")
    lines = [line for line in guest.get(CONFIG).decode().splitlines() if not line.startswith(fields)]
    node.configure("\n".join([*lines, "hostIsolation: partition", "interruptIsolation: affinity", ""]))
    return node


def listed(node: Node) -> dict[str, str]:
    """Every setting of the host that names CPUs, with its value: files, units as systemd says, kernel threads that can be moved."""
    files = node.run(f"grep -sH . {IRQS} {NEW_IRQS} {WORK} {QUEUES} {PARTITIONS} || true").stdout
    units = node.run("systemctl show -p Id,AllowedCPUs -- init.scope machine.slice system.slice user.slice").stdout
    threads = node.run("/opt/nodeagent/bin/python -I /run/threads.py").stdout
    names = re.findall(r"^Id=(.*)", units, re.MULTILINE)
    allowed = re.findall(r"^AllowedCPUs=(.*)", units, re.MULTILINE)
    return {
        **dict(line.split(":", 1) for line in files.splitlines()),
        **{name: cpus.replace(" ", ",") for name, cpus in zip(names, allowed, strict=True)},
        **dict(line.split(":", 1) for line in threads.splitlines()),
    }


def settled(node: Node) -> dict[str, str]:
    """The same, after what the agent has done since it saved."""
    node.metrics()
    return listed(node)


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Settings that are not as before. Kernel threads come and go: only those that are the same count."""
    return {
        path: (before.get(path), now.get(path))
        for path in before.keys() | now.keys()
        if before.get(path) != now.get(path) and (" " not in path or path in before.keys() & now.keys())
    }


def naming(values: Mapping[str, str], cpus: CpuSet) -> set[str]:
    """Settings that name one of these CPUs, whatever the root of all cgroups has: partitions are one means of several."""
    return {path for path, value in values.items() if path != PARTITIONS and not cpus_of(path, value).isdisjoint(cpus)}


def cpus_of(path: str, value: str) -> CpuSet:
    is_mask = path.startswith("/") and not path.endswith(("_list", ".effective"))
    return CpuSet(CpuMask(int(value.replace(",", ""), 16))) if is_mask else CpuSet.parse(value)


def unmovable(node: Node) -> set[str]:
    """Interrupts that are each bound to one CPU, those of the timer and of the controller: written by hand, the kernel refuses."""
    refused = node.run(
        f"for file in {IRQS}; do value=$(cat $file); echo $value 2>/dev/null >$file || echo $file; done", check=False
    )
    return set(refused.stdout.split())


def run_pod(node: Node) -> CpuSet:
    node.apply(pod("quiet", container("app", SLEEP, cpu="2")))
    state = node.wait_running("quiet")
    return CpuSet.parse(state["promises"]["pods"]["uid-quiet"]["cpus"]["app"])


def test_interrupts_and_work_leave_exclusive_cpus_and_come_back(node: Node, record_property: Recorder) -> None:
    before, stay = listed(node), unmovable(node)
    assert before.keys() - stay > {SERIAL, NEW_IRQS}

    own = run_pod(node)
    during = settled(node)
    assert naming(before, own) > naming(during, own)
    assert naming(during, own) <= stay
    changed = differences(before, during)
    report(record_property, f"{len(changed)} of {len(before)} settings changed, {len(stay)} that cannot be")

    node.kill_agent()
    assert differences(during, settled(node)) == {}

    theirs = str(own)
    node.run(f"echo {theirs} >{SERIAL}")
    node.reload()  # looks at once, and not at the end of a period
    node.until(
        lambda: naming(listed(node), own) <= stay or None,
        lambda: f"the serial port's interrupt to leave again: {listed(node)[SERIAL]}",
    )
    node.delete("quiet")
    node.wait(lambda state: not state["entries"], "the pod to be gone", of=["quiet"])
    changed = differences(before, settled(node))
    assert changed == {SERIAL: (before[SERIAL], theirs)}, "what somebody else has set meanwhile is theirs"
    assert node.run(f"ls {RECORD}", check=False).returncode != 0
    node.run(f"echo {before[SERIAL]} >{SERIAL}")


def test_it_all_comes_back_without_an_agent_too(node: Node) -> None:
    before, stay = listed(node), unmovable(node)
    own = run_pod(node)
    assert naming(settled(node), own) <= stay
    node.run("systemctl kill -s KILL nodeagent; systemctl stop nodeagent")
    assert naming(listed(node), own) <= stay, "the pod runs without an agent, too"

    node.run("systemctl stop nodeagent-pods")

    assert differences(before, listed(node)) == {}
    node.run("rm /etc/nodeagent/manifests/quiet.json; nodeagent release --all")
    assert differences(before, listed(node)) == {}
    assert node.run(f"ls {RECORD}", check=False).returncode != 0


@pytest.mark.long
def test_whenever_the_agent_is_killed_everything_comes_back(node: Node, record_property: Recorder) -> None:
    """A pod comes and goes, and the agent dies at some moment of each: the moments are drawn, the outcome is waited for."""
    before, stay, chance = listed(node), unmovable(node), random.Random(2026)
    for _ in range(KILLS // 2):
        node.apply(pod("quiet", container("app", SLEEP, cpu="2")))
        kill(node, chance)
        state = node.wait_running("quiet")
        own = CpuSet.parse(state["promises"]["pods"]["uid-quiet"]["cpus"]["app"])
        assert naming(settled(node), own) <= stay
        node.delete("quiet")
        kill(node, chance)
        node.wait(lambda state: not state["entries"], "the pod to be gone", of=["quiet"])
    assert differences(before, settled(node)) == {}
    assert node.run(f"ls {RECORD}", check=False).returncode != 0
    report(record_property, f"killed {KILLS} times, and everything is as before")


def kill(node: Node, chance: random.Random) -> None:
    node.run(f"sleep {chance.uniform(0, LONGEST_SECONDS):.3f}")
    node.kill_agent()
