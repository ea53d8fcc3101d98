"""Settings that the process of `nodeagent job` applies to itself, and that the command inherits."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from nodeagent.edge.processes.process_settings import (
    set_nice,
    set_scheduler,
    stop_address_randomization,
    stop_transparent_huge_pages,
)

_OF_REAL_TIME = ("fifo:", "rr:")


def apply_process_settings(answer: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Apply settings to this process. Their names are those in a profile. Return the agent's answer, with the applied settings added, and
    with the reason for each setting that could not be applied.
    """
    quiet = {"profile": "", "applied": {}, "missing": {}, **answer.get("quiet", {})}
    applied, missing = dict(quiet["applied"]), dict(quiet["missing"])
    changes: list[tuple[str, str, Callable[[], None]]] = []
    if settings.get("aslr") is False:
        changes.append(("address space randomization", "off", stop_address_randomization))
    if settings.get("transparentHugePages") is False:
        changes.append(("transparent huge pages", "off", stop_transparent_huge_pages))
    if (nice := settings.get("nice")) is not None:
        changes.append(("nice value", str(nice), partial(set_nice, nice)))
    if (scheduler := settings.get("scheduler")) is not None:
        changes.append(("scheduler", scheduler, partial(set_scheduler, scheduler)))
    for label, value, apply in changes:
        try:
            if value.startswith(_OF_REAL_TIME) and not answer["exclusiveCPUs"]:
                missing[label] = "the job has no exclusive CPUs"
            else:
                apply()
                applied[label] = value
        except OSError as err:
            missing[label] = err.strerror or str(err)
    return {**answer, "quiet": {**quiet, "applied": applied, "missing": missing}}
