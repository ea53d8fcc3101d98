"""What must be true of promises, computed from pods and promises alone: an oracle beside the project's own `violations()`."""

from collections.abc import Iterator, Sequence
from itertools import combinations

from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers
from nodeagent.core.admission.node_rules import isolation
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Container, ContainerKind, Pod, QosClass, qos_class
from nodeagent.core.model.promises import Isolation, Promises
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set, own_set_of
from nodeagent.core.resources.memory.holdings import MemoryHoldings, MemoryNode, memory_accounts, with_memory_accounts
from nodeagent.core.resources.memory.resource import MemoryResource

INIT, SIDECAR = ContainerKind.INIT, ContainerKind.SIDECAR


def run_at_once(pod: Pod, a: int, b: int) -> bool:
    """Whether the containers at these places of one pod may run at the same time (a < b)."""
    first, second = pod.containers[a].kind, pod.containers[b].kind
    # A plain init container ends before anything after it starts; sidecars before it go on.
    return first is not INIT and (second is not INIT or first is SIDECAR)


def usable(promises: Promises, pod: Pod, container: Container) -> CpuSet:
    own = own_set_of(promises, pod.uid, container.name)
    if own is None:
        return default_set(promises)
    return own | default_set(promises) if _shares_beside(container) else own


def _shares_beside(container: Container) -> bool:
    """Whether, by annotation, not all CPUs of its request are exclusive."""
    cpu = container.resources.requests.get("cpu")
    return container.exclusive_cpus is not None and cpu is not None and cpu.nano > container.exclusive_cpus * 10**9


def shared_cpus(node: Managers, promises: Promises, pods: Sequence[Pod]) -> Iterator[str]:
    """CPUs that two containers could use at the same time, though one of them was promised them alone."""
    everybody = [(pod, place) for pod in pods for place in range(len(pod.containers))]
    for (pod, a), (other, b) in combinations(everybody, 2):
        if pod is other and not run_at_once(pod, a, b):
            continue
        one, two = pod.containers[a], other.containers[b]
        levels = [
            isolation(node, promises, p, c.name) for p, c in ((pod, one), (other, two))
        ]  # host: the node's pool; pod: its pod's pool
        if levels == [Isolation.HOST] * 2 or (pod is other and levels == [Isolation.POD] * 2):
            continue
        both = usable(promises, pod, one) & usable(promises, other, two)
        if set(levels) <= {Isolation.HOST, Isolation.MIXED}:
            both -= default_set(promises)
        if both:
            yield f"{pod.uid}/{one.name} and {other.uid}/{two.name} both have CPUs {both}"


def pool_errors(node: Managers, promises: Promises) -> Iterator[str]:
    """The shared pool is what is online, without what pods have, and without the reserved CPUs where they are kept strictly."""
    given = CpuSet()
    for _, held in promises.pods:
        given |= held.of(CpuHoldings).pod_cpus or CpuSet()
        for _, cpus in held.of(CpuHoldings).cpus:
            given |= cpus
    expected = node.topology.online - given
    if ("strict-cpu-reservation", "true") in node.placement.cpu_manager_policy_options:
        expected -= node.reserved
    if default_set(promises) != expected:
        yield f"the shared pool is {default_set(promises)}, not {expected}"
    if given & node.reserved:
        yield f"reserved CPUs {given & node.reserved} were given away"


def wanted_cpus(node: Managers, pod: Pod, container: Container) -> int:
    """How many CPUs the container is to have alone."""
    gates = node.rules.gates
    if pod.resources is None and container.exclusive_cpus is not None:
        return container.exclusive_cpus
    if qos_class(pod, pod_level_resources=gates.pod_level_resources) is not QosClass.GUARANTEED:
        return 0
    requests, limits = container.resources.requests, container.resources.limits
    if pod.resources is not None:
        equal = all(
            (amount := requests.get(name)) is not None and amount.nano and amount == limits.get(name)
            for name in ("cpu", "memory")
        )
        if not gates.pod_level_managers or not equal:
            return 0
        if has_pod_set(node, pod) is None:
            return 0
    cpu = requests.get("cpu")
    return cpu.nano // 10**9 if cpu is not None and cpu.nano % 10**9 == 0 else 0


def has_pod_set(node: Managers, pod: Pod) -> bool | None:
    """Whether the pod gets a set of its own; None: it would, if its amount were whole CPUs, and so nobody gets any."""
    placement = node.placement
    if pod.resources is None or placement.topology_manager_policy == "none":
        return False
    if placement.topology_manager_scope != "pod" or not node.rules.gates.pod_level_managers:
        return False
    cpu = pod.resources.requests.get("cpu")
    return True if cpu is not None and cpu.nano % 10**9 == 0 else None


