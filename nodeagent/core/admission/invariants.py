"""The invariants of promises: checked before each save (a violation there is a bug) and after each load.

They hold without errata; under `kubelet-1.36` violations are reported, not asserted. Each manager has its own (core/cpu/invariants.py,
core/memory/invariants.py); those common to all are here.
"""

from collections.abc import Iterator

from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.violations import Invariant, Violation


def orphans(promises: Promises, active: tuple[Pod, ...]) -> Iterator[Violation]:
    """Return what is held by no active pod, or by no container of its pod."""
    pods = {pod.uid: pod for pod in active}
    for uid, held in promises.pods:
        pod = pods.get(uid)
        if pod is None:
            yield Violation(invariant=Invariant.HOLDER_IS_ACTIVE, pod=uid)
            continue
        names = {container.name for container in pod.containers}
        holders = {name for name, _ in (*held.cpus, *held.memory, *held.hints)}
        if holders <= names:
            continue
        for name in sorted(holders - names):
            yield Violation(invariant=Invariant.HOLDER_IS_IN_ITS_POD, pod=uid, container=name)
