"""Checks that machine and configuration match: SMT, reserved CPUs, huge pages. Each check is one function without I/O."""

from collections.abc import Iterator

from nodeagent.core.admission.node_capacity import with_machine
from nodeagent.core.model.config import ANY_CLASS
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import CPU, MEMORY
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.topology import NumaNode, Topology
from nodeagent.formats.kernel.settings import PODS_UNIT
from nodeagent.formats.kernel.sysfs_sample import CPUS, NODES
from nodeagent.views.check.verdicts import CheckResult, Level, NodeFacts

_SPARE_BYTES = 2**26

_SMT_STATES = {"notsupported": "not supported", "notimplemented": "not implemented", "forceoff": "forced off"}
"""Readable names for the states of SMT in the kernel's file smt/control (Documentation/ABI/testing/sysfs-devices-system-cpu)."""
_THREADS_PER_CORE = (2, 4, 8)
"""Possible numbers of threads per core, where cores have several threads."""
_PAGES = "/proc/sys/vm/nr_hugepages"
_ADD_PAGES = f"echo 512 | sudo tee {_PAGES} # until the next boot; undo: echo 0 | sudo tee {_PAGES}"


def check_configuration(facts: NodeFacts) -> CheckResult:
    problem = facts.config_problem
    if problem is None:
        return CheckResult("configuration", Level.OK, "it is valid for this machine")
    if facts.config_is_missing:
        return CheckResult(
            "configuration", Level.WARNING, f"{problem}: checks that depend on it were skipped", facts.config_command
        )
    return CheckResult("configuration", Level.FAILURE, "; ".join(problem.splitlines()), facts.config_command)


def check_online_cpus(facts: NodeFacts) -> CheckResult:
    topology = facts.topology
    lost = [
        *([f"{topology.offline} offline"] if topology.offline else []),
        *([f"{topology.skipped} of unknown core or NUMA node"] if topology.skipped else []),
    ]
    control = facts.text(f"{CPUS}/smt/control") or ""
    if topology.offline and not topology.skipped and control in {"off", "forceoff"}:
        return _check_without_smt(topology, _SMT_STATES.get(control, control))
    if lost:
        return CheckResult(
            "cpus", Level.NOTE, f"CPUs that can't be used: {', '.join(lost)}", _format_online_command(topology.offline)
        )
    return CheckResult("cpus", Level.OK, f"{len(topology.online)} of {len(topology.online)} are online")


def _check_without_smt(topology: Topology, state: str) -> CheckResult:
    """Check the offline CPUs of a machine on which SMT is off.

    Each core should then have one online CPU. The kernel doesn't show the topology of offline CPUs, so only their number tells whether
    whole cores are offline as well: on a machine with equal cores, switching SMT off takes the same number of CPUs from each core.
    """
    offline, online = topology.offline, len(topology.online)
    whole = f"{offline} are offline because SMT is {state}"
    if len(offline) in {online * (threads - 1) for threads in _THREADS_PER_CORE}:
        return CheckResult("cpus", Level.OK, f"{whole}: nothing is to be done")
    if len(offline) < online:
        why = f"{whole}: nothing is to be done, unless a core was taken offline, which can't be seen where only some cores have SMT"
        return CheckResult("cpus", Level.OK, why)
    # With SMT off, the kernel can bring only the first thread of each core online, and refuses to do so for the other threads (EPERM).
    why = (
        f"{offline} are offline, more than SMT takes from {online} cores, so whole cores were taken offline; SMT is {state}, so the kernel "
        "brings only the first thread of each core online"
    )
    return CheckResult("cpus", Level.NOTE, why, _format_online_command(offline))


def _format_online_command(cpus: CpuSet) -> str:
    """Format a shell command that brings the CPUs online, followed by the command that undoes the change. The result is empty if there are
    no CPUs.
    """
    if not cpus:
        return ""
    return f"{_format_switch(cpus, 1)} # until the next boot; undo: {_format_switch(cpus, 0)}"


