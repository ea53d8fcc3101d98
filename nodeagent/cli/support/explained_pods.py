"""Explanation of a trial decision, with the changes that would admit a refused pod."""

from collections.abc import Callable

from nodeagent.cli.support.progress import Progress
from nodeagent.core.admission.managers import Admitted
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.remedies import MAX_ATTEMPTS, Remedies, remedies
from nodeagent.core.explain.trace import trace
from nodeagent.core.model.pod import Pod
from nodeagent.views.explain.document import ExplainedPod


def explain_with_progress(what_if: WhatIf, pod: Pod) -> ExplainedPod:
    """Explain the decision on one pod. A progress bar is shown while the changes that would admit the pod are tried."""
    with Progress(f"changes tried for {pod.full_name}", MAX_ATTEMPTS) as progress:
        return explain_pod(what_if, pod, progress.step)


def explain_pod(what_if: WhatIf, pod: Pod, tried: Callable[[], None]) -> ExplainedPod:
    """Explain the trial decision on a pod. After each change that was tried on a refused pod, `tried` is called."""
    found = trace(what_if, pod)
    return ExplainedPod(
        what_if, found, Remedies() if isinstance(found.decision, Admitted) else remedies(what_if, pod, tried)
    )
