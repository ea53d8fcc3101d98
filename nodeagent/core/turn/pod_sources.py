"""Pods from sources, and the choice between manifests with the same name or UID (D7)."""

from collections.abc import Mapping
from itertools import chain

from msgspec import Struct

from nodeagent.core.model.config import DEFAULT_WEIGHT
from nodeagent.core.model.demand import never_holds_cpuset
from nodeagent.core.model.pod import OWN, Pod, qos_class
from nodeagent.core.model.reservation import Reservation
from nodeagent.core.model.state import (
    MANIFEST_DIRECTORY,
    ContainerStatus,
    Idle,
    NodeState,
    Origin,
    PodEntry,
    UnitKey,
    list_unit_keys,
)


class Manifest(Struct, frozen=True):
    """Valid pod from a source, with the name of its file and with notes about it."""

    pod: Pod
    origin: Origin
    unused_fields: tuple[str, ...] = ()
    """Fields that Kubernetes knows and the manifest sets, but that have no effect in nodeagent (D8)."""
    notes: tuple[str, ...] = ()
    """Notes about probable mistakes in the manifest. They are logged when the agent decides on the pod."""

    @property
    def unit_keys(self) -> frozenset[UnitKey]:
        """Return the keys of the systemd units that the pod pins."""
        return list_unit_keys(self.pod, self.origin)


def new_entry(manifest: Manifest, now_ms: int, *, pod_level_resources: bool) -> PodEntry:
    """Return the entry that the pod of a manifest gets if it is admitted now."""
    pod = manifest.pod
    qos = qos_class(pod, pod_level_resources=pod_level_resources)
    return PodEntry(
        pod,
        qos,
        manifest.origin,
        now_ms,
        containers=tuple(ContainerStatus(c.name) for c in pod.containers),
        is_pooled=manifest.origin.domain == OWN and not pod.units and never_holds_cpuset(pod, qos),
    )


class ManifestProblem(Struct, frozen=True):
    source: str
    """Name of the invalid manifest file, or of the manifest directory."""
    text: str


class JobTerms(Struct, frozen=True):
    """Conditions under which one job runs, as stated by the source of jobs in addition to the pod."""

    uid: str
    user: int
    """User ID of the process that requested the job."""
    max_ms: int = 0
    """Longest time from the job's start to its end, in milliseconds. 0 means that there is no limit."""
    ends_at_ms: int = 0
    """Latest end of the running job, in milliseconds since boot. 0 means that the job has no time limit or hasn't started."""
    is_queued: bool = False
    """Whether the job waits in the queue until there is room, instead of being refused."""
    reservation: str = ""
    """Name of the reservation whose resources the job uses. Empty means that it uses none."""
    weight: int = DEFAULT_WEIGHT
    """Weight of the job's user. A user whose running jobs have few CPUs per unit of weight comes first when waiting jobs are examined for
    an early start.
    """


class PodSource(Struct, frozen=True):
    """Pods of one source, as read for a turn."""

    pods: tuple[Manifest, ...] = ()
    """Pods of the source, in order. In the manifest directory, they are ordered by file name, then by position in the file."""
    unreadable: frozenset[str] = frozenset()
    """Names of manifest files that exist but can't be parsed now, so their pods are unknown."""
    misspelt: frozenset[str] = frozenset()
    """Names, as `namespace/name`, of pods whose manifests exist but are invalid now."""
    problems: tuple[ManifestProblem, ...] = ()
    is_blind: bool = False
    """Whether the source can't be read at all."""
    is_partial: bool = False
    """Whether pods may be missing in `pods`, because the source kept changing while it was read."""
    name: str = MANIFEST_DIRECTORY
    """Name of the source, as in `Origin.source` of its pods."""

    terms: tuple[JobTerms, ...] = ()
    """Conditions for the source's jobs, running or waiting, in the order in which the jobs were requested. Empty for a source
    without jobs.
    """

    reservations: tuple[Reservation, ...] = ()
    """Reservations that jobs of this source can use."""

    @property
    def queue(self) -> tuple[str, ...]:
        """Return the UIDs of the jobs that wait in the queue until there is room, in order."""
        return tuple(one.uid for one in self.terms if one.is_queued)

    def find_terms(self, uid: str) -> JobTerms | None:
        return next((one for one in self.terms if one.uid == uid), None)

    def hides_manifest_of(self, entry: PodEntry) -> bool:
        """Return whether a manifest of this pod may exist in the source although it couldn't be read."""
        return (
            self.is_blind
            or self.is_partial
            or entry.origin.name in self.unreadable
            or entry.pod.full_name in self.misspelt
        )


def is_unclear(entry: PodEntry, sources: tuple[PodSource, ...]) -> bool:
    """Return whether a pod has to stay unchanged for now, because its source is absent or its manifest can't be read."""
    own = next((source for source in sources if source.name == entry.origin.source), None)
    return own is None or own.hides_manifest_of(entry)


