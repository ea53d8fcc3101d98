"""Desired cgroups: which cgroups should exist, and the values of their files, derived from the promises.

formats/kernel contains the notation of the files, and write_order.py the order of writes.
"""

from collections.abc import Iterable, Iterator, Set as AbstractSet

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.node_rules import NodeRules, isolation
from nodeagent.core.cgroups.partitions import NO_PARTITION, add_partitions
from nodeagent.core.model.cgroup import (
    Attribute,
    Attributes,
    ByteLimit,
    CpuMax,
    DesiredCgroup,
    ObservedCgroups,
    TaskLimit,
    Value,
    cpu_quota,
    cpu_shares,
    cpu_weight,
)
from nodeagent.core.model.cgroup_layout import ABOVE, BEST_EFFORT, BURSTABLE, POOL, POOL_PAYLOAD, SHARED
from nodeagent.core.model.config import UNLIMITED_SWAP, Config
from nodeagent.core.model.derived import Derived
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import CPU, Container, Pod, QosClass
from nodeagent.core.model.pod_resources import container_cgroup_amounts, pod_cgroup_amounts
from nodeagent.core.model.promises import Isolation, PodPromises, Promises
from nodeagent.core.model.runtime_containers import ContainerKey
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set, own_set_of
from nodeagent.core.resources.memory.holdings import memory_nodes_of

CONTROLLERS = frozenset({"cpuset", "cpu", "memory"})
_EXTRA_CONTROLLERS = frozenset({"pids", "hugetlb", "io"})
_ASKABLE = frozenset({Attribute.CPUSET_CPUS, Attribute.CPUSET_MEMS, Attribute.CPU_MAX})


class Kernel(Struct, frozen=True):
    """Properties of the kernel and the machine that influence the desired cgroups."""

    page_bytes: int
    memory_nodes: NumaSet
    """NUMA nodes that have memory now."""
    online: CpuSet
    extra_controllers: frozenset[str] = frozenset()
    """Controllers besides `CONTROLLERS` that are available in the pods' cgroup, such as `pids` and `hugetlb`. The agent enables them in all
    pods' cgroups, so that the kernel counts their use.
    """
    path_to_partitions: tuple[str, ...] = ()
    """Cgroups above a pod's cgroup, the topmost first. They must list a partition's CPUs in `cpuset.cpus.exclusive`. The tuple is empty if
    the kernel has no remote partitions (before 6.7).
    """
    limits_swap: bool = False
    """Whether cgroups have the file `memory.swap.max`. They don't if the kernel was built without swap accounting, or booted with
    `swapaccount=0`.
    """

    @classmethod
    def of(cls, topology: Topology, page_bytes: int, observed: ObservedCgroups) -> "Kernel":
        """Derive the properties from the machine and its observed cgroups."""
        root = observed.get("")
        controllers = root.controllers if root else frozenset()
        return cls(
            page_bytes,
            topology.memory_nodes or NumaSet.of(0),
            topology.online,
            controllers & _EXTRA_CONTROLLERS,
            path_to_partitions(observed),
            root is not None and root.get(Attribute.MEMORY_SWAP_MAX) is not None,
        )


def path_to_partitions(observed: ObservedCgroups) -> tuple[str, ...]:
    """Return the pods' cgroup and all cgroups above it, the topmost first. They must list the CPUs of all partitions. The tuple is empty if
    one of them has no `cpuset.cpus.exclusive`.
    """
    paths, above = [""], ABOVE
    while above in observed:
        paths.append(above)
        above = f"{above}/{ABOVE}"
    groups = [observed.get(path) for path in paths]
    can_all = all(group is not None and group.get(Attribute.CPUSET_CPUS_EXCLUSIVE) is not None for group in groups)
    return tuple(reversed(paths)) if can_all else ()


PodCgroups = Derived[tuple[PodEntry, PodPromises, object], tuple[int, tuple[DesiredCgroup, ...]]]
"""Desired cgroups of each pod, by UID, with the inputs from which they were derived. Each item is a pair: the CPU request in thousandths
that the pod adds to the cgroup of its QoS class, and the cgroups of the pod and its containers, or of its pinned units.
"""


