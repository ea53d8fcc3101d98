"""Search for the number of additional copies of pods that a node can admit. Copies are admitted one after the other until a pod
is refused.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted
from nodeagent.core.admission.what_if import Refused, WhatIf
from nodeagent.core.model.pod import Pod

MAX_COPIES = 10_000
"""Maximum number of copies that are tried. Without it, the search would never end for pods without requests, which are always admitted."""


class Capacity(Struct, frozen=True):
    """Result of the search: the number of complete copies of the pods that the node can admit."""

    copies: int
    after: WhatIf
    """Node after all complete copies were admitted."""
    refused: Pod | None
    """Pod whose refusal ended the search. None means that the search reached the maximum number of copies."""
    decision: Refused | None
    first: tuple[tuple[Pod, Admitted], ...] = ()
    """Pods of the first copy, each with its decision. The tuple is empty if not even one copy fits."""


def search_capacity(what_if: WhatIf, pods: Sequence[Pod], fitted: Callable[[], None] = lambda: None) -> Capacity:
    """Admit copies of the pods until a pod is refused. Each copy contains all pods in order.

    Args:
        what_if: the node on which the copies are admitted.
        pods: the pods of one copy. In each copy, they get numbered names and new UIDs, so a pod may occur twice.
        fitted: function that is called after each complete copy, for instance to show progress.
    """
    first: tuple[tuple[Pod, Admitted], ...] = ()
    for number in range(1, MAX_COPIES + 1):
        after = what_if
        placed: list[tuple[Pod, Admitted]] = []
        for place, pod in enumerate(pods):
            copy = replace(pod, uid=f"{pod.uid}-{number}-{place}", name=f"{pod.name}-{number}")
            decision = after.judge(copy)
            if not isinstance(decision, Admitted):
                return Capacity(number - 1, what_if, copy, decision, first)
            after = after.after(copy, decision)
            placed.append((copy, decision))
        what_if, first = after, first or tuple(placed)
        fitted()
    return Capacity(MAX_COPIES, what_if, None, None, first)
