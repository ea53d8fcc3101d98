"""The managers of all resources. They allocate when a pod is admitted, release when containers start or end, and restore promises from
saved files.

Each function takes promises and returns new promises, without access to clock, files or cgroups. The daemon applies the results.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission import resource_kinds
from nodeagent.core.admission.asked_for import limit_to_pod, unfit
from nodeagent.core.admission.invariants import claims_without_holders, orphans, shared_devices
from nodeagent.core.admission.node_capacity import Allocatable
from nodeagent.core.admission.node_rules import ContainerReport, container_reports
from nodeagent.core.admission.one_pod import AdmissionResult, DecidedAnew, MergeReport, Providers, run_admission
from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import MetricDeltas
from nodeagent.core.model.config import ANY_CLASS, DEPENDENT_GATES, CpuPlugin, Errata, Placement
from nodeagent.core.model.demand import DemandRules, PodDemand, demand_of
from nodeagent.core.model.errata import Erratum, list_reproduced
from nodeagent.core.model.idset import CpuMask, CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises, UnrecoveredPod, with_pod
from nodeagent.core.model.refusals import Reason, Refusal, StartRefused
from nodeagent.core.model.topology import Topology
from nodeagent.core.model.violations import Shortfall, Violation
from nodeagent.core.numa.topology_manager import (
    TopologyPolicy,
    build_topology_manager,
    judge_policy_and_scope,
    judge_topology_options,
)
from nodeagent.core.resources.claims.held import drop_released_claims
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.devices.turnover import clear_ended_pod, end_pod, finish_start, release_ended_pods
from nodeagent.core.resources.resource import ResourceFailedError

if TYPE_CHECKING:
    from nodeagent.core.model.device_pools import DevicePool
    from nodeagent.core.model.devices import PlacedDevices
    from nodeagent.core.resources.cpu.plugins import Note
    from nodeagent.core.resources.devices.resource import DeviceResource

Item = TypeVar("Item")


class Managers(Struct, frozen=True):
    """All inputs of a decision that don't depend on pods. They are built once from the machine and the configuration."""

    topology: Topology
    placement: Placement
    reserved: CpuSet
    """CPUs that are reserved and therefore never allocated exclusively. Empty under policy `none`."""
    providers: Providers
    rules: DemandRules
    quirks: frozenset[Erratum]
    plugged: "tuple[DevicePool, ...]" = ()
    """Pools of devices that device plugins have reported."""

    @property
    def grantable(self) -> CpuMask:
        """Return the CPUs that can be allocated exclusively. The result is empty under policy `none`."""
        return self.providers.of(CpuResource).manager.grantable

    @property
    def cpu_plugins(self) -> tuple[CpuPlugin, ...]:
        """Return the CPU plugins in the configuration."""
        return self.providers.of(CpuResource).manager.plugins

    def is_pod_level(self, pod: Pod) -> bool:
        """Return whether the managers allocate to the pod as a whole, and then divide this allocation among its containers (KEP-5526)."""
        return self.rules.gates.is_managed_pod(pod)

    def knowing(
        self,
        devices: "PlacedDevices | None",
        plugged: "tuple[DevicePool, ...] | None" = None,
        *,
        has_devices: bool = False,
    ) -> "Managers":
        """Return a copy of the managers that also knows devices. It is needed for decisions on pods that name or request devices.

        Args:
            devices: the discovered PCI devices. None means that the machine hasn't been scanned for them.
            plugged: the pools of device plugins. None means the pools that these managers have now.
            has_devices: whether any pod holds devices, even devices that the configuration doesn't mention any more.
        """
        providers = replace(self.providers, devices=devices)
        if plugged is None:
            plugged = self.plugged
        if self.placement.devices or plugged or has_devices:
            from nodeagent.core.resources.devices.resource import owned  # noqa: PLC0415 - only where devices are given

            others = (one.managed for one in providers.resources if one.holdings is not DeviceHoldings)
            managed_elsewhere = frozenset[str]().union(*others)
            device_manager = owned(
                self.placement.devices,
                devices,
                plugged,
                providers.topology.rules.default_mask,
                managed_elsewhere,
                self.quirks,
            )
            providers = providers.having(device_manager)
        return replace(self, providers=providers, plugged=plugged)

    @property
    def device_manager(self) -> "DeviceResource | None":
        """Return the device manager. None means that the node has no extended resources."""
        if DeviceHoldings not in [one.holdings for one in self.providers.resources]:
            return None
        from nodeagent.core.resources.devices.resource import DeviceResource  # noqa: PLC0415 - as in `knowing`

        return self.providers.of(DeviceResource)

    @property
    def pools(self) -> "tuple[DevicePool, ...]":
        """Return the pools of devices that pods can request as extended resources."""
        return () if self.device_manager is None else self.device_manager.manager.pools

    def tried_out(self) -> "Managers":
        """Return a copy of the managers for trial decisions, which calls no device plugins."""
        if self.device_manager is None:
            return self
        return replace(self, providers=self.providers.having(self.device_manager.tried_out()))

    def without_preferred_nodes(self) -> "Managers":
        """Return a copy of the managers without the settings `sameNumaNodes` and `spreadHugePages`, which kubelet lacks."""
        resources = tuple(one.without_preferred_nodes() for one in self.providers.resources)
        topology = replace(self.providers.topology, same_nodes=False, spread_pages=False)
        return replace(self, providers=replace(self.providers, resources=resources, topology=topology))

    def with_amounts(self, allocatable: Allocatable, promises: Promises) -> Allocatable:
        """Return the node's allocatable amounts with those of the extended resources added."""
        more = {name: size for one in self.providers.resources for name, size in one.amounts(promises).items()}
        amounts = tuple(sorted({**dict(allocatable.amounts), **more}.items()))
        sums_extended = not self.reproduces(Erratum.EXTENDED_RESOURCES_SUMMED_LAST)
        return replace(allocatable, amounts=amounts, sums_extended=sums_extended)

    def reproduces(self, erratum: Erratum) -> bool:
        return erratum in self.quirks