def pod_cgroups(
    config: Config,
    node: NodeRules,
    kernel: Kernel,
    state: NodeState,
    last: PodCgroups | None = None,
    quiet: AbstractSet[str] = frozenset(),
) -> PodCgroups:
    """Compute the desired cgroups of each pod. The cgroups of unchanged pods are taken from an earlier result.

    Other pods influence a pod's cgroups only by the CPUs that they leave in the shared pool.

    Args:
        config: the configuration.
        node: the machine, its reserved CPUs, and the rules for sharing CPUs.
        kernel: the properties of the kernel and the machine.
        state: the state whose promises the cgroups implement.
        last: the result of the previous call. None means that there is none.
        quiet: the UIDs of pods that are known to be unchanged since the previous call. They aren't even compared.
    """
    controllers = CONTROLLERS | kernel.extra_controllers
    pool, default = shared_pool(node, state.promises, kernel.online), default_set(state.promises)
    gate = config.placement.gate("PodLevelResources")

    def make(inputs: tuple[PodEntry, PodPromises, object]) -> tuple[int, tuple[DesiredCgroup, ...]]:
        entry = inputs[0]
        amounts = pod_cgroup_amounts(entry.pod, pod_level_resources=gate)
        milli = amounts.cpu_request_milli if entry.qos is QosClass.BURSTABLE else 0
        if entry.pins_units:
            return milli, tuple(_make_unit_cgroups(config, node, kernel, state, entry))
        if entry.is_pooled:
            return milli, _make_pooled_cgroups(config, kernel, entry, controllers, is_starved=not pool)
        return milli, _make_pod_cgroups(config, node, kernel, state, entry, controllers)

    def find_inputs(entry: PodEntry) -> tuple[PodEntry, PodPromises, object]:
        held = state.promises.of_pod(entry.pod.uid)
        return entry, held, default if _uses_pool(entry, held, kernel.online) else None

    return (last or PodCgroups()).derive(
        (config, node, kernel, bool(pool)),
        [(entry.pod.uid, entry) for entry in state.own_entries() if entry.is_active],
        find_inputs,
        make,
        quiet - {entry.pod.uid for entry in state.entries if not entry.is_pooled},
    )


def _uses_pool(entry: PodEntry, held: PodPromises, online: CpuSet) -> bool:
    """Return whether a pod's cgroups depend on the CPUs of the shared pool. A pooled pod's cgroups don't, because they have no cpuset."""
    if entry.is_pooled or entry.pins_units:
        return entry.pins_units
    own = dict(held.of(CpuHoldings).cpus)
    return any(
        container.is_mixed or not own.get(container.name, CpuSet()) & online for container in entry.pod.containers
    )


def desired_cgroups(
    config: Config, node: NodeRules, kernel: Kernel, state: NodeState, pods: PodCgroups | None = None
) -> tuple[DesiredCgroup, ...]:
    """Compute the desired values of all cgroups that the agent manages, parents before children.

    The pods' cgroup itself belongs to systemd. The agent therefore only enables controllers in it, and lists the CPUs of partitions (D9).

    Args:
        config: the configuration.
        node: the machine, its reserved CPUs, and the rules for sharing CPUs.
        kernel: the properties of the kernel and the machine.
        state: the state whose promises the cgroups implement.
        pods: the result of `pod_cgroups` for the same arguments. None means that it hasn't been computed yet.
    """
    pods = pods or pod_cgroups(config, node, kernel, state)
    controllers = CONTROLLERS | kernel.extra_controllers
    pooled_milli = unpooled_milli = 0
    of_pods, unpooled = list[DesiredCgroup](), list[DesiredCgroup]()
    for inputs, (milli, wants) in pods.kept.values():
        of_pods += wants
        if inputs[0].is_pooled:
            pooled_milli += milli
        else:
            unpooled_milli += milli
            unpooled += wants
    return (
        *_make_cgroups_above_pods(kernel, controllers, unpooled),
        _make_class_cgroup(BURSTABLE, kernel, controllers, unpooled_milli),
        _make_class_cgroup(BEST_EFFORT, kernel, controllers, 0),
        *_make_pool_cgroups(node, kernel, state.promises, controllers, pooled_milli),
        *of_pods,
    )


