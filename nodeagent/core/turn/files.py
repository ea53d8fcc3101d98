"""Stage: match known pods with manifests, and determine which manifests are in effect, changed or new (D7)."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from nodeagent.core.model.state import PodEntry
from nodeagent.core.turn.draft import Draft
from nodeagent.core.turn.pod_sources import Manifest, find_effective, is_unclear, is_wanted, list_manifests
from nodeagent.core.turn.world import EventKind, TurnEvent, World


def follow_files(draft: Draft, world: World) -> Draft:
    """Find each pod's manifest, and record in which file it is now.

    The manifest of a pod, or of its refused change, may have moved to another file. While a pod's file can't be parsed, the pod keeps
    running.
    """
    manifests, duplicates = find_effective(list_manifests(world.sources), draft.state.own_entries())
    for manifest, first in duplicates:
        same = "name" if manifest.pod.full_name == first.pod.full_name else "uid"
        fields = (("same", same), ("first_source", first.origin.name))
        event = TurnEvent(EventKind.MANIFEST_SHADOWED, manifest.pod, manifest.origin, None, fields)
        draft = draft.plus(draft.state, event)
    for entry, manifest in _pair_with_manifests(world.awake(draft.state.entries), manifests):
        refused = entry.refused_change
        if manifest.pod == entry.pod:
            refused = None
        elif refused is None or manifest.pod != refused.pod:
            continue
        followed = replace(entry, origin=manifest.origin, refused_change=refused)
        if followed != entry and not is_unclear(entry, world.sources):
            draft = draft.plus(draft.state.with_entry(followed))
    changed = {
        entry.pod.uid: manifest
        for entry, manifest in _pair_with_manifests(world.awake(draft.state.entries), manifests)
        if not is_wanted(entry, manifests, world.sources)
    }
    return replace(draft, manifests=manifests, changed=changed)


def _pair_with_manifests(
    entries: Sequence[PodEntry], manifests: Mapping[str, Manifest]
) -> Iterator[tuple[PodEntry, Manifest]]:
    """Yield each pod with its manifest in effect. The manifest is found by the pod's name or, if there is none, by its UID."""
    is_missing = any(entry.pod.full_name not in manifests for entry in entries)
    by_uid = {manifest.pod.uid: manifest for manifest in manifests.values()} if is_missing else {}
    for entry in entries:
        manifest = manifests.get(entry.pod.full_name) or by_uid.get(entry.pod.uid)
        if manifest is not None:
            yield entry, manifest


def add_new_manifests(draft: Draft, world: World) -> Draft:
    """Find the manifests whose pods are not known yet. A manifest waits while a pod that is being ended pins one of its units."""
    candidates = [manifest for manifest in draft.manifests.values() if manifest.pod.uid not in world.quiet]
    if not candidates:
        return draft
    names = {entry.pod.full_name for entry in draft.state.own_entries()}
    uids = {entry.pod.uid for entry in draft.state.entries}
    ending = {unit for entry in draft.state.entries if entry.deleting_since_ms is not None for unit in entry.unit_keys}
    new = (
        manifest
        for manifest in candidates
        if manifest.pod.full_name not in names
        and manifest.pod.uid not in uids
        and ending.isdisjoint(manifest.unit_keys)
    )
    return replace(draft, new=tuple(new))
