"""The host's settings that name CPUs, as tests compare them: before pods have CPUs that the host is kept off, meanwhile and afterwards."""

import re
from collections.abc import Mapping

from integration.guest.cache import REPOSITORY
from integration.node import Node
from nodeagent.core.model.idset import CpuMask, CpuSet

IRQS, NEW_IRQS = "/proc/irq/*/smp_affinity_list", "/proc/irq/default_smp_affinity"
RECORD = "/var/lib/nodeagent/host_settings"
_CGROUPS = "/sys/fs/cgroup/"
_FILES = (
    f"{IRQS} {NEW_IRQS} /sys/devices/virtual/workqueue/cpumask /sys/class/net/*/queues/*/[rx]ps_cpus"
    f" {_CGROUPS}cpuset.cpus.effective"
)
FOLLOWS = "where its interrupt comes"
"""Instead of the CPUs of a thread: which of those that its interrupt may come to, the kernel chooses."""
_LISTING = f"""
grep -sH . {_FILES} || true
find {_CGROUPS} \\( -name cpuset.cpus.exclusive -o -name cpuset.cpus.partition \\) -exec grep -H . {{}} + | grep -v ':member$' || true
systemctl show -p Id,AllowedCPUs -- init.scope machine.slice system.slice user.slice
python3 -I - <<'END'
import os, pathlib
for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
    try:
        name, fields = stat.read_text().split("(", 1)[1].rsplit(")", 1)
        flags, pid = int(fields.split()[6]), int(stat.parent.name)
        # of the kernel, not bound, and no worker
        if flags & 0x200000 and not flags & 0x4000000:
            status = pathlib.Path(f"/proc/{{pid}}/status").read_text()
            cpus = status.split("\\nCpus_allowed_list:")[1].split()[0]
            interrupt = name.removeprefix("irq/").partition("-")[0]
            if name.startswith("irq/") and cpus == pathlib.Path(f"/proc/irq/{{interrupt}}/effective_affinity_list").read_text().strip():
                cpus = "{FOLLOWS}"
            print(f"{{pid}} {{name.replace(':', '_')}}:{{cpus}}")
    except (FileNotFoundError, ProcessLookupError):
        pass
END
"""


def isolate(node: Node, host: str = "partition", interrupts: str = "affinity") -> None:
    """Run the agent, without pods, with these kinds of isolation, and as guests have it else."""
    node.configure(configuration(host, interrupts))


def configuration(host: str, interrupts: str) -> str:
    usual = (REPOSITORY / "examples" / "config.yaml").read_text()
    chosen = re.sub(r"^(hostIsolation: )\w+", rf"\1{host}", usual, flags=re.MULTILINE)
    return re.sub(r"^(interruptIsolation: )\w+", rf"\1{interrupts}", chosen, flags=re.MULTILINE)


def listed(node: Node) -> dict[str, str]:
    """Every setting of the host that names CPUs: files, partitions, units as systemd says, kernel threads that are not bound."""
    text = node.run(_LISTING).stdout
    units = dict(
        zip(
            re.findall(r"^Id=(.*)", text, re.MULTILINE),
            re.findall(r"^AllowedCPUs=(.*)", text, re.MULTILINE),
            strict=True,
        )
    )
    return {
        **dict(line.split(":", 1) for line in text.splitlines() if ":" in line),
        **{unit: cpus.replace(" ", ",") for unit, cpus in units.items()},
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


def over_a_boot(values: Mapping[str, str]) -> dict[str, str]:
    """The same with threads by their names alone: another boot gives them other numbers."""
    return {re.sub(r"^\d+ ", " ", path): value for path, value in values.items()}


def wait_as(node: Node, before: Mapping[str, str]) -> None:
    """Wait until everything is as before: the kernel ends a partition some time after its cgroup was removed."""
    node.until(
        lambda: differences(before, listed(node)) == {} or None,
        lambda: f"not as before: {differences(before, listed(node))}",
    )


def wait_forgotten(node: Node) -> None:
    """Wait until nothing is recorded any more: not before all partitions have ended."""
    gone = f"ls {RECORD}"
    node.until(lambda: node.run(gone, check=False).returncode != 0 or None, lambda: f"{RECORD} is still there")


def naming(values: Mapping[str, str], cpus: CpuSet) -> set[str]:
    """Settings that name one of these CPUs, whatever cgroups have: partitions are one means of several."""
    outside = {path: value for path, value in values.items() if not path.startswith(_CGROUPS) and value != FOLLOWS}
    return {path for path, value in outside.items() if not cpus_of(path, value).isdisjoint(cpus)}


def cpus_of(path: str, value: str) -> CpuSet:
    is_mask = path.startswith("/") and not path.endswith("_list")
    return CpuSet(CpuMask(int(value.replace(",", ""), 16))) if is_mask else CpuSet.parse(value)