def runtime_cgroups(
    config: Config, node: NodeRules, kernel: Kernel, state: NodeState
) -> dict[ContainerKey, DesiredCgroup]:
    """Compute the desired values for the containers of a container runtime, limited to values that the runtime sets at the agent's request.

    The runtime sets all other values as kubelet requests. These containers have no partitions, and no payload cgroup with fallback CPUs.
    """
    remote = replace(kernel, path_to_partitions=())
    found = {}
    for entry in state.requested_entries():
        containers = _make_pod_cgroups(config, node, remote, state, entry, frozenset())[1:]
        for container, want in zip(entry.pod.containers, containers, strict=True):
            attributes = tuple((attribute, value) for attribute, value in want.attributes if attribute in _ASKABLE)
            key = ContainerKey(entry.pod.uid, container.name)
            found[key] = replace(want, controllers=frozenset(), attributes=attributes)
    return found


def _make_class_cgroup(
    path: str, kernel: Kernel, controllers: frozenset[str], cpu_milli: int, cpuset: Attributes = ()
) -> DesiredCgroup:
    """Return the cgroup of QoS class Burstable or BestEffort. There are no partitions below it, because only Guaranteed pods can have
    partitions.
    """
    weight = (Attribute.CPU_WEIGHT, cpu_weight(cpu_shares(cpu_milli)))
    return DesiredCgroup(path, controllers, (*cpuset, weight, *(NO_PARTITION if kernel.path_to_partitions else ())))


def _make_pool_cgroups(
    node: NodeRules, kernel: Kernel, promises: Promises, controllers: frozenset[str], burstable_milli: int
) -> Iterator[DesiredCgroup]:
    """Return the shared pool's cgroups, which contain the cgroups of pooled pods.

    The fallback CPUs are the same as for a container in the shared pool that has a separate cpuset (`_make_pod_cgroups`). The cgroups below
    the payload cgroup have no cpuset, because the kernel looks for fallback CPUs in the cpuset of the process's own cgroup and would find
    an empty one (D14).
    """
    pool = shared_pool(node, promises, kernel.online)
    bounds = node.reserved | (default_set(promises) if node.placement.has_static_cpus else kernel.online)
    yield _make_class_cgroup(SHARED, kernel, controllers, burstable_milli, ((Attribute.CPUSET_CPUS, bounds),))
    yield DesiredCgroup(
        POOL,
        controllers,
        (
            *(((Attribute.CPUSET_CPUS, pool),) if pool else ()),
            (Attribute.FALLBACK_CPUS, _find_shared_fallback(node, promises) | node.reserved),
            (Attribute.CPUSET_MEMS, kernel.memory_nodes),
            *(NO_PARTITION if kernel.path_to_partitions else ()),
        ),
        is_starved=not pool,
        is_leaf=True,
    )
    without_cpuset = controllers - {"cpuset"}
    yield DesiredCgroup(POOL_PAYLOAD, without_cpuset)
    for path, milli in ((BURSTABLE, burstable_milli), (BEST_EFFORT, 0)):
        weight = (Attribute.CPU_WEIGHT, cpu_weight(cpu_shares(milli)))
        yield DesiredCgroup(f"{POOL_PAYLOAD}/{path}", without_cpuset, (weight,))


def _make_pooled_cgroups(
    config: Config, kernel: Kernel, entry: PodEntry, controllers: frozenset[str], *, is_starved: bool
) -> tuple[DesiredCgroup, ...]:
    """Return the cgroups of a pooled pod and its containers. They have no cpuset, because the pool's cgroup sets their CPUs and memory
    nodes.
    """
    limit = pod_cgroup_amounts(
        entry.pod, pod_level_resources=config.placement.gate("PodLevelResources")
    ).cpu_limit_milli
    pod = _make_pod_limits(config, kernel, entry, limit if config.cpu_cfs_quota else None)
    containers = (
        DesiredCgroup(
            entry.container_path(container.name),
            attributes=_make_container_limits(config, kernel, entry, container, Isolation.HOST, CpuSet()),
            is_starved=is_starved,
            is_leaf=True,
        )
        for container in entry.pod.containers
    )
    return DesiredCgroup(entry.pod_path, controllers - {"cpuset"}, pod), *containers


def _make_cgroups_above_pods(
    kernel: Kernel, controllers: frozenset[str], pods: Iterable[DesiredCgroup]
) -> Iterator[DesiredCgroup]:
    """Return the pods' cgroup and the cgroups above it, each with the CPUs of all partitions below it (D27)."""
    if not kernel.path_to_partitions:
        yield DesiredCgroup("", controllers)
        return
    cpus = CpuSet()
    for pod in pods:
        cpus |= pod.partition_cpus()
    for path in kernel.path_to_partitions:
        handed_down = ((Attribute.CPUSET_CPUS_EXCLUSIVE, cpus),)
        yield DesiredCgroup(path, controllers if not path else frozenset(), handed_down)


