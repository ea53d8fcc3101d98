"""Device access of a runtime's container: environment variables, device files, and what the device plugins add in their answers.

To save memory, this module is imported only when a container with devices is created.
"""

import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path

from nodeagent.core.model.device_access import DeviceAccess, DeviceFile
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.edge.kernel.device_files import find_device_files
from nodeagent.formats.kernel.sysfs_sample import SysfsError
from nodeagent.formats.manifest.placement_variables import device_variables
from nodeagent.formats.wire.device_plugins import container_variables, decode_access
from nodeagent.formats.wire.protobuf import ProtobufError


def find_device_access(
    devices: tuple[HeldDevice, ...],
    answers: tuple[tuple[str, bytes], ...],
    own: Collection[str],
    *,
    takes_cdi: bool,
    files: Callable[[str], tuple[DeviceFile, ...]] | None = None,
) -> DeviceAccess | str:
    """Return the device access of a container, or a text that names a device that can't be used and the reason.

    Args:
        devices: devices allocated to the container.
        answers: answers of device plugins to Allocate, each with its resource.
        own: names of the environment variables that the container's specification sets.
        takes_cdi: whether the runtime accepts CDI device names.
        files: function that returns the device files of a PCI function. None means that they are read from this machine.
    """
    found: dict[str, DeviceFile] = {}
    plugged = dict(answers)
    for device in devices:
        if device.resource in plugged:
            continue
        try:
            found |= {file.path: file for file in (files or find_device_files)(device.id)}
        except SysfsError as err:
            return f"device {device.id} ({device.resource}): {err.message}"
    parts, variables = [], dict[str, str]()
    for resource, answer in answers:
        try:
            part = decode_access(answer)
            # if two resources set the same variable, the value of the first resource is used
            variables = dict(container_variables(((resource, answer),), own)) | variables
        except ProtobufError as err:
            return f"invalid answer of the device plugin of {resource}: {err}"
        if part.cdi_devices and not takes_cdi:
            return (
                f"the device plugin of {resource} names CDI devices ({', '.join(part.cdi_devices)}), which this runtime supports "
                "only from NRI 0.7 on (containerd 2.0)"
            )
        for named in part.files:
            try:
                there = Path(named.source).stat()
            except OSError as err:
                return f"the device plugin of {resource} names {named.source}: {err.strerror}"
            is_block = stat.S_ISBLK(there.st_mode)
            if not is_block and not stat.S_ISCHR(there.st_mode):
                return f"the device plugin of {resource} names {named.source}, which is not a device file"
            number = there.st_rdev
            found[named.path] = DeviceFile(named.path, is_block, os.major(number), os.minor(number))
        parts.append(part)
    return DeviceAccess(
        variables=(*sorted(variables.items()), *device_variables(devices)),
        files=tuple(found[path] for path in sorted(found)),
        mounts=tuple({mount.path: mount for part in parts for mount in part.mounts}.values()),
        annotations=tuple(sorted({name: value for part in parts for name, value in part.annotations}.items())),
        cdi_devices=tuple(dict.fromkeys(name for part in parts for name in part.cdi_devices)),
    )
