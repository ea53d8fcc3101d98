"""Environment variables with the placement of a container, for its processes, and the content of the placement file, which has the same
lines.

Sets are in the kernel's list format, which `taskset -c`, `numactl` and DPDK's `-l` read too.
"""

import re
from collections.abc import Iterator

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.model.held_device import HeldDevice

_PLAIN = re.compile(r"[A-Za-z0-9_.:@-]+")
_PLAIN_LIST = re.compile(r"[A-Za-z0-9_.:@,-]*")

EXCLUSIVE_CPUS = "NODEAGENT_EXCLUSIVE_CPUS"
SHARED_CPUS = "NODEAGENT_SHARED_CPUS"
MEMORY_NODES = "NODEAGENT_MEMORY_NODES"
DEVICES = "NODEAGENT_DEVICES"
"""PCI addresses, or other IDs, of the container's devices. If `_` and a resource's name are appended, the variable lists only the devices
of this resource.
"""
DEVICE_NAMES = "NODEAGENT_DEVICE_NAMES"
"""Kernel names of the container's devices, such as `eth0`."""
PLACEMENT_FILE = "NODEAGENT_PLACEMENT_FILE"
"""Path of the placement file. The file itself doesn't contain this variable."""


def placement_variables(placement: ContainerPlacement) -> tuple[tuple[str, str], ...]:
    """Return the variables with their values. The variable of an empty set has an empty value. Device variables exist only if the
    container has devices.
    """
    places = (
        (EXCLUSIVE_CPUS, str(placement.exclusive_cpus)),
        (SHARED_CPUS, str(placement.shared_cpus)),
        (MEMORY_NODES, str(placement.memory_nodes)),
    )
    return (*places, *device_variables(placement.devices)) if placement.devices else places


def device_variables(devices: tuple[HeldDevice, ...]) -> Iterator[tuple[str, str]]:
    """Yield the variables that describe a container's devices.

    Names with shell metacharacters are left out, because a user who may rename an interface could choose such a name to inject commands
    into a shell.
    """
    from nodeagent.formats.syntax.resource_names import variable_part  # noqa: PLC0415 - few containers have devices

    yield DEVICES, ",".join(device.id for device in devices)
    yield DEVICE_NAMES, ",".join(name for device in devices for name in device.names if _PLAIN.fullmatch(name))
    for resource in dict.fromkeys(device.resource for device in devices):
        ids = (device.id for device in devices if device.resource == resource)
        yield f"{DEVICES}_{variable_part(resource)}", ",".join(ids)


def placement_text(placement: ContainerPlacement) -> bytes:
    """Return the content of the placement file, which a shell can read (`. FILE`)."""
    lines = []
    for name, value in placement_variables(placement):
        # Device plugins may choose any text as an ID, so an ID is quoted for shells.
        text = value if _PLAIN_LIST.fullmatch(value) else "'" + value.replace("'", "'\\''") + "'"
        lines.append(f"{name}={text}\n")
    return "".join(lines).encode()