class Report(Struct, frozen=True):
    """Details of a decision on a pod, for the log, for `nodeagent explain` and for tests."""

    merges: tuple[MergeReport, ...]
    containers: tuple[ContainerReport, ...]
    core_class: str | None = None
    """Core class to which the decision was limited. None means that cores of all classes were permitted."""


class Admitted(Struct, frozen=True):
    promises: Promises
    deltas: MetricDeltas
    report: Report


FAILURES_OF_PLUGINS = (Reason.CPU_PLUGIN_FAILED, Reason.DEVICE_PLUGINS_SLOW)


class Rejected(Struct, frozen=True):
    promises: Promises
    """Allocations after the refusal. The refused pod has none."""
    attempted: Promises
    """Allocations at the moment of the refusal, including those that the refused pod had got until then."""
    reason: Reason
    message: str
    deltas: MetricDeltas
    report: Report

    @property
    def is_of_a_failure(self) -> bool:
        """Whether the reason for the refusal is a failed plugin.

        If it is, trials with smaller requests are useless, because every decision needs the plugin. If a plugin has only rejected certain
        CPUs (Allocate), they are useful.
        """
        return self.reason in FAILURES_OF_PLUGINS

    @property
    def is_postponed(self) -> bool:
        """Whether the decision is postponed to a later turn of the agent, because a device plugin hasn't answered yet."""
        return self.reason is Reason.DEVICE_PLUGINS_SLOW


class Readmitted(Struct, frozen=True):
    """Decisions on running pods after a start of the agent."""

    promises: Promises
    results: tuple[tuple[str, Admitted | Rejected], ...]
    """Pairs of pod UID and decision, in the order of the decisions. Each decision contains the allocations after it."""
    deltas: MetricDeltas


def build(topology: Topology, placement: Placement) -> Managers | StartRefused:
    """Build the managers. If the configuration can't be used on this machine, return the error that kubelet would find first."""
    built = judged(topology, placement)
    return built if isinstance(built, Managers) else built[0]


def judged(topology: Topology, placement: Placement) -> Managers | tuple[StartRefused, ...]:
    """Build the managers. If the configuration can't be used on this machine, return all errors. The error that kubelet would find first
    comes first.
    """
    topology_manager = build_topology_manager(topology, placement)
    built = [kind.build(topology, placement) for kind in resource_kinds.RESOURCES]
    refused = [
        each
        for each in (judge_gates(placement), judge_preferred_nodes(placement), topology_manager, *built)
        if isinstance(each, tuple) and each
    ]
    if refused or isinstance(topology_manager, tuple):
        return tuple(one for each in refused for one in each)
    resources = tuple(each for each in built if not isinstance(each, tuple))
    providers = Providers(resources, topology_manager, list_reproduced(placement.errata))
    return Managers(
        topology=topology,
        placement=placement,
        reserved=providers.of(CpuResource).manager.reserved,
        providers=providers,
        rules=DemandRules.of(placement),
        quirks=list_reproduced(placement.errata),
    )


