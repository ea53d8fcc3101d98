"""Invariants of a node's state: the invariants of its promises, and the invariants of its pods' entries."""

from collections import Counter

from nodeagent.core.admission.managers import Managers, violations as broken_promises
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.violations import Invariant, Violation


def violations(managers: Managers, state: NodeState, checked: NodeState | None = None) -> tuple[Violation, ...]:
    """Return every invariant that the state violates. A state must violate none when it is saved or used.

    Args:
        managers: the node's managers.
        state: the state to check.
        checked: a state without violations. If its promises are the same, they aren't checked again. None means that there is none.
    """
    uids = [entry.pod.uid for entry in state.entries]
    # A container runtime's pod may have the same name as another pod.
    names = [entry.pod.full_name for entry in state.own_entries()]
    holding, found = state.holding_pods(), list[Violation]()
    if checked is None or checked.promises is not state.promises or checked.holding_pods() != holding:
        found += broken_promises(managers, state.promises, holding)
    for invariant, pods in ((Invariant.ONE_ENTRY_PER_UID, uids), (Invariant.ONE_ENTRY_PER_NAME, names)):
        if len(set(pods)) < len(pods):
            twice = sorted(pod for pod, number in Counter(pods).items() if number > 1)
            found += [Violation(invariant=invariant, pod=pod) for pod in twice]
    found += [
        Violation(
            invariant=Invariant.ONE_STATUS_PER_CONTAINER,
            pod=entry.pod.uid,
            statuses=tuple(status.name for status in entry.containers),
            expected_statuses=entry.expected_statuses,
        )
        for entry in state.entries
        if not entry.has_expected_statuses
    ]
    return tuple(found)
