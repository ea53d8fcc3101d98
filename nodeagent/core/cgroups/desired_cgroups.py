"""Which cgroups should exist and what they should hold: the values that follow from the promises.

Knows no kernel file format and no order of writes (write_order.py decides on that).
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers, isolation
from nodeagent.core.cgroups.partitions import NO_PARTITION, partitioned
from nodeagent.core.model.cgroup import (
    Attribute,
    ByteLimit,
    CpuMax,
    DesiredCgroup,
    ObservedCgroups,
    Value,
    cpu_quota,
    cpu_shares,
    cpu_weight,
)
from nodeagent.core.model.cgroup_layout import BEST_EFFORT, BURSTABLE, is_above
from nodeagent.core.model.config import UNLIMITED_SWAP, Config
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import CPU, Container, Pod, QosClass
from nodeagent.core.model.pod_resources import container_cgroup_amounts, pod_cgroup_amounts
from nodeagent.core.model.promises import Isolation, Promises
from nodeagent.core.model.runtime_containers import ContainerKey
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.model.topology import Topology

CONTROLLERS = frozenset({"cpuset", "cpu", "memory"})
_EXTRA_CONTROLLERS = frozenset({"pids", "hugetlb", "io"})
_ASKABLE = frozenset({Attribute.CPUSET_CPUS, Attribute.CPUSET_MEMS, Attribute.CPU_MAX})


class Kernel(Struct, frozen=True):
    """The properties of the running kernel and machine that the desired cgroups depend on."""

    page_bytes: int
    memory_nodes: NumaSet
    """Nodes that have memory now."""
    online: CpuSet
    extra_controllers: frozenset[str] = frozenset()
    """Of `pids`, `hugetlb`, …: those available for the pods' cgroup and worth enabling for accounting."""
    path_to_partitions: tuple[str, ...] = ()
    """Cgroups above a pod's that must hand down the CPUs of a partition, the topmost first. Empty: the kernel has none that lie below
    others (remote ones; kernel 6.7).
    """
    limits_swap: bool = False
    """Whether cgroups have a limit of swap. They don't where the kernel was built or booted without (`swapaccount=0`)."""

    @classmethod
    def of(cls, topology: Topology, page_bytes: int, observed: ObservedCgroups) -> "Kernel":
        """Return it for a machine and its cgroups."""
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
    """Return the cgroups that hand down CPUs to partitions, the topmost first. Empty: not all of them can."""
    paths = ("", *sorted(path for path in observed if is_above(path)))
    groups = [observed.get(path) for path in paths]
    can_all = all(group is not None and group.get(Attribute.CPUSET_CPUS_EXCLUSIVE) is not None for group in groups)
    return paths[::-1] if can_all else ()


def desired_cgroups(config: Config, managers: Managers, kernel: Kernel, state: NodeState) -> tuple[DesiredCgroup, ...]:
    """Compute what every cgroup of ours should hold, parents before children.

    The pods' cgroup itself is systemd's: only the controllers for its children are desired (D9).
    """
    present = [e for e in state.entries if e.is_active and not e.is_of_runtime]
    controllers = CONTROLLERS | kernel.extra_controllers
    gate = config.placement.gate("PodLevelResources")
    burstable = [pod_cgroup_amounts(e.pod, pod_level_resources=gate) for e in present if e.qos is QosClass.BURSTABLE]
    burstable_milli = sum(amounts.cpu_request_milli for amounts in burstable)
    pods = tuple(
        want
        for entry in present
        for want in (
            _units(managers, kernel, state, entry)
            if entry.is_of_systemd
            else _pod_cgroups(config, managers, kernel, state, entry, controllers)
        )
    )
    return (
        *_above_pods(kernel, controllers, pods),
        _class_cgroup(BURSTABLE, kernel, controllers, burstable_milli),
        _class_cgroup(BEST_EFFORT, kernel, controllers, 0),
        *pods,
    )