def _make_pod_cgroups(
    config: Config, node: NodeRules, kernel: Kernel, state: NodeState, entry: PodEntry, controllers: frozenset[str]
) -> tuple[DesiredCgroup, ...]:
    """Return a pod's cgroup and the cgroups of its containers.

    If all CPUs of a container go offline, the kernel lets its threads run on the CPUs of the payload cgroup and of the pod's cgroup.
    Neither contains CPUs of other pods. If all CPUs of the pod's cgroup went offline as well, the kernel would use the parent's CPUs. The
    pod's cgroup therefore also lists the reserved CPUs, which are never allocated. Offline CPUs stay listed, so that no write is needed
    when a CPU goes offline and comes back.
    """
    levels = {c.name: isolation(node, state.promises, entry.pod, c.name) for c in entry.pod.containers}
    resources = pod_cgroup_amounts(entry.pod, pod_level_resources=config.placement.gate("PodLevelResources"))
    has_quota = config.cpu_cfs_quota and not _is_unlimited_pod(config, node, state.promises, entry.pod, levels)
    pod_limit = resources.cpu_limit_milli if has_quota else None
    pool = shared_pool(node, state.promises, kernel.online)
    containers = tuple(
        _make_container_cgroup(config, node, kernel, state, entry, container, levels[container.name], pool)
        for container in entry.pod.containers
    )
    cpus = node.reserved
    for container, want in zip(entry.pod.containers, containers, strict=True):
        if own_set_of(state.promises, entry.pod.uid, container.name):
            cpus |= want.fallback_cpus()
        else:
            cpus |= default_set(state.promises) if node.placement.has_static_cpus else kernel.online
    limits = _make_pod_limits(config, kernel, entry, pod_limit)
    pod = DesiredCgroup(entry.pod_path, controllers, ((Attribute.CPUSET_CPUS, cpus), *limits))
    if not kernel.path_to_partitions:
        return (pod, *containers)
    own = {
        want.path: held
        for container, want in zip(entry.pod.containers, containers, strict=True)
        for held in (own_set_of(state.promises, entry.pod.uid, container.name) or CpuSet(),)
        if want.is_exclusive
        and levels[container.name] is not Isolation.MIXED
        # If a container were a partition, it would also get the siblings that have to stay idle.
        and (len(containers) == 1 or held & kernel.online == want.exclusive_cpus)
    }
    # The cgroups of the QoS classes Burstable and BestEffort pass no CPUs down to partitions, so only Guaranteed pods can have partitions.
    is_apart = config.host_isolation == "partition" and entry.qos is QosClass.GUARANTEED
    return add_partitions(
        pod,
        containers,
        own if is_apart else {},
        isolated=node.topology.isolated,
        is_unbalanced=entry.pod.is_isolated,
    )


def _make_unit_cgroups(
    config: Config, node: NodeRules, kernel: Kernel, state: NodeState, entry: PodEntry
) -> Iterator[DesiredCgroup]:
    """Yield the cgroups of the systemd units that a pod pins. Units whose original settings aren't recorded yet are left out.

    The agent sets only a unit's CPUs and memory nodes, and the unit file determines all other settings. The real cgroups of units are not
    below the pod's cgroup. A unit whose CPUs are all unavailable runs on the shared pool or, if the pool is empty, on the reserved CPUs. If
    no reserved CPU is online either, the unit's CPUs stay unchanged, because systemd interprets an empty set as "no restriction".
    """
    pool = shared_pool(node, state.promises, kernel.online) or node.reserved & kernel.online
    for container, status in entry.pairs():
        if status.unit_before is None:
            continue
        path = entry.container_path(container.name)
        if entry.deleting_since_ms is not None:
            yield DesiredCgroup(path, is_leaf=True, goes_back_to=status.unit_before)
            continue
        own = own_set_of(state.promises, entry.pod.uid, container.name)
        level = isolation(node, state.promises, entry.pod, container.name)
        alone = None if own is None else _find_own_threads(config, node, entry.pod, own & kernel.online)
        cpus = usable_cpus(alone, pool, kernel.online, is_mixed=level is Isolation.MIXED)
        # If no memory nodes were decided for the unit, AllowedMemoryNodes= of its unit file applies.
        mems = _find_wanted_memory_nodes(kernel, state.promises, entry.pod, container)
        mems = mems or status.unit_before.allowed_memory_nodes & kernel.memory_nodes
        yield DesiredCgroup(
            path,
            attributes=(
                *(((Attribute.CPUSET_CPUS, cpus),) if cpus else ()),
                (Attribute.CPUSET_MEMS, mems or kernel.memory_nodes),
            ),
            exclusive_cpus=alone or CpuSet(),
            shares_with=entry.pod_path + "/",
            is_leaf=True,
            meanwhile=pool,
        )


