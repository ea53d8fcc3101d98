"""Invariants of a node's state: the invariants of its promises, and the invariants of its pods' entries."""

from collections import Counter

from nodeagent.core.admission.managers import Managers, violations as broken_promises
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.violations import Invariant, Violation


def violations(managers: Managers, state: NodeState) -> tuple[Violation, ...]:
    """Return every violated invariant. A state that is saved or used must not violate any."""
    uids = Counter(e.pod.uid for e in state.entries)
    # A container runtime's pod may have the same name as another pod.
    names = Counter(e.pod.full_name for e in state.own_entries())
    found = list(broken_promises(managers, state.promises, state.holding_pods()))
    for invariant, counts in ((Invariant.ONE_ENTRY_PER_UID, uids), (Invariant.ONE_ENTRY_PER_NAME, names)):
        twice = sorted(pod for pod, number in counts.items() if number > 1)
        found += [Violation(invariant=invariant, pod=pod) for pod in twice]
    for entry in state.entries:
        expected = () if entry.refusal else tuple(c.name for c in entry.pod.containers)
        statuses = tuple(c.name for c in entry.containers)
        if statuses != expected:
            found.append(
                Violation(
                    invariant=Invariant.ONE_STATUS_PER_CONTAINER,
                    pod=entry.pod.uid,
                    statuses=statuses,
                    expected_statuses=expected,
                )
            )
    return tuple(found)
