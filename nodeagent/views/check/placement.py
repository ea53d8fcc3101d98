"""Do machine and configuration match: isolation, SMT, reserved CPUs, huge pages? One function per check; pure."""

from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Topology
from nodeagent.formats.kernel.settings import COMMAND_LINE, PODS_UNIT, parameters
from nodeagent.formats.kernel.sysfs_sample import CPUS, NODES
from nodeagent.views.check.verdicts import CheckResult, Level, NodeFacts, kernel_version

_EXAMPLE = "sudo cp examples/config.yaml /etc/nodeagent/ # nodeagent --help says where the examples are"

_FIRST_WITH_PARTITIONS = (6, 7)
"""The first whose cpuset partitions may lie below cgroups that are none."""
_SMT = {"notsupported": "not supported", "notimplemented": "not implemented", "forceoff": "forced off"}
"""What the kernel writes as one word (Documentation/ABI/testing/sysfs-devices-system-cpu)."""


def configuration(facts: NodeFacts) -> CheckResult:
    problem = facts.config_problem
    if problem is None:
        return CheckResult("configuration", Level.OK, "it is right, and suits the machine")
    if facts.config_is_missing:
        return CheckResult("configuration", Level.WARNING, f"{problem}: what depends on it was not checked", _EXAMPLE)
    return CheckResult("configuration", Level.FAILURE, "; ".join(problem.splitlines()), facts.config_command)


def online_cpus(facts: NodeFacts) -> CheckResult:
    topology = facts.topology
    lost = [
        *([f"{topology.offline} offline"] if topology.offline else []),
        *([f"{topology.skipped} of no known core or NUMA node"] if topology.skipped else []),
    ]
    if lost:
        return CheckResult(
            "cpus", Level.NOTE, f"CPUs that can't be used: {', '.join(lost)}", _bringing_online(topology.offline)
        )
    return CheckResult("cpus", Level.OK, f"{len(topology.online)} of {len(topology.online)} are online")


def _bringing_online(cpus: CpuSet) -> str:
    """The sh command that does it, about as long as the list of the CPUs; empty: there are none."""
    if len(cpus) < 2:
        return "".join(f"echo 1 | sudo tee /{CPUS}/cpu{cpu}/online" for cpu in cpus)
    words = []
    for run in str(cpus).split(","):
        first, _, last = run.partition("-")
        words.append(f"$(seq {first} {last})" if last else first)
    return f"for n in {' '.join(words)}; do echo 1 | sudo tee /{CPUS}/cpu$n/online; done"


def isolcpus(facts: NodeFacts) -> CheckResult:
    isolated = _of_kernel(facts, facts.topology.isolated, "isolcpus")
    if isolated is None:
        return CheckResult("isolcpus", Level.UNKNOWN, f"neither /{CPUS} nor /proc/cmdline says which CPUs are isolated")
    if facts.config is None:
        why = (
            f"CPUs {isolated} are isolated; isolatedCPUs says how they are given" if isolated else "no CPU is isolated"
        )
        return CheckResult("isolcpus", Level.NOTE, why)
    if not isolated and not facts.is_static:
        return CheckResult("isolcpus", Level.OK, "no CPU is isolated, and none is given exclusively")
    if not isolated:
        return _without_isolated(facts, facts.config)
    reserved = isolated & _reserved(facts)
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


def _without_isolated(facts: NodeFacts, config: Config) -> CheckResult:
    if config.host_isolation == "none":
        why = "no CPU is isolated: the host's processes may run on exclusive CPUs, too"
        return CheckResult("isolcpus", Level.WARNING, why, f"hostIsolation: partition in {facts.config_file}")
    why = "no CPU is isolated at boot: hostIsolation keeps the host's processes off exclusive CPUs while pods have them"
    release = facts.text("proc/sys/kernel/osrelease")
    if (kernel_version(release) or (0, 0)) < _FIRST_WITH_PARTITIONS:
        why += ", through systemd (its AllowedCPUs; kernel 6.7 would do it by itself)"
    return CheckResult("isolcpus", Level.OK, why)


def nohz_full(facts: NodeFacts) -> CheckResult:
    tickless = _of_kernel(facts, facts.topology.nohz_full, "nohz_full")
    if tickless is None:
        return CheckResult(
            "nohz-full", Level.UNKNOWN, f"neither /{CPUS} nor /proc/cmdline says which CPUs are tickless"
        )
    if not tickless:
        return CheckResult(
            "nohz-full", Level.OK, "every CPU has its timer tick (nohz_full stops it on CPUs that run one thread)"
        )
    both = tickless & _reserved(facts)
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