def runtime_cgroups(
    config: Config, managers: Managers, kernel: Kernel, state: NodeState
) -> dict[ContainerKey, DesiredCgroup]:
    """Compute what the cgroups of a container runtime's containers should hold, of what it can be asked for.

    The runtime sets the rest as kubelet asks. It has no cgroup that names other CPUs in case these go, and hands none down to partitions.
    """
    remote = replace(kernel, path_to_partitions=())
    return {
        ContainerKey(entry.pod.uid, container.name): _askable(want)
        for entry in state.entries
        if entry.is_active and entry.is_of_runtime
        for container, want in zip(
            entry.pod.containers,
            _pod_cgroups(config, managers, remote, state, entry, frozenset())[1:],
            strict=True,
        )
    }


def _askable(want: DesiredCgroup) -> DesiredCgroup:
    attributes = tuple((attribute, value) for attribute, value in want.attributes if attribute in _ASKABLE)
    return replace(want, controllers=frozenset(), attributes=attributes)


def _class_cgroup(path: str, kernel: Kernel, controllers: frozenset[str], cpu_milli: int) -> DesiredCgroup:
    """Return the cgroup of a QoS class, none of whose pods has exclusive CPUs."""
    weight = (Attribute.CPU_WEIGHT, cpu_weight(cpu_shares(cpu_milli)))
    return DesiredCgroup(path, controllers, (weight, *(NO_PARTITION if kernel.path_to_partitions else ())))


def _above_pods(kernel: Kernel, controllers: frozenset[str], pods: Iterable[DesiredCgroup]) -> Iterator[DesiredCgroup]:
    """Return the pods' cgroup and those above it: of these, only the CPUs that they hand down to partitions (D27)."""
    if not kernel.path_to_partitions:
        yield DesiredCgroup("", controllers)
    cpus = CpuSet()
    for pod in pods:
        cpus |= pod.partition_cpus()
    for path in kernel.path_to_partitions:
        handed_down = ((Attribute.CPUSET_CPUS_EXCLUSIVE, cpus),)
        yield DesiredCgroup(path, controllers if not path else frozenset(), handed_down)


def _pod_cgroups(
    config: Config, managers: Managers, kernel: Kernel, state: NodeState, entry: PodEntry, controllers: frozenset[str]
) -> tuple[DesiredCgroup, ...]:
    """Return a pod's cgroup and those of its containers.

    Once none of a container's CPUs is online, the kernel lets it run wherever its pod's cgroup and its payload's may: that is never on
    another pod's CPUs. Were none online of those that the pod's cgroup holds either, that would get all of the one above: so it holds the
    reserved ones too, which are never given away. CPUs that are offline stay in it: nothing is to be written when they go and come.
    """
    levels = {c.name: isolation(managers, state.promises, entry.pod, c.name) for c in entry.pod.containers}
    resources = pod_cgroup_amounts(entry.pod, pod_level_resources=config.placement.gate("PodLevelResources"))
    has_quota = config.cpu_cfs_quota and not _is_unlimited_pod(config, managers, state.promises, entry.pod, levels)
    pod_limit = resources.cpu_limit_milli if has_quota else None
    pool = shared_pool(managers, state.promises, kernel.online)
    containers = tuple(
        _container_cgroup(config, managers, kernel, state, entry, container, levels[container.name], pool)
        for container in entry.pod.containers
    )
    cpus = managers.reserved
    for container, want in zip(entry.pod.containers, containers, strict=True):
        if state.promises.own_set(entry.pod.uid, container.name):
            cpus |= want.fallback_cpus()
        else:
            cpus |= state.promises.default if managers.providers.cpu.static else kernel.online
    pod = DesiredCgroup(
        entry.pod_path,
        controllers,
        (
            (Attribute.CPUSET_CPUS, cpus),
            (Attribute.CPU_WEIGHT, cpu_weight(cpu_shares(resources.cpu_request_milli))),
            (Attribute.CPU_MAX, _quota(pod_limit, config)),
            (Attribute.MEMORY_MAX, _memory_limit(resources.memory_limit_bytes, kernel)),
        ),
    )
    if not kernel.path_to_partitions:
        return (pod, *containers)
    own = {
        want.path: state.promises.own_set(entry.pod.uid, container.name) or CpuSet()
        for container, want in zip(entry.pod.containers, containers, strict=True)
        if want.is_exclusive and levels[container.name] is not Isolation.MIXED
    }
    # What is between pods of the other classes and the pods' cgroup hands nothing down.
    is_apart = config.host_isolation == "partition" and entry.qos is QosClass.GUARANTEED
    return partitioned(
        pod,
        containers,
        own if is_apart else {},
        isolated=managers.topology.isolated,
        is_unbalanced=entry.pod.is_isolated,
    )


