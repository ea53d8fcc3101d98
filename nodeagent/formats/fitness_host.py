"""Is the host fit: kernel, cgroups, other programs that write the same settings? One function a check; pure."""

import json
import re
from collections.abc import Iterator

from nodeagent.core.idset import CpuSet
from nodeagent.formats.settings import CGROUPS, COMMAND_LINE, KUBELET_STATE, KUBEPODS, PODS_UNIT, parameters
from nodeagent.formats.sysfs_sample import CPUS
from nodeagent.formats.verdicts import Facts, Level, Verdict, Write

_OLDEST_KERNEL = (5, 14)
"""The first with cgroup.kill."""
_NO_CGROUPS = "there is no cgroup v2 to ask"
_NEEDED = ("cpuset", "cpu", "memory")


def kernel(facts: Facts) -> Verdict:
    release = facts.text("proc/sys/kernel/osrelease")
    found = re.match(r"(\d{1,4})\.(\d{1,4})", release or "")
    if release is None or found is None:
        return Verdict("kernel", Level.UNKNOWN, f"its release is not known: {release or 'there is no osrelease'}")
    oldest = ".".join(map(str, _OLDEST_KERNEL))
    if (int(found[1]), int(found[2])) < _OLDEST_KERNEL:
        return Verdict(
            "kernel",
            Level.FAILURE,
            f"{release} is older than {oldest}",
            "sudo apt install linux-image-amd64 # or what your system calls its newest kernel",
        )
    return Verdict("kernel", Level.OK, f"{release} is {oldest} or later")


def cgroup_v2(facts: Facts) -> Verdict:
    if facts.text(f"{CGROUPS}/cgroup.controllers") is not None:
        return Verdict("cgroup-v2", Level.OK, "cgroup v2 is mounted at /sys/fs/cgroup")
    if facts.text("proc/cmdline") is None:
        return Verdict(
            "cgroup-v2", Level.UNKNOWN, "neither /sys/fs/cgroup nor /proc/cmdline is there: is it a copied root?"
        )
    return Verdict(
        "cgroup-v2",
        Level.FAILURE,
        "cgroup v2 is not mounted at /sys/fs/cgroup",
        f"add systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all {COMMAND_LINE}",
    )


def controllers(facts: Facts) -> Verdict:
    text = facts.text(f"{CGROUPS}/cgroup.controllers")
    if text is None:
        return Verdict("controllers", Level.UNKNOWN, _NO_CGROUPS)
    missing = [name for name in _NEEDED if name not in text.split()]
    if not missing:
        return Verdict("controllers", Level.OK, f"{', '.join(_NEEDED)} are there")
    disabled = parameters(facts.text("proc/cmdline") or "").get("cgroup_disable")
    why = f"cgroup_disable={disabled} on the kernel's command line" if disabled else "cgroup v1 may have them"
    fix = f"remove cgroup_disable={disabled}" if disabled else "add cgroup_no_v1=all"
    return Verdict(
        "controllers", Level.FAILURE, f"{', '.join(missing)} is not available ({why})", f"{fix} {COMMAND_LINE}"
    )


def delegation(facts: Facts) -> Verdict:
    if facts.config is not None and facts.config.cgroup_root is not None:
        return Verdict("delegation", Level.NOTE, f"cgroupRoot is {facts.config.cgroup_root}: who made it, delegates it")
    text = facts.text(f"{PODS_UNIT}/cgroup.controllers")
    if facts.text(f"{CGROUPS}/cgroup.controllers") is None:
        return Verdict("delegation", Level.UNKNOWN, _NO_CGROUPS)
    if text is None:
        return Verdict(
            "delegation",
            Level.WARNING,
            "the pods' unit does not run: its cgroup is not there",
            "sudo systemctl start nodeagent-pods",
        )
    missing = [name for name in _NEEDED if name not in text.split()]
    if missing:
        return Verdict(
            "delegation",
            Level.FAILURE,
            f"the pods' cgroup has no {', '.join(missing)}",
            "systemctl cat nodeagent-pods # Delegate=yes must be there; restarting that unit stops the pods",
        )
    return Verdict("delegation", Level.OK, f"the pods' cgroup has {text.replace(' ', ', ')}")


def numa_balancing(facts: Facts) -> Verdict:
    text = facts.text("proc/sys/kernel/numa_balancing")
    if len(facts.topology.numa) < 2:
        return Verdict("numa-balancing", Level.OK, "there is one NUMA node")
    if text is None and facts.text("proc/sys/kernel/osrelease") is None:
        return Verdict("numa-balancing", Level.UNKNOWN, "/proc/sys/kernel is not there to be asked")
    if text in {None, "0"}:
        return Verdict(
            "numa-balancing", Level.OK, "the kernel leaves memory where it is" if text else "the kernel has none"
        )
    return Verdict(
        "numa-balancing",
        Level.WARNING,
        f"kernel.numa_balancing is {text}: the kernel unmaps pods' pages to see who uses them, and moves memory that is not bound",
        "sudo sysctl -w kernel.numa_balancing=0 # until the next boot; for good: a line in /etc/sysctl.d/",
        (Write("proc/sys/kernel/numa_balancing", "0"),),
    )


