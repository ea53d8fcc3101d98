"""How alone are pods on their CPUs: the host's processes, interrupts, the kernel's own work? One function per check; pure."""

from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.settings import COMMAND_LINE, SYSTEMD, parameters
from nodeagent.formats.kernel.sysfs_sample import CPUS
from nodeagent.views.check.placement import whole_cores
from nodeagent.views.check.verdicts import CheckResult, Level, NodeFacts, kernel_version

_FIRST_WITH_PARTITIONS = (6, 7)
"""The first whose cpuset partitions may lie below cgroups that are none."""
_NONE_GIVEN = "no CPU is given exclusively"


def host_isolation(facts: NodeFacts) -> CheckResult:
    name = "host-isolation"
    if facts.config is None:
        return CheckResult(name, Level.UNKNOWN, f"who else may run on exclusive CPUs: {facts.why_unconfigured}")
    if not facts.is_static:
        return CheckResult(name, Level.OK, _NONE_GIVEN)
    if facts.config.host_isolation == "none":
        fix = f"hostIsolation: partition in {facts.config_file}"
        if facts.topology.isolated and facts.config.placement.isolated_cpus != "ignore":
            why = f"the host's processes may run on exclusive CPUs, too; over CPUs {facts.topology.isolated} the kernel spreads none"
            return CheckResult(name, Level.NOTE, why, fix)
        return CheckResult(name, Level.WARNING, "the host's processes may run on exclusive CPUs, too", fix)
    release = kernel_version(facts.text("proc/sys/kernel/osrelease"))
    if release is None:
        return CheckResult(
            name, Level.UNKNOWN, "what keeps the host's processes off exclusive CPUs depends on the kernel's release"
        )
    if release < _FIRST_WITH_PARTITIONS:
        return _without_partitions(facts, name)
    why = "the kernel keeps the host's processes off exclusive CPUs (partitions); what stays are threads that it binds to a CPU"
    return CheckResult(name, Level.OK, why)


def _without_partitions(facts: NodeFacts, name: str) -> CheckResult:
    newer = "kernel 6.7 or later (`uname -r` shows yours)"
    if facts.is_hidden(SYSTEMD):
        return CheckResult(
            name,
            Level.UNKNOWN,
            f"whether systemd keeps the host's processes off exclusive CPUs: /{SYSTEMD} cannot be read",
        )
    if facts.text(SYSTEMD) is None:
        why = (
            "nothing keeps the host's processes off exclusive CPUs: this kernel has no partitions for that, and systemd is not the first "
            "process"
        )
        return CheckResult(name, Level.WARNING, why, newer)
    why = (
        "systemd keeps the host's processes off exclusive CPUs (AllowedCPUs); what stays are threads that the kernel binds to a CPU, and "
        "workers of its ordered work queues"
    )
    return CheckResult(name, Level.NOTE, why, f"{newer}: its cpuset partitions keep these workers off, too")


def interrupts(facts: NodeFacts) -> CheckResult:
    name = "interrupts"
    if facts.config is None:
        return CheckResult(name, Level.UNKNOWN, f"whether they may come to exclusive CPUs: {facts.why_unconfigured}")
    if not facts.is_static:
        return CheckResult(name, Level.OK, _NONE_GIVEN)
    if facts.config.interrupt_isolation == "none":
        why = "they may come to exclusive CPUs"
        return CheckResult(name, Level.WARNING, why, f"interruptIsolation: affinity in {facts.config_file}")
    flags, cpus = _flags_and_cpus(parameters(facts.text("proc/cmdline") or "").get("isolcpus", ""))
    if "managed_irq" in flags:
        why = f"they leave exclusive CPUs; those that the kernel binds keep off CPUs {cpus}, too (isolcpus=managed_irq)"
        return CheckResult(name, Level.OK, why)
    why = (
        "they leave exclusive CPUs, but for those that the kernel binds to a CPU, such as one of each queue of an NVMe or virtio disk: "
        "nodeagent inspect names them"
    )
    return CheckResult(name, Level.NOTE, why, f"isolcpus=managed_irq,{_for_pods(facts)} {COMMAND_LINE}")


def _is_to_be_quiet(facts: NodeFacts) -> bool:
    if facts.config is None or not facts.is_static:
        return False
    return facts.config.host_isolation != "none" or facts.config.interrupt_isolation != "none"


