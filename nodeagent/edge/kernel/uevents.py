"""Watch for the hotplug of CPUs, memory, NUMA nodes and PCI devices, by the kernel's uevents (over netlink)."""

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
"""Subsystems whose uevents wake the agent. PCI is one of them because a driver may set the affinity of its interrupts when it is bound to a
device.
"""
_NETLINK_KOBJECT_UEVENT = 15
"""Netlink protocol number of uevents (linux/netlink.h)."""
_KERNEL_GROUP = 1
"""Multicast group of the messages from the kernel (UDEV_MONITOR_KERNEL of libudev). Messages from udev have group 2."""
_KERNEL_PORT = 0
_MAX_MESSAGE_BYTES = 16 * 1024
"""Maximum size of a message in bytes. The kernel sends a path and at most 2 KiB of variables (UEVENT_BUFFER_SIZE)."""
_RECEIVE_BUFFER_BYTES = 1 << 20
_MAX_MESSAGES = 1000


class UeventError(NodeAgentError):
    """The kernel's uevents can't be received."""


class Hotplug(enum.Enum):
    """Reason to read the machine again."""

    CHANGED = "changed"
    OVERFLOW = "overflow"
    """Loss of uevents that arrived faster than they were read. What they reported is unknown."""


def open_uevent_socket() -> socket.socket:
    """Subscribe to the uevents that the kernel sends. Those sent by udev (group 2) aren't received, because any privileged process could
    send such messages.

    Raises:
        UeventError: the kernel refuses the subscription.
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
    """Iterator over the reasons to read the machine. It waits for uevents, so it needs a thread of its own.

    Args:
        channel: socket from `open_uevent_socket`. It is closed when the iteration ends.

    Raises:
        UeventError: no file descriptor is free. The channel is closed.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        try:
            self._stopped, self._stop = socket.socketpair()
        except OSError as err:
            channel.close()
            raise _make_error(err) from err

    def __iter__(self) -> Iterator[Hotplug]:
        """Wait for uevents, and yield one reason for all that are pending. The iteration ends after `close`.

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
    """Read the pending messages, and return the reason to read the machine, or None. At most _MAX_MESSAGES are read at once, so that a
    flood of events doesn't delay the wake-up.

    Args:
        channel: socket from `open_uevent_socket`.

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
    """Import the parser when the first uevent arrives. It is imported without the rest of its package, which is ten times as large and
    isn't needed.
    """
    spec = find_spec("pyroute2")
    assert spec is not None
    sys.modules.setdefault("pyroute2", module_from_spec(spec))
    parser: type = import_module("pyroute2.netlink.uevent").MarshalUevent
    return parser
