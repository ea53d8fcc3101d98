"""Does the configuration give what the machine has: devices that pods may ask for by number? Loaded where it gives some; pure."""

from collections.abc import Iterator

from nodeagent.core.model.device_selection import selected
from nodeagent.views.check.verdicts import CheckResult, Level, NodeFacts

_SHOWN = "nodeagent topology --devices # shows what there is, and where"


def devices(facts: NodeFacts) -> Iterator[CheckResult]:
    """Look at nodes whose configuration gives devices only."""
    there = facts.devices
    if there is None or facts.config is None:
        return
    if there.problem:
        yield CheckResult("devices", Level.UNKNOWN, there.problem)
        return
    pools = selected(facts.config.placement.devices, there)
    empty = [resource for resource, found in pools if not found]
    lost = [device.address for _, found in pools for device, node in found if node is None]
    if empty:
        why = f"nothing here is selected for {', '.join(empty)}: pods that ask for that are refused"
        yield CheckResult("devices", Level.WARNING, why, f"{_SHOWN}; change devices in {facts.config_file}")
    elif lost and len(facts.topology.numa) > 1:
        why = f"the NUMA node of {', '.join(lost)} is unknown: given last, and near nobody's CPUs"
        yield CheckResult("devices", Level.NOTE, why, f"{_SHOWN}; the firmware (BIOS) doesn't say it")
    else:
        said = ", ".join(f"{len(found)} {resource}" for resource, found in pools)
        yield CheckResult("devices", Level.OK, said)
