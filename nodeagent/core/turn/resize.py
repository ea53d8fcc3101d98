"""Stage: resize running pods whose manifests have changed only in amounts."""

from msgspec.structs import replace

from nodeagent.core.admission.resize import (
    differences,
    is_resizable,
    is_resize,
    lowers_request,
    moves_instead,
    restarted,
)
from nodeagent.core.model.refusals import NotResized
from nodeagent.core.model.waiting import RequestKind, Waiting
from nodeagent.core.turn import lifecycle
from nodeagent.core.turn.decision import resize_pod
from nodeagent.core.turn.draft import Draft, is_to_try, make_note_events
from nodeagent.core.turn.world import EventKind, TurnEvent, World


def resize(draft: Draft, world: World) -> Draft:
    """Resize the pods whose manifests have changed only in amounts. This stage comes before the decisions on new pods, which could
    otherwise take the resources.

    A changed manifest that a resize can't apply stays in `Draft.changed`, for the stage that replaces pods.
    """
    found = [
        (entry, draft.changed[entry.pod.uid])
        for entry in (draft.state.entries if draft.changed else ())
        if entry.pod.uid in draft.changed
        and is_resizable(entry)
        and is_resize(entry.pod, draft.changed[entry.pod.uid].pod)
    ]
    # Pods that lower a request are resized first, because other resizes may need the released resources.
    for entry, manifest in sorted(found, key=lambda one: not lowers_request(one[0].pod, one[1].pod)):
        uid, state = entry.pod.uid, draft.state
        remaining = {other: changed for other, changed in draft.changed.items() if other != uid}
        if not is_to_try(draft, entry, manifest, world):
            draft = replace(draft, changed=remaining)
            continue
        answer = resize_pod(state, entry.pod, manifest.pod, world)
        if moves_instead(manifest.pod, answer):
            continue
        draft = replace(draft, changed=remaining)
        if isinstance(answer, NotResized):
            known = None if uid in world.retried else entry.refused_change
            reason_and_message = (answer.reason, answer.message)
            if (
                known is None
                or known.pod != manifest.pod
                or (known.refusal.reason, known.refusal.message) != reason_and_message
            ):
                draft = draft.with_refused_change(entry, manifest, Waiting(*reason_and_message, world.now_ms))
            refused = next(one for one in draft.state.entries if one.pod.uid == uid)
            draft = draft.having_refused(refused, RequestKind.CHANGE, world)
            continue
        changes = "; ".join(differences(state.promises, answer, entry.pod, manifest.pod))
        after = replace(entry, pod=manifest.pod, origin=manifest.origin, refused_change=None)
        after = lifecycle.stop_for_restart(after, restarted(entry.pod, manifest.pod), world.now_ms)
        event = TurnEvent(EventKind.POD_RESIZED, manifest.pod, manifest.origin, None, (("changes", changes),))
        draft = draft.plus(replace(state.with_entry(after), promises=answer), *make_note_events(manifest), event)
    return draft
