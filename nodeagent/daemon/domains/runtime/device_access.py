"""What a container of a runtime's needs for the devices that are its own: variables, files in /dev, and what device plugins answered.

Loaded where such a container is created.
"""

import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path

from nodeagent.core.model.device_access import DeviceAccess, DeviceFile
from nodeagent.core.resources.devices.holdings import HeldDevice
from nodeagent.edge.kernel.device_files import files_of
from nodeagent.formats.kernel.sysfs_sample import SysfsError
from nodeagent.formats.manifest.placement_variables import device_variables
from nodeagent.formats.wire.device_plugins import PluginFile, access, container_variables
from nodeagent.formats.wire.protobuf import ProtobufError


def access_of(
    devices: tuple[HeldDevice, ...],
    answers: tuple[tuple[str, bytes], ...],
    own: Collection[str],
    *,
    takes_cdi: bool,
    files: Callable[[str], tuple[DeviceFile, ...]] | None = None,
) -> DeviceAccess | str:
    """Return what makes devices usable; or why not all of them can be given.

    Args:
        devices: the container's own.
        answers: of device plugins to Allocate, by resource.
        own: names of variables that the container sets itself.
        takes_cdi: whether its runtime takes names of CDI devices.
        files: returns those of a PCI function. None: this machine's.
    """
    found: dict[str, DeviceFile] = {}
    plugged = dict(answers)
    for device in devices:
        if device.resource in plugged:
            continue
        try:
            found |= {file.path: file for file in (files or files_of)(device.id)}
        except SysfsError as err:
            return f"device {device.id} ({device.resource}): {err.message}"
    parts, variables = [], dict[str, str]()
    for resource, answer in answers:
        try:
            part = access(answer)
            variables = dict(container_variables(((resource, answer),), own)) | variables  # the first resource counts
        except ProtobufError as err:
            return f"what the device plugin of {resource} has answered: {err}"
        if part.cdi_devices and not takes_cdi:
            return (
                f"the device plugin of {resource} names CDI devices ({', '.join(part.cdi_devices)}), which this runtime takes from "
                "NRI 0.7 on (containerd 2.0)"
            )
        for named in part.files:
            file = _file(named)
            if isinstance(file, str):
                return f"the device plugin of {resource} names {named.source}{file}"
            found[file.path] = file
        parts.append(part)
    return DeviceAccess(
        variables=(*sorted(variables.items()), *device_variables(devices)),
        files=tuple(found[path] for path in sorted(found)),
        mounts=tuple({one.path: one for part in parts for one in part.mounts}.values()),
        annotations=tuple(sorted({name: value for part in parts for name, value in part.annotations}.items())),
        cdi_devices=tuple(dict.fromkeys(name for part in parts for name in part.cdi_devices)),
    )


def _file(named: PluginFile) -> DeviceFile | str:
    """Look at a file that a plugin names; return what is wrong with it."""
    try:
        there = Path(named.source).stat()
    except OSError as err:
        return f": {err.strerror}"
    if not stat.S_ISCHR(there.st_mode) and not stat.S_ISBLK(there.st_mode):
        return ", which is no device file"
    return DeviceFile(named.path, stat.S_ISBLK(there.st_mode), os.major(there.st_rdev), os.minor(there.st_rdev))
