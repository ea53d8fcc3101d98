"""Checks of the isolation of exclusive CPUs from host processes, interrupts and kernel work. Each check is one function without I/O."""

from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.settings import COMMAND_LINE, SYSTEMD, parse_parameters
from nodeagent.formats.kernel.sysfs_sample import CPUS
from nodeagent.views.check.placement import find_whole_cores
from nodeagent.views.check.verdicts import CheckResult, Level, NodeFacts, parse_kernel_version

_FIRST_WITH_PARTITIONS = (6, 7)
"""First kernel that allows a cpuset partition whose parent cgroup isn't a partition."""
_NONE_EXCLUSIVE = "no CPU is allocated exclusively"


def check_host_isolation(facts: NodeFacts) -> CheckResult:
    name = "host-isolation"
    if facts.config is None:
        return CheckResult(
            name,
            Level.UNKNOWN,
            f"it is unknown whether other processes may run on exclusive CPUs: {facts.why_unconfigured}",
        )
    if not facts.is_static:
        return CheckResult(name, Level.OK, _NONE_EXCLUSIVE)
    if facts.config.host_isolation == "none":
        fix = f"hostIsolation: partition in {facts.config_file}"
        if facts.topology.isolated and facts.config.placement.isolated_cpus != "ignore":
            why = f"host processes may run on exclusive CPUs, but the kernel doesn't spread them over CPUs {facts.topology.isolated}"
            return CheckResult(name, Level.NOTE, why, fix)
        return CheckResult(name, Level.WARNING, "host processes may run on exclusive CPUs", fix)
    release = parse_kernel_version(facts.text("proc/sys/kernel/osrelease"))
    if release is None:
        return CheckResult(
            name, Level.UNKNOWN, "the kernel's release is unknown, and the isolation from host processes depends on it"
        )
    if release < _FIRST_WITH_PARTITIONS:
        newer = "kernel 6.7 or later (`uname -r` shows yours)"
        if facts.is_hidden(SYSTEMD):
            return CheckResult(
                name,
                Level.UNKNOWN,
                f"/{SYSTEMD} cannot be read, so it is unknown whether systemd keeps host processes off exclusive CPUs",
            )
        if facts.text(SYSTEMD) is None:
            why = (
                "nothing keeps host processes off exclusive CPUs: this kernel has no suitable partitions, and systemd doesn't run as "
                "process 1"
            )
            return CheckResult(name, Level.WARNING, why, newer)
        why = (
            "systemd keeps host processes off exclusive CPUs (AllowedCPUs), except threads that the kernel binds to a CPU, and "
            "workers of its ordered work queues"
        )
        return CheckResult(name, Level.NOTE, why, f"{newer}: cpuset partitions keep these workers off, too")
    why = "the kernel keeps host processes off exclusive CPUs (partitions), except threads that it binds to a CPU"
    return CheckResult(name, Level.OK, why)


def check_interrupts(facts: NodeFacts) -> CheckResult:
    name = "interrupts"
    if facts.config is None:
        return CheckResult(
            name, Level.UNKNOWN, f"it is unknown whether exclusive CPUs may get interrupts: {facts.why_unconfigured}"
        )
    if not facts.is_static:
        return CheckResult(name, Level.OK, _NONE_EXCLUSIVE)
    if facts.config.interrupt_isolation == "none":
        why = "exclusive CPUs may get interrupts"
        return CheckResult(name, Level.WARNING, why, f"interruptIsolation: affinity in {facts.config_file}")
    flags, cpus = _split_flags(parse_parameters(facts.text("proc/cmdline") or "").get("isolcpus", ""))
    if "managed_irq" in flags:
        why = f"interrupts are moved off exclusive CPUs; those bound by the kernel avoid CPUs {cpus}, too (isolcpus=managed_irq)"
        return CheckResult(name, Level.OK, why)
    why = (
        "interrupts are moved off exclusive CPUs, except those that the kernel binds, such as one per queue of an NVMe or virtio disk: "
        "nodeagent inspect lists them"
    )
    return CheckResult(name, Level.NOTE, why, f"isolcpus=managed_irq,{_find_pod_cpus(facts)} {COMMAND_LINE}")


def _find_pod_cpus(facts: NodeFacts) -> CpuSet:
    """Return the CPUs that pods could get exclusively if whole cores were reserved. Siblings of reserved CPUs are therefore left out."""
    return facts.topology.online - find_whole_cores(facts.topology, facts.reserved)


