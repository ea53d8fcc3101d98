"""Device files, mounts and environment variables that give a container access to its devices. Names follow OCI and the device plugin
API.
"""

from msgspec import Struct


class DeviceFile(Struct, frozen=True):
    """Device file in /dev."""

    path: str
    """Path of the device file in the container."""
    is_block: bool
    major: int
    minor: int


class DeviceMount(Struct, frozen=True):
    """File or directory of the node that a device plugin mounts into the container."""

    path: str
    """Mount point in the container."""
    source: str
    """Path of the mounted file or directory on the node."""
    is_read_only: bool


class DeviceAccess(Struct, frozen=True):
    """Device files, mounts and environment variables for one container. They are passed to the container runtime when it creates the
    container.
    """

    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables as pairs of name and value."""
    files: tuple[DeviceFile, ...] = ()
    mounts: tuple[DeviceMount, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    cdi_devices: tuple[str, ...] = ()
    """Qualified CDI device names, such as `vendor.com/gpu=0`, which the container runtime resolves (Container Device Interface)."""
