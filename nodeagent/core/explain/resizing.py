"""A changed manifest of a running pod of which only amounts change: what it would have while it runs, or whose end would let it through."""

from collections.abc import Callable

from msgspec import Struct

from nodeagent.core.explain.what_if import Fits, WhatIf
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.refusals import NotResized

MOST_TRIED = 100
"""Pods whose end is tried, one by one."""


class Resizing(Struct, frozen=True):
    """One resize that was tried out."""

    before: WhatIf
    old: Pod
    """As it runs."""
    new: Pod
    answer: Fits | NotResized
    freeing: tuple[str, ...] = ()
    """`namespace/name` of pods of which each one's end would let it through."""
    all_tried: bool = True

    @property
    def after(self) -> WhatIf:
        """The node after that decision."""
        return self.answer.node if isinstance(self.answer, Fits) else self.before


def resizing(what_if: WhatIf, old: Pod, new: Pod, tried: Callable[[], None] = lambda: None) -> Resizing:
    """Decide on a resize as the daemon does; `tried` is called for each pod whose end is tried."""
    answer = what_if.resize(old, new)
    if isinstance(answer, Fits) or not answer.is_deferred:
        return Resizing(what_if, old, new, answer)
    others = [pod for pod in what_if.pods if pod.uid != old.uid]
    freeing = []
    for pod in others[:MOST_TRIED]:
        if isinstance(what_if.without(frozenset({pod.uid})).resize(old, new), Fits):
            freeing.append(pod.full_name)
        tried()
    return Resizing(what_if, old, new, answer, tuple(freeing), len(others) <= MOST_TRIED)