def find_misconfigurations(placement: Placement) -> tuple[StartRefused, ...]:
    """Return all errors of the configuration that can be found without knowing the machine."""
    return (
        *judge_gates(placement),
        *judge_preferred_nodes(placement),
        *judge_topology_options(placement)[1],
        *judge_policy_and_scope(placement),
        *(refused for kind in resource_kinds.RESOURCES for refused in kind.judge(placement)),
    )


def judge_preferred_nodes(placement: Placement) -> tuple[StartRefused, ...]:
    """Return an error for each of the settings `sameNumaNodes` and `spreadHugePages` that is on although errata are reproduced. kubelet
    lacks these settings, so its behaviour with them is undefined.
    """
    if placement.errata is Errata.FIXED:
        return ()
    settings = (("sameNumaNodes", placement.same_numa_nodes), ("spreadHugePages", placement.spread_huge_pages))
    return tuple(
        StartRefused(
            f"no kubelet has this setting, so errata: {placement.errata.value} can't reproduce it",
            key,
            allowed="must be false, or removed, unless errata is fixed",
        )
        for key, value in settings
        if value
    )


def judge_gates(placement: Placement) -> tuple[StartRefused, ...]:
    """Return an error, in kubelet's words, for each feature gate that is on although its prerequisite gate is off."""
    return tuple(
        StartRefused(
            f"{name} is enabled, but depends on features that are disabled: [{needed}]",
            "featureGates",
            plain=f"{name} is on and needs {needed}, which is off: turn both on or both off",
        )
        for name, needed in DEPENDENT_GATES.items()
        if placement.gate(name) and not placement.gate(needed)
    )


def initial(managers: Managers, lost: tuple[UnrecoveredPod, ...] = ()) -> Promises:
    """Return the promises of a node before any allocation is made or recovered. Only the pods in `lost` have holdings."""
    promises = resume(managers, Promises())
    assert isinstance(promises, Promises), "an empty state is valid"
    return replace(promises, unrecovered=lost)


def resume(managers: Managers, promises: Promises) -> Promises | StartRefused:
    """Check saved promises against the present machine and configuration, and adapt them to changed CPUs and memory. Return a refusal to
    start if they don't fit.

    Allocations that the machine can't provide now are kept. `shortfalls` lists them.
    """
    for manager in managers.providers.resources:
        judged = manager.validate(promises)
        if isinstance(judged, StartRefused):
            return judged
        promises = judged
    return promises


def shortfalls(managers: Managers, promises: Promises) -> tuple[Shortfall, ...]:
    """Return every allocation that the machine can't provide now, because it has too few CPUs, too little memory or too few devices."""
    return tuple(short for manager in managers.providers.resources for short in manager.shortfalls(promises))


def started_deltas(managers: Managers, promises: Promises) -> MetricDeltas:
    """Return the metric changes by which the managers report their initial values after a start."""
    return tuple(delta for manager in managers.providers.resources for delta in manager.started_deltas(promises))


def admit(
    managers: Managers,
    promises: Promises,
    pod: Pod,
) -> Admitted | Rejected:
    """Decide on a pod. Return the new allocations, or the refusal.

    Args:
        managers: the managers of the node.
        promises: the allocations of admitted pods. Pods that aren't active must not have any (`violations`).
        pod: the pod with defaults applied.
    """
    promises = clear_ended_pod(promises, pod.uid)
    if managers.providers.topology.policy is not TopologyPolicy.NONE:
        # In kubelet, the request for topology hints releases the devices of ended pods. If no hints are requested, the next allocation of
        # devices releases them.
        promises = release_ended_pods(promises)
    outcome, demand = _decide(managers, promises, pod)
    report = _make_report(managers, outcome, pod, demand)
    if outcome.refusal is None:
        return Admitted(_end_reuse(managers, outcome.promises), outcome.deltas, report)
    cleaned, deltas = promises, outcome.deltas
    if managers.quirks:
        # kubelet releases the allocations of a refused pod only at its next call for any pod. Gauges and reusable sets show this delay.
        cleaned, released = remove_pod(managers, outcome.promises, pod.uid)
        deltas = (*deltas, *released)
    return Rejected(cleaned, outcome.promises, outcome.refusal.reason, outcome.refusal.message, deltas, report)