def _format_switch(cpus: CpuSet, state: int) -> str:
    """Format a shell command that sets CPUs online (`state` 1) or offline (0). For consecutive CPUs, the command uses `seq`."""
    if len(cpus) == 1:
        return f"echo {state} | sudo tee /{CPUS}/cpu{cpus}/online"
    words = []
    for run in str(cpus).split(","):
        first, _, last = run.partition("-")
        words.append(f"$(seq {first} {last})" if last else first)
    return f"for n in {' '.join(words)}; do echo {state} | sudo tee /{CPUS}/cpu$n/online; done"


def check_core_classes(facts: NodeFacts) -> Iterator[CheckResult]:
    """Check the class of the cores that pods get exclusively. Yield nothing on machines with only one class."""
    classes = facts.topology.core_classes
    if len(classes) < 2:
        return
    kinds = " and ".join(f"{name} cores {cpus}" for name, cpus in classes.items())
    if facts.config is None:
        why = f"there are {kinds}; it is unknown which are allocated exclusively: {facts.why_unconfigured}"
        yield CheckResult("core-classes", Level.UNKNOWN, why)
    elif not facts.is_static:
        yield CheckResult("core-classes", Level.OK, f"there are {kinds}; no CPU is allocated exclusively")
    elif facts.config.placement.exclusive_core_class == ANY_CLASS:
        why = f"there are {kinds}, and pods without a required class get efficiency cores first"
        fix = f"exclusiveCoreClass: performance in {facts.config_file}"
        yield CheckResult("core-classes", Level.NOTE, why, fix)
    else:
        wish = facts.config.placement.exclusive_core_class
        yield CheckResult("core-classes", Level.OK, f"there are {kinds}; pods get {wish} cores if enough are free")


def check_smt(facts: NodeFacts) -> CheckResult:
    topology = facts.topology
    if all(len(cpus) < 2 for cpus in topology.cores.values()):
        control = facts.text(f"{CPUS}/smt/control")
        said = f" (SMT is {_SMT_STATES.get(control, control)})" if control else ""
        return CheckResult("smt", Level.OK, f"every core has one thread{said}")
    if facts.config is None:
        why = f"cores have several threads; it is unknown whether pods may share a core: {facts.why_unconfigured}"
        return CheckResult("smt", Level.UNKNOWN, why)
    if not facts.is_static:
        return CheckResult("smt", Level.OK, "cores have several threads; no CPU is allocated exclusively")
    if facts.gives_whole_cores:
        return CheckResult("smt", Level.OK, "full-pcpus-only: a core's threads have one owner")
    why = "cores have several threads, and two owners may share a core"
    fix = f'cpuManagerPolicyOptions: {{full-pcpus-only: "true"}} in {facts.config_file}'
    return CheckResult("smt", Level.NOTE, why, fix)


def check_reserved_cpus(facts: NodeFacts) -> CheckResult:
    name, reserved, topology = "reserved-cpus", facts.reserved, facts.topology
    if not facts.is_static:
        return CheckResult(
            name,
            Level.OK if facts.config else Level.UNKNOWN,
            "no CPU is allocated exclusively" if facts.config else facts.why_unconfigured,
        )
    whole = find_whole_cores(topology, reserved)
    if whole != reserved:
        effect = (
            "full-pcpus-only never allocates these exclusively, because it gives whole cores"
            if facts.gives_whole_cores
            else "pods on these share a core with the host"
        )
        why = f"{_format_reserving(facts)} {reserved} without the siblings {whole - reserved}: {effect}"
        return CheckResult(name, Level.WARNING, why, f'reservedSystemCPUs: "{whole}" in {facts.config_file}')
    used_up = [node for node, cpus in topology.nodes.items() if cpus <= reserved]
    if used_up:
        why = (
            f"{reserved} are all CPUs of NUMA node {', '.join(map(str, used_up))}, so pods can't use its memory locally"
        )
        return CheckResult(
            name, Level.WARNING, why, f"reserve CPUs on several NUMA nodes: reservedSystemCPUs in {facts.config_file}"
        )
    places = ", ".join(str(node) for node, cpus in topology.nodes.items() if cpus & reserved)
    return CheckResult(
        name, Level.OK, f"{reserved or 'none'}: whole cores{f' on NUMA node {places}' if places else ''}"
    )


