"""The agent with kubelet's order of writes, to show that the proof would notice. Runs in the guest, instead of `nodeagent run`.

kubelet gives a container its CPUs when it creates it, and moves the running ones off these CPUs at its next reconcile, up to
`cpuManagerReconcilePeriod` later (pkg/kubelet/cm/cpumanager, reconcileState; kubernetes#84300). The agent decides on the order of
writes in one function, `diff`: here it is replaced by one that holds back what kubelet would write later.

With `--resizes-first` it is careless in another way, as an agent would be that resizes running containers in one go: whoever has more has
it at once, and whoever has less leaves at the next reconcile.
"""

import sys
import time
from collections.abc import Iterable
from unittest.mock import patch

from msgspec.structs import replace

from nodeagent.core.cgroups.write_order import Change, InPlace, Plan, SetAttribute, diff
from nodeagent.core.model.cgroup import Attribute, DesiredCgroup, ObservedCgroups
from nodeagent.core.model.idset import CpuSet
from nodeagent.daemon import service
from nodeagent.daemon.turn import plan as stage

_RECONCILE_SECONDS = 10
"""kubelet's default."""


class KubeletOrder:
    """In place of `diff`: the same desired cgroups and the same changes, but running containers keep their CPUs until the next turn."""

    def __init__(self, *, resizes_first: bool = False) -> None:
        self._resizes_first = resizes_first
        self._reconciled_seconds = time.monotonic()

    def __call__(self, desired: Iterable[DesiredCgroup], observed: ObservedCgroups, in_place: InPlace) -> Plan:
        plan = replace(diff(desired, observed, in_place), occupied=CpuSet())
        if time.monotonic() - self._reconciled_seconds >= _RECONCILE_SECONDS:
            self._reconciled_seconds = time.monotonic()
            return plan
        return replace(plan, changes=tuple(change for change in plan.changes if not self._is_later(change, observed)))

    def _is_later(self, change: Change, observed: ObservedCgroups) -> bool:
        there = observed.get(change.path)
        # either would move them
        if not isinstance(change, SetAttribute) or change.attribute not in {
            Attribute.CPUSET_CPUS,
            Attribute.FALLBACK_CPUS,
        }:
            return False
        takes = not self._resizes_first or bool(change.vacates)
        return takes and there is not None and there.is_populated


def main() -> int:
    config, *words = sys.argv[1:]
    with patch.object(stage, "diff", KubeletOrder(resizes_first=words == ["--resizes-first"])):
        return service.serve(config)


if __name__ == "__main__":
    sys.exit(main())