def size_errors(node: Managers, promises: Promises, pods: Sequence[Pod]) -> Iterator[str]:
    """Everybody has as many CPUs as were asked for, and all of a pod's are its own."""
    for pod in pods:
        held = promises.of_pod(pod.uid)
        for container in pod.containers:
            own, wanted = held.of(CpuHoldings).own_set(container.name), wanted_cpus(node, pod, container)
            if wanted and len(own or ()) != wanted:
                yield f"{pod.uid}/{container.name} has CPUs {own}, asked for {wanted}"
            if not wanted and not has_pod_set(node, pod) and own is not None:
                yield f"{pod.uid}/{container.name} has CPUs {own}, asked for none"
            if held.of(CpuHoldings).pod_cpus is not None and not (own and own <= held.of(CpuHoldings).pod_cpus):
                yield f"{pod.uid}/{container.name} has CPUs {own}, its pod {held.of(CpuHoldings).pod_cpus}"
        if has_pod_set(node, pod) and len(held.of(CpuHoldings).pod_cpus or ()) != _whole(pod):
            yield f"{pod.uid} has CPUs {held.of(CpuHoldings).pod_cpus}, asked for {_whole(pod)}"


def _whole(pod: Pod) -> int:
    assert pod.resources is not None
    cpu = pod.resources.requests.get("cpu")
    return 0 if cpu is None else cpu.nano // 10**9


def core_errors(node: Managers, promises: Promises) -> Iterator[str]:
    """Under full-pcpus-only every set is whole cores (the pool of a pod with slices of whole cores is, too)."""
    for uid, held in promises.pods:
        for name, cpus in (*held.of(CpuHoldings).cpus, ("", held.of(CpuHoldings).pod_cpus or CpuSet())):
            for core_cpus in node.topology.cores.values():
                if cpus & core_cpus and not core_cpus <= cpus:
                    yield f"{uid}/{name} has CPUs {cpus}: half of the core {core_cpus}"


def memory_errors(node: Managers, promises: Promises) -> Iterator[str]:
    """Per group of nodes, what is taken is what is promised; no node is in two groups; no book is overdrawn."""
    promised: dict[tuple[int, str], int] = {}
    used: dict[int, set[int]] = {}
    count: dict[int, int] = {}
    for _, held in promises.pods:
        blocks = (
            held.of(MemoryHoldings).pod_memory
            if held.of(MemoryHoldings).pod_memory is not None
            else [b for _, each in held.of(MemoryHoldings).memory for b in each]
        )
        for block in blocks:
            key = (block.nodes.bits, block.resource)
            promised[key] = promised.get(key, 0) + block.size_bytes
            for node_id in block.nodes:
                used.setdefault(node_id, set()).add(block.nodes.bits)
                count[node_id] = count.get(node_id, 0) + 1
    for node_id, groups in used.items():
        if len(groups) > 1:
            yield f"node {node_id} is used in groups {sorted(groups)}"
    for each in memory_accounts(promises):
        if each.assignments != count.get(each.id, 0):
            yield f"node {each.id} counts {each.assignments} blocks, there are {count.get(each.id, 0)}"
        expected = used.get(each.id, {1 << each.id})
        if {each.cells.bits} != expected:
            yield f"node {each.id} is in the group {each.cells}, used in {sorted(expected)}"
        for resource, table in each.tables:
            if table.reserved + table.free != table.allocatable or table.reserved < 0 or table.free < 0:
                yield f"node {each.id}, {resource}: {table}"
    taken: dict[tuple[int, str], int] = {}
    for each in memory_accounts(promises):
        for resource, table in each.tables:
            key = (each.cells.bits, resource)
            taken[key] = taken.get(key, 0) + table.reserved
    for key in taken.keys() | promised.keys():
        if node.providers.of(MemoryResource).manager.static and taken.get(key, 0) != promised.get(key, 0):
            yield f"group {key[0]:b}, {key[1]}: {taken.get(key, 0)} taken, {promised.get(key, 0)} promised"


def settled(promises: Promises) -> Promises:
    """Without where a group's bytes lie: that depends on the order of releases, and only the group's sums mean something."""
    sums: dict[tuple[int, str], int] = {}
    for each in memory_accounts(promises):
        for resource, table in each.tables:
            key = (each.cells.bits, resource)
            sums[key] = sums.get(key, 0) + table.reserved

    def flattened(each: MemoryNode) -> MemoryNode:
        tables = tuple((r, replace(t, reserved=sums[each.cells.bits, r], free=0)) for r, t in each.tables)
        return replace(each, tables=tables)

    return with_memory_accounts(promises, tuple(flattened(each) for each in memory_accounts(promises)))