def governor(facts: Facts) -> Verdict:
    paths = {cpu: f"{CPUS}/cpu{cpu}/cpufreq/scaling_governor" for cpu in facts.topology.online}
    found: dict[str, list[int]] = {}
    for cpu, path in paths.items():
        text = facts.text(path)
        if text is not None:
            found.setdefault(text, []).append(cpu)
    if not found and facts.text(f"{CPUS}/isolated") is None:
        return Verdict("governor", Level.UNKNOWN, f"/{CPUS} is not there to be asked")
    if not found:
        return Verdict("governor", Level.OK, "the kernel does not scale frequencies here")
    slow = {name: cpus for name, cpus in found.items() if name != "performance"}
    if not slow:
        return Verdict("governor", Level.OK, "performance on every CPU")
    said = "; ".join(f"{name} on CPUs {CpuSet.from_ids(cpus)}" for name, cpus in sorted(slow.items()))
    return Verdict(
        "governor",
        Level.WARNING,
        f"the frequency follows the load: {said}",
        "sudo cpupower frequency-set -g performance",
        tuple(Write(paths[cpu], "performance") for cpu in sorted(cpu for cpus in slow.values() for cpu in cpus)),
    )


def irqbalance(facts: Facts) -> Verdict:
    if not _can_tell(facts):
        return Verdict("irqbalance", Level.UNKNOWN, _NO_CGROUPS)
    if not _runs(facts, "irqbalance"):
        return Verdict("irqbalance", Level.OK, "it does not run")
    return Verdict(
        "irqbalance",
        Level.WARNING,
        "it runs, and may put interrupts on CPUs that pods have alone",
        "sudo systemctl disable --now irqbalance # or IRQBALANCE_BANNED_CPULIST in /etc/default/irqbalance",
    )


def competing_writers(facts: Facts) -> Iterator[Verdict]:
    yield _kubelet(facts)
    if _runs(facts, "numad"):
        why = "it runs, and moves processes and their memory between NUMA nodes"
        yield Verdict("numad", Level.WARNING, why, "sudo systemctl disable --now numad")
    if _runs(facts, "tuned"):
        why = "it runs: its profile may set governor, affinities and isolated CPUs"
        yield Verdict("tuned", Level.NOTE, why, "tuned-adm active # shows the profile, which /etc/tuned holds")


def _kubelet(facts: Facts) -> Verdict:
    if not _can_tell(facts):
        return Verdict("kubelet", Level.UNKNOWN, _NO_CGROUPS)
    policy, has_promises = _kubelet_state(facts)
    if _runs(facts, "kubelet") or any(_is_populated(facts, path) for path in KUBEPODS):
        stop = "sudo systemctl disable --now kubelet # or cpuManagerPolicy: none in kubelet's configuration"
        if policy == "static":
            why = "it runs with CPU manager policy static: two managers give the same CPUs"
            return Verdict("kubelet", Level.FAILURE, why, stop)
        why = f"it runs (CPU manager policy {policy or 'not known'}): its pods run on all CPUs, those of pods here too"
        return Verdict("kubelet", Level.WARNING, why, stop)
    if facts.is_hidden(KUBELET_STATE):
        return Verdict(
            "kubelet", Level.UNKNOWN, f"it does not run; /{KUBELET_STATE} cannot be read", "sudo nodeagent check"
        )
    if has_promises:
        why = f"it does not run; /{KUBELET_STATE} still has promises of CPUs"
        return Verdict("kubelet", Level.NOTE, why, f"nodeagent checkpoint show /{KUBELET_STATE}")
    return Verdict("kubelet", Level.OK, "it does not run")


def _kubelet_state(facts: Facts) -> tuple[str | None, bool]:
    """Policy, and whether CPUs are promised, as far as kubelet's file says it."""
    try:
        document = json.loads(facts.text(KUBELET_STATE) or "")
    except ValueError:
        return None, False
    if not isinstance(document, dict):
        return None, False
    policy = document.get("policyName")
    return policy if isinstance(policy, str) else None, bool(document.get("entries"))


def _can_tell(facts: Facts) -> bool:
    return facts.text(f"{CGROUPS}/cgroup.controllers") is not None


def _runs(facts: Facts, service: str) -> bool:
    return _is_populated(facts, f"{CGROUPS}/system.slice/{service}.service/cgroup.events")


def _is_populated(facts: Facts, events: str) -> bool:
    return "populated 1" in (facts.text(events) or "").splitlines()
