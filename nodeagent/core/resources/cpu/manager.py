"""The CPU manager's policies `none` and `static`, which allocate and release exclusive CPUs.

A decision takes promises and returns new promises, with the changes of metrics. Sets of NUMA nodes are bitmasks here. pods.py handles pods
with pod-level resources.
"""

from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.metrics.manager_metrics import (
    CPU_ERRORS,
    CPU_EXCLUSIVE,
    CPU_PER_NUMA,
    CPU_REQUESTS,
    CPU_SHARED_POOL,
    MetricDeltas,
    aligned,
    aligned_failure,
    allocation_errors,
    allocations,
    assignments,
    plus,
    set_gauge,
)
from nodeagent.core.model.config import CpuPlugin, Placement
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.errata import Erratum, list_reproduced
from nodeagent.core.model.holdings import put_item
from nodeagent.core.model.idset import CpuMask, CpuSet, NumaMask
from nodeagent.core.model.pod import ContainerKind
from nodeagent.core.model.promises import Promises, with_pod
from nodeagent.core.model.refusals import Reason, Refusal, StartRefused, wrap_unexpected
from nodeagent.core.model.topology import Topology
from nodeagent.core.numa import hint_family
from nodeagent.core.resources.cpu.assignment import Picking
from nodeagent.core.resources.cpu.distribution import Distributing
from nodeagent.core.resources.cpu.holdings import (
    CpuBooks,
    CpuHoldings,
    CpuReuse,
    default_set,
    exclusive_cpus,
    free_cpus,
    grantable_cpus,
    with_default_set,
)
from nodeagent.core.resources.cpu.layout import CpuGroup, CpuLayout, NodeSet
from nodeagent.core.resources.cpu.observing import Choosing, PickObserver, Source, Spread
from nodeagent.core.resources.cpu.options import CpuOptions, judge_cpu_options, misfits
from nodeagent.core.resources.cpu.points import CpuShortage, Filter, Question, Select
from nodeagent.core.resources.cpu.shares import divide_evenly
from nodeagent.core.resources.resource import Allocation

_PREFIX = "new static policy error: "
NOBODY = PodDemand("", is_guaranteed=False, is_managed=False, is_skipped=False, containers=(), cpus=0)
"""Placeholder for the pod in questions about CPUs that are not for a pod, such as the reserved CPUs."""


class CoreClass(Struct, frozen=True):
    """Cores of one class (performance or efficiency), on a machine that has several classes."""

    name: str
    cpus: CpuMask
    layout: CpuLayout
    """Layout of the machine as if it had only the cores of this class."""
    node_sets: tuple[NodeSet, ...]


class WholeCores(Struct, frozen=True):
    """Filter step of full-pcpus-only."""

    layout: CpuLayout

    def filter(self, question: Question) -> CpuSet:
        """Return the free CPUs whose core is completely free."""
        return CpuSet(self.layout.whole_cores(question.free.bits))


class Chooser(Protocol):
    """Interface through which the CPU manager calls CPU plugins and checks their answers. plugins.py implements it. Each method may raise
    PluginFailedError.
    """

    @property
    def plugins(self) -> tuple[CpuPlugin, ...]: ...

    def filtered(self, manager: "CpuManager", question: Question, *, is_for_hints: bool) -> Question:
        """Return the question with only the free CPUs that the plugins' Filter leaves. If these are too few, PostFilter is called for other
        CPUs.
        """

    def offered(self, manager: "CpuManager", question: Question) -> Question:
        """Return the question with only the free CPUs that Filter and PostFilter leave, and with the scores from PreScore."""

    def selected(self, manager: "CpuManager", question: Question) -> CpuSet | CpuShortage:
        """Choose CPUs by the plugins' Select and Score. If no plugin chooses, the policy does."""

    def vetoed(self, question: Question, cpus: CpuSet) -> Refusal | None:
        """Call the plugins' Allocate, which may object to the chosen CPUs. Return the first objection as a refusal. None means that no
        plugin objects.
        """


