"""Repetition of the decision on a known pod, on the node as it was before the decision.

The result says whether the repeated decision equals the original one, which can differ because pods that have ended since then are unknown.
The decision on a refused pod is repeated on the present node, because users can only change the present node.
"""

from msgspec import Struct

from nodeagent.core.admission.managers import Admitted, Rejected
from nodeagent.core.admission.node_capacity import Insufficient
from nodeagent.core.admission.units import UnitTaken
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.trace import Trace, trace
from nodeagent.core.model.promises import PodPromises
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.resources.explainer import list_explainers


class ReplayedDecision(Struct, frozen=True):
    """Result of the repetition of a decision."""

    before: WhatIf
    """Node on which the decision was repeated. It doesn't contain the pod itself."""
    trace: Trace
    reproduced: bool | None
    """Whether the repeated decision has the same result, that is, the same refusal or the same holdings. Holdings that change while a pod
    runs aren't compared. None means that there is nothing to compare, because the pod has ended or is idle.
    """
    left_out: tuple[str, ...]
    """Names of the pods that were decided after this pod, so they are not on the node `before`."""


def replay_decision(what_if: WhatIf, state: NodeState, entry: PodEntry) -> ReplayedDecision:
    """Repeat the decision on a pod, first without the pods that were decided later, then with them if the result differs from the original
    one.

    Args:
        what_if: the present node.
        state: the state of this node.
        entry: the pod's entry in the state.
    """
    uid = entry.pod.uid
    position = [e.pod.uid for e in state.entries].index(uid)
    after = state.entries[position + 1 :] if entry.holds else ()
    later = tuple(e.pod for e in after if e.holds)
    tries = [later, ()] if later else [()]
    found: list[ReplayedDecision] = []
    for pods in tries:
        before = what_if.without(frozenset({uid, *(pod.uid for pod in pods)}))
        again = trace(before, entry.pod)
        same = _is_same(what_if, entry, again)
        found.append(ReplayedDecision(before, again, same, tuple(pod.full_name for pod in pods)))
        if same:
            return found[-1]
    # If no result equals the original one, the last result is returned, which is for the node as it is now.
    return found[-1]


def _is_same(what_if: WhatIf, entry: PodEntry, again: Trace) -> bool | None:
    if entry.outcome is not None or entry.idle is not None:
        return None
    match again.decision:
        case Admitted(promises=promises):
            held, before = (each.of_pod(entry.pod.uid) for each in (promises, what_if.promises))
            return entry.refusal is None and _find_lasting(what_if, held, entry) == _find_lasting(
                what_if, before, entry
            )
        case Rejected() | Insufficient() | UnitTaken() as refused:
            old_refusal = None if entry.refusal is None else (entry.refusal.reason, entry.refusal.message)
            return old_refusal == (refused.reason, refused.message)


def _find_lasting(what_if: WhatIf, held: PodPromises, entry: PodEntry) -> object:
    """Return the holdings that the pod keeps for as long as it runs. Only these can be compared with the holdings in a repeated
    decision.
    """
    apps = frozenset(container.name for container in entry.pod.apps())
    explainers = list_explainers(what_if.managers.providers.resources)
    return held.having(*filter(None, (each.find_lasting(held, apps) for each in explainers))).parts
