"""`interruptIsolation: affinity` and the kernel's work queues on real kernels: they leave exclusive CPUs, and everything is put back."""

import random

import pytest

from integration.isolation import (
    IRQS,
    NEW_IRQS,
    RECORD,
    cpus_of,
    differences,
    isolate,
    listed,
    naming,
    over_a_boot,
    settled,
    wait_as,
    wait_forgotten,
)
from integration.node import Node, container, pod
from nodeagent.core.model.idset import CpuSet
from tests.support.figures import Recorder, report

pytestmark = pytest.mark.configures

KILLS = 50
LONGEST_SECONDS = 2.0
"""From a change of the manifests to the kill; a turn takes about one."""
SLEEP = ["sleep", "infinity"]
SERIAL = "/proc/irq/4/smp_affinity_list"
"""Of the serial port: it can be moved."""


@pytest.fixture(params=["two_sockets", "four_nodes"])
def node(request: pytest.FixtureRequest) -> Node:
    node = Node(request.getfixturevalue(request.param))
    isolate(node)
    return node


ON_13_OR_LONG = pytest.mark.parametrize(
    "node", ["four_nodes", pytest.param("two_sockets", marks=pytest.mark.long)], indirect=True
)
"""Kernel 6.1 does the same with interrupts: in the short form one test shows that."""


def unmovable(node: Node) -> set[str]:
    """Interrupts that are each bound to one CPU, those of the timer and of the controller: written by hand, the kernel refuses."""
    refused = node.run(
        f"for file in {IRQS}; do value=$(cat $file); echo $value 2>/dev/null >$file || echo $file; done", check=False
    )
    return set(refused.stdout.split())


def run_pod(node: Node) -> CpuSet:
    node.apply(pod("quiet", container("app", SLEEP, cpu="2")))
    return running(node)


def running(node: Node) -> CpuSet:
    """The pod's CPUs, once it runs."""
    state = node.wait_running("quiet")
    return CpuSet.parse(state["promises"]["pods"]["uid-quiet"]["cpus"]["app"])


def left(node: Node, own: CpuSet, stay: set[str]) -> dict[str, str]:
    """The settings once nothing names these CPUs that can be moved. What there was has left by now; a kernel thread that has begun since
    leaves when the agent looks again.
    """

    def look() -> dict[str, str] | None:
        now = settled(node)
        late = naming(now, own) - stay
        assert {path for path in late if " " not in path} == set()
        return None if late else now

    return node.until(look, lambda: f"still on CPUs {own}: {naming(listed(node), own) - stay}")


def test_interrupts_and_work_leave_exclusive_cpus_and_come_back(node: Node, record_property: Recorder) -> None:
    before, stay = listed(node), unmovable(node)
    assert before.keys() - stay > {SERIAL, NEW_IRQS}

    own = run_pod(node)
    during = left(node, own, stay)
    assert naming(before, own) > naming(during, own)
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
    wait_forgotten(node)
    node.run(f"echo {before[SERIAL]} >{SERIAL}")


def test_threads_of_a_node_leave_it_again_when_a_cpu_comes_and_go_back_in_the_end(node: Node) -> None:
    """The kernel gives kcompactd its node's CPUs whenever one comes, be they exclusive, and takes none of a partition for it."""
    before, stay = listed(node), unmovable(node)
    whole = CpuSet.parse(node.run("cat /sys/devices/system/node/node1/cpulist").stdout.strip())
    (compacting,) = (thread for thread in before if thread.endswith(" kcompactd1"))
    assert cpus_of(compacting, before[compacting]) == whole
    node.apply(pod("quiet", container("app", SLEEP, cpu=str(len(whole)))))
    assert running(node) == whole

    node.run("for on in 0 1; do echo $on >/sys/devices/system/cpu/cpu3/online; done")

    node.until(
        lambda: naming(listed(node), whole) <= stay or None,
        lambda: f"threads to leave: {naming(listed(node), whole) - stay}",
    )
    node.delete("quiet")
    node.wait_gone("quiet")
    wait_as(node, before)
    wait_forgotten(node)