def smt(facts: NodeFacts) -> CheckResult:
    topology = facts.topology
    if all(len(cpus) < 2 for cpus in topology.cores.values()):
        control = facts.text(f"{CPUS}/smt/control")
        said = f" (SMT is {_SMT.get(control, control)})" if control else ""
        return CheckResult("smt", Level.OK, f"every core has one thread{said}")
    if facts.config is None:
        why = f"cores have several threads; who may share a core: {facts.why_unconfigured}"
        return CheckResult("smt", Level.UNKNOWN, why)
    if not facts.is_static:
        return CheckResult("smt", Level.OK, "cores have several threads; no CPU is given exclusively")
    options = dict(facts.config.placement.cpu_manager_policy_options)
    if options.get("full-pcpus-only") == "true":
        return CheckResult("smt", Level.OK, "full-pcpus-only: a core's threads have one owner")
    why = "cores have several threads, and two owners may share a core"
    fix = f'cpuManagerPolicyOptions: {{full-pcpus-only: "true"}} in {facts.config_file}'
    return CheckResult("smt", Level.NOTE, why, fix)


def reserved_cpus(facts: NodeFacts) -> CheckResult:
    name, reserved, topology = "reserved-cpus", _reserved(facts), facts.topology
    if not facts.is_static:
        return CheckResult(
            name,
            Level.OK if facts.config else Level.UNKNOWN,
            "no CPU is given exclusively" if facts.config else facts.why_unconfigured,
        )
    whole = _whole_cores(topology, reserved)
    if whole != reserved:
        why = f"CPUs {reserved} are reserved, their siblings {whole - reserved} are not: pods that get those share a core with the host"
        return CheckResult(name, Level.WARNING, why, f'reservedSystemCPUs: "{whole}" in {facts.config_file}')
    used_up = [node for node, cpus in topology.nodes.items() if cpus <= reserved]
    if used_up:
        why = f"{reserved} are all the CPUs of NUMA node {', '.join(map(str, used_up))}: pods can't use its memory locally"
        return CheckResult(
            name, Level.WARNING, why, f"reserve CPUs on several NUMA nodes: reservedSystemCPUs in {facts.config_file}"
        )
    places = ", ".join(str(node) for node, cpus in topology.nodes.items() if cpus & reserved)
    return CheckResult(
        name, Level.OK, f"{reserved or 'none'}: whole cores{f' on NUMA node {places}' if places else ''}"
    )


def huge_pages(facts: NodeFacts) -> CheckResult:
    name = "huge-pages"
    sizes = [(size, amount) for size, amount in facts.topology.hugepages if amount]
    if not sizes:
        why = "there are none: pods that ask for them are refused"
        return CheckResult(name, Level.NOTE, why, "echo 512 | sudo tee /proc/sys/vm/nr_hugepages")
    uneven = _uneven(facts.topology)
    if uneven is not None:
        size, amounts = uneven
        said = ", ".join(f"{amount >> 20} MiB on node {node}" for node, amount in amounts.items())
        least = min(amounts, key=lambda node: amounts[node])
        kib = _page_kib(size)
        path = f"/{NODES}/node{least}/hugepages/hugepages-{kib}kB/nr_hugepages"
        pages = max(amounts.values()) // (kib * 1024) if kib else 0
        return CheckResult(
            name, Level.WARNING, f"{size} are uneven: {said}", f"echo {pages} | sudo tee {path}" if kib else ""
        )
    controllers = facts.text(f"{PODS_UNIT}/cgroup.controllers")
    limits = (
        ""
        if controllers is None or "hugetlb" in controllers.split()
        else "; limits are promised but not enforced (no hugetlb controller)"
    )
    said = ", ".join(f"{size} {amount >> 20} MiB" for size, amount in sizes)
    return CheckResult(
        name, Level.NOTE if limits else Level.OK, f"{said}, the same on every NUMA node with CPUs{limits}"
    )


def _uneven(topology: Topology) -> tuple[str, dict[int, int]] | None:
    """The first page size that NUMA nodes with CPUs have different amounts of."""
    for size, _ in topology.hugepages:
        amounts = {node.id: dict(node.hugepages).get(size, 0) for node in topology.numa if node.id in topology.nodes}
        if len(set(amounts.values())) > 1:
            return size, amounts
    return None


def _page_kib(size: str) -> int:
    """Size of a page, from its sysfs spelling; 0: unknown."""
    units = {"Ki": 1, "Mi": 1024, "Gi": 1024**2}
    text = size.removeprefix("hugepages-")
    return int(text[:-2]) * units[text[-2:]] if text[-2:] in units and text[:-2].isdigit() else 0


def _reserved(facts: NodeFacts) -> CpuSet:
    return CpuSet() if facts.managers is None else facts.managers.reserved


def _whole_cores(topology: Topology, cpus: CpuSet) -> CpuSet:
    whole = CpuSet()
    for core in topology.cores.values():
        if core & cpus:
            whole |= core
    return whole