def _units(managers: Managers, kernel: Kernel, state: NodeState, entry: PodEntry) -> Iterator[DesiredCgroup]:
    """Return the units that a pod's containers stand for, as far as they have been seen.

    CPUs and memory nodes are decided here, all else is in the units' own files. There is no cgroup around them; one that has no CPU left
    runs with the host, on the reserved ones. If none of these is online, either, nothing is desired of its CPUs: to systemd an empty set
    says that there is no restriction.
    """
    pool = shared_pool(managers, state.promises, kernel.online) or managers.reserved & kernel.online
    for container, status in entry.pairs():
        if status.unit_before is None:
            continue
        path = entry.container_path(container.name)
        if entry.deleting_since_ms is not None:
            yield DesiredCgroup(path, is_leaf=True, goes_back_to=status.unit_before)
            continue
        own = state.promises.own_set(entry.pod.uid, container.name)
        level = isolation(managers, state.promises, entry.pod, container.name)
        cpus = usable_cpus(own, pool, kernel.online, is_mixed=level is Isolation.MIXED)
        # Where nothing is decided about its memory, its own file counts.
        mems = _decided_nodes(kernel, state.promises, entry.pod, container)
        mems = mems or status.unit_before.allowed_memory_nodes & kernel.memory_nodes
        yield DesiredCgroup(
            path,
            attributes=(
                *(((Attribute.CPUSET_CPUS, cpus),) if cpus else ()),
                (Attribute.CPUSET_MEMS, mems or kernel.memory_nodes),
            ),
            exclusive_cpus=CpuSet() if own is None else own & kernel.online,
            shares_with=entry.pod_path + "/",
            is_leaf=True,
            meanwhile=pool,
        )


def _decided_nodes(kernel: Kernel, promises: Promises, pod: Pod, container: Container) -> NumaSet:
    asked_for = NumaSet() if pod.numa_node is None else NumaSet.of(pod.numa_node) & kernel.memory_nodes
    return promises.memory_nodes(pod.uid, container.name) or asked_for


def _shared_by_all(managers: Managers, promises: Promises) -> CpuSet:
    """Where what has no CPUs of its own may fall back: a thread that has narrowed itself to one CPU of the pool, once this goes."""
    return promises.default if managers.providers.cpu.static else managers.topology.online | managers.topology.offline


def shared_pool(managers: Managers, promises: Promises, online: CpuSet) -> CpuSet:
    """CPUs of everything without exclusive CPUs. Policy none doesn't track them (kubelet's default set stays empty): all.

    Of the class of cores that the configuration names for it, as long as it has any of these.
    """
    pool = promises.default & online if managers.providers.cpu.static else online
    of_class = managers.topology.core_classes.get(managers.placement.shared_core_class, CpuSet())
    return pool & of_class or pool


