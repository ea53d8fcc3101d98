"""Differences between the saved promises and the same promises on the present machine. The machine may have changed while the agent didn't
run.
"""

from nodeagent.core.admission.managers import Managers
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.violations import MachineChange


def list_machine_changes(managers: Managers, before: Promises, after: Promises) -> tuple[MachineChange, ...]:
    """List the values of the machine that differ, such as its shared pool or memory. Also list the pods whose recorded CPUs or memory were
    dropped, because the machine lacks them now.
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
