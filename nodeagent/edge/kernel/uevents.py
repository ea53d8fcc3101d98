"""Watch for CPUs, memory, NUMA nodes or PCI devices that come or go (uevents over netlink). It carries no data."""

import enum
import errno
import math
import os
import select
import socket
import time
from collections.abc import Iterator

from nodeagent.errors import NodeAgentError

_SUBSYSTEMS = frozenset({"cpu", "memory", "node", "pci"})
"""Subsystems of interest. A PCI device brings its interrupts; its event `bind` tells that a driver may have set their affinity."""
_NETLINK_KOBJECT_UEVENT = 15
"""Constant of the kernel's linux/netlink.h."""
_KERNEL_GROUP = 1
"""UDEV_MONITOR_KERNEL of libudev; 2 is udev's."""
_KERNEL_PORT = 0
_MAX_MESSAGE_BYTES = 16 * 1024
"""Limit of a message. The kernel's have at most 2 KiB of variables (UEVENT_BUFFER_SIZE) and a path."""
_RECEIVE_BUFFER_BYTES = 1 << 20
_MAX_MESSAGES = 1000
LOADS_AFTER_SECONDS = 60.0
"""Delay before the filter for uevents is loaded, which takes a tenth of a second that a start needs for its pods. Until then, each uevent
counts.
"""


class UeventError(NodeAgentError):
    """The kernel's uevents are not available."""


class Hotplug(enum.Enum):
    """Reason to read the machine again."""

    CHANGED = "changed"
    OVERFLOW = "overflow"
    """Uevents came faster than they were read, and some are lost."""


def open_uevent_socket() -> socket.socket:
    """Subscribe to the kernel's own uevents. udev's copies (group 2) are left out, because any privileged process could send them.

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
        raise _refused(err) from err
    return channel


def _refused(err: OSError) -> UeventError:
    return UeventError(
        f"cannot listen to the kernel's uevents: {os.strerror(err.errno or 0)}",
        hint="the unit needs AF_NETLINK in RestrictAddressFamilies=; without uevents hotplug is seen at the next period",
    )


class Uevents:
    """Iterator over wake-ups, for a thread of its own.

    Args:
        channel: socket of `open_uevent_socket()`; closed when the iteration ends.
        loads_after_seconds: when to load the filter, counted from the start of the iteration.

    Raises:
        UeventError: there are no more file descriptors. The channel is closed.
    """

    def __init__(self, channel: socket.socket, *, loads_after_seconds: float = LOADS_AFTER_SECONDS) -> None:
        self._channel = channel
        self._loads_after_seconds = loads_after_seconds
        try:
            self._stopped, self._stop = socket.socketpair()
        except OSError as err:
            channel.close()
            raise _refused(err) from err

    def __iter__(self) -> Iterator[Hotplug]:
        """Wait for uevents and return one wake-up for all that came together since the last. Ends after `close()`.

        Raises:
            UeventError: the socket broke.
        """
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        poller.register(self._stopped, select.POLLIN)
        load_at, loaded = time.monotonic() + self._loads_after_seconds, False
        try:
            while True:
                if not loaded and time.monotonic() >= load_at:
                    _parser()
                    loaded = True
                if self._stopped.fileno() in dict(poller.poll(None if loaded else _ms_until(load_at))):
                    return
                wake = drain(self._channel, sorted_out=loaded)
                if wake is not None:
                    yield wake
        finally:
            self._channel.close()
            self._stopped.close()

    def close(self) -> None:
        """End the iteration, from any thread. Harmless after its end."""
        self._stop.close()  # the other end becomes readable


def _ms_until(moment: float) -> int:
    return math.ceil(max(0.0, moment - time.monotonic()) * 1000)


def drain(channel: socket.socket, *, sorted_out: bool = True) -> Hotplug | None:
    """Read all pending messages, a limited number of times, so that a storm of events doesn't delay the wake-up.

    Args:
        channel: socket of `open_uevent_socket()`.
        sorted_out: whether to ignore messages about other things, which needs pyroute2.

    Raises:
        UeventError: the socket broke.
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
                    hint="hotplug is seen at the next period all the same; if it happens again: `systemctl restart nodeagent`",
                ) from err
            wake = Hotplug.OVERFLOW
            continue
        if wake is None and sender[0] == _KERNEL_PORT and (not sorted_out or _concerns_us(message)):
            wake = Hotplug.CHANGED
    return wake


def _concerns_us(message: bytes) -> bool:
    """Whether a message is about a subsystem of interest. One that can't be parsed counts, because an extra scan is harmless."""
    try:
        return any(event.get("SUBSYSTEM") in _SUBSYSTEMS for event in _parser()().parse(message))
    except ValueError:
        return True


def _parser() -> type:
    """Load pyroute2's parser. It loads all of pyroute2, which is as large as the rest of the agent, so it has to wait until there is
    time.
    """
    from pyroute2.netlink.uevent import MarshalUevent  # noqa: PLC0415 - see above

    parser: type = MarshalUevent
    return parser