def is_wanted(entry: PodEntry, manifests: Mapping[str, Manifest], sources: tuple[PodSource, ...]) -> bool:
    """Return whether a pod is to keep running: its effective manifest contains the same pod, or the manifest can't be read now."""
    manifest = manifests.get(entry.pod.full_name)
    if manifest is not None and (manifest.pod == entry.pod or manifest.origin == entry.origin):
        return manifest.pod == entry.pod
    # While a pod's own file can't be parsed, a pod of the same name in another file doesn't replace it.
    return is_unclear(entry, sources)


def list_manifests(sources: tuple[PodSource, ...]) -> tuple[Manifest, ...]:
    """Return the manifests of all readable sources, in order."""
    return tuple(chain.from_iterable([source.pods for source in sources if not source.is_blind]))


def needs_device_scan(
    manifests: tuple[Manifest, ...],
    state: NodeState,
    retried: frozenset[str],
    *,
    gives: bool = False,
) -> bool:
    """Return whether this turn may decide on a pod that needs devices, so that the machine's devices must be scanned first.

    Args:
        manifests: all manifests.
        state: the state before the turn.
        retried: the UIDs of pods for which a user wants a new decision.
        gives: whether the configuration lists devices to allocate. If it doesn't, only pods with claims or `near` annotations need a scan.
    """

    def needs(pod: Pod) -> bool:
        return bool(pod.near or pod.claims) or (gives and pod.asks_for_devices)

    def is_tried(entry: PodEntry) -> bool:
        return entry.idle == Idle() or entry.pod.uid in retried

    idle = [entry for entry in state.entries if entry.idle is not None or entry.pod.uid in retried]
    if any(needs(entry.pod) and is_tried(entry) for entry in idle):
        return True
    if not any(needs(manifest.pod) for manifest in manifests):
        return False
    own = state.own_entries()
    by_name, by_uid = {e.pod.full_name: e for e in own}, {e.pod.uid: e for e in own}
    coming = (manifest.pod for manifest in find_effective(manifests, own)[0].values() if needs(manifest.pod))
    return any(_may_be_decided(pod, by_name.get(pod.full_name) or by_uid.get(pod.uid), retried) for pod in coming)


def _may_be_decided(pod: Pod, entry: PodEntry | None, retried: frozenset[str]) -> bool:
    """Return whether this turn may decide on the pod of a manifest. `entry` is the entry of the known pod with the same name or UID. None
    means that there is no such pod.
    """
    # an ending pod may be gone before the turn decides on new pods
    if entry is None or entry.deleting_since_ms is not None:
        return True
    if entry.pod == pod:
        return False
    known = entry.refused_change
    return not entry.is_active or known is None or known.pod != pod or entry.pod.uid in retried


def list_effective(manifests: tuple[Manifest, ...]) -> tuple[Manifest, ...]:
    """Return the manifests that would be in effect on a node without pods, in order. Duplicates are left out."""
    return tuple(find_effective(manifests, ())[0].values())


def find_effective(
    manifests: tuple[Manifest, ...], entries: tuple[PodEntry, ...]
) -> tuple[dict[str, Manifest], list[tuple[Manifest, Manifest]]]:
    """Choose the manifests that are in effect, by `namespace/name` of their pods. Also return each duplicate, with the manifest in effect
    that has the same name or UID (D7).

    The manifest of a known pod takes precedence: its own file first, then any other file with the same pod, then a file with its refused
    change. This is also true for refused, finished and released pods, because a copy of the manifest would otherwise restart an ended pod.
    For unknown pods, the first file of the first source is in effect.
    """
    counting = {manifest.pod.full_name: manifest for manifest in manifests}
    if len(counting) == len(manifests) == len({manifest.pod.uid for manifest in manifests}):
        return counting, []
    known = {entry.pod.full_name: entry for entry in entries}

    def rank(index: int) -> int:
        manifest = manifests[index]
        entry = known.get(manifest.pod.full_name)
        if entry is None:
            return 3
        if manifest.origin == entry.origin:
            return 0
        if manifest.pod == entry.pod:
            return 1
        return 2 if entry.refused_change is not None and manifest.pod == entry.refused_change.pod else 3

    by_name: dict[str, int] = {}
    by_uid: dict[str, int] = {}
    duplicates: dict[int, int] = {}
    for index in sorted(range(len(manifests)), key=rank):
        pod = manifests[index].pod
        other = by_name.get(pod.full_name, by_uid.get(pod.uid))
        if other is not None:
            duplicates[index] = other
            continue
        by_name[pod.full_name] = by_uid[pod.uid] = index
    counting = {manifests[index].pod.full_name: manifests[index] for index in sorted(by_name.values())}
    return counting, [(manifests[index], manifests[by]) for index, by in sorted(duplicates.items())]
