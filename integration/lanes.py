"""Which tests in guests may run at the same time: two processes take a lane each, assigned by the root's conftest.py.

An emulated machine keeps little more than one processor busy. The first lane has the guest with two sockets, which most tests need, and the
second lane has all others: no kind of guest is booted in both. The ID of a test names its guest (integration/conftest.py).
"""

NO_LANE = ("integration/test_exceptions.py", "integration/test_install.py")
"""They need no guest, and run beside the others."""
GUESTS = ("four_nodes", "two_cards", "four_caches", "two_sockets")
"""Debian 13 first: its image is built while the other lane builds that of Debian 12."""


def lane_of(nodeid: str) -> int | None:
    """The lane of a test; None: it needs no guest."""
    if not nodeid.startswith("integration/") or nodeid.startswith(NO_LANE):
        return None
    return 1 if guest_of(nodeid) in {"", "two_sockets"} else 2


def guest_of(nodeid: str) -> str:
    """The kind of guest that a test needs, empty for none."""
    _, _, parameters = nodeid.partition("[")
    return next((kind for kind in GUESTS if kind in parameters), "")
