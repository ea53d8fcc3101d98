"""Metrics that the deciding thread records. Each turn publishes them as one immutable snapshot, which other threads may read."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, field

from nodeagent import __version__
from nodeagent.core.admission.managers import Admitted, Managers, Rejected, gauges, started_deltas
from nodeagent.core.admission.node_rules import isolation
from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.domains.domain import DomainCounts
from nodeagent.core.metrics import agent_metrics as names
from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import TOPOLOGY_DURATION
from nodeagent.core.metrics.totals import MetricsSnapshot, MetricTotals
from nodeagent.core.model.config import Config
from nodeagent.core.model.derived import Derived, list_replaced
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.problem_kinds import ProblemKind
from nodeagent.core.model.promises import PodPromises, Promises
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.waiting import RequestKind
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.turn.decision import admit_off_orphans
from nodeagent.core.turn.world import EventKind, Turn
from nodeagent.daemon.reports.container_pressure import ContainerPressure
from nodeagent.daemon.reports.cpu_counters import CpuCounters, Holder
from nodeagent.daemon.reports.exposition import Exposition
from nodeagent.daemon.turn.execution import ExecutionResult
from nodeagent.formats.config.config_text import hash_config
from nodeagent.formats.node_view import NodeView
from nodeagent.views.holdings.by_resource import promised_fields


class Stopwatch(Struct):
    """Measurement of how long decisions on pods take."""

    clock: Callable[[], float] = time.monotonic
    took_ms: list[int] = field(default_factory=list)
    """Durations of the decisions, in whole milliseconds as in kubelet. Most are 0."""
    alive: Callable[[], None] = lambda: None
    """Function that is called after each decision, to notify systemd's watchdog during long turns."""

    def decide(self, managers: Managers, promises: Promises, pod: Pod, orphans: CpuSet) -> Admitted | Rejected:
        """Decide on a pod, and record how long the decision took."""
        began = self.clock()
        decision = admit_off_orphans(managers, promises, pod, orphans)
        self.took_ms.append(int(1000 * (self.clock() - began)))
        self.alive()
        return decision


class _PodMetrics(Struct, frozen=True):
    """Contribution of one pod to the metrics."""

    counted: tuple[Series, ...]
    """Gauges that count this pod or its containers. A series appears once for each pod or container that it counts."""
    held: Mapping[Holder, CpuSet]
    claims: Mapping[Holder, tuple[str, ...]]
    paths: Mapping[Holder, str]
    """Cgroup paths of the containers with exclusive CPUs (`PodEntry.container_path`)."""


