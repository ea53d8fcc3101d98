"""Promises rebuilt from what pods are known to hold, on the current machine and under the current configuration.

Running pods stay where they are as far as possible; what can't be kept is replaced by as much as is available; every remaining difference
is reported per container. Knows no file and no cgroup: the caller passes what was held (core/turn/adoption.py, the saved state). Each
resource says what may stay of it, and what takes its place (`Resource.keep` and what follows it).
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Managers, Rejected, admit, initial, remove_pod, resume
from nodeagent.core.admission.one_pod import is_by_pod
from nodeagent.core.model.demand import Gates, PodDemand, demand_of
from nodeagent.core.model.pod import ContainerKind, Pod
from nodeagent.core.model.promises import Hint, PodPromises, Promises, with_pod
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.numa.topology_manager import TopologyPolicy
from nodeagent.core.resources.claims.held import with_held_claims
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.cpu.holdings import CpuHoldings, own_set_of
from nodeagent.core.resources.cpu.invariants import pod_violations
from nodeagent.core.resources.cpu.keep import due_cpus
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.resource import HoldingChange


class RecoveredPod(Struct, frozen=True):
    """What an admitted pod is known to hold."""

    pod: Pod
    held: PodPromises
    stays: bool
    """It has processes: it stays where it is, whatever can be had for it."""
    ends: bool = False
    """It has none, and is to give back what it holds: it keeps what it may, and gets nothing in place of the rest."""


class Deviation(Struct, frozen=True):
    """Something that a container no longer has as before."""

    pod: Pod
    container: str
    what: HoldingChange

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """For the log and `inspect`."""
        what = self.what
        return (("resource", what.resource), ("before", what.before), ("after", what.after), ("why", what.why))

    def __str__(self) -> str:
        what = self.what
        who = f"pod {self.pod.full_name}, container {self.container}"
        return f"{who}: {what.resource} {what.before} → {what.after}: {what.why}"


class Settled(Struct, frozen=True):
    promises: Promises
    refused: tuple[tuple[str, Rejected], ...] = ()
    """By pod UID: pods without processes that could not get what they need."""
    differences: tuple[Deviation, ...] = ()


def settled(managers: Managers, pods: Sequence[RecoveredPod], promises: Promises | None = None) -> Settled:
    """Place every recovered.

    Args:
        managers: for the current machine and configuration.
        pods: in the order of their admission. If two hold the same, the first keeps it.
        promises: to the pods that are already placed, and to lost ones; None: to none.
    """
    promises = initial(managers) if promises is None else promises
    if any(recovered.held.of(DeviceHoldings).devices for recovered in pods):
        managers = managers.knowing(managers.providers.devices, has_devices=True)
    for recovered in pods:
        promises = _with_kept(managers, promises, recovered)
    refused: list[tuple[str, Rejected]] = []
    for recovered in pods:
        after = _completed(managers, promises, recovered)
        if isinstance(after, Rejected):
            refused.append((recovered.pod.uid, after))
            promises = after.promises
        else:
            promises = after
    balanced = resume(managers, promises)
    assert not isinstance(balanced, StartRefused), f"what was placed again does not fit: {balanced}"
    gone = {uid for uid, _ in refused}
    differences = [
        difference
        for recovered in pods
        if recovered.pod.uid not in gone and not recovered.ends
        for difference in _differences(managers, recovered, balanced)
    ]
    return Settled(balanced, tuple(refused), tuple(differences))


def lacking_cpus(managers: Managers, promises: Promises, pod: Pod, name: str) -> int:
    """Return how many exclusive CPUs a container of an admitted pod asks for but was not promised: a recovery had no more."""
    demand = demand_of(managers.rules, pod)
    wanted = next(c for c in demand.containers if c.name == name)
    own = own_set_of(promises, pod.uid, name) or ()
    by_pod = is_by_pod(managers.providers.topology, demand)
    due = due_cpus(managers.providers.of(CpuResource).manager, demand, wanted, by_pod=by_pod)
    # Plain init containers may have passed theirs on to later ones.
    return 0 if wanted.kind is ContainerKind.INIT else max(0, due - len(own))


# What can be kept


def _with_kept(managers: Managers, promises: Promises, recovered: RecoveredPod) -> Promises:
    """Promise a pod what it holds and may keep: the rest follows once every pod has what it keeps."""
    demand = _demand_behind(managers, recovered)
    for resource in managers.providers.resources:
        promises = resource.keep(promises, recovered.pod, demand, recovered.held)
    held = with_held_claims(promises.of_pod(recovered.pod.uid).having(recovered.held.of(ClaimHoldings)))
    if managers.providers.topology.policy is not TopologyPolicy.NONE:
        names = {c.name for c in recovered.pod.containers}
        held = replace(
            held, hints=tuple((n, h) for n, h in recovered.held.hints if n in names and _is_here(managers, h))
        )
    return with_pod(promises, recovered.pod.uid, held)


def _demand_behind(managers: Managers, recovered: RecoveredPod) -> PodDemand:
    """What the pod asked for when it got what it holds: that stays, even with the gates turned off (KEP-5526)."""
    demand = demand_of(managers.rules, recovered.pod)
    if not demand.is_skipped or not recovered.held.parts:
        return demand
    return demand_of(replace(managers.rules, gates=Gates(True, True)), recovered.pod)


def _is_here(managers: Managers, hint: Hint) -> bool:
    return hint.mask is None or hint.mask <= managers.topology.node_ids


# What is missing


def _completed(managers: Managers, promises: Promises, recovered: RecoveredPod) -> Promises | Rejected:
    """Get a pod what it lacks, moving as little of it as possible."""
    if recovered.ends:
        return promises
    held = promises.of_pod(recovered.pod.uid)
    demand = demand_of(managers.rules, recovered.pod)
    resources, topology = managers.providers.resources, managers.providers.topology
    by_pod = is_by_pod(topology, demand)
    lacks = not demand.is_skipped and any(resource.lacks(held, demand, by_pod=by_pod) for resource in resources)
    waits = not recovered.stays and any(resource.is_away(held) for resource in resources)
    # What its claims allow, only they know: what runs gets the nearest instead, all else is decided on anew.
    has_lost = not recovered.stays and held.of(ClaimHoldings) != recovered.held.of(ClaimHoldings)
    if not lacks and not waits and not has_lost:
        return _with_hints(managers, promises, recovered.pod)
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
            # A later container may already have what init containers lend, if an earlier one is looked after only now.
            return decision.promises
    assert last is not None
    # CPUs that are only offline may return: until then D14 holds.
    return promises if recovered.stays or not (lacks or has_lost) else last


def _with_hints(managers: Managers, promises: Promises, pod: Pod) -> Promises:
    """Let the topology manager store where the pod is, as it does for pods that it finds already placed."""
    held = promises.of_pod(pod.uid)
    is_known = {name for name, _ in held.hints} == {c.name for c in pod.containers}
    if is_known or held.is_nothing or managers.providers.topology.policy is TopologyPolicy.NONE:
        return promises
    decision = admit(managers, promises, pod)
    return decision.promises if isinstance(decision, Admitted) else promises


# What differs


def _differences(managers: Managers, recovered: RecoveredPod, promises: Promises) -> Iterator[Deviation]:
    demand = demand_of(managers.rules, recovered.pod)
    by_pod = is_by_pod(managers.providers.topology, demand)
    for container in recovered.pod.containers:
        for resource in managers.providers.resources:
            found = resource.differences(promises, recovered.pod, demand, recovered.held, container.name, by_pod=by_pod)
            yield from (Deviation(recovered.pod, container.name, each) for each in found)