def _decide(
    managers: Managers, promises: Promises, pod: Pod, *, is_running: bool = False
) -> tuple[AdmissionResult, PodDemand]:
    """Decide on a pod, and return the decision with the demand on which it is based. If the pod prefers a core class, first require this
    class. If the pod is then refused, decide again with cores of all classes.
    """
    demand = demand_of(managers.rules, pod)
    sort_refusal = _refuse_unsorted(managers, pod) if managers.cpu_plugins else None
    wish = preferred_class(managers, pod, demand)
    if wish is not None and sort_refusal is None:
        first = replace(demand, core_class=wish)
        outcome = _decide_demand(managers, promises, pod, first, None, is_running=is_running)
        if outcome.refusal is None or outcome.refusal.reason in FAILURES_OF_PLUGINS:
            return (
                outcome,
                first,
            )  # there is no second trial, because a failed plugin isn't called again (`Rejected.is_of_a_failure`)
        if managers.providers.observer is not None:
            managers.providers.observer(DecidedAnew())
    return _decide_demand(managers, promises, pod, demand, sort_refusal, is_running=is_running), demand


def in_turn(managers: Managers, waiting: Iterable[Item], pod_of: Callable[[Item], Pod]) -> list[Item]:
    """Sort waiting items into the order in which the agent decides on their pods. CPU plugins determine the order (Sort). Without plugins,
    the order stays unchanged.
    """
    if not managers.cpu_plugins:
        return list(waiting)
    from nodeagent.core.resources.cpu.plugins import in_turn as sorted_by  # noqa: PLC0415 - only where there are plugins

    return sorted_by(managers.cpu_plugins, waiting, pod_of)


def describe_suspended_plugins(managers: Managers) -> str | None:
    """Return a message that names the CPU plugins that the agent has stopped calling, and the effect on pods. None means that there are no
    such plugins.
    """
    if not managers.cpu_plugins:
        return None
    from nodeagent.core.resources.cpu.plugins import held_off  # noqa: PLC0415 - as above

    return held_off(managers.cpu_plugins)


def list_plugin_notes(managers: Managers, before: Promises, after: Promises) -> "list[Note]":
    """Tell the CPU plugins which CPUs each container had in `before` and hasn't in `after` (Deallocate). Return the plugins' notes for the
    log.
    """
    if not managers.cpu_plugins or before.pods == after.pods:
        return []
    from nodeagent.core.resources.cpu.plugins import notes_on  # noqa: PLC0415 - as above

    return notes_on(managers.cpu_plugins, managers.topology, before, after)


def _refuse_unsorted(managers: Managers, pod: Pod) -> Refusal | None:
    """Refuse a pod if a CPU plugin failed to give the pod's place in the order of decisions (Sort). None means that no plugin failed."""
    from nodeagent.core.resources.cpu.plugins import turn_of  # noqa: PLC0415 - as above

    turn = turn_of(managers.cpu_plugins, pod)
    return turn if isinstance(turn, Refusal) else None


def preferred_class(managers: Managers, pod: Pod, demand: PodDemand) -> str | None:
    """Return the core class that is preferred for the pod's exclusive CPUs. None means that there is no preference, or that the machine has
    only one class.
    """
    wish = pod.preferred_core_class or managers.placement.exclusive_core_class
    is_open = demand.core_class is None and demand.asks_for_cpus and wish != ANY_CLASS
    return wish if is_open and managers.placement.has_static_cpus and wish in managers.topology.core_classes else None


