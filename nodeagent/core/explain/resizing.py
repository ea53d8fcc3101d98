"""Trial of a resize of a running pod. The result is the node after the resize, or the pods whose end would allow the resize."""

from collections.abc import Callable

from msgspec import Struct

from nodeagent.core.admission.what_if import Fits, WhatIf
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.refusals import NotResized

MOST_TRIED = 100
"""Maximum number of pods whose end is tried, for one pod at a time."""


class Resizing(Struct, frozen=True):
    """Result of a trial resize."""

    before: WhatIf
    old: Pod
    """Pod before the resize."""
    new: Pod
    answer: Fits | NotResized
    freeing: tuple[str, ...] = ()
    """Names of pods, as `namespace/name`. The end of each one alone would allow the resize."""
    all_tried: bool = True

    @property
    def after(self) -> WhatIf:
        """Return the node after the resize, or the unchanged node if the resize fails."""
        return self.answer.node if isinstance(self.answer, Fits) else self.before


def resizing(what_if: WhatIf, old: Pod, new: Pod, tried: Callable[[], None] = lambda: None) -> Resizing:
    """Try a resize with the daemon's rules. If the resize would have to wait, try it without each of the other pods in turn. `tried` is
    called after each of these trials.
    """
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