class CpuManager(Struct, frozen=True):
    static: bool
    topology: Topology
    layout: CpuLayout
    options: CpuOptions
    reserved: CpuSet
    reserved_cores: CpuMask
    """All CPUs of cores that have a reserved CPU."""
    universe: CpuMask
    """All CPUs that may be in the shared pool (kubelet's default set). Reserved CPUs are left out if `strict-cpu-reservation` is set."""
    picking: Picking
    distributing: Distributing | None
    filters: tuple[Filter, ...]
    """Filters of the policy's own options, which can be applied to any set of CPUs. The filters of plugins are called in `offered`."""
    quirks: frozenset[Erratum]
    grantable: CpuMask
    """CPUs that may be allocated exclusively."""
    preferred: CpuMask = CpuMask(0)
    """CPUs that are chosen before all others if there are enough of them for the request (`isolatedCPUs: prefer`)."""
    node_sets: tuple[NodeSet, ...] = ()
    """All sets of NUMA nodes that could be hints, in the order of hints. The tuple is empty if the topology manager needs no hints, or if
    there are too many sets to list.
    """
    classes: tuple[CoreClass, ...] = ()
    """Classes of cores. There are none if the machine has only one kind of core."""
    machine: CpuLayout | None = None
    """Layout of the whole machine, if `layout` is limited to one class of cores. Otherwise None."""
    keeps_first: bool = True
    """Whether a container always keeps the CPUs of its admission when it is resized."""
    uses_all_nodes: bool = False
    """Whether containers that request memory get CPUs on every NUMA node of their hint, if possible (`sameNumaNodes`)."""
    chooser: Chooser | None = None
    """Caller of the CPU plugins. None means that no plugins are configured."""

    @property
    def plugins(self) -> tuple[CpuPlugin, ...]:
        return () if self.chooser is None else self.chooser.plugins

    @property
    def policy(self) -> Select:
        """Return the Select step that implements the configured options."""
        return self.distributing or self.picking

    def assign(self, question: Question) -> CpuSet | CpuShortage:
        """Choose CPUs by the CPU plugins. If no plugins are configured, choose them by the policy."""
        if question.count < 1:
            return CpuSet()
        if self.chooser is not None:
            return self.chooser.selected(self, question)
        return (self.distributing or self.picking).select(question)

    def for_hints(self, question: Question) -> Question:
        """Return the question with only the CPUs that plugins leave, as the basis of NUMA hints."""
        return question if self.chooser is None else self.chooser.filtered(self, question, is_for_hints=True)

    def offered(self, question: Question) -> Question:
        """Return the question with only the CPUs that plugins leave, and with the plugins' scores."""
        return question if self.chooser is None else self.chooser.offered(self, question)

    def vetoed(self, question: Question, cpus: CpuSet) -> Refusal | None:
        """Return the plugins' objection to the chosen CPUs as a refusal. None means that no plugin objects."""
        return None if self.chooser is None else self.chooser.vetoed(question, cpus)

    def asking(self, promises: Promises, pod: PodDemand, name: str | None, free: int, count: int) -> Question:
        """Build a question that asks for `count` CPUs out of the CPUs `free`."""
        return Question(self.topology, promises, pod, name, CpuSet(CpuMask(free)), count)

    def of_class(self, name: str) -> "CpuManager":
        """Return a copy of the manager that uses only the cores of this class."""
        core_class = next(each for each in self.classes if each.name == name)
        picking, distributing, filters = _build_pick_steps(self.options, core_class.layout, self.quirks, self.observer)
        return replace(
            self,
            layout=core_class.layout,
            machine=self.layout,
            picking=picking,
            distributing=distributing,
            filters=filters,
            grantable=CpuMask(self.grantable & core_class.cpus),
            node_sets=core_class.node_sets,
        )

    def of_whole_cores(self) -> "CpuManager":
        """Return a copy of the manager that allocates only whole cores, as with full-pcpus-only."""
        if self.options.full_pcpus_only:
            return self
        options = replace(self.options, full_pcpus_only=True, distribute_cpus_across_cores=False)
        quirks = self.quirks - {Erratum.HALF_CORES_HANDED_OUT}
        picking, distributing, filters = _build_pick_steps(options, self.layout, quirks, self.observer)
        return replace(self, options=options, picking=picking, distributing=distributing, filters=filters)

    def observed_by(self, observer: PickObserver | None) -> "CpuManager":
        """Return a copy of the manager that reports its choices of CPUs to this observer. None removes the observer."""
        distributing = self.distributing
        if distributing is not None:
            distributing = replace(distributing, picking=replace(distributing.picking, observer=observer))
        return replace(self, picking=replace(self.picking, observer=observer), distributing=distributing)

    @property
    def nodes(self) -> tuple[CpuGroup, ...]:
        """Return the machine's NUMA nodes that have CPUs."""
        return (self.machine or self.layout).nodes

    @property
    def observer(self) -> PickObserver | None:
        """Return the observer to which choices of CPUs are reported. It is None unless a decision is being explained."""
        return self.picking.observer

    def usable(self, question: Question, cpus: CpuMask) -> CpuMask:
        """Return those of the given CPUs that the policy's options permit. Under full-pcpus-only, these are the CPUs of cores that are in
        `cpus` completely.
        """
        for step in self.filters:
            cpus = step.filter(over(question, cpus, question.count)).bits
        return cpus

    def free_pool(self, promises: Promises) -> CpuMask:
        """Return the shared pool without its reserved CPUs."""
        return CpuMask(default_set(promises).bits & ~self.reserved.bits)