def _decide_demand(
    managers: Managers,
    promises: Promises,
    pod: Pod,
    demand: PodDemand,
    sort_refusal: Refusal | None,
    *,
    is_running: bool,
) -> AdmissionResult:
    """Decide with the settings `sameNumaNodes` and `spreadHugePages`, if they are on. If the pod is refused, decide again without them, as
    kubelet would.
    """
    outcome = _decide_once(managers, promises, pod, demand, sort_refusal, is_running=is_running)
    if not managers.placement.prefers_numa_nodes or outcome.refusal is None:
        return outcome
    if outcome.refusal.reason in FAILURES_OF_PLUGINS or sort_refusal is not None:
        return outcome
    if managers.providers.observer is not None:
        managers.providers.observer(DecidedAnew())
    plain = managers.without_preferred_nodes()
    return _decide_once(plain, promises, pod, demand, sort_refusal, is_running=is_running)


def _decide_once(
    managers: Managers,
    promises: Promises,
    pod: Pod,
    demand: PodDemand,
    sort_refusal: Refusal | None,
    *,
    is_running: bool,
) -> AdmissionResult:
    why = sort_refusal or unfit(
        managers.providers, managers.topology, demand, has_static_cpus=managers.placement.has_static_cpus
    )
    if why is None and managers.device_manager is not None and not is_running:
        why = managers.device_manager.find_wait(promises.of_pod(pod.uid), demand)
    if why is not None or is_running or not pod.claims or promises.of_pod(pod.uid).of(ClaimHoldings).claims:
        return _decide_resources(managers, promises, demand, why, is_running=is_running)
    from nodeagent.core.model.devices import PlacedDevices  # noqa: PLC0415 - few pods have claims
    from nodeagent.core.resources.claims.placing import ways_to_place  # noqa: PLC0415 - as above

    refused: AdmissionResult | None = None
    limited = limit_to_pod(managers.providers, demand)
    cards = limited.devices or PlacedDevices()
    try:
        lists_nodes = managers.placement.gate("DRAListTypeAttributes")
        for way in ways_to_place(
            limited.resources, cards, managers.topology, promises, pod, demand, lists_nodes=lists_nodes
        ):
            if isinstance(way, Refusal):
                outcome = _decide_resources(managers, promises, demand, way, is_running=False)
            else:
                outcome = _decide_resources(
                    managers, way.promises, way.demand, None, is_running=False, has_claimed=True
                )
                outcome = replace(outcome, deltas=(*way.deltas, *outcome.deltas))
            if outcome.refusal is None or outcome.refusal.reason is Reason.DEVICE_PLUGINS_SLOW:
                return outcome
            refused = refused or outcome
    except ResourceFailedError as err:
        why = Refusal(err.reason, str(err))
        refused = _decide_resources(managers, promises, demand, why, is_running=False)
    assert refused is not None, "claims that can't be met are refused"
    return refused


def _decide_resources(
    managers: Managers,
    promises: Promises,
    demand: PodDemand,
    why: Refusal | None,
    *,
    is_running: bool,
    has_claimed: bool = False,
) -> AdmissionResult:
    providers = managers.providers
    limited = limit_to_pod(providers, demand)
    try:
        outcome = run_admission(limited, promises, demand, is_running=is_running, unfit=why, has_claimed=has_claimed)
    except ResourceFailedError as err:
        why = Refusal(err.reason, str(err))
        outcome = run_admission(limited, promises, demand, is_running=is_running, unfit=why)
    if outcome.refusal is None:
        return outcome
    refusal = outcome.refusal
    for resource in providers.resources:
        refusal = resource.add_limits(refusal, demand)
    return replace(outcome, refusal=refusal)


def _end_reuse(managers: Managers, promises: Promises) -> Promises:
    # Every container of a pod gets its allocation at admission, so init containers need not leave CPUs for reuse afterwards.
    if managers.reproduces(Erratum.REUSE_OUTLIVES_POD):
        return promises
    for resource in managers.providers.resources:
        promises = resource.end_reuse(promises)
    return promises


def _make_report(managers: Managers, outcome: AdmissionResult, pod: Pod, demand: PodDemand) -> Report:
    return Report(outcome.merges, container_reports(managers, outcome.promises, pod), demand.core_class)


