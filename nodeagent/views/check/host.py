"""Checks of the host: kernel, cgroups, and other programs that write the same settings. Each check is one function without I/O."""

import json
from collections.abc import Iterable, Iterator

from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.settings import (
    CGROUPS,
    COMMAND_LINE,
    KUBELET_STATE,
    KUBEPODS,
    PODS_UNIT,
    parse_parameters,
)
from nodeagent.formats.kernel.sysfs_sample import CPUS
from nodeagent.views.check.verdicts import CheckResult, Level, NodeFacts, SettingWrite, parse_kernel_version

_OLDEST_KERNEL = (5, 14)
"""Oldest supported kernel: the first one with cgroup.kill."""
_CGROUPS_MISSING = "cgroup v2 is missing"
_NEEDED_CONTROLLERS = ("cpuset", "cpu", "memory")
_DISABLE = "sudo systemctl disable --now {0} # undo: sudo systemctl enable --now {0}"


def check_kernel(facts: NodeFacts) -> CheckResult:
    release = facts.text("proc/sys/kernel/osrelease")
    version = parse_kernel_version(release)
    if version is None:
        return CheckResult("kernel", Level.UNKNOWN, f"the release is unknown: {release or 'osrelease is missing'}")
    oldest = ".".join(map(str, _OLDEST_KERNEL))
    if version < _OLDEST_KERNEL:
        return CheckResult(
            "kernel",
            Level.FAILURE,
            f"{release} is older than {oldest}",
            "sudo apt install linux-image-amd64 # or your distribution's newest kernel",
        )
    return CheckResult("kernel", Level.OK, f"{release} is {oldest} or later")


def check_cgroup_v2(facts: NodeFacts) -> CheckResult:
    if facts.text(f"{CGROUPS}/cgroup.controllers") is not None:
        return CheckResult("cgroup-v2", Level.OK, "cgroup v2 is mounted at /sys/fs/cgroup")
    if facts.text("proc/cmdline") is None:
        return CheckResult(
            "cgroup-v2", Level.UNKNOWN, "/sys/fs/cgroup and /proc/cmdline are missing; is this a copied root?"
        )
    return CheckResult(
        "cgroup-v2",
        Level.FAILURE,
        "cgroup v2 is not mounted at /sys/fs/cgroup",
        f"add systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all {COMMAND_LINE}",
    )


def check_controllers(facts: NodeFacts) -> CheckResult:
    text = facts.text(f"{CGROUPS}/cgroup.controllers")
    if text is None:
        return CheckResult("controllers", Level.UNKNOWN, _CGROUPS_MISSING)
    missing = [name for name in _NEEDED_CONTROLLERS if name not in text.split()]
    if not missing:
        return CheckResult("controllers", Level.OK, f"{', '.join(_NEEDED_CONTROLLERS)} are available")
    disabled = parse_parameters(facts.text("proc/cmdline") or "").get("cgroup_disable")
    why = f"cgroup_disable={disabled} on the kernel's command line" if disabled else "cgroup v1 may use them"
    fix = f"remove cgroup_disable={disabled}" if disabled else "add cgroup_no_v1=all"
    return CheckResult(
        "controllers", Level.FAILURE, f"{', '.join(missing)} is not available ({why})", f"{fix} {COMMAND_LINE}"
    )


def check_delegation(facts: NodeFacts) -> CheckResult:
    if facts.config is not None and facts.config.cgroup_root is not None:
        return CheckResult(
            "delegation",
            Level.NOTE,
            f"cgroupRoot is {facts.config.cgroup_root}: the program that creates this cgroup must delegate it",
        )
    text = facts.text(f"{PODS_UNIT}/cgroup.controllers")
    if facts.text(f"{CGROUPS}/cgroup.controllers") is None:
        return CheckResult("delegation", Level.UNKNOWN, _CGROUPS_MISSING)
    if text is None:
        return CheckResult(
            "delegation",
            Level.WARNING,
            "the pods' unit does not run: its cgroup is missing",
            "sudo systemctl start nodeagent-pods",
        )
    missing = [name for name in _NEEDED_CONTROLLERS if name not in text.split()]
    if missing:
        return CheckResult(
            "delegation",
            Level.FAILURE,
            f"the pods' cgroup has no {', '.join(missing)}",
            "systemctl cat nodeagent-pods # Delegate=yes is required; restarting this unit stops the pods",
        )
    return CheckResult("delegation", Level.OK, f"the pods' cgroup has {text.replace(' ', ', ')}")


