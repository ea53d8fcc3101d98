"""Derives a runtime's NRI version and the events that this version knows. Before NRI 0.10, runtimes report no NRI version."""

import re
from collections.abc import Iterable

from nodeagent.core.model.nri import Event, Runtime

_OLDEST = (0, 6, 0)
_SHIPPED = {
    "containerd": (
        ((2, 3, 0), (0, 12, 0)),
        ((2, 2, 2), (0, 11, 0)),
        ((2, 2, 0), (0, 10, 0)),
        ((2, 0, 0), (0, 8, 0)),
    ),
    "cri-o": (((1, 35, 0), (0, 11, 0)), ((1, 34, 0), (0, 10, 0))),
}
"""Versions of NRI by the runtime's name: the first version of the runtime with each, newest first."""
_VERSION = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?(?![0-9])")


def nri_version(runtime_name: str, runtime_version: str, reported: str) -> tuple[int, int, int]:
    """Return the version of NRI.

    Args:
        runtime_name: the runtime's name.
        runtime_version: the runtime's version, which may have a distribution's suffix.
        reported: the version of NRI that the runtime reports. Empty if the runtime reports none.
    """
    if (found := _parse_version(reported)) is not None:
        return found
    shipped = _SHIPPED.get(runtime_name.lower(), ())
    version = _parse_version(runtime_version)
    return next((nri for since, nri in shipped if version is not None and version >= since), _OLDEST)


def event_mask(events: Iterable[Event], runtime: Runtime) -> int:
    """Return the subscription, with bit n - 1 for event n. Events that this runtime doesn't know are left out, because
    it would close the connection.

    A plugin must subscribe to at least one event that every version knows, because 0 would mean all events.
    """
    last = Event.VALIDATE_CONTAINER_ADJUSTMENT if runtime.nri_version >= (0, 10, 0) else Event.REMOVE_CONTAINER
    mask = sum(1 << (event - 1) for event in {*events} if event <= last)
    assert mask, "0 subscribes to everything"
    return mask


def _parse_version(text: str) -> tuple[int, int, int] | None:
    if (found := _VERSION.match(text)) is None:
        return None
    major, minor, patch = found.groups()
    return int(major), int(minor), int(patch or 0)
