"""What a container needs to use devices of its own, as values. Names are OCI's and the device plugin API's. Finds nothing out."""

from msgspec import Struct


class DeviceFile(Struct, frozen=True):
    """A file in /dev."""

    path: str
    """Where the container has it."""
    is_block: bool
    major: int
    minor: int


class DeviceMount(Struct, frozen=True):
    """A file or directory of the node that a device plugin wants in the container."""

    path: str
    """Where the container has it."""
    source: str
    """On the node."""
    is_read_only: bool


class DeviceAccess(Struct, frozen=True):
    """All of it, for one container that is about to be created."""

    variables: tuple[tuple[str, str], ...] = ()
    """By name."""
    files: tuple[DeviceFile, ...] = ()
    mounts: tuple[DeviceMount, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    cdi_devices: tuple[str, ...] = ()
    """Their qualified names, as in `vendor.com/gpu=0`: the runtime knows what they are (Container Device Interface)."""