def check_numa_balancing(facts: NodeFacts) -> CheckResult:
    text = facts.text("proc/sys/kernel/numa_balancing")
    if len(facts.topology.numa) < 2:
        return CheckResult("numa-balancing", Level.OK, "the machine has one NUMA node")
    if text is None and facts.text("proc/sys/kernel/osrelease") is None:
        return CheckResult("numa-balancing", Level.UNKNOWN, "/proc/sys/kernel is missing")
    if text in {None, "0"}:
        return CheckResult(
            "numa-balancing", Level.OK, "the kernel doesn't move memory" if text else "the kernel doesn't support it"
        )
    return CheckResult(
        "numa-balancing",
        Level.WARNING,
        f"kernel.numa_balancing is {text}: the kernel unmaps pods' pages to detect accesses, and moves memory that is not bound",
        f"sudo sysctl -w kernel.numa_balancing=0 # until the next boot; undo: sudo sysctl -w kernel.numa_balancing={text}",
        (SettingWrite("proc/sys/kernel/numa_balancing", "0", text),),
    )


def check_governor(facts: NodeFacts) -> CheckResult:
    paths = {cpu: f"{CPUS}/cpu{cpu}/cpufreq/scaling_governor" for cpu in facts.topology.online}
    found: dict[str, list[int]] = {}
    for cpu, path in paths.items():
        text = facts.text(path)
        if text is not None:
            found.setdefault(text, []).append(cpu)
    if not found and facts.text(f"{CPUS}/isolated") is None:
        return CheckResult("governor", Level.UNKNOWN, f"/{CPUS} is missing")
    if not found:
        return CheckResult("governor", Level.OK, "the kernel does not scale frequencies here")
    slow = {name: cpus for name, cpus in found.items() if name != "performance"}
    if not slow:
        return CheckResult("governor", Level.OK, "performance on every CPU")
    said = "; ".join(f"{name} on CPUs {CpuSet.from_ids(cpus)}" for name, cpus in sorted(slow.items()))
    return CheckResult(
        "governor",
        Level.WARNING,
        f"the frequency follows the load: {said}",
        f"{_set_governor('performance', [cpu for cpus in slow.values() for cpu in cpus], facts)} # until the next boot; undo: "
        + " && ".join(_set_governor(name, cpus, facts) for name, cpus in sorted(slow.items())),
        tuple(
            SettingWrite(paths[cpu], "performance", name)
            for cpu, name in sorted((cpu, name) for name, cpus in slow.items() for cpu in cpus)
        ),
    )


def _set_governor(name: str, cpus: Iterable[int], facts: NodeFacts) -> str:
    """Return a shell command that sets the frequency governor of these CPUs and no others."""
    chosen = CpuSet.from_ids(cpus)
    return f"sudo cpupower {'' if chosen == facts.topology.online else f'-c {chosen} '}frequency-set -g {name}"


def check_irqbalance(facts: NodeFacts) -> CheckResult:
    if not _sees_cgroups(facts):
        return CheckResult("irqbalance", Level.UNKNOWN, _CGROUPS_MISSING)
    if not _is_running(facts, "irqbalance"):
        return CheckResult("irqbalance", Level.OK, "it does not run")
    if facts.config is not None and facts.config.interrupt_isolation != "none":
        why = "it runs, and the agent tells it which CPUs are exclusive (interruptIsolation)"
        return CheckResult("irqbalance", Level.OK, why)
    return CheckResult(
        "irqbalance",
        Level.WARNING,
        "it runs, and may put interrupts on pods' exclusive CPUs",
        f"interruptIsolation: affinity in {facts.config_file}",
    )