def _container_cgroup(
    config: Config,
    managers: Managers,
    kernel: Kernel,
    state: NodeState,
    entry: PodEntry,
    container: Container,
    level: Isolation,
    pool: CpuSet,
) -> DesiredCgroup:
    promises, uid = state.promises, entry.pod.uid
    own = promises.own_set(uid, container.name)
    cpus = usable_cpus(own, pool, kernel.online, is_mixed=level is Isolation.MIXED)
    mems = _decided_nodes(kernel, promises, entry.pod, container) or kernel.memory_nodes
    amounts = container_cgroup_amounts(
        entry.pod, container, pod_level_resources=config.placement.gate("PodLevelResources")
    )
    # Its own CPUs also while they are offline: nothing is to be written when they go and come.
    attributes: list[tuple[Attribute, Value]] = [
        (Attribute.FALLBACK_CPUS, (own | cpus if own else _shared_by_all(managers, promises)) | managers.reserved),
        (Attribute.CPUSET_MEMS, mems),
        (Attribute.CPU_WEIGHT, cpu_weight(cpu_shares(amounts.cpu_request_milli))),
        (Attribute.CPU_MAX, _container_quota(config, container, amounts.cpu_limit_milli, level, cpus)),
        (Attribute.MEMORY_MAX, _memory_limit(amounts.memory_limit_bytes, kernel)),
        (Attribute.MEMORY_OOM_GROUP, True),
    ]
    if kernel.limits_swap:
        attributes.append((Attribute.MEMORY_SWAP_MAX, ByteLimit(None if config.swap_behavior == UNLIMITED_SWAP else 0)))
    if cpus:
        attributes.insert(0, (Attribute.CPUSET_CPUS, cpus))
    return DesiredCgroup(
        entry.container_path(container.name),
        frozenset({"cpuset"}),
        attributes=tuple(attributes),
        exclusive_cpus=CpuSet() if own is None else own & kernel.online,
        offline_cpus=CpuSet() if own is None else own - kernel.online,
        shares_with=entry.pod_path + "/",
        is_starved=not cpus,
        is_leaf=True,
    )


def usable_cpus(own: CpuSet | None, pool: CpuSet, online: CpuSet, *, is_mixed: bool = False) -> CpuSet:
    """CPUs that a container runs on now: its exclusive ones as far as they are online, otherwise the shared pool (D14); both, if it is
    mixed. Empty: it starves.
    """
    mine = own & online if own is not None else CpuSet()
    return mine | (pool & online) if is_mixed or not mine else mine


def _is_unlimited_pod(
    config: Config, managers: Managers, promises: Promises, pod: Pod, levels: dict[str, Isolation]
) -> bool:
    """Whether the pod's cgroup has no CPU limit because of exclusive CPUs (spec of kubelet's CFS quota, D15)."""
    if not config.placement.gate("DisableCPUQuotaWithExclusiveCPUs"):
        return False
    exclusive = [level.has_own_cpus for level in levels.values()]
    if managers.is_pod_level(pod) or promises.pod_set(pod.uid) is not None:
        return all(exclusive)
    return any(level is not Isolation.HOST for level in levels.values())


def _container_quota(
    config: Config, container: Container, limit_milli: int | None, level: Isolation, cpus: CpuSet
) -> CpuMax:
    """D15: no quota with exclusive CPUs; in a pod's own pool its own limit, otherwise no more than the pool can provide.

    Args:
        config: the configuration.
        container: with its own limit, if it has one.
        limit_milli: the container's own limit, otherwise its pod's.
        level: how far the container is isolated.
        cpus: on which it runs.
    """
    has_no_quota = level.has_own_cpus and config.placement.gate("DisableCPUQuotaWithExclusiveCPUs")
    if has_no_quota or not config.cpu_cfs_quota:
        return _quota(None, config)
    own = container.resources.limits.get(CPU)
    if level is Isolation.POD and (own is None or own.nano == 0):
        pool_milli = len(cpus) * 1000
        return _quota(pool_milli if limit_milli is None else min(limit_milli, pool_milli), config)
    return _quota(limit_milli, config)


def _quota(limit_milli: int | None, config: Config) -> CpuMax:
    period_us = config.cpu_cfs_quota_period_us
    return CpuMax(None, period_us) if limit_milli is None else cpu_quota(limit_milli, period_us)


def _memory_limit(limit_bytes: int | None, kernel: Kernel) -> ByteLimit:
    """The kernel keeps whole pages and rounds down (mm/page_counter.c): ask for what it will hold."""
    if limit_bytes is None or limit_bytes == 0:
        return ByteLimit(None)
    return ByteLimit(limit_bytes // kernel.page_bytes * kernel.page_bytes)
