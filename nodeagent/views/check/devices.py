"""Check that each configured extended resource has devices. This module is imported only if the configuration has such resources."""

from collections.abc import Iterator

from nodeagent.core.model.device_selection import select_devices
from nodeagent.views.check.verdicts import CheckResult, Level, NodeFacts

_LIST_COMMAND = "nodeagent topology --devices # lists the devices with their NUMA nodes"


def check_devices(facts: NodeFacts) -> Iterator[CheckResult]:
    """Check that the configured selectors match devices whose NUMA nodes are known. Yield nothing if no devices are configured."""
    there = facts.devices
    if there is None or facts.config is None:
        return
    if there.problem:
        yield CheckResult("devices", Level.UNKNOWN, there.problem)
        return
    pools = select_devices(facts.config.placement.devices, there)
    empty = [resource for resource, found in pools if not found]
    lost = [device.address for _, found in pools for device, node in found if node is None]
    if empty:
        why = f"no device matches {', '.join(empty)}: pods that request it are refused"
        yield CheckResult("devices", Level.WARNING, why, f"{_LIST_COMMAND}; change devices in {facts.config_file}")
    elif lost and len(facts.topology.numa) > 1:
        why = f"the NUMA node of {', '.join(lost)} is unknown, so these devices are allocated last and near no CPUs"
        yield CheckResult("devices", Level.NOTE, why, f"{_LIST_COMMAND}; the firmware (BIOS) doesn't report it")
    else:
        said = ", ".join(f"{len(found)} {resource}" for resource, found in pools)
        yield CheckResult("devices", Level.OK, said)