def check_competing_services(facts: NodeFacts) -> Iterator[CheckResult]:
    if _is_running(facts, "numad"):
        why = "it runs, and moves processes and their memory between NUMA nodes"
        yield CheckResult("numad", Level.WARNING, why, _DISABLE.format("numad"))
    if _is_running(facts, "tuned"):
        why = "it runs, and its profile may set governor, affinities and isolated CPUs, as the agent and --fix do (see tuned-adm active)"
        yield CheckResult("tuned", Level.NOTE, why, _DISABLE.format("tuned"))


def check_kubelet(facts: NodeFacts) -> CheckResult:
    """Check that kubelet and the agent don't both allocate CPUs.

    With `nriSocket`, kubelet's CPU and memory managers must be off, even if kubelet isn't running now.
    """
    if not _sees_cgroups(facts):
        return CheckResult("kubelet", Level.UNKNOWN, _CGROUPS_MISSING)
    policy, has_assignments = _read_kubelet_state(facts)
    if facts.config is not None and facts.config.nri_socket:
        if facts.is_hidden(KUBELET_STATE):
            why = (
                f"/{KUBELET_STATE} cannot be read, so it is unknown whether kubelet leaves CPUs and memory to the agent"
            )
            return CheckResult("kubelet", Level.UNKNOWN, why, "sudo nodeagent check")
        problem = facts.kubelet_problem
        if not problem and policy not in {None, "none"}:
            problem = f"/{KUBELET_STATE} says CPU manager policy {policy}"
        if problem:
            fix = (
                "sudo systemctl restart nodeagent # after the change; until then, containers are not placed (nriSocket)"
            )
            return CheckResult("kubelet", Level.FAILURE, f"it also places containers: {problem}", fix)
        return CheckResult("kubelet", Level.OK, "it leaves CPUs and memory to the agent (nriSocket)")
    if _is_running(facts, "kubelet") or any(_is_populated(facts, path) for path in KUBEPODS):
        stop = "sudo systemctl disable --now kubelet # or cpuManagerPolicy: none in kubelet's configuration, nriSocket here"
        if policy == "static":
            why = "it runs with CPU manager policy static, so two managers allocate the same CPUs"
            return CheckResult("kubelet", Level.FAILURE, why, stop)
        why = f"it runs (CPU manager policy {policy or 'unknown'}), and its pods run on all CPUs, including those of nodeagent's pods"
        return CheckResult("kubelet", Level.WARNING, why, stop)
    if facts.is_hidden(KUBELET_STATE):
        return CheckResult(
            "kubelet", Level.UNKNOWN, f"it does not run; /{KUBELET_STATE} cannot be read", "sudo nodeagent check"
        )
    if has_assignments:
        why = f"it does not run; /{KUBELET_STATE} still has CPU assignments"
        return CheckResult("kubelet", Level.NOTE, why, f"nodeagent checkpoint show /{KUBELET_STATE}")
    return CheckResult("kubelet", Level.OK, "it does not run")


def _read_kubelet_state(facts: NodeFacts) -> tuple[str | None, bool]:
    """Return the CPU manager policy in kubelet's checkpoint, and whether the checkpoint assigns CPUs to containers.

    If the checkpoint is unreadable, return None and False.
    """
    try:
        document = json.loads(facts.text(KUBELET_STATE) or "")
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return None, False
    policy = document.get("policyName")
    return policy if isinstance(policy, str) else None, bool(document.get("entries"))


def _sees_cgroups(facts: NodeFacts) -> bool:
    return facts.text(f"{CGROUPS}/cgroup.controllers") is not None


def _is_running(facts: NodeFacts, service: str) -> bool:
    return _is_populated(facts, f"{CGROUPS}/system.slice/{service}.service/cgroup.events")


def _is_populated(facts: NodeFacts, events: str) -> bool:
    return "populated 1" in (facts.text(events) or "").splitlines()