def _find_wanted_memory_nodes(kernel: Kernel, promises: Promises, pod: Pod, container: Container) -> NumaSet:
    asked_for = NumaSet() if pod.numa_node is None else NumaSet.of(pod.numa_node) & kernel.memory_nodes
    return memory_nodes_of(promises, pod.uid, container.name) or asked_for


def _find_shared_fallback(node: NodeRules, promises: Promises) -> CpuSet:
    """Return the fallback CPUs of containers in the shared pool. A thread that has pinned itself to a CPU runs on them when this CPU goes
    offline.
    """
    return default_set(promises) if node.placement.has_static_cpus else node.topology.online | node.topology.offline


def shared_pool(node: NodeRules, promises: Promises, online: CpuSet) -> CpuSet:
    """Return the online CPUs of the shared pool. If the pool contains CPUs of the class `sharedCoreClass`, only these are returned.

    Under policy `none`, no shared pool is recorded (kubelet's default set stays empty), so all online CPUs form the pool.
    """
    pool = default_set(promises) & online if node.placement.has_static_cpus else online
    of_class = node.topology.core_classes.get(node.placement.shared_core_class, CpuSet())
    return pool & of_class or pool


def _make_container_cgroup(
    config: Config,
    node: NodeRules,
    kernel: Kernel,
    state: NodeState,
    entry: PodEntry,
    container: Container,
    level: Isolation,
    pool: CpuSet,
) -> DesiredCgroup:
    promises, uid = state.promises, entry.pod.uid
    own = own_set_of(promises, uid, container.name)
    alone = None if own is None else _find_own_threads(config, node, entry.pod, own & kernel.online)
    cpus = usable_cpus(alone, pool, kernel.online, is_mixed=level is Isolation.MIXED)
    mems = _find_wanted_memory_nodes(kernel, promises, entry.pod, container) or kernel.memory_nodes
    # Exclusive CPUs stay listed while they are offline, so that no write is needed when they go offline and return.
    attributes: list[tuple[Attribute, Value]] = [
        (
            Attribute.FALLBACK_CPUS,
            (own | cpus if own else _find_shared_fallback(node, promises)) | node.reserved,
        ),
        (Attribute.CPUSET_MEMS, mems),
        *_make_container_limits(config, kernel, entry, container, level, cpus),
    ]
    if cpus:
        attributes.insert(0, (Attribute.CPUSET_CPUS, cpus))
    return DesiredCgroup(
        entry.container_path(container.name),
        frozenset({"cpuset"}),
        attributes=tuple(attributes),
        exclusive_cpus=alone or CpuSet(),
        offline_cpus=CpuSet() if own is None else own - kernel.online,
        shares_with=entry.pod_path + "/",
        is_starved=not cpus,
        is_leaf=True,
    )


def _find_own_threads(config: Config, node: NodeRules, pod: Pod, own: CpuSet) -> CpuSet:
    """Return the CPUs on which a container with the exclusive CPUs `own` runs. If the pod's quiet settings keep sibling threads idle, this
    is only one CPU of each core.
    """
    settings = None if pod.quiet is None else pod.quiet.resolve(config.profiles)
    if settings is None or not settings.idle_siblings:
        return own
    return CpuSet.from_ids(min(core & own) for core in node.topology.cores.values() if core & own)


def _make_pod_limits(config: Config, kernel: Kernel, entry: PodEntry, limit_milli: int | None) -> Attributes:
    """Return the values of a pod's cgroup, except for the cpuset. If `limit_milli` is None, the pod has no CPU limit."""
    resources = pod_cgroup_amounts(entry.pod, pod_level_resources=config.placement.gate("PodLevelResources"))
    tasks = TaskLimit(config.pod_pids_limit if config.pod_pids_limit > 0 else None)
    return (
        (Attribute.CPU_WEIGHT, cpu_weight(cpu_shares(resources.cpu_request_milli))),
        (Attribute.CPU_MAX, _make_cpu_max(limit_milli, config)),
        (Attribute.MEMORY_MAX, _round_memory_limit(resources.memory_limit_bytes, kernel)),
        *(((Attribute.PIDS_MAX, tasks),) if "pids" in kernel.extra_controllers else ()),
    )