class MetricsRecorder:
    def __init__(self, node: NodeSetup, promises: Promises) -> None:
        self._totals = MetricTotals()
        self._totals.add(started_deltas(node.managers, promises))
        self.pods: Derived[tuple[PodEntry, PodPromises], _PodMetrics] = Derived()
        self.counted: dict[Series, int] = {}
        """Values of the gauges that count pods and containers, as the sum over `pods`."""
        self._aliases = node.config.metrics_aliases
        self.cpu_counters = CpuCounters()
        self.config_refused_at_seconds = 0.0
        """Time at which the current configuration file was refused, in seconds since the epoch. 0 means that the file is valid."""
        self.served: dict[Series, int] = {}
        """Counters that the serving thread increments, such as PodResources calls."""
        self.latest_starts: Mapping[Series, float] = {}
        """Gauges of the waiting jobs' expected starts. The serving thread sets them before it renders the metrics."""
        self.pressure = ContainerPressure()
        self._config = node.config
        """Configuration that the last turn used."""
        self._hashed: tuple[Config, str] | None = None
        """Configuration of the last rendering and its hash. The serving thread computes the hash, so that turns don't have to."""
        self._of_resources: tuple[Managers | None, Promises | None, tuple[tuple[Series, int], ...]] = None, None, ()
        """Gauges of the resources, with the managers and promises from which they were computed."""
        self._last = self._snapshot({})
        """Snapshot of the last full turn. A turn without changes publishes its gauges again."""
        self.exposition = Exposition(
            self._last,
            aliases=self._aliases,
            read=lambda: {
                **self._describe_config(),
                **self.cpu_counters.values(),
                **self.pressure.values(),
                **self.served,
                **self.latest_starts,
            },
        )

    def count(
        self, decided: Turn, outcome: ExecutionResult, drift: Sequence[str], admissions_ms: Sequence[int]
    ) -> None:
        """Count the events and results of one turn.

        Args:
            decided: the turn's decisions.
            outcome: the cgroup writes, successful and failed.
            drift: label of the metric for each cgroup file that was corrected.
            admissions_ms: durations of the decisions on pods.
        """
        self._totals.add(decided.deltas)
        for milliseconds in admissions_ms:
            self._totals.observe(TOPOLOGY_DURATION, milliseconds)
        self._totals.count(names.CGROUP_WRITES, amount=len(outcome.written))
        for _, err in outcome.failed:
            self._totals.count(names.CGROUP_WRITE_ERRORS, names.find_error_label(err.errno))
        for what in drift:
            self._totals.count(names.DRIFT_CORRECTED, what)
        for event in decided.events:
            fields = dict(event.fields)
            if event.kind is EventKind.POD_REFUSED:
                self._totals.count(names.POD_REFUSALS, str(fields["reason"]))
            elif event.kind is EventKind.CHANGE_REFUSED:
                self._totals.count(names.CHANGE_REFUSALS, str(fields["reason"]))
            elif event.kind is EventKind.CONTAINER_STARTING and fields["restarts"]:
                self._totals.count(names.CONTAINER_RESTARTS)

    def count_domain(self, counted: DomainCounts) -> None:
        """Count what a domain has reported since the last turn."""
        self._totals.add(counted.deltas)
        for name, seconds in counted.durations:
            self._totals.observe(name, seconds)

    def count_refusal(self, reason: str) -> None:
        self._totals.count(names.POD_REFUSALS, reason)

    def count_failed_save(self, error: int | None) -> None:
        self._totals.count(names.STATE_SAVE_ERRORS, names.find_error_label(error))

    def publish(
        self,
        view: NodeView,
        managers: Managers,
        *,
        decided_something: bool,
        manifest_problems: int,
        seconds: float,
        quiet: frozenset[str] = frozenset(),
    ) -> None:
        """Publish the metrics of the state after a turn.

        Args:
            view: the state and problems after the turn.
            managers: the managers.
            decided_something: whether the turn has events, such as an admission. It selects the histogram for the turn's duration.
            manifest_problems: number of problems with manifests.
            seconds: duration of the turn.
            quiet: UIDs of the pods that have not changed since the last call, whose contributions are reused.
        """
        self._totals.observe(names.EVENT_DURATION if decided_something else names.RECONCILE_DURATION, seconds)
        state = view.state
        held: dict[Holder, CpuSet] = {}
        claims: dict[Holder, tuple[str, ...]] = {}
        paths: dict[Holder, str] = {}
        before = self.pods.kept
        self.pods = self.pods.derive(
            (managers, view.node.config),
            [(entry.pod.uid, entry) for entry in state.entries],
            lambda entry: (entry, state.promises.of_pod(entry.pod.uid)),
            lambda inputs: _measure_pod(managers, view.node.config, state.promises, inputs[0]),
            quiet,
        )
        now = self.pods.kept
        self._count_pods([before[uid] for uid in list_replaced(now, before)], -1)
        self._count_pods([now[uid] for uid in list_replaced(before, now)], 1)
        if self._of_resources[0] is not managers or self._of_resources[1] is not state.promises:
            self._of_resources = managers, state.promises, gauges(managers, state.promises)
        values = {**dict(self._of_resources[2]), **self.counted}
        for pod in [pod for _, pod in now.values() if pod.held]:
            held.update(pod.held)
            claims.update(pod.claims)
            paths.update(pod.paths)
        if not view.node.config.metrics_containers:
            held, paths = {}, {}
        self.cpu_counters.follow(held, claims)
        self.pressure.follow(paths, lambda path: f"{view.cgroup_root}/{view.cgroup_of(path)}")
        if state.runtime.refused:
            values[Series(names.WAITING, (("asked", RequestKind.CONTAINER.value),))] = len(state.runtime.refused)
        values |= {Series(names.PROBLEMS, (("kind", kind.value),)): count for kind, count in view.wrong.items()}
        values[Series(names.CONFIG_REFUSED)] = view.wrong.get(ProblemKind.CONFIGURATION_REFUSED, 0)
        if Series(names.JOBS_WAITING) in self.counted:
            since = (entry.refusal.at_ms for entry in state.entries if entry.refusal is not None and entry.is_queued)
            values[Series(names.JOBS_WAITING_TIME)] = min(since) // 1000
        if view.reservations:
            values[Series(names.RESERVATIONS)] = len(view.reservations)
        values[Series(names.CONFIG_REFUSED_TIME)] = int(self.config_refused_at_seconds)
        values[Series(names.DEGRADED_CONTAINERS)] = view.wrong.get(ProblemKind.DEGRADED, 0)
        values[Series(names.STARVED_CONTAINERS)] = view.wrong.get(ProblemKind.STARVED, 0)
        values[Series(names.MANIFEST_PROBLEMS)] = manifest_problems
        values[Series(names.STATE_GENERATION)] = state.generation
        values[Series(names.LAUNCHER_UP)] = int(view.pids is not None)
        self._config = view.node.config
        self._last, self._aliases = self._snapshot(values), view.node.config.metrics_aliases
        self.exposition.publish(self._last, aliases=self._aliases)

    def _count_pods(self, pods: Iterable[tuple[object, _PodMetrics]], by: int) -> None:
        """Add `by` to each gauge that counts these pods or their containers. Remove a gauge whose value becomes 0."""
        for _, pod in pods:
            for series in pod.counted:
                count = self.counted.get(series, 0) + by
                if count:
                    self.counted[series] = count
                else:
                    del self.counted[series]

    def count_rest(self, seconds: float) -> None:
        """Count a turn that changed nothing, and publish the gauges of the last full turn again."""
        self._totals.observe(names.RECONCILE_DURATION, seconds)
        self.exposition.publish(self._totals.renew(self._last), aliases=self._aliases)

    def _describe_config(self) -> dict[Series, int]:
        config = self._config
        if self._hashed is None or self._hashed[0] is not config:
            self._hashed = config, hash_config(config)
        return {Series(names.CONFIG_INFO, (("hash", self._hashed[1]),)): 1}

    def _snapshot(self, values: dict[Series, int]) -> MetricsSnapshot:
        return self._totals.snapshot({**values, Series(names.BUILD_INFO, (("version", __version__),)): 1})