def _for_pods(facts: NodeFacts) -> CpuSet:
    """CPUs that pods may get for themselves, without siblings of reserved ones."""
    return facts.topology.online - whole_cores(facts.topology, facts.reserved)


def isolcpus(facts: NodeFacts) -> CheckResult:
    isolated = _of_kernel(facts, facts.topology.isolated, "isolcpus")
    if isolated is None:
        return CheckResult("isolcpus", Level.UNKNOWN, f"neither /{CPUS} nor /proc/cmdline says which CPUs are isolated")
    if facts.config is None:
        why = (
            f"CPUs {isolated} are isolated; isolatedCPUs says how they are given" if isolated else "no CPU is isolated"
        )
        return CheckResult("isolcpus", Level.NOTE, why)
    if not isolated:
        return CheckResult("isolcpus", Level.OK, "no CPU is isolated at boot")
    reserved = isolated & facts.reserved
    if reserved:
        why = f"reserved CPUs {reserved} are isolated: the scheduler spreads no load of the host over them"
        fix = f"reservedSystemCPUs in {facts.config_file}: CPUs that are not isolated"
        return CheckResult("isolcpus", Level.WARNING, why, fix)
    if facts.config.placement.isolated_cpus == "ignore":
        why = f"CPUs {isolated} are isolated, and given like others: the load of shared containers is not spread over them"
        return CheckResult("isolcpus", Level.WARNING, why, f"isolatedCPUs: prefer (or only) in {facts.config_file}")
    if not facts.is_static:
        return CheckResult("isolcpus", Level.OK, f"CPUs {isolated} are isolated, and none is given exclusively")
    why = (
        f"the kernel spreads no load over CPUs {isolated}, which are isolated (isolatedCPUs: {facts.config.placement.isolated_cpus}): "
        "threads of a pod that has some of them stay on the one where they start"
    )
    fix = "`taskset -c CPU COMMAND` in the pod for each process, or the program's own option for its threads"
    return CheckResult("isolcpus", Level.NOTE, why, fix)


def nohz_full(facts: NodeFacts) -> CheckResult:
    tickless = _of_kernel(facts, facts.topology.nohz_full, "nohz_full")
    if tickless is None:
        return CheckResult(
            "nohz-full", Level.UNKNOWN, f"neither /{CPUS} nor /proc/cmdline says which CPUs are tickless"
        )
    if not tickless:
        why = "every CPU has its timer tick (nohz_full stops it on CPUs that run one thread)"
        if not _is_to_be_quiet(facts) or facts.text(f"{CPUS}/nohz_full") is None:
            return CheckResult("nohz-full", Level.OK, why)
        return CheckResult("nohz-full", Level.NOTE, why, f"nohz_full={_for_pods(facts)} {COMMAND_LINE}")
    both = tickless & facts.reserved
    if both:
        why = f"reserved CPUs {both} are tickless: the host's many threads pay for that at each entry into the kernel"
        others = f"nohz_full={tickless - both}" if tickless - both else "no nohz_full"
        return CheckResult("nohz-full", Level.WARNING, why, f"{others} {COMMAND_LINE}")
    return CheckResult("nohz-full", Level.OK, f"CPUs {tickless} are tickless")


def _of_kernel(facts: NodeFacts, seen: CpuSet, parameter: str) -> CpuSet | None:
    """The online CPUs of a set from the kernel's command line, used if sysfs lacks it; None: unknown."""
    if seen or facts.text(f"{CPUS}/isolated") is not None:  # a kernel that can't do without ticks has no nohz_full
        return seen & facts.topology.online
    cmdline = facts.text("proc/cmdline")
    if cmdline is None:
        return None
    flags, cpus = _flags_and_cpus(parameters(cmdline).get(parameter, ""))
    if flags and "domain" not in flags:  # the scheduler still balances over them
        return CpuSet()
    try:
        return CpuSet.parse(cpus) & facts.topology.online
    except ValueError:
        return None


def _flags_and_cpus(value: str) -> tuple[list[str], str]:
    """Parse `isolcpus=managed_irq,domain,2-3`."""
    words = value.split(",")
    flags = [word for word in words if word[:1].isalpha()]
    return flags, ",".join(word for word in words if word not in flags)