def readmit(managers: Managers, promises: Promises, pods: tuple[Pod, ...]) -> Readmitted:
    """Decide again on running pods after a start of the agent, in the given order. Afterwards, release the allocations of all pods that
    weren't admitted.

    Allocations of a refused pod are released only at the end, so that no other pod gets them while the decisions are made.
    """
    results: list[tuple[str, Admitted | Rejected]] = []
    deltas: list[MetricDeltas] = []
    for pod in pods:
        outcome, demand = _decide(managers, promises, pod, is_running=True)
        report = _make_report(managers, outcome, pod, demand)
        promises = _end_reuse(managers, outcome.promises)
        deltas.append(outcome.deltas)
        refusal = outcome.refusal
        results.append(
            (
                pod.uid,
                Admitted(promises, outcome.deltas, report)
                if refusal is None
                else Rejected(promises, promises, refusal.reason, refusal.message, outcome.deltas, report),
            )
        )
    promises = finish_start(promises)
    admitted = tuple(pod for pod, (_, result) in zip(pods, results, strict=True) if isinstance(result, Admitted))
    promises, swept = sweep(managers, promises, admitted)
    return Readmitted(promises, tuple(results), (*(delta for each in deltas for delta in each), *swept))


def sweep(managers: Managers, promises: Promises, active: tuple[Pod, ...]) -> tuple[Promises, MetricDeltas]:
    """Release every allocation whose container doesn't belong to an active pod."""
    names = {pod.uid: {c.name for c in pod.containers} for pod in active}
    deltas: MetricDeltas = ()
    for uid, held in promises.pods:
        known = names.get(uid, set())
        for name in held.holders:
            if name not in known:
                promises, moved = _release_container(managers, promises, uid, name)
                deltas += moved
        if uid not in names:
            promises, moved = remove_pod(managers, promises, uid)
            deltas += moved
    return promises, deltas


def start_container(managers: Managers, promises: Promises, pod: Pod, name: str) -> Promises:
    """Release the resources of init containers that aren't needed any more once this container starts."""
    for manager in managers.providers.resources:
        promises = manager.start_container(promises, pod, name)
    return promises


def remove_container(managers: Managers, promises: Promises, pod_uid: str, name: str) -> tuple[Promises, MetricDeltas]:
    """Release the resources of a container. Resources that it shares with other containers of the pod stay allocated to those."""
    promises, deltas = _release_container(managers, promises, pod_uid, name)
    held = promises.of_pod(pod_uid)
    left = held.without(name)
    if managers.reproduces(Erratum.REFUSED_PODS_HOLD_DEVICES):
        left = left.having(held.of(DeviceHoldings))
    return with_pod(promises, pod_uid, drop_released_claims(left)), deltas


def _release_container(managers: Managers, promises: Promises, uid: str, name: str) -> tuple[Promises, MetricDeltas]:
    deltas: MetricDeltas = ()
    for manager in managers.providers.resources:
        promises, moved = manager.release_container(promises, uid, name)
        deltas += moved
    return promises, deltas


def remove_pod(managers: Managers, promises: Promises, pod_uid: str) -> tuple[Promises, MetricDeltas]:
    """Release all resources of a pod."""
    held = promises.of_pod(pod_uid)
    deltas: MetricDeltas = ()
    for name in held.holders:
        promises, moved = _release_container(managers, promises, pod_uid, name)
        deltas += moved
    if not managers.reproduces(Erratum.POD_ENTRY_LEAKS):
        for manager in managers.providers.resources:
            promises, moved = manager.release_pod(promises, pod_uid)
            deltas += moved
    left = promises.of_pod(pod_uid)
    if left.is_nothing:
        return promises, deltas
    devices = left.of(DeviceHoldings)
    for name in (
        left.holders
    ):  # if no scan has found devices, there is no device manager, and the pod keeps its device holdings
        left = left.without(name)
    promises = with_pod(promises, pod_uid, replace(drop_released_claims(left), hints=()))
    if devices.devices and managers.reproduces(Erratum.REFUSED_PODS_HOLD_DEVICES):
        promises = end_pod(promises, pod_uid, devices)
    return promises, deltas


def gauges(managers: Managers, promises: Promises) -> tuple[tuple[Series, int], ...]:
    """Return the values of the managers' gauges, computed from the promises."""
    return tuple(each for manager in managers.providers.resources for each in manager.gauges(promises))


def violations(managers: Managers, promises: Promises, active: tuple[Pod, ...]) -> tuple[Violation, ...]:
    """Return the violations of the promises' invariants. There are none, unless the agent has a bug or errata are reproduced."""
    return (
        *orphans(promises, active),
        *shared_devices(promises, active),
        *claims_without_holders(promises),
        *(found for manager in managers.providers.resources for found in manager.violations(promises, active)),
    )
