"""Trial of a resize of a running pod. The result has the new allocation, or the pods whose end would allow the resize."""

from collections.abc import Callable

from msgspec import Struct

from nodeagent.core.admission.what_if import Fits, WhatIf
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.refusals import NotResized

MOST_TRIED = 100
"""Maximum number of pods whose end is tried, one pod at a time."""


class Resizing(Struct, frozen=True):
    """Result of one tried resize."""

    before: WhatIf
    old: Pod
    """The pod as it runs."""
    new: Pod
    answer: Fits | NotResized
    freeing: tuple[str, ...] = ()
    """Names of pods, as `namespace/name`. The end of any one of them would allow the resize."""
    all_tried: bool = True

    @property
    def after(self) -> WhatIf:
        """Return the node after the decision."""
        return self.answer.node if isinstance(self.answer, Fits) else self.before


def resizing(what_if: WhatIf, old: Pod, new: Pod, tried: Callable[[], None] = lambda: None) -> Resizing:
    """Decide on a resize as the daemon does. If the resize fails, try it without each other pod, and call `tried` after each trial."""
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
