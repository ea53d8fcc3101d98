"""Watch for hotplug of CPUs, memory, NUMA nodes and PCI devices (uevents over netlink)."""

import enum
import errno
import os
import select
import socket
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec

from nodeagent.errors import NodeAgentError

_SUBSYSTEMS = frozenset({"cpu", "memory", "node", "pci"})
"""Subsystems whose uevents wake the agent. PCI is included because a driver may set the affinity of its interrupts at the event `bind`."""
_NETLINK_KOBJECT_UEVENT = 15
"""Constant of linux/netlink.h."""
_KERNEL_GROUP = 1
"""Multicast group of the kernel's own messages (UDEV_MONITOR_KERNEL of libudev). udev's messages have group 2."""
_KERNEL_PORT = 0
_MAX_MESSAGE_BYTES = 16 * 1024
"""Maximum size of a message. The kernel's messages have a path and at most 2 KiB of variables (UEVENT_BUFFER_SIZE)."""
_RECEIVE_BUFFER_BYTES = 1 << 20
_MAX_MESSAGES = 1000


class UeventError(NodeAgentError):
    """The kernel's uevents are not available."""


class Hotplug(enum.Enum):
    """Reason to read the machine again."""

    CHANGED = "changed"
    OVERFLOW = "overflow"
    """Uevents were lost, because they arrived faster than they were read."""


def open_uevent_socket() -> socket.socket:
    """Subscribe to the kernel's own uevents. udev's copies (group 2) are not received, because any privileged process could send such
    messages.

    Raises:
        UeventError: the kernel refuses.
    """
    try:
        channel = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_KOBJECT_UEVENT)
        try:
            channel.setblocking(False)
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            channel.bind((0, _KERNEL_GROUP))
        except OSError:
            channel.close()
            raise
    except OSError as err:
        raise _make_error(err) from err
    return channel


def _make_error(err: OSError) -> UeventError:
    return UeventError(
        f"cannot listen to the kernel's uevents: {os.strerror(err.errno or 0)}",
        hint="the unit needs AF_NETLINK in RestrictAddressFamilies=; without uevents, the agent notices hotplug at its next check",
    )


class Uevents:
    """Iterator that waits for uevents and yields wake-ups, for a separate thread.

    Args:
        channel: socket of `open_uevent_socket`, which is closed when the iteration ends.

    Raises:
        UeventError: no file descriptor is available. The channel is closed.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        try:
            self._stopped, self._stop = socket.socketpair()
        except OSError as err:
            channel.close()
            raise _make_error(err) from err

    def __iter__(self) -> Iterator[Hotplug]:
        """Wait for uevents, and yield one value for all pending uevents. The iteration ends after `close`.

        Raises:
            UeventError: the socket can't be read.
        """
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        poller.register(self._stopped, select.POLLIN)
        try:
            while True:
                if self._stopped.fileno() in dict(poller.poll()):
                    return
                wake = drain(self._channel)
                if wake is not None:
                    yield wake
        finally:
            self._channel.close()
            self._stopped.close()

    def close(self) -> None:
        """End the iteration. Any thread may call this method."""
        self._stop.close()  # closing one end makes the other end readable


def drain(channel: socket.socket) -> Hotplug | None:
    """Read the pending messages up to a limit, so that a flood of events doesn't delay the wake-up. Return the reason to read the machine,
    or None.

    Args:
        channel: socket of `open_uevent_socket`.

    Raises:
        UeventError: the socket can't be read.
    """
    wake = None
    for _ in range(_MAX_MESSAGES):
        try:
            message, sender = channel.recvfrom(_MAX_MESSAGE_BYTES)
        except BlockingIOError:
            break
        except OSError as err:
            if err.errno != errno.ENOBUFS:
                raise UeventError(
                    f"cannot read the kernel's uevents: {os.strerror(err.errno or 0)}",
                    hint="the agent still notices hotplug at its next check; if this error is repeated: `systemctl restart nodeagent`",
                ) from err
            wake = Hotplug.OVERFLOW
            continue
        if wake is None and sender[0] == _KERNEL_PORT and _is_of_interest(message):
            wake = Hotplug.CHANGED
    return wake


def _is_of_interest(message: bytes) -> bool:
    try:
        return any(event.get("SUBSYSTEM") in _SUBSYSTEMS for event in _load_parser()().parse(message))
    except ValueError:
        return True  # a message that can't be parsed may be of interest, and a needless scan does no harm


@cache
def _load_parser() -> type:
    """Import the parser at the first uevent. The other modules of its package are ten times as large, and aren't needed for uevents."""
    spec = find_spec("pyroute2")
    assert spec is not None
    sys.modules.setdefault("pyroute2", module_from_spec(spec))
    parser: type = import_module("pyroute2.netlink.uevent").MarshalUevent
    return parser
