"""Which tests in guests may run at the same time: two processes take a lane each, assigned by the root's conftest.py.

An emulated machine keeps little more than one processor busy. Only the second lane needs other machines than the one with two sockets, so
that no more than four guests are booted, and one more after each failure.
"""

from functools import cache

NO_LANE = ("exceptions", "install")
"""They need no guest, and run beside the others."""
FIRST_LANES_GUEST = "[two_sockets]"
"""Tests with this parameter are in the first lane, whatever their file, so that both lanes take about as long."""
SECOND_LANE = (
    "busy_host",
    "claims",
    "containerd",
    "containerd_deaths",
    "debian_package",
    "devices",
    "examples",
    "host_isolation",
    "hotplug",
    "interference",
    "interrupt_isolation",
    "last_cpu",
    "metrics_live",
    "mishaps",
    "near_devices",
    "no_overlap_isolated",
    "pinned_units",
    "podman",
    "policies",
    "probe",
    "resize",
    "service",
    "side_by_side",
    "topologies",
)


def lane_of(nodeid: str) -> int | None:
    """The lane of a test; None: it needs no guest."""
    if not nodeid.startswith("integration/") or nodeid.startswith(_files(NO_LANE)):
        return None
    return 2 if nodeid.startswith(_files(SECOND_LANE)) and FIRST_LANES_GUEST not in nodeid else 1


@cache
def _files(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"integration/test_{name}.py" for name in names)
