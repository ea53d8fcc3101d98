"""What host settings are made with, against the real systemd, irqbalance and kernel, from within the agent's own sandbox."""

import re
import shlex

import pytest

from integration.guest.guest import Guest
from integration.node import Node

IMPORTS = """\
from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.kernel import irqbalance
from nodeagent.edge.kernel import kernel_threads
from nodeagent.edge.systemd import units
"""
LEFT_OUT = re.compile(r"(Type|NotifyAccess|Exec\w+|Restart\w*|WatchdogSec|(State|Runtime)Directory\w*)=")
"""Directives of the unit that are not its sandbox."""


@pytest.fixture
def node(two_sockets: Guest) -> Node:
    return Node(two_sockets)


def sandboxed(node: Node, script: str) -> str:
    """Run a script of Python as the agent runs; return what it prints."""
    service = node.run("systemctl cat nodeagent").stdout.partition("[Service]\n")[2].partition("\n[")[0]
    lines = [line for line in service.splitlines() if "=" in line and line[0] != "#" and not LEFT_OUT.match(line)]
    options = " ".join(f"-p {shlex.quote(line)}" for line in lines)
    command = f"systemd-run -q --collect --pipe --wait {options} /opt/nodeagent/bin/python -I -c"
    return node.run(f"{command} {shlex.quote(IMPORTS + script)}").stdout.strip()


def effective(node: Node, unit: str) -> str:
    return node.run(f"cat /sys/fs/cgroup/{unit}/cpuset.cpus.effective").stdout.strip()


def test_cpus_of_the_topmost_units_are_set_and_cleared(node: Node) -> None:
    show = "print({name: str(cpus) for name, cpus in units.read_units(CpuSet.parse('0-15')).items()})\n"
    each = "for name in ('init.scope', 'system.slice'): "
    before = sandboxed(node, show)
    assert "'system.slice': '0-15'" in before
    assert "nodeagent.slice" not in before

    after = sandboxed(node, f"{each}units.set_allowed_cpus(name, CpuSet.parse('0-3,12'))\n{show}")
    assert "'system.slice': '0-3,12'" in after
    node.run("systemctl daemon-reload")
    assert (effective(node, "system.slice"), effective(node, "init.scope")) == ("0-3,12", "0-3,12")
    assert node.allowed(1)[0] == "0-3,12"

    refused = (
        "try: units.set_allowed_cpus('none.service', CpuSet.of(1))\nexcept units.UnitsError as err: print(err.message)"
    )
    shown = sandboxed(node, f"{each}units.clear_allowed_cpus(name, CpuSet.parse('0-15'))\n{show}{refused}").splitlines()
    assert shown[0] == before
    assert shown[1].endswith("Unit none.service not found.")
    assert (effective(node, "system.slice"), effective(node, "init.scope")) == ("0-15", "0-15")
    assert node.allowed(1)[0] == "0-15"


def test_irqbalance_keeps_interrupts_off(node: Node) -> None:
    node.run(
        "systemd-run -q --collect --unit=irqbalance-test -p RuntimeDirectory=irqbalance"
        " -E IRQBALANCE_BANNED_CPULIST=14-15 irqbalance --foreground -t 1"
    )
    script = """\
def until(banned):
    while (shown := irqbalance.read()) is None or str(shown.banned) != banned:
        pass
until('14-15')
irqbalance.ban(CpuSet.parse('2-3,8-15'))
until('2-3,8-15')
irqbalance.unban()
until('14-15')
def until_left(alone):
    while irqbalance.read().left_alone != alone:
        pass
irqbalance.leave({4})
until_left({4})
irqbalance.leave(set())
until_left(set())
print('done')
"""
    assert sandboxed(node, script) == "done"
    node.run("systemctl stop irqbalance-test")


def test_kernel_threads_that_are_not_bound(node: Node) -> None:
    shown = sandboxed(
        node,
        "for t in kernel_threads.KernelThreads().find().values(): print(t.name.split('/')[0], t.cpus)",
    ).splitlines()
    assert {"kthreadd 0-15", "kcompactd0 0-7", "kcompactd1 8-15"} <= set(shown)
    assert not any(line.startswith(("kworker", "migration", "ksoftirqd", "cpuhp")) for line in shown)