def over(question: Question, free: CpuMask, count: int) -> Question:
    """Return a copy of the question that asks for `count` CPUs out of the CPUs `free`."""
    return Question(
        question.topology, question.promises, question.pod, question.container, CpuSet(free), count, question.scores
    )


def build_cpu_manager(topology: Topology, placement: Placement) -> CpuManager | tuple[StartRefused, ...]:
    """Build the CPU manager. If the configuration is invalid or doesn't suit the machine, return the errors, worded as by kubelet."""
    layout = CpuLayout.of(topology)
    refused: list[StartRefused] = []
    listed = placement.reserved_system_cpus
    if not listed <= topology.online:
        refused.append(
            StartRefused(
                f"reserved-cpus: {listed} is not a subset of online-cpus: {topology.online}", "reservedSystemCPUs"
            )
        )
    if layout.cpu_count == 0:
        return (*refused, StartRefused("could not detect number of cpus", "/sys/devices/system/cpu/online"))
    options, configured = judge_cpu_configuration(placement)
    refused += configured
    if placement.cpu_manager_policy != "static":
        return tuple(refused) or _build_manager(placement, topology, layout, CpuOptions(), CpuSet(), static=False)
    on_machine = misfits(options, socket_count=layout.socket_count, numa_count=len(layout.nodes))
    refused += [_add_static_prefix(each) for each in on_machine]
    # The options decide which CPUs are reserved, but not whether there are enough CPUs.
    reserved = _choose_reserved(placement, topology, layout, CpuOptions() if configured else options)
    if isinstance(reserved, StartRefused):
        return (*refused, reserved)
    isolated = CpuMask(topology.isolated.bits & layout.online & ~reserved.bits)
    if placement.isolated_cpus == "only" and not isolated:
        refused.append(
            StartRefused(
                "isolatedCPUs is only, and no CPU that isn't reserved is isolated: see /sys/devices/system/cpu/isolated",
                "isolatedCPUs",
            )
        )
    if refused:
        return tuple(refused)
    manager = _build_manager(placement, topology, layout, options, reserved, static=True)
    return replace(
        manager,
        classes=tuple(_list_core_classes(topology, manager)),
        preferred=isolated if placement.isolated_cpus == "prefer" else CpuMask(0),
    )


