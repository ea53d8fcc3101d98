"""Which NRI a runtime has, and which events that one knows. Runtimes below NRI 0.10 don't say: their own version does."""

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
"""By the runtime's name: from which version on it has which NRI, newest first."""
_VERSION = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?(?![0-9])")


def nri_version(runtime_name: str, runtime_version: str, told: str) -> tuple[int, int, int]:
    """Return the version of NRI.

    Args:
        runtime_name: as the runtime says.
        runtime_version: as the runtime says, a distribution's suffix and all.
        told: the version of NRI if it says that, too; "": it doesn't.
    """
    if (found := _parsed(told)) is not None:
        return found
    shipped = _SHIPPED.get(runtime_name.lower(), ())
    version = _parsed(runtime_version)
    return next((nri for since, nri in shipped if version is not None and version >= since), _OLDEST)


def event_mask(events: Iterable[Event], runtime: Runtime) -> int:
    """Return the subscription: bit n - 1 for event n. Events that this runtime doesn't know are left out: it would close the connection.

    There is no empty subscription: 0 would mean all events. A plugin has to ask for one that every version knows.
    """
    last = Event.VALIDATE_CONTAINER_ADJUSTMENT if runtime.nri_version >= (0, 10, 0) else Event.REMOVE_CONTAINER
    mask = sum(1 << (event - 1) for event in {*events} if event <= last)
    assert mask, "0 subscribes to everything"
    return mask


def _parsed(text: str) -> tuple[int, int, int] | None:
    if (found := _VERSION.match(text)) is None:
        return None
    major, minor, patch = found.groups()
    return int(major), int(minor), int(patch or 0)