def check_huge_pages(facts: NodeFacts) -> CheckResult:
    name = "huge-pages"
    sizes = [(size, amount) for size, amount in facts.topology.hugepages if amount]
    if not sizes:
        why = "there are none, so pods that request them are refused"
        return CheckResult(name, Level.NOTE, why, _ADD_PAGES)
    topology, units = facts.topology, {"Ki": 1, "Mi": 1024, "Gi": 1024**2}
    for size, _ in topology.hugepages:
        amounts = {node.id: dict(node.hugepages).get(size, 0) for node in topology.numa if node.id in topology.nodes}
        if len(set(amounts.values())) < 2:
            continue
        said = ", ".join(f"{amount >> 20} MiB on node {node}" for node, amount in amounts.items())
        text, fix = size.removeprefix("hugepages-"), ""
        if text[-2:] in units and text[:-2].isdigit():
            kib = int(text[:-2]) * units[text[-2:]]
            most = max(amounts.values())
            paths = {
                f"/{NODES}/node{node}/hugepages/hugepages-{kib}kB/nr_hugepages": amount
                for node, amount in amounts.items()
                if amount < most
            }
            back = "; ".join(f"echo {amount // (kib * 1024)} | sudo tee {path}" for path, amount in paths.items())
            fix = f"echo {most // (kib * 1024)} | sudo tee {' '.join(paths)} # until the next boot; undo: {back}"
        return CheckResult(name, Level.WARNING, f"{size} are uneven: {said}", fix)
    controllers = facts.text(f"{PODS_UNIT}/cgroup.controllers")
    limits = (
        ""
        if controllers is None or "hugetlb" in controllers.split()
        else "; limits are not enforced (no hugetlb controller)"
    )
    said = ", ".join(f"{size} {amount >> 20} MiB" for size, amount in sizes)
    return CheckResult(
        name, Level.NOTE if limits else Level.OK, f"{said}, the same on every NUMA node with CPUs{limits}"
    )


def check_memory_only_nodes(facts: NodeFacts) -> Iterator[CheckResult]:
    """Check which pods can get the memory of NUMA nodes without CPUs. Yield nothing on machines without such nodes."""
    name, topology = "memory-only-nodes", facts.topology
    nodes = [node for node in topology.numa if node.id not in topology.nodes]
    if not nodes:
        return
    memory = [node for node in nodes if node.memory_bytes]
    ids, with_memory = (str(NumaSet.from_ids(node.id for node in some)) for some in (nodes, memory))
    size = sum(node.memory_bytes for node in memory)
    has = f"node {ids} has" if len(nodes) == 1 else f"nodes {ids} have"
    why = f"NUMA {has} no CPUs, like memory of CXL or GPUs"
    if not memory:
        yield CheckResult(name, Level.OK, f"{why}, and no memory now")
        return
    why += f" ({Quantity.of_bytes(size)}{'' if ids == with_memory else f' on {with_memory}'})"
    if facts.config is None:
        yield CheckResult(
            name, Level.UNKNOWN, f"{why}; it is unknown which pods get that memory: {facts.why_unconfigured}"
        )
        return
    placement = facts.config.placement
    is_static = placement.memory_manager_policy == "Static"
    reserved = {entry.numa_node: dict(entry.limits).get(MEMORY) for entry in placement.reserved_memory}
    free = [
        node for node in memory if not is_static or _count_bytes(reserved.get(node.id)) < _find_reservable_bytes(node)
    ]
    once = "memory may come from there once nearer nodes are full"
    if not free:
        left = [node.memory_bytes - _sum_pages(node) - _count_bytes(reserved.get(node.id)) for node in memory]
        yield CheckResult(name, Level.OK, f"{why}; {_describe_withheld(left)}, and other containers' {once}")
        return
    gets = (
        f"the memory manager allocates that memory to Guaranteed pods, as any node's, and other containers' {once}"
        if is_static
        else f"memoryManagerPolicy None allocates no memory, so the containers' {once}"
    )
    yield CheckResult(name, Level.NOTE, f"{why}; {gets}", _format_reservation(facts, free))


