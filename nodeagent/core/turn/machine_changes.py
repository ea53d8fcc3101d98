"""Differences between a saved state and the same state on the current machine. In both, all pods keep their allocations."""

from nodeagent.core.admission.managers import Managers
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.violations import MachineChange


def list_machine_changes(managers: Managers, before: Promises, after: Promises) -> tuple[MachineChange, ...]:
    """List each value of the machine that differs between two states, by resource. Also list each pod whose records differ, because records
    of CPUs and memory that the machine lacks have been dropped.
    """
    changes = [
        change for resource in managers.providers.resources for change in resource.machine_changes(before, after)
    ]
    old, new = dict(before.pods), dict(after.pods)
    changes += (
        MachineChange(f"records of pod {uid}", "as saved", "without CPUs and memory that this machine lacks")
        for uid in sorted(old.keys() | new.keys())
        if old.get(uid) != new.get(uid)
    )
    return tuple(changes)