def check_isolcpus(facts: NodeFacts) -> CheckResult:
    isolated = _read_kernel_cpus(facts, facts.topology.isolated, "isolcpus")
    if isolated is None:
        return CheckResult("isolcpus", Level.UNKNOWN, f"neither /{CPUS} nor /proc/cmdline shows the isolated CPUs")
    if facts.config is None:
        why = (
            f"CPUs {isolated} are isolated; isolatedCPUs determines their allocation"
            if isolated
            else "no CPU is isolated"
        )
        return CheckResult("isolcpus", Level.NOTE, why)
    if not isolated:
        return CheckResult("isolcpus", Level.OK, "no CPU is isolated at boot")
    reserved = isolated & facts.reserved
    if reserved:
        why = f"reserved CPUs {reserved} are isolated, so the scheduler doesn't spread the host's load over them"
        fix = f"reservedSystemCPUs in {facts.config_file}: CPUs that are not isolated"
        return CheckResult("isolcpus", Level.WARNING, why, fix)
    if facts.config.placement.isolated_cpus == "ignore":
        why = f"CPUs {isolated} are isolated but allocated like others; the load of shared containers isn't spread over them"
        return CheckResult("isolcpus", Level.WARNING, why, f"isolatedCPUs: prefer (or only) in {facts.config_file}")
    if not facts.is_static:
        return CheckResult("isolcpus", Level.OK, f"CPUs {isolated} are isolated, and none is allocated exclusively")
    why = (
        f"the kernel spreads no load over the isolated CPUs {isolated} (isolatedCPUs: {facts.config.placement.isolated_cpus}): "
        "threads of a pod on these CPUs stay on the one where they start"
    )
    fix = "`taskset -c CPU COMMAND` in the pod for each process, or the program's own option for its threads"
    return CheckResult("isolcpus", Level.NOTE, why, fix)


def check_nohz_full(facts: NodeFacts) -> CheckResult:
    tickless = _read_kernel_cpus(facts, facts.topology.nohz_full, "nohz_full")
    if tickless is None:
        return CheckResult("nohz-full", Level.UNKNOWN, f"neither /{CPUS} nor /proc/cmdline shows the tickless CPUs")
    if not tickless:
        why = "every CPU has its timer tick (nohz_full stops it on CPUs that run one thread)"
        config = facts.config
        isolates = config is not None and (config.host_isolation != "none" or config.interrupt_isolation != "none")
        if not (facts.is_static and isolates) or facts.text(f"{CPUS}/nohz_full") is None:
            return CheckResult("nohz-full", Level.OK, why)
        return CheckResult("nohz-full", Level.NOTE, why, f"nohz_full={_find_pod_cpus(facts)} {COMMAND_LINE}")
    both = tickless & facts.reserved
    if both:
        why = f"reserved CPUs {both} are tickless, which makes every kernel entry of the host's many threads slower"
        others = f"nohz_full={tickless - both}" if tickless - both else "no nohz_full"
        return CheckResult("nohz-full", Level.WARNING, why, f"{others} {COMMAND_LINE}")
    return CheckResult("nohz-full", Level.OK, f"CPUs {tickless} are tickless")


def _read_kernel_cpus(facts: NodeFacts, seen: CpuSet, parameter: str) -> CpuSet | None:
    """Return the online CPUs that a kernel parameter lists. If sysfs doesn't show them, parse the kernel's command line instead.

    Args:
        facts: the data of the node.
        seen: the CPUs that sysfs shows.
        parameter: the name of the parameter.

    Returns:
        The CPUs, or None if they are unknown.
    """
    # Every kernel has the file `isolated`, but a kernel without tickless CPUs lacks the file `nohz_full`.
    if seen or facts.text(f"{CPUS}/isolated") is not None:
        return seen & facts.topology.online
    cmdline = facts.text("proc/cmdline")
    if cmdline is None:
        return None
    flags, cpus = _split_flags(parse_parameters(cmdline).get(parameter, ""))
    if flags and "domain" not in flags:  # without the flag `domain`, the scheduler still balances load over these CPUs
        return CpuSet()
    try:
        return CpuSet.parse(cpus) & facts.topology.online
    except ValueError:
        return None


def _split_flags(value: str) -> tuple[list[str], str]:
    """Split a value such as `managed_irq,domain,2-3` into its flags and its CPU list."""
    words = value.split(",")
    flags = [word for word in words if word[:1].isalpha()]
    return flags, ",".join(word for word in words if word not in flags)
