"""From a CPU checkpoint to promises: what the static policy accepts of it at a start, and with which words it refuses."""

from dataclasses import replace

from nodeagent.core.cpu_manager import CpuManager
from nodeagent.core.errata import Erratum
from nodeagent.core.idset import CpuSet, IdSetSyntaxError
from nodeagent.core.podmap import PodMap
from nodeagent.core.promises import PodPromises, Promises
from nodeagent.core.records import CpuRecord, Unreadable
from nodeagent.core.refusals import StartRefused

_PATH = "/var/lib/kubelet/cpu_manager_state"


def restored_cpus(manager: CpuManager, record: CpuRecord | Unreadable | None) -> Promises | StartRefused:
    """Judge what the file says.

    Args:
        manager: as configured now.
        record: None if there is no file.
    """
    if record is None:
        promises = Promises()
    else:
        loaded = _loaded(manager, record)
        if isinstance(loaded, StartRefused):
            return StartRefused(
                f"could not restore state from checkpoint: {loaded.message}, please drain this node and delete the CPU manager "
                f'checkpoint file "{_PATH}" before restarting Kubelet'
            )
        promises = loaded
    return _validated(manager, promises) if manager.static else promises


def _loaded(manager: CpuManager, record: CpuRecord | Unreadable) -> Promises | StartRefused:
    if isinstance(record, Unreadable):
        return StartRefused(record.message)
    policy = "static" if manager.static else "none"
    if record.policy_name != policy:
        return StartRefused(f'configured policy "{policy}" differs from state checkpoint policy "{record.policy_name}"')
    try:
        default = CpuSet.parse(record.default)
    except IdSetSyntaxError as err:
        return StartRefused(f'could not parse default cpu set "{record.default}": {err}')
    pods: PodMap[PodPromises] = PodMap()
    for uid, containers in record.entries:
        sets = []
        for name, text in containers:
            try:
                sets.append((name, CpuSet.parse(text)))
            except IdSetSyntaxError as err:
                return StartRefused(f'could not parse cpuset "{text}" for container "{name}" in pod "{uid}": {err}')
        if sets:
            pods = pods.put(uid, PodPromises(cpus=tuple(sorted(sets))))
    for uid, cpus in record.pod_entries:
        pods = pods.put(uid, replace(pods.get(uid) or PodPromises(), pod_cpus=cpus))
    return Promises(default=default, pods=pods)


def _validated(manager: CpuManager, promises: Promises) -> Promises | StartRefused:
    default, reserved = promises.default, manager.reserved
    strict = manager.options.strict_cpu_reservation
    own_sets = list(promises.containers)
    if not default:
        if not own_sets:
            return replace(promises, default=CpuSet(manager.universe))
        if not strict or Erratum.EMPTY_DEFAULT_SET_REFUSED in manager.quirks:
            return StartRefused("default cpuset cannot be empty")
    if strict and not reserved.isdisjoint(default):
        return StartRefused(
            f'some of strictly reserved cpus: "{reserved & default}" are present in defaultCpuSet: "{default}"'
        )
    if not strict and not reserved <= default:
        return StartRefused(f'not all reserved cpus: "{reserved}" are present in defaultCpuSet: "{default}"')
    for uid, name, cpus in own_sets:
        if not cpus.isdisjoint(default):
            return StartRefused(
                f'pod: {uid}, container: {name} cpuset: "{cpus}" overlaps with default cpuset "{default}"'
            )
    present = default | promises.exclusive()
    if manager.pod_level_managers:
        for _, pod in promises.pods:
            present |= pod.pod_cpus or CpuSet()
    if present.bits != manager.universe:
        return StartRefused(
            f'current set of available CPUs "{CpuSet(manager.universe)}" doesn\'t match with CPUs in state "{present}"'
        )
    return promises
