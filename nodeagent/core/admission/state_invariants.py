"""The invariants of a node's state: of its promises, and of the entries of its pods."""

from collections import Counter

from nodeagent.core.admission.managers import Managers, violations as broken_promises
from nodeagent.core.model.state import NodeState


def violations(managers: Managers, state: NodeState) -> tuple[str, ...]:
    """Name every invariant that does not hold; a state that is saved or used has none."""
    uids = Counter(e.pod.uid for e in state.entries)
    names = Counter(e.pod.full_name for e in state.entries)
    found = list(broken_promises(managers, state.promises, state.active_pods()))
    found += [f"pod {uid} has two entries" for uid in sorted(u for u, number in uids.items() if number > 1)]
    found += [f"pod {name} has two entries" for name in sorted(n for n, number in names.items() if number > 1)]
    for entry in state.entries:
        expected = [] if entry.refusal else [c.name for c in entry.pod.containers]
        statuses = [c.name for c in entry.containers]
        if statuses != expected:
            found.append(f"pod {entry.pod.uid}: statuses of containers {statuses}, expected {expected}")
    return tuple(found)