def judge_cpu_configuration(placement: Placement) -> tuple[CpuOptions, tuple[StartRefused, ...]]:
    """Check the CPU manager's policy, its options and the amount of reserved CPUs, as far as this is possible without a machine. Return the
    valid options, and the errors.
    """
    policy = placement.cpu_manager_policy
    if policy == "none":
        if not placement.cpu_manager_policy_options:
            return CpuOptions(), ()
        options_text = " ".join(f"{key}:{value}" for key, value in sorted(placement.cpu_manager_policy_options))
        unsupported = StartRefused(
            f"new none policy error: None policy: received unsupported options=map[{options_text}]",
            "cpuManagerPolicyOptions",
            rests_on=("cpuManagerPolicy",),
            allowed="needs cpuManagerPolicy: static",
            plain=f"{', '.join(sorted(name for name, _ in placement.cpu_manager_policy_options))}: needs cpuManagerPolicy: static",
        )
        return CpuOptions(), (unsupported,)
    refused: list[StartRefused] = []
    if policy != "static":
        refused.append(StartRefused(f'unknown policy: "{policy}"', "cpuManagerPolicy"))
    elif not placement.reserved_system_cpus and placement.reserved_cpu_milli is None:
        refused.append(
            StartRefused(
                "[cpumanager] unable to determine reserved CPU resources for static policy", "reservedSystemCPUs"
            )
        )
    elif not placement.reserved_system_cpus and placement.reserved_cpu_milli == 0:
        refused.append(
            StartRefused(
                "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero",
                "systemReserved",
            )
        )
    options, wrong = judge_cpu_options(placement)
    return options, (*refused, *(_add_static_prefix(each) for each in wrong))


def _add_static_prefix(refused: StartRefused) -> StartRefused:
    return replace(refused, message=_PREFIX + refused.message)


