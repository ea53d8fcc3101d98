"""Which of the manifests count, where several have one name or one UID (D7)."""

from msgspec import Struct

from nodeagent.core.model.pod import Pod
from nodeagent.core.model.state import PodEntry


class Manifest(Struct, frozen=True):
    """One valid pod of the manifest directory."""

    pod: Pod
    source: str
    unused_fields: tuple[str, ...] = ()
    """Given, known to Kubernetes and without effect here (D8)."""
    notes: tuple[str, ...] = ()
    """What is hardly meant as it is written, for the log when the pod is decided on."""


def wanted(manifests: tuple[Manifest, ...]) -> tuple[Manifest, ...]:
    """Give the manifests that count where no pod runs yet, in their order."""
    return tuple(counting(manifests, ())[0].values())


def counting(
    manifests: tuple[Manifest, ...], entries: tuple[PodEntry, ...]
) -> tuple[dict[str, Manifest], list[tuple[Manifest, Manifest]]]:
    """Give the manifests that count, by namespace/name, and the others, each with the one that has its name or UID (D7).

    A pod that was decided on keeps its name and UID while its file, or another with the same pod, is there: also one that is refused,
    has finished or was released, as what was ended comes back by nobody's copy. Else the first file has them.
    """
    known = {entry.pod.full_name: entry for entry in entries}

    def claim(place: int) -> int:
        manifest = manifests[place]
        entry = known.get(manifest.pod.full_name)
        if entry is None:
            return 2
        return 0 if manifest.source == entry.source else 1 if manifest.pod == entry.pod else 2

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
