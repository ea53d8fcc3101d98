"""Recovery of promises for the present machine and configuration, from the known former holdings of pods.

Running pods keep their holdings as far as possible. Holdings that a pod can't keep are replaced by available ones, and each remaining
difference is reported per container. This module reads neither files nor cgroups, so the caller passes the former holdings (from
core/turn/adoption.py or the saved state). Each resource decides which holdings a pod keeps, and replaces the others (`Resource.keep` and
the methods after it).
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Managers, Rejected, admit, initial, remove_pod, resume
from nodeagent.core.admission.one_pod import is_by_pod
from nodeagent.core.model.demand import Gates, demand_of
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import PodPromises, Promises, with_pod
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.numa.topology_manager import TopologyPolicy
from nodeagent.core.resources.claims.held import drop_released_claims
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from nodeagent.core.resources.cpu.invariants import pod_violations
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.resource import HoldingChange


class RecoveredPod(Struct, frozen=True):
    """Pod that was admitted before, with its former holdings."""

    pod: Pod
    held: PodPromises
    stays: bool
    """Whether the pod has processes, so that it can't be refused. It gets what is available, even if that is less than it requests."""
    ends: bool = False
    """Whether the pod is being ended and has no processes. It keeps its valid holdings until they are released, and its invalid holdings
    aren't replaced.
    """


class Deviation(Struct, frozen=True):
    """Difference between what a container held before the recovery and what it holds now."""

    pod: Pod
    container: str
    what: HoldingChange

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """Return the difference as fields for the log and for `nodeagent inspect`."""
        what = self.what
        return (("resource", what.resource), ("before", what.before), ("after", what.after), ("why", what.why))

    def __str__(self) -> str:
        what = self.what
        who = f"pod {self.pod.full_name}, container {self.container}"
        return f"{who}: {what.resource} {what.before} → {what.after}: {what.why}"


class PlacedPods(Struct, frozen=True):
    promises: Promises
    refused: tuple[tuple[str, Rejected], ...] = ()
    """Refusals, by UID, of pods without processes whose requests can't be met on this machine."""
    differences: tuple[Deviation, ...] = ()


def place_recovered(managers: Managers, pods: Sequence[RecoveredPod], promises: Promises | None = None) -> PlacedPods:
    """Allocate resources to all recovered pods, preferably the ones that they held before.

    Args:
        managers: the managers of the present machine and configuration.
        pods: the pods, in the order of their admission. If two pods held the same resources according to the records, the first one keeps
            them.
        promises: the promises to other pods, including lost pods. None means that there are no other pods.
    """
    promises = initial(managers) if promises is None else promises
    if any(recovered.held.of(DeviceHoldings).devices for recovered in pods):
        managers = managers.knowing(managers.providers.devices, has_devices=True)
    for recovered in pods:
        promises = _keep_valid_holdings(managers, promises, recovered)
    refused: list[tuple[str, Rejected]] = []
    for recovered in pods:
        after = _allocate_missing(managers, promises, recovered)
        if isinstance(after, Rejected):
            refused.append((recovered.pod.uid, after))
            promises = after.promises
        else:
            promises = after
    balanced = resume(managers, promises)
    assert not isinstance(balanced, StartRefused), f"what was placed again does not fit: {balanced}"
    gone = {uid for uid, _ in refused}
    differences = []
    for recovered in pods:
        if recovered.pod.uid in gone or recovered.ends:
            continue
        demand = demand_of(managers.rules, recovered.pod)
        by_pod = is_by_pod(managers.providers.topology, demand)
        for container in recovered.pod.containers:
            for resource in managers.providers.resources:
                changes = resource.differences(
                    balanced, recovered.pod, demand, recovered.held, container.name, by_pod=by_pod
                )
                differences += [Deviation(recovered.pod, container.name, each) for each in changes]
    return PlacedPods(balanced, tuple(refused), tuple(differences))


def _keep_valid_holdings(managers: Managers, promises: Promises, recovered: RecoveredPod) -> Promises:
    """Allocate to a pod those of its former holdings that are valid. What it lacks is allocated only when all pods have their valid
    holdings.
    """
    demand = demand_of(managers.rules, recovered.pod)
    if demand.is_skipped and recovered.held.parts:
        # The pod keeps its exclusive resources even if the gates were turned off in the meantime (KEP-5526).
        demand = demand_of(replace(managers.rules, gates=Gates(True, True)), recovered.pod)
    for resource in managers.providers.resources:
        promises = resource.keep(promises, recovered.pod, demand, recovered.held)
    held = drop_released_claims(promises.of_pod(recovered.pod.uid).having(recovered.held.of(ClaimHoldings)))
    if managers.providers.topology.policy is not TopologyPolicy.NONE:
        names = {c.name for c in recovered.pod.containers}
        nodes = managers.topology.node_ids
        hints = ((name, h) for name, h in recovered.held.hints if h.mask is None or h.mask <= nodes)
        held = replace(held, hints=tuple((name, hint) for name, hint in hints if name in names))
    return with_pod(promises, recovered.pod.uid, held)


def _allocate_missing(managers: Managers, promises: Promises, recovered: RecoveredPod) -> Promises | Rejected:
    """Allocate what a pod lacks, with as few changes of its other holdings as possible. If a pod without processes can't get it, return the
    refusal.
    """
    if recovered.ends:
        return promises
    held = promises.of_pod(recovered.pod.uid)
    demand = demand_of(managers.rules, recovered.pod)
    resources, topology = managers.providers.resources, managers.providers.topology
    by_pod = is_by_pod(topology, demand)
    lacks = not demand.is_skipped and any(resource.lacks(held, demand, by_pod=by_pod) for resource in resources)
    waits = not recovered.stays and any(resource.is_away(held) for resource in resources)
    # A running pod keeps the most similar allocation. Only a new decision can meet the constraints of claims.
    has_lost = not recovered.stays and held.of(ClaimHoldings) != recovered.held.of(ClaimHoldings)
    if not lacks and not waits and not has_lost:
        return _store_hints(managers, promises, recovered.pod)
    attempts = [] if waits or has_lost else [promises]
    for resource in resources:
        attempts = [way for one in attempts for way in resource.fill(topology, one, recovered.pod, demand)]
    attempts.append(remove_pod(managers, promises, recovered.pod.uid)[0])
    last: Rejected | None = None
    for attempt in attempts:
        decision = admit(managers, attempt, recovered.pod)
        if isinstance(decision, Rejected):
            last = decision
        elif not any(pod_violations(recovered.pod, decision.promises.of_pod(recovered.pod.uid).of(CpuHoldings))):
            # The violations are checked, because a container could otherwise get CPUs that an init container has already passed on to a
            # later container.
            return decision.promises
    assert last is not None
    # Offline CPUs may come online again, so the pod keeps these CPUs. Until then, the rules for containers without CPUs apply (D14).
    return promises if recovered.stays or not (lacks or has_lost) else last


def _store_hints(managers: Managers, promises: Promises, pod: Pod) -> Promises:
    """Let the topology manager store hints for a pod that already holds everything. Later decisions about the pod use these hints."""
    held = promises.of_pod(pod.uid)
    is_known = {name for name, _ in held.hints} == {c.name for c in pod.containers}
    if is_known or held.is_nothing or managers.providers.topology.policy is TopologyPolicy.NONE:
        return promises
    decision = admit(managers, promises, pod)
    return decision.promises if isinstance(decision, Admitted) else promises