def _choose_reserved(
    placement: Placement, topology: Topology, layout: CpuLayout, options: CpuOptions
) -> CpuSet | StartRefused:
    """Return the reserved CPUs. If the configuration contains only their amount, choose them."""
    if placement.reserved_system_cpus:
        return placement.reserved_system_cpus
    count = -(-(placement.reserved_cpu_milli or 0) // 1000)
    manager = _build_manager(placement, topology, layout, options, CpuSet(), static=True)
    # Reserved CPUs may be parts of cores.
    plain = replace(manager, picking=replace(manager.picking, whole_cores=False))
    picked = plain.assign(plain.asking(Promises(), NOBODY, None, layout.online, count))
    reserved = picked if isinstance(picked, CpuSet) else CpuSet()
    if len(reserved) != count:
        return StartRefused(
            f"{_PREFIX}[cpumanager] unable to reserve the required amount of CPUs (size of {reserved} did not equal {count})",
            "systemReserved",
            rests_on=("systemReserved", "kubeReserved", "reservedSystemCPUs"),
            allowed=f"must be at most {layout.cpu_count}, the CPUs that are online",
            plain=f"cannot reserve {count} CPUs: must be at most {layout.cpu_count}, the CPUs that are online",
        )
    return reserved


def _list_core_classes(topology: Topology, manager: CpuManager) -> Iterator[CoreClass]:
    for name, cpus in topology.core_classes.items():
        layout = manager.layout.limited_to(cpus)
        yield CoreClass(name, cpus.bits, layout, layout.node_sets() if manager.node_sets else ())


def _build_pick_steps(
    options: CpuOptions, layout: CpuLayout, quirks: frozenset[Erratum], observer: PickObserver | None = None
) -> tuple[Picking, Distributing | None, tuple[Filter, ...]]:
    picking = Picking(
        layout,
        spread=options.distribute_cpus_across_cores,
        align_uncore=options.prefer_align_cpus_by_uncorecache,
        averages=Erratum.AVERAGE_GROUP_SIZES in quirks,
        whole_cores=options.full_pcpus_only and Erratum.HALF_CORES_HANDED_OUT not in quirks,
        observer=observer,
    )
    distributing = None
    # Equal shares would split cores of different sizes, so the container's whole cores are packed instead.
    if options.distribute_cpus_across_numa and (not picking.whole_cores or layout.core_size is not None):
        distributing = Distributing(
            picking=replace(picking, align_uncore=False),
            group_size=layout.per_core if options.full_pcpus_only else 1,
            overwritten=Erratum.COMBINATIONS_OVERWRITTEN in quirks,
        )
    return picking, distributing, (WholeCores(layout),) if picking.whole_cores else ()


def _build_manager(
    placement: Placement, topology: Topology, layout: CpuLayout, options: CpuOptions, reserved: CpuSet, *, static: bool
) -> CpuManager:
    quirks = list_reproduced(placement.errata)
    picking, distributing, filters = _build_pick_steps(options, layout, quirks)
    needs_hints = static and placement.topology_manager_policy != "none"
    return CpuManager(
        static=static,
        topology=topology,
        layout=layout,
        options=options,
        reserved=reserved,
        reserved_cores=layout.with_siblings(reserved.bits),
        universe=CpuMask(layout.online & ~(reserved.bits if options.strict_cpu_reservation else 0)),
        picking=picking,
        distributing=distributing,
        filters=filters,
        quirks=quirks,
        grantable=grantable_cpus(topology, placement, reserved),
        keeps_first=not placement.resize_below_admitted_cpus,
        uses_all_nodes=placement.same_numa_nodes and placement.memory_manager_policy == "Static",
        node_sets=layout.node_sets() if needs_hints and len(layout.nodes) <= hint_family.MAX_LISTED_NODES else (),
    )


def start_deltas(manager: CpuManager, promises: Promises) -> MetricDeltas:
    """Return the initial values of the CPU metrics after a start. The tuple is empty unless Erratum.GAUGES_DRIFT is reproduced, because the
    gauges are otherwise computed from the state.
    """
    if not manager.static or Erratum.GAUGES_DRIFT not in manager.quirks:
        return ()
    exclusive = exclusive_cpus(promises)
    return (
        set_gauge(CPU_SHARED_POOL, 1000 * manager.free_pool(promises).bit_count()),
        set_gauge(CPU_EXCLUSIVE, len(exclusive)),
        *_compute_numa_deltas(manager, exclusive.bits),
    )


def allocate_container(
    manager: CpuManager, promises: Promises, pod: PodDemand, container: ContainerDemand
) -> Allocation:
    """Allocate exclusive CPUs to a container on the NUMA nodes of its stored hint."""
    if not manager.static or container.cpus == 0 or pod.is_skipped:
        return Allocation(promises)
    requests = plus(CPU_REQUESTS)
    of_pod, books = promises.of_pod(pod.uid), promises.of(CpuBooks)
    holdings = of_pod.of(CpuHoldings)
    held = holdings.own_set(container.name)
    kept_unchecked = held is not None and Erratum.FULL_CORES_CHECKED_BEFORE_OWN_SET not in manager.quirks
    full_cores = manager.options.full_pcpus_only
    reusable = reusable_cpus(promises, pod.uid)
    free = free_cpus(promises, manager.grantable) | CpuSet(reusable)
    question = Question(manager.topology, promises, pod, container.name, free, container.cpus)
    if held is None and manager.chooser is not None:
        question = manager.offered(question)
    if full_cores and not kept_unchecked:
        refusal = check_full_cores(manager, question)
        if refusal is not None:
            return _refuse(manager, promises, (requests,), refusal)
    full = (aligned("container", "physical_cpu"),) if full_cores else ()
    if held is not None:
        kept = CpuBooks(books.default, _find_next_reuse(books, pod.uid, container.kind, held))
        return Allocation(promises.having(kept), (requests, *full))
    mask = promises.hint(pod.uid, container.name).mask
    cpus = choose_near(manager, question, None if mask is None else mask.bits)
    if isinstance(cpus, CpuShortage):
        return _refuse(manager, promises, (requests,), wrap_unexpected(cpus.message))
    veto = manager.vetoed(question, cpus) if manager.chooser is not None else None
    if veto is not None:
        return _refuse(manager, promises, (requests,), veto)
    new_holdings = of_pod.having(replace(holdings, cpus=put_item(holdings.cpus, container.name, cpus)))
    changed = CpuBooks(books.default - cpus, _find_next_reuse(books, pod.uid, container.kind, cpus))
    after = with_pod(promises, pod.uid, new_holdings).having(changed)
    deltas = (
        requests,
        *full,
        *allocation_deltas(manager, after, cpus.bits),
        allocations("cpu", "node"),
        assignments("cpu", "node_exclusive"),
    )
    return Allocation(after, deltas)


def check_full_cores(manager: CpuManager, question: Question) -> Refusal | None:
    """Refuse a request that can't be met with whole cores exactly (full-pcpus-only). None means that it can be met."""
    count = question.count
    layout, whole_only = manager.layout, manager.picking.whole_cores
    per_core = layout.per_core
    if not layout.can_take_whole_cores(layout.online, count) if whole_only else count % per_core:
        return Refusal(
            Reason.SMT_ALIGNMENT,
            f"SMT Alignment Error: requested {count} cpus not multiple cpus per core = {per_core}",
        )
    # kubelet leaves out cores with a reserved CPU, but counts the free CPUs of cores that are partly in use.
    if whole_only:
        free = manager.usable(question, question.free.bits)
    else:
        free = CpuMask(default_set(question.promises).bits & ~manager.reserved_cores & manager.grantable)
    available = free.bit_count()
    if not layout.can_take_whole_cores(free, count) if whole_only else count > available:
        return Refusal(
            Reason.SMT_ALIGNMENT,
            f"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, "
            f"requested CPUs = {count}, CPUs per core = {per_core}",
        )
    return None


def choose_near(manager: CpuManager, question: Question, mask: NumaMask | None) -> CpuSet | CpuShortage:
    """Choose CPUs, first on the NUMA nodes of the mask, then on all others. If enough preferred CPUs are free (`isolatedCPUs: prefer`),
    choose only among these.
    """
    preferred = CpuMask(question.free.bits & manager.preferred)
    if preferred and _is_preferred_sufficient(manager, question, preferred, mask):
        chosen = _choose_near(manager, over(question, preferred, question.count), mask, isolated=True)
        if not isinstance(chosen, CpuShortage):
            return chosen
    return _choose_near(manager, question, mask)


def _is_preferred_sufficient(
    manager: CpuManager, question: Question, preferred: CpuMask, mask: NumaMask | None
) -> bool:
    """Return whether the preferred CPUs are enough for the request, and as close to the mask's NUMA nodes as a choice among all free CPUs
    would be.
    """
    aligned = CpuMask(-1) if mask is None else _find_aligned_cpus(manager, mask)
    near = min(question.count, manager.usable(question, CpuMask(question.free.bits & aligned)).bit_count())
    return (
        manager.usable(question, CpuMask(preferred & aligned)).bit_count() >= near
        and manager.usable(question, preferred).bit_count() >= question.count
    )


def _choose_near(
    manager: CpuManager, question: Question, mask: NumaMask | None, *, isolated: bool = False
) -> CpuSet | CpuShortage:
    available, count = question.free.bits, question.count
    near = CpuSet()
    if mask is not None and mask.bit_count() > 1 and manager.uses_all_nodes and _asks_for_memory(question):
        spread = _choose_on_all_nodes(manager, question, mask, isolated=isolated)
        if spread is not None:
            return spread
    if mask is not None:
        near_cpus = manager.usable(question, CpuMask(available & _find_aligned_cpus(manager, mask)))
        near_count = _count_near_cpus(manager, available, near_cpus, count)
        if manager.observer is not None:
            manager.observer(Choosing(Source.HINT, near_cpus, near_count, isolated))
        chosen = manager.assign(over(question, near_cpus, near_count))
        if isinstance(chosen, CpuShortage):
            return chosen
        near = chosen
    other_cpus, missing = CpuMask(available & ~near.bits), count - len(near)
    if manager.observer is not None:
        source = Source.ANYWHERE if mask is None else Source.ELSEWHERE
        manager.observer(Choosing(source, other_cpus, missing, isolated))
    if missing == 0:
        return near
    if missing == count:
        return manager.assign(question)
    rest = manager.assign(over(question, other_cpus, missing))
    return rest if isinstance(rest, CpuShortage) else near | rest


def _asks_for_memory(question: Question) -> bool:
    pod = question.pod
    if question.container is None:
        return bool(pod.memory)
    return any(container.memory for container in pod.containers if container.name == question.container)


def _choose_on_all_nodes(manager: CpuManager, question: Question, mask: NumaMask, *, isolated: bool) -> CpuSet | None:
    """Choose CPUs on every NUMA node of the mask, because the container's memory is on all of these nodes. None means that some node can't
    provide CPUs.
    """
    shares = divide_among_nodes(manager, question, mask)
    if shares is None:
        return None
    if manager.observer is not None:
        near = manager.usable(question, CpuMask(question.free.bits & manager.layout.cpus_of_nodes(mask)))
        manager.observer(Choosing(Source.HINT, near, question.count, isolated))
    chosen = CpuSet()
    for node, free, share in shares:
        if manager.observer is not None:
            manager.observer(Spread(node, share, is_remainder=False))
        part = manager.assign(over(question, free, share))
        if isinstance(part, CpuShortage):
            return None
        chosen |= part
    return chosen


def divide_among_nodes(
    manager: CpuManager, question: Question, mask: NumaMask
) -> tuple[tuple[int, CpuMask, int], ...] | None:
    """Divide the request among all NUMA nodes of the mask, in whole cores if possible.

    Returns:
        The ID, the free CPUs and the share of each node. None means that some node can't provide a share, or that all nodes together have
            too few CPUs.
    """
    layout = manager.layout
    free = {node.id: CpuMask(question.free.bits & node.cpus) for node in layout.nodes if mask >> node.id & 1}
    if len(free) < mask.bit_count():
        return None
    whole = {node: layout.whole_cores(cpus) for node, cpus in free.items()}
    sizes = [] if layout.core_size is None else [(layout.core_size, whole)]
    if not manager.picking.whole_cores:
        sizes.append((1, free))
    for size, cpus_of in sizes:
        shares = divide_evenly([cpus.bit_count() for cpus in cpus_of.values()], question.count, size)
        if shares is not None:
            return tuple((node, cpus, share) for (node, cpus), share in zip(cpus_of.items(), shares, strict=True))
    return None


def _count_near_cpus(manager: CpuManager, available: CpuMask, near_cpus: CpuMask, count: int) -> int:
    """Return how many of the needed CPUs to take from the mask's nodes: as many as possible. If only whole cores are taken and cores differ
    in size, both this number and the number of remaining CPUs must be sums of core sizes.
    """
    near = min(count, near_cpus.bit_count())
    layout = manager.layout
    if manager.picking.whole_cores and layout.core_size is None:
        other_cores = layout.whole_cores(CpuMask(available & ~near_cpus))
        while near and not (
            layout.can_take_whole_cores(near_cpus, near) and layout.can_take_whole_cores(other_cores, count - near)
        ):
            near -= 1
    return near


def _find_aligned_cpus(manager: CpuManager, mask: NumaMask) -> CpuMask:
    cpus = manager.layout.cpus_of_nodes(mask)
    if not manager.options.align_by_socket:
        return cpus
    bits = 0
    for socket in manager.layout.sockets:
        if socket.cpus & cpus:
            bits |= socket.cpus
    return CpuMask(bits)


def reusable_cpus(promises: Promises, uid: str) -> CpuMask:
    """Return the CPUs of the pod's init containers that its next container may reuse."""
    reuse = promises.of(CpuBooks).reuse
    return reuse.cpus.bits if reuse is not None and reuse.pod_uid == uid else CpuMask(0)


def _find_next_reuse(books: CpuBooks, uid: str, kind: ContainerKind, own: CpuSet) -> CpuReuse | None:
    """Return the CPUs that the pod's later containers may reuse once this container has the CPUs `own`. The CPUs of an init container
    become reusable, and stay so until a sidecar or app container gets them. If `books` lists reusable CPUs of another pod, these are
    dropped.
    """
    if books.reuse is None and kind is not ContainerKind.INIT:
        return None
    so_far = books.reuse.cpus if books.reuse is not None and books.reuse.pod_uid == uid else CpuSet()
    reusable = so_far | own if kind is ContainerKind.INIT else so_far - own
    return CpuReuse(uid, reusable) if reusable else None


def _refuse(manager: CpuManager, promises: Promises, deltas: MetricDeltas, refusal: Refusal) -> Allocation:
    full = (aligned_failure("container", "physical_cpu"),) if manager.options.full_pcpus_only else ()
    return Allocation(promises, (*deltas, plus(CPU_ERRORS), allocation_errors("cpu", "node"), *full), refusal)


def allocation_deltas(manager: CpuManager, after: Promises, cpus: CpuMask) -> MetricDeltas:
    """Return the metric changes for newly allocated CPUs."""
    deltas: MetricDeltas = ()
    count = cpus.bit_count()
    if count == 1 or [uncore for uncore in manager.layout.uncores if not cpus & ~uncore.cpus]:
        deltas = (aligned("container", "uncore_cache"),)
    if Erratum.GAUGES_DRIFT in manager.quirks:
        deltas = (
            *deltas,
            plus(CPU_EXCLUSIVE, count),
            plus(CPU_SHARED_POOL, -1000 * count),
            *_compute_numa_deltas(manager, exclusive_cpus(after).bits),
        )
    return deltas


def _compute_numa_deltas(manager: CpuManager, exclusive: int) -> MetricDeltas:
    return tuple(
        [
            set_gauge(CPU_PER_NUMA, count, numa_node=str(node.id))
            for node in manager.nodes
            if (count := (node.cpus & exclusive).bit_count())
        ]
    )


def release_container(manager: CpuManager, promises: Promises, uid: str, name: str) -> tuple[Promises, MetricDeltas]:
    """Release a container's CPUs, except CPUs that another container of the pod holds, too."""
    pod = promises.of_pod(uid)
    held = pod.of(CpuHoldings)
    own = held.own_set(name)
    if own is None:
        return promises, ()
    left = held.without(name)
    released = own
    if left.pod_cpus is not None:
        if left.cpus:
            return with_pod(promises, uid, pod.having(left)), ()
        released, left = left.pod_cpus, replace(left, pod_cpus=None)
    else:
        for _, other in left.cpus:
            released -= other
    return _return_cpus(manager, with_pod(promises, uid, pod.having(left)), released)


def release_pod_set(manager: CpuManager, promises: Promises, uid: str) -> tuple[Promises, MetricDeltas]:
    """Release a pod's CPU set once none of its containers holds a part of it. This function isn't called while Erratum.POD_ENTRY_LEAKS is
    reproduced, because kubelet never releases such a set.
    """
    pod = promises.of_pod(uid)
    held = pod.of(CpuHoldings)
    if held.pod_cpus is None or held.cpus:
        return promises, ()
    return _return_cpus(manager, with_pod(promises, uid, pod.having(replace(held, pod_cpus=None))), held.pod_cpus)


def _return_cpus(manager: CpuManager, promises: Promises, cpus: CpuSet) -> tuple[Promises, MetricDeltas]:
    if Erratum.ONLINE_CHANGE_REFUSED not in manager.quirks:
        # CPUs that have gone offline are in no pool until they come online again.
        cpus &= CpuSet(manager.universe)
    after = with_default_set(promises, default_set(promises) | cpus)
    if Erratum.GAUGES_DRIFT not in manager.quirks:
        return after, ()
    return after, (
        plus(CPU_EXCLUSIVE, -len(cpus)),
        plus(CPU_SHARED_POOL, 1000 * len(cpus)),
        *_compute_numa_deltas(manager, exclusive_cpus(after).bits & ~cpus.bits),
    )
