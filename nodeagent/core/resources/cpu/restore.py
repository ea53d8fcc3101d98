"""Conversion of kubelet's cpu_manager_state into promises. Content that the static policy doesn't accept is refused with kubelet's
messages.
"""

from msgspec.structs import replace

from nodeagent.core.model.errata import Erratum
from nodeagent.core.model.idset import CpuMask, CpuSet, IdSetSyntaxError
from nodeagent.core.model.podmap import PodMap
from nodeagent.core.model.promises import NOTHING, PodPromises, Promises
from nodeagent.core.model.records import Unreadable
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings, default_set, exclusive_sets, with_default_set
from nodeagent.core.resources.cpu.manager import CpuManager
from nodeagent.core.resources.cpu.records import CpuRecord

_FILE = "cpu_manager_state"
_PATH = f"/var/lib/kubelet/{_FILE}"


def restore_cpus(manager: CpuManager, record: CpuRecord | Unreadable | None) -> Promises | StartRefused:
    """Check the content of kubelet's file, and convert it into promises. Return kubelet's error if the content isn't accepted.

    Args:
        manager: the manager with the present configuration.
        record: the content of the file. None means that the file doesn't exist.
    """
    if record is None:
        promises = Promises()
    else:
        loaded = _parse_record(manager, record)
        if isinstance(loaded, StartRefused):
            return StartRefused(
                f"could not restore state from checkpoint: {loaded.message}, please drain this node and delete the CPU manager "
                f'checkpoint file "{_PATH}" before restarting Kubelet',
                _FILE,
            )
        promises = loaded
    return validate_cpus(manager, promises)


def _parse_record(manager: CpuManager, record: CpuRecord | Unreadable) -> Promises | StartRefused:
    if isinstance(record, Unreadable):
        return StartRefused(record.message, _FILE)
    policy = "static" if manager.static else "none"
    if record.policy_name != policy:
        return StartRefused(
            f'configured policy "{policy}" differs from state checkpoint policy "{record.policy_name}"', _FILE
        )
    try:
        default = CpuSet.parse(record.default)
    except IdSetSyntaxError as err:
        return StartRefused(f'could not parse default cpu set "{record.default}": {err}', _FILE)
    pods: PodMap[PodPromises] = PodMap()
    for uid, containers in record.entries:
        sets = []
        for name, text in containers:
            try:
                sets.append((name, CpuSet.parse(text)))
            except IdSetSyntaxError as err:
                return StartRefused(
                    f'could not parse cpuset "{text}" for container "{name}" in pod "{uid}": {err}', _FILE
                )
        if sets:
            pods = pods.put(uid, NOTHING.having(CpuHoldings(cpus=tuple(sorted(sets)))))
    for uid, cpus in record.pod_entries:
        held = pods.get(uid) or NOTHING
        pods = pods.put(uid, held.having(replace(held.of(CpuHoldings), pod_cpus=cpus)))
    return Promises(pods=pods).having(CpuBooks(default=default))


def validate_cpus(manager: CpuManager, promises: Promises) -> Promises | StartRefused:
    """Check stored promises against the present machine and configuration. CPUs that have come online join the shared pool, and CPUs that
    have gone offline leave it. Return kubelet's error if the promises aren't accepted.
    """
    if not manager.static:
        return promises
    strict = manager.options.strict_cpu_reservation
    if not default_set(promises):
        if not any(pod.of(CpuHoldings).cpus for _, pod in promises.pods):
            return with_default_set(promises, CpuSet(manager.universe))
        if not strict or Erratum.EMPTY_DEFAULT_SET_REFUSED in manager.quirks:
            return StartRefused("default cpuset cannot be empty", _FILE)
    if Erratum.ONLINE_CHANGE_REFUSED not in manager.quirks:
        # CPUs without an owner, for instance CPUs that came online, join the shared pool. CPUs that went offline leave the pool.
        appeared = CpuSet(manager.universe) - default_set(promises) - list_allocated_cpus(promises)
        promises = with_default_set(promises, (default_set(promises) | appeared) & CpuSet(manager.layout.online))
    default, reserved = default_set(promises), manager.reserved
    if strict and not reserved.isdisjoint(default):
        return StartRefused(
            f'some of strictly reserved cpus: "{reserved & default}" are present in defaultCpuSet: "{default}"',
            _FILE,
        )
    if not strict and not reserved <= default:
        return StartRefused(f'not all reserved cpus: "{reserved}" are present in defaultCpuSet: "{default}"', _FILE)
    for uid, name, cpus in exclusive_sets(promises):
        if not cpus.isdisjoint(default):
            return StartRefused(
                f'pod: {uid}, container: {name} cpuset: "{cpus}" overlaps with default cpuset "{default}"', _FILE
            )
    twice = None if Erratum.OVERLAPS_TAKEN_OVER in manager.quirks else _find_double_owner(promises)
    if twice is not None:
        return twice
    present = default | list_allocated_cpus(promises)
    if Erratum.ONLINE_CHANGE_REFUSED not in manager.quirks:
        # CPUs that went offline stay allocated, because they may come online again.
        present &= CpuSet(manager.layout.online)
    if present.bits != manager.universe:
        return StartRefused(
            f'current set of available CPUs "{CpuSet(manager.universe)}" doesn\'t match with CPUs in state "{present}"',
            _FILE,
        )
    return promises


def _find_double_owner(promises: Promises) -> StartRefused | None:
    """Return an error if a CPU of one pod also belongs to another pod or to the shared pool. None means that there is no such CPU."""
    allocated = CpuSet()
    for uid, pod in promises.pods:
        pod_cpus = pod.of(CpuHoldings).every_cpu
        if not pod_cpus.isdisjoint(allocated):
            return StartRefused(
                f'pod: {uid} cpuset: "{pod_cpus}" overlaps with "{pod_cpus & allocated}" of other pods', _FILE
            )
        if not pod_cpus.isdisjoint(default_set(promises)):
            return StartRefused(
                f'pod: {uid} cpuset: "{pod_cpus}" overlaps with default cpuset "{default_set(promises)}"', _FILE
            )
        allocated |= pod_cpus
    return None


def list_allocated_cpus(promises: Promises) -> CpuSet:
    """Return all CPUs that any pod holds."""
    given = 0
    for _, pod in promises.pods:
        given |= pod.of(CpuHoldings).every_cpu.bits
    return CpuSet(CpuMask(given))
