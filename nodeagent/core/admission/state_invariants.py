"""Invariants of the node's state, namely those of the promises and those of the pods' entries."""

from collections import Counter
from collections.abc import Iterable

from nodeagent.core.admission.managers import Managers, violations as broken_promises
from nodeagent.core.model.derived import find_replaced
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.model.violations import Invariant, Violation


def violations(managers: Managers, state: NodeState, checked: NodeState | None = None) -> tuple[Violation, ...]:
    """Return the violations of the state's invariants. A state that is saved or used must not have any.

    Args:
        managers: the managers of the node.
        state: the state to check.
        checked: an earlier state that is known to have no violations. Parts that are equal aren't checked again. None means that there is
            no such state.
    """
    before = () if checked is None else checked.entries
    left, came = find_replaced(before, state.entries)
    gone, new, found = before[left], state.entries[came], list[Violation]()
    if checked is None or checked.promises is not state.promises or _list_holding(gone) != _list_holding(new):
        found += broken_promises(managers, state.promises, state.holding_pods())
    if list(map(_identify, gone)) != list(map(_identify, new)):
        uids = [entry.pod.uid for entry in state.entries]
        # Only the agent's own pods are compared, because a container runtime's pod may have the same name as another pod.
        names = [entry.pod.full_name for entry in state.own_entries()]
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
        for entry in new
        if not entry.has_expected_statuses
    ]
    return tuple(found)


def _list_holding(entries: Iterable[PodEntry]) -> list[Pod]:
    return [entry.pod for entry in entries if entry.holds]


def _identify(entry: PodEntry) -> tuple[str, str, bool]:
    return entry.pod.uid, entry.pod.full_name, entry.is_requested_per_container