@ON_13_OR_LONG
def test_a_network_card_is_kept_off_exclusive_cpus_and_goes_to_the_pod_that_claims_it(node: Node) -> None:
    try:
        found = node.run(
            "modprobe virtio_net; udevadm settle; ls -d /sys/bus/pci/drivers/virtio-pci/*/virtio*/net/*"
        ).stdout
        *_, address, _, _, card = found.strip().split("/")
        numbers = node.run(f"ls /sys/bus/pci/devices/{address}/msi_irqs").stdout.split()
        irqs = {f"/proc/irq/{number}/smp_affinity_list" for number in numbers}
        packets = f"/sys/class/net/{card}/queues/rx-0/rps_cpus"
        node.run(f"echo ffff >{packets}")
        before, stay = listed(node), unmovable(node)
        movable = irqs - stay
        assert movable

        own = run_pod(node)
        left(node, own, stay)
        assert naming(before, own) >= {packets, *movable}

        claiming = pod("claiming", container("app", SLEEP, cpu="2"))
        device = card if node.guest.image.release.number == 12 else address
        claiming["metadata"]["annotations"] = {"interrupts.nodeagent.io/app": device}
        node.apply(claiming)
        mine = node.wait_running("claiming")["promises"]["pods"]["uid-claiming"]["cpus"]["app"]
        during = left(node, own, stay)
        assert {irq: during[irq] for irq in movable} == dict.fromkeys(movable, mine)

        node.clear()
        assert differences(before, settled(node)) == {}
    finally:
        node.run("modprobe -r virtio_net")


@ON_13_OR_LONG
def test_it_all_comes_back_without_an_agent_too(node: Node) -> None:
    before, stay = listed(node), unmovable(node)
    own = run_pod(node)
    during = left(node, own, stay)
    node.run("systemctl kill -s KILL nodeagent; systemctl stop nodeagent")
    assert naming(listed(node), own) & during.keys() <= stay, "the pod runs without an agent, too"

    node.run("systemctl stop nodeagent-pods")

    wait_as(node, before)
    node.run("rm /etc/nodeagent/manifests/quiet.json; nodeagent release --all")
    assert differences(before, listed(node)) == {}
    wait_forgotten(node)


@pytest.mark.long
def test_a_boot_begins_anew_whatever_the_one_before_has_left(node: Node) -> None:
    before, stay = listed(node), unmovable(node)
    own = run_pod(node)
    during = left(node, own, stay)

    node.guest.reboot()
    node.guest.wait_multi_user()
    assert differences(over_a_boot(before), over_a_boot(listed(node))) == {}
    node.guest.get(RECORD)  # of the boot before: what it says of an interrupt's number says nothing of that number now
    node.run(f"echo {during[SERIAL]} >{SERIAL}")
    anew, stay = listed(node), unmovable(node)
    node.run("systemctl start nodeagent")
    own = running(node)
    left(node, own, stay)
    node.delete("quiet")
    node.wait_gone("quiet")
    assert differences(anew, settled(node)) == {}

    node.run(f"echo {before[SERIAL]} >{SERIAL}; systemctl enable nodeagent")
    run_pod(node)
    assert RECORD in node.run(f"ls {RECORD}; sync").stdout
    node.guest.power_cut()
    node.guest.wait_multi_user()
    node.run("systemctl disable nodeagent")
    own = running(node)
    left(node, own, unmovable(node))
    node.delete("quiet")
    node.wait_gone("quiet")
    assert differences(over_a_boot(before), over_a_boot(settled(node))) == {}
    wait_forgotten(node)


@pytest.mark.long
def test_whenever_the_agent_is_killed_everything_comes_back(node: Node, record_property: Recorder) -> None:
    """A pod comes and goes, and the agent dies at some moment of each: the moments are drawn, the outcome is waited for."""
    before, stay, chance = listed(node), unmovable(node), random.Random(2026)
    for _ in range(KILLS // 2):
        node.apply(pod("quiet", container("app", SLEEP, cpu="2")))
        kill(node, chance)
        own = running(node)
        left(node, own, stay)
        node.delete("quiet")
        kill(node, chance)
        node.wait(lambda state: not state["entries"], "the pod to be gone", of=["quiet"])
    assert differences(before, settled(node)) == {}
    wait_forgotten(node)
    report(record_property, f"killed {KILLS} times, and everything is as before")


def kill(node: Node, chance: random.Random) -> None:
    node.run(f"sleep {chance.uniform(0, LONGEST_SECONDS):.3f}")
    node.kill_agent()