def _make_container_limits(
    config: Config, kernel: Kernel, entry: PodEntry, container: Container, level: Isolation, cpus: CpuSet
) -> Attributes:
    """Return the values of a container's cgroup, except for the cpuset."""
    amounts = container_cgroup_amounts(
        entry.pod, container, pod_level_resources=config.placement.gate("PodLevelResources")
    )
    swap = ByteLimit(None if config.swap_behavior == UNLIMITED_SWAP else 0)
    return (
        (Attribute.CPU_WEIGHT, cpu_weight(cpu_shares(amounts.cpu_request_milli))),
        (Attribute.CPU_MAX, _compute_container_quota(config, container, amounts.cpu_limit_milli, level, cpus)),
        (Attribute.MEMORY_MAX, _round_memory_limit(amounts.memory_limit_bytes, kernel)),
        (Attribute.MEMORY_OOM_GROUP, True),
        *(((Attribute.MEMORY_SWAP_MAX, swap),) if kernel.limits_swap else ()),
    )


def usable_cpus(own: CpuSet | None, pool: CpuSet, online: CpuSet, *, is_mixed: bool = False) -> CpuSet:
    """Return the CPUs on which a container runs now: its online exclusive CPUs or, if none of these is online, the shared pool (D14). A
    mixed container runs on both. An empty set means that the container is starved.
    """
    mine = own & online if own is not None else CpuSet()
    return mine | (pool & online) if is_mixed or not mine else mine


def _is_unlimited_pod(
    config: Config, node: NodeRules, promises: Promises, pod: Pod, levels: dict[str, Isolation]
) -> bool:
    """Return whether the pod's cgroup has no CPU limit because of the exclusive CPUs of its containers (D15, as in kubelet)."""
    if not config.placement.gate("DisableCPUQuotaWithExclusiveCPUs"):
        return False
    exclusive = [level.has_own_cpus for level in levels.values()]
    if node.rules.gates.is_managed_pod(pod) or promises.of_pod(pod.uid).of(CpuHoldings).pod_cpus is not None:
        return all(exclusive)
    return any(level is not Isolation.HOST for level in levels.values())


def _compute_container_quota(
    config: Config, container: Container, limit_milli: int | None, level: Isolation, cpus: CpuSet
) -> CpuMax:
    """Compute a container's CPU quota (D15).

    A container with exclusive CPUs has no quota, unless the feature gate DisableCPUQuotaWithExclusiveCPUs is off. In the pool of a pod with
    pod-level resources, a container without a limit gets a quota that equals the size of the pool.

    Args:
        config: the configuration.
        container: the container, which may have a CPU limit of its own.
        limit_milli: the CPU limit of the container or, if it has none, of the pod, in thousandths. None means that there is no limit.
        level: the isolation of the container's CPUs.
        cpus: the CPUs on which the container runs.
    """
    has_no_quota = level.has_own_cpus and config.placement.gate("DisableCPUQuotaWithExclusiveCPUs")
    if has_no_quota or not config.cpu_cfs_quota:
        return _make_cpu_max(None, config)
    own = container.resources.limits.get(CPU)
    if level is Isolation.POD and (own is None or own.nano == 0):
        pool_milli = len(cpus) * 1000
        return _make_cpu_max(pool_milli if limit_milli is None else min(limit_milli, pool_milli), config)
    return _make_cpu_max(limit_milli, config)


def _make_cpu_max(limit_milli: int | None, config: Config) -> CpuMax:
    period_us = config.cpu_cfs_quota_period_us
    return CpuMax(None, period_us) if limit_milli is None else cpu_quota(limit_milli, period_us)


def _round_memory_limit(limit_bytes: int | None, kernel: Kernel) -> ByteLimit:
    """Round a limit down to whole pages, as the kernel does (mm/page_counter.c). Otherwise the value that is read back would differ from
    the written one, and the agent would write it in every turn.
    """
    if limit_bytes is None or limit_bytes == 0:
        return ByteLimit(None)
    return ByteLimit(limit_bytes // kernel.page_bytes * kernel.page_bytes)
