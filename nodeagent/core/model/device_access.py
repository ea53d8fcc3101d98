"""Device files, mounts and variables that a container needs to use its devices. Names follow OCI and the device plugin API."""

from msgspec import Struct


class DeviceFile(Struct, frozen=True):
    """Device file in /dev."""

    path: str
    """Path in the container."""
    is_block: bool
    major: int
    minor: int


class DeviceMount(Struct, frozen=True):
    """File or directory of the node that a device plugin mounts into the container."""

    path: str
    """Path in the container."""
    source: str
    """Path on the node."""
    is_read_only: bool


class DeviceAccess(Struct, frozen=True):
    """Device files, mounts and variables for one container that is about to be created."""

    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables by name."""
    files: tuple[DeviceFile, ...] = ()
    mounts: tuple[DeviceMount, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    cdi_devices: tuple[str, ...] = ()
    """Qualified CDI names such as `vendor.com/gpu=0`, which the runtime resolves (Container Device Interface)."""