def _measure_pod(managers: Managers, config: Config, promises: Promises, entry: PodEntry) -> _PodMetrics:
    counted = [Series(names.PODS, (("phase", entry.phase.value), ("qos", entry.qos.value)))]
    counted += [Series(names.WAITING, (("asked", kind.value),)) for kind, _ in entry.waiting]
    counted += [Series(names.JOBS_WAITING)] if entry.is_queued else []
    held: dict[Holder, CpuSet] = {}
    claims: dict[Holder, tuple[str, ...]] = {}
    paths: dict[Holder, str] = {}
    for container in entry.pod.containers if entry.is_active else ():
        level = isolation(managers, promises, entry.pod, container.name)
        counted.append(Series(names.CONTAINERS, (("isolation", level.value),)))
        counted.append(_container_info_series(promises, entry.pod, container.name))
        own = own_set_of(promises, entry.pod.uid, container.name)
        if own is not None:
            holder = Holder(entry.pod.uid, entry.pod.namespace, entry.pod.name, container.name)
            held[holder] = own
            paths[holder] = entry.container_path(container.name)
            if devices := config.claimed_devices(container):
                claims[holder] = devices
    return _PodMetrics(tuple(counted), held, claims, paths)


def _container_info_series(promises: Promises, pod: Pod, container: str) -> Series:
    promised = promised_fields(promises.of_pod(pod.uid), container)
    labels = {
        "container": container,
        "cpus": promised["cpus"] or "",
        "mems": promised["mems"] or "",
        "namespace": pod.namespace,
        "pod": pod.name,
    }
    return Series(names.CONTAINER_INFO, tuple(labels.items()))
