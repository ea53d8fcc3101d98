"""What a container's processes are told about where they run: variables in their environment, and the same as lines of a file.

Sets are in the kernel's list format, which `taskset -c`, `numactl` and DPDK's `-l` read too. Knows neither where the file is nor how a
process gets its environment.
"""

import re
from collections.abc import Iterator

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.resources.devices.holdings import HeldDevice

_PLAIN = re.compile(r"[A-Za-z0-9_.:@-]+")
_PLAIN_LIST = re.compile(r"[A-Za-z0-9_.:@,-]*")

EXCLUSIVE_CPUS = "NODEAGENT_EXCLUSIVE_CPUS"
SHARED_CPUS = "NODEAGENT_SHARED_CPUS"
MEMORY_NODES = "NODEAGENT_MEMORY_NODES"
DEVICES = "NODEAGENT_DEVICES"
"""The PCI addresses, or other ids, of the devices that are its own. With _ and a resource's name: those of that resource."""
DEVICE_NAMES = "NODEAGENT_DEVICE_NAMES"
"""What the kernel calls these devices."""
PLACEMENT_FILE = "NODEAGENT_PLACEMENT_FILE"
"""The path of the file; not in the file itself."""


def placement_variables(placement: ContainerPlacement) -> tuple[tuple[str, str], ...]:
    """Return names and values; a set that the container doesn't have is empty, and of devices only a container with some is told."""
    places = (
        (EXCLUSIVE_CPUS, str(placement.exclusive_cpus)),
        (SHARED_CPUS, str(placement.shared_cpus)),
        (MEMORY_NODES, str(placement.memory_nodes)),
    )
    return (*places, *device_variables(placement.devices)) if placement.devices else places


def device_variables(devices: tuple[HeldDevice, ...]) -> Iterator[tuple[str, str]]:
    """Yield what a container is told of devices of its own.

    Names of devices are chosen by whoever may rename an interface: those with characters of a shell are left out.
    """
    from nodeagent.formats.syntax.resource_names import variable_part  # noqa: PLC0415 - few containers have any

    yield DEVICES, ",".join(device.id for device in devices)
    yield DEVICE_NAMES, ",".join(name for device in devices for name in device.names if _PLAIN.fullmatch(name))
    for resource in dict.fromkeys(device.resource for device in devices):
        ids = (device.id for device in devices if device.resource == resource)
        yield f"{DEVICES}_{variable_part(resource)}", ",".join(ids)


def placement_text(placement: ContainerPlacement) -> bytes:
    """Return the file's content. A shell can read it (`. FILE`)."""
    return "".join(f"{name}={_quoted(value)}\n" for name, value in placement_variables(placement)).encode()


def _quoted(value: str) -> str:
    """Quote what a shell would read otherwise: a device plugin's ids are any text."""
    return value if _PLAIN_LIST.fullmatch(value) else "'" + value.replace("'", "'\\''") + "'"
