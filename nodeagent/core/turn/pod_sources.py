"""Pods of each source, and the choice between manifests with the same name or UID (D7)."""

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
    """A valid pod of a source, with its file and the notes on it."""

    pod: Pod
    origin: Origin
    unused_fields: tuple[str, ...] = ()
    """Fields that are set and that Kubernetes knows, but that have no effect here (D8)."""
    notes: tuple[str, ...] = ()
    """Notes on probable mistakes in the manifest. They are logged at the decision on the pod."""

    @property
    def unit_keys(self) -> frozenset[UnitKey]:
        """Return the units that the pod pins."""
        return list_unit_keys(self.pod, self.origin)


def new_entry(manifest: Manifest, now_ms: int, *, pod_level_resources: bool) -> PodEntry:
    """Return a new entry for the pod of a manifest, as if it were admitted now."""
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
    """Name of the manifest's file, or of the directory."""
    text: str


class JobTerms(Struct, frozen=True):
    """Terms of a job. They are data about one pod that a source with a queue has in addition to the pod itself."""

    uid: str
    user: int
    """User ID of the job's owner."""
    max_ms: int = 0
    """Longest time from the job's start to its end, in milliseconds. 0 means that there is no limit."""
    ends_at_ms: int = 0
    """Latest end, in milliseconds since boot. 0 means that there is no limit, or that the pod hasn't started."""
    is_queued: bool = False
    """Whether the pod waits in the queue if there is too little room."""
    reservation: str = ""
    """Name of the reservation in which the pod runs. Empty means that the pod belongs to no reservation."""
    weight: int = DEFAULT_WEIGHT
    """Weight of the user."""


class PodSource(Struct, frozen=True):
    """Current content of one source of pods."""

    pods: tuple[Manifest, ...] = ()
    """Pods in order. The manifest directory orders them by file name and by document within a file."""
    unreadable: frozenset[str] = frozenset()
    """Names of manifests that exist but can't be parsed now."""
    misspelt: frozenset[str] = frozenset()
    """Pods, as `namespace/name`, whose manifest exists but is now invalid."""
    problems: tuple[ManifestProblem, ...] = ()
    is_blind: bool = False
    """Whether the source can't be read at all."""
    is_partial: bool = False
    """Whether the source kept changing while it was read, so that some of its pods may be missing."""
    name: str = MANIFEST_DIRECTORY
    """Name of the source, as in the origins of its pods."""

    terms: tuple[JobTerms, ...] = ()
    """Terms of the pods in the order of the requests, if the source has a queue. Running pods may be among them."""

    reservations: tuple[Reservation, ...] = ()
    """Reservations for the source's pods."""

    @property
    def queue(self) -> tuple[str, ...]:
        """Return the UIDs of the pods that wait in the queue if there is too little room, in order."""
        return tuple(one.uid for one in self.terms if one.is_queued)

    def find_terms(self, uid: str) -> JobTerms | None:
        return next((one for one in self.terms if one.uid == uid), None)

    def hides_manifest_of(self, entry: PodEntry) -> bool:
        """Whether this pod's manifest may exist in the source, but can't be read now."""
        return (
            self.is_blind
            or self.is_partial
            or entry.origin.name in self.unreadable
            or entry.pod.full_name in self.misspelt
        )


def is_unclear(entry: PodEntry, sources: tuple[PodSource, ...]) -> bool:
    """Tell whether a pod has to stay unchanged, because its source is absent, or because its manifest is unknown now."""
    own = next((source for source in sources if source.name == entry.origin.source), None)
    return own is None or own.hides_manifest_of(entry)


def is_wanted(entry: PodEntry, manifests: Mapping[str, Manifest], sources: tuple[PodSource, ...]) -> bool:
    """Tell whether a pod is the same as its effective manifest's pod, or its manifest is unknown now."""
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
    """Tell whether this turn's decisions may need a scan of the machine's devices.

    Args:
        manifests: all manifests.
        state: the state before the turn.
        retried: UIDs of pods on which a new decision is requested.
        gives: whether the node allocates devices. If it doesn't, only pods near devices and pods with claims need a scan.
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
    """Whether this turn may decide on the pod of a manifest. `entry` belongs to the known pod with the same name or UID. If it is None,
    there is no such pod.
    """
    # an ending pod may be gone before the turn decides on new pods
    if entry is None or entry.deleting_since_ms is not None:
        return True
    if entry.pod == pod:
        return False
    known = entry.refused_change
    return not entry.is_active or known is None or known.pod != pod or entry.pod.uid in retried


def list_effective(manifests: tuple[Manifest, ...]) -> tuple[Manifest, ...]:
    """Return the manifests that would be effective on a node without pods, in order."""
    return tuple(find_effective(manifests, ())[0].values())


def find_effective(
    manifests: tuple[Manifest, ...], entries: tuple[PodEntry, ...]
) -> tuple[dict[str, Manifest], list[tuple[Manifest, Manifest]]]:
    """Return the effective manifests by namespace/name. Also return each duplicate, with the effective manifest that has its name or UID
    (D7).

    A pod with an entry keeps its name and UID while a file has this pod or its refused change. This may be the pod's own file or another
    file. Refused, finished and released pods keep them, too, because a copy of the file would otherwise restart an ended pod. If no pod
    has an entry, the first file of the first source is effective.
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