def _describe_withheld(left: list[int]) -> str:
    """Describe how much memory a reservation leaves to Guaranteed pods. `left` lists the remaining bytes of each node."""
    least, most = (-(-max(0, amount) // 2**20) for amount in (min(left), max(left)))
    if not most:
        return "reservedMemory keeps Guaranteed pods off it"
    amounts = f"{most} MiB" if least == most else f"{least} to {most} MiB"
    return f"reservedMemory withholds all but {amounts} of {'it' if len(left) == 1 else 'each'} from Guaranteed pods"


def _count_bytes(amount: Quantity | None) -> int:
    return 0 if amount is None else amount.value()


def _sum_pages(node: NumaNode) -> int:
    return sum(amount for _, amount in node.hugepages)


def _find_reservable_bytes(node: NumaNode) -> int:
    """Return how many bytes of the node's memory the configuration can safely reserve: the memory that isn't in huge pages, minus 64 MiB,
    rounded down to a multiple of 64 MiB.

    The margin is needed because the kernel may find slightly less memory after a reboot.
    """
    return max(0, (node.memory_bytes - _sum_pages(node) - _SPARE_BYTES) // _SPARE_BYTES * _SPARE_BYTES)


def _format_reservation(facts: NodeFacts, nodes: list[NumaNode]) -> str:
    """Format the configuration fields that reserve all memory of these nodes, and keep the existing reservations."""
    assert facts.config is not None
    config = facts.config
    complete = with_machine(config, facts.topology.memory_bytes)
    total = dict(complete.placement.memory_reservation).get(MEMORY, Quantity(0))
    reserved = {entry.numa_node: dict(entry.limits) for entry in config.placement.reserved_memory}
    if config.placement.memory_manager_policy != "Static":
        first = next(node.id for node in facts.topology.numa if node.id in facts.topology.nodes)
        reserved = {first: {MEMORY: total}} if total.nano else {}
    added = 0
    for node in nodes:
        amount = _find_reservable_bytes(node)
        added += amount - _count_bytes(reserved.get(node.id, {}).get(MEMORY))
        reserved[node.id] = {**reserved.get(node.id, {}), MEMORY: Quantity.of_bytes(amount)}
    entries = ", ".join(
        f"{{numaNode: {node}, limits: {{{', '.join(f'{name}: {amount}' for name, amount in limits.items())}}}}}"
        for node, limits in sorted(reserved.items())
    )
    own = _count_bytes(dict(config.system_reserved).get(MEMORY))
    return (
        f"memoryManagerPolicy: Static, memory: {Quantity.of_bytes(own + added)} in systemReserved, and "
        f"reservedMemory: [{entries}] in {facts.config_file}"
    )


def _format_reserving(facts: NodeFacts) -> str:
    """Format the beginning of a sentence, such as `reservedSystemCPUs has`, that names the configuration fields by which
    CPUs are reserved.
    """
    assert facts.config is not None
    amounts = {"systemReserved": facts.config.system_reserved, "kubeReserved": facts.config.kube_reserved}
    fields = [name for name, amount in amounts.items() if amount.get(CPU)]
    if facts.config.placement.reserved_system_cpus or not fields:
        return "reservedSystemCPUs has"
    return f"{' and '.join(fields)} {'reserves' if len(fields) == 1 else 'reserve'}"


def find_whole_cores(topology: Topology, cpus: CpuSet) -> CpuSet:
    whole = CpuSet()
    for core in topology.cores.values():
        if core & cpus:
            whole |= core
    return whole
