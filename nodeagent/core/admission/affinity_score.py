"""Choice between two NUMA nodes: the node with the larger allocated share wins (prefer-most-allocated-numa-node, KEP-6007).

Each manager compares its allocated shares of both nodes in whole percent. A manager with equal shares abstains. If managers disagree, there
is no preference.
"""

from collections.abc import Iterable

from nodeagent.core.model.promises import Promises
from nodeagent.core.resources.resource import Resource


def preferred_of_two(managers: Iterable[Resource], promises: Promises, a: int, b: int) -> int | None:
    """Return the node that the managers prefer to use. None means that they disagree, or that all abstain."""
    votes = set()
    for manager in managers:
        of_a, of_b = manager.percent_given(promises, a), manager.percent_given(promises, b)
        if of_a is not None and of_b is not None and of_a != of_b:
            votes.add(a if of_a > of_b else b)
    return votes.pop() if len(votes) == 1 else None
