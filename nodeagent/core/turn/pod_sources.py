"""What each source of pods has, and which of several manifests with the same name or UID counts (D7)."""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.pod import Pod, qos_class
from nodeagent.core.model.state import MANIFEST_DIRECTORY, ContainerStatus, Origin, PodEntry


class Manifest(Struct, frozen=True):
    """One valid pod of a source."""

    pod: Pod
    origin: Origin
    unused_fields: tuple[str, ...] = ()
    """Set in the manifest and known to Kubernetes, but without effect here (D8)."""
    notes: tuple[str, ...] = ()
    """What is probably not meant as written, for the log when the pod is decided on."""


def new_entry(manifest: Manifest, now_ms: int, *, pod_level_resources: bool) -> PodEntry:
    """Return the entry of a manifest's pod that is admitted now."""
    pod = manifest.pod
    qos = qos_class(pod, pod_level_resources=pod_level_resources)
    return PodEntry(
        pod, qos, manifest.origin, now_ms, containers=tuple(ContainerStatus(c.name) for c in pod.containers)
    )


class ManifestProblem(Struct, frozen=True):
    source: str
    """The manifest's file name, or the directory's."""
    text: str


class PodSource(Struct, frozen=True):
    """What one source of pods has now."""

    pods: tuple[Manifest, ...] = ()
    """In order: for the manifest directory by file name and document."""
    unreadable: frozenset[str] = frozenset()
    """Names of manifests that exist but can't be parsed now."""
    misspelt: frozenset[str] = frozenset()
    """`namespace/name` of pods whose manifest exists but is invalid now."""
    problems: tuple[ManifestProblem, ...] = ()
    is_blind: bool = False
    """The source can't be read at all."""
    is_partial: bool = False
    """The source kept changing while it was read: pods that it has may be missing."""
    name: str = MANIFEST_DIRECTORY
    """The source in the origins of its pods."""

    def is_silent_about(self, entry: PodEntry) -> bool:
        """Whether the state of one of its pods' manifest is unknown."""
        return (
            self.is_blind
            or self.is_partial
            or entry.origin.name in self.unreadable
            or entry.pod.full_name in self.misspelt
        )


def is_unclear(entry: PodEntry, sources: tuple[PodSource, ...]) -> bool:
    """Whether a pod stays as it is because its own source doesn't know its manifest now; a source that is absent doesn't, either."""
    own = next((source for source in sources if source.name == entry.origin.source), None)
    return own is None or own.is_silent_about(entry)


def is_wanted(entry: PodEntry, manifests: Mapping[str, Manifest], sources: tuple[PodSource, ...]) -> bool:
    """Whether a pod is as its manifest among those that count says, or its manifest isn't known now."""
    manifest = manifests.get(entry.pod.full_name)
    if manifest is not None and (manifest.pod == entry.pod or manifest.origin == entry.origin):
        return manifest.pod == entry.pod
    # While a pod's own file can't be parsed, another file's pod of the same name does not replace it.
    return is_unclear(entry, sources)


def offered(sources: tuple[PodSource, ...]) -> tuple[Manifest, ...]:
    """Return the manifests of all readable sources, in their order."""
    return tuple(manifest for source in sources if not source.is_blind for manifest in source.pods)


def asking_for_devices(
    manifests: tuple[Manifest, ...],
    entries: tuple[PodEntry, ...],
    retried: frozenset[str],
    *,
    gives: bool = False,
    for_room: bool = False,
) -> bool:
    """Whether a pod that may be decided on now asks to be near devices, or the node `gives` devices and it asks for some: then they are to
    be looked at.
    """

    def asks(pod: Pod) -> bool:
        return bool(pod.near or pod.claims) or (gives and pod.asks_for_devices)

    def is_tried(entry: PodEntry) -> bool:
        waits = for_room and entry.refusal is not None and entry.refusal.is_for_room
        return waits or entry.idle is not None or entry.pod.uid in retried

    if any(asks(entry.pod) and is_tried(entry) for entry in entries):
        return True
    if not any(asks(manifest.pod) for manifest in manifests):
        return False
    own = tuple(entry for entry in entries if not entry.is_requested_per_container)
    by_name, by_uid = {e.pod.full_name: e for e in own}, {e.pod.uid: e for e in own}
    coming = (manifest.pod for manifest in counting(manifests, own)[0].values() if asks(manifest.pod))
    return any(_is_open(pod, by_name.get(pod.full_name) or by_uid.get(pod.uid), retried) for pod in coming)


def _is_open(pod: Pod, entry: PodEntry | None, retried: frozenset[str]) -> bool:
    """Whether a manifest's pod may be decided on in this turn, given the entry that has its name or UID."""
    if entry is None or entry.deleting_since_ms is not None:  # that may be gone before new pods are decided on
        return True
    if entry.pod == pod:
        return False
    known = entry.refused_change
    return not entry.is_active or known is None or known.pod != pod or entry.pod.uid in retried


def wanted(manifests: tuple[Manifest, ...]) -> tuple[Manifest, ...]:
    """Return the manifests that count if no pod runs yet, in their order."""
    return tuple(counting(manifests, ())[0].values())


def counting(
    manifests: tuple[Manifest, ...], entries: tuple[PodEntry, ...]
) -> tuple[dict[str, Manifest], list[tuple[Manifest, Manifest]]]:
    """Return the manifests that count, by namespace/name, and the others, each with the one that has its name or UID (D7).

    A pod that was decided on keeps its name and UID while its file, or another file with the same pod or its refused change, exists: even
    one that is refused, finished or released, so that a copy doesn't bring back what was ended. Otherwise the first source's first file has
    them.
    """
    known = {entry.pod.full_name: entry for entry in entries}

    def claim(place: int) -> int:
        manifest = manifests[place]
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
    shadowed: dict[int, int] = {}
    for place in sorted(range(len(manifests)), key=claim):
        pod = manifests[place].pod
        other = by_name.get(pod.full_name, by_uid.get(pod.uid))
        if other is not None:
            shadowed[place] = other
            continue
        by_name[pod.full_name] = by_uid[pod.uid] = place
    counting = {manifests[place].pod.full_name: manifests[place] for place in sorted(by_name.values())}
    return counting, [(manifests[place], manifests[by]) for place, by in sorted(shadowed.items())]
