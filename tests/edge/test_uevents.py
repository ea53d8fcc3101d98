import errno
import os
import queue
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.edge.kernel.uevents import Hotplug, UeventError, Uevents, drain, open_uevent_socket

KOBJECT_UEVENT = 15
GROUP_KERNEL = 1
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the kernel send uevents, or forge them")


def message(subsystem: str, action: str = "online", path: str = "/devices/system/cpu/cpu3") -> bytes:
    return f"{action}@{path}\0ACTION={action}\0DEVPATH={path}\0SUBSYSTEM={subsystem}\0SEQNUM=7\0".encode()


class Listener:
    """An iteration in a thread of its own, as in the daemon."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self.events = Uevents(channel)
        self.observed: queue.Queue[Hotplug | Exception | None] = queue.Queue()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            for wake in self.events:
                self.observed.put(wake)
        except UeventError as err:
            self.observed.put(err)
        self.observed.put(None)

    def stop(self) -> None:
        self.events.close()
        self.thread.join(30)
        assert not self.thread.is_alive()


@contextmanager
def stand_in() -> Iterator[tuple[socket.socket, Listener]]:
    """A stand-in for the kernel's end. Its abstract address begins with 0, as the kernel's port number is 0."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind("")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.bind("")
        sender.connect(receiver.getsockname())
        listener = Listener(receiver)
        yield sender, listener
        listener.stop()


@pytest.fixture
def kernel() -> Iterator[tuple[socket.socket, Listener]]:
    with stand_in() as both:
        yield both


@pytest.mark.parametrize(
    "wanted",
    [
        message("cpu", "offline"),
        message("memory", "online", "/devices/system/memory/memory32"),
        message("node", "add", "/devices/system/node/node1"),
        message("pci", "bind", "/devices/pci0000:00/0000:00:03.0"),
        b"online@/devices/\xff\0SUBSYSTEM=cpu\0",
    ],
    ids=["cpu", "memory", "node", "pci", "cannot be understood"],
)
def test_what_concerns_us_wakes(kernel: tuple[socket.socket, Listener], wanted: bytes) -> None:
    sender, listener = kernel
    sender.send(wanted)
    assert listener.observed.get(timeout=30) is Hotplug.CHANGED


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The same without a thread: what was sent is there when it is read."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind("")
        sender.connect(receiver.getsockname())
        receiver.setblocking(False)
        yield sender, receiver


@pytest.mark.parametrize(
    "other",
    [
        message("block", "change", "/devices/virtual/block/loop0"),
        message("cpuid"),
        message("module", "add", "/module/memory"),
        b"",
        b"\0\0\0",
        b"add@/devices/system/cpu/cpu3\0NOT_SUBSYSTEM=cpu\0",
        b"libudev\0\xfe\xed\xca\xfe",
    ],
    ids=["block", "cpuid", "module", "empty", "zeros", "no subsystem", "short udev"],
)
def test_what_does_not_concern_us_does_not_wake(pair: tuple[socket.socket, socket.socket], other: bytes) -> None:
    sender, channel = pair
    sender.bind("")
    sender.send(other)
    assert drain(channel) is None
    sender.send(other)
    sender.send(message("cpu"))
    sender.send(other)
    assert drain(channel) is Hotplug.CHANGED
    assert drain(channel) is None


def test_other_senders_do_not_wake(pair: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    sender, channel = pair
    sender.bind(str(tmp_path / "stranger"))
    sender.send(message("cpu"))
    assert drain(channel) is None


def test_a_burst_is_a_few_wakeups_and_closing_twice_is_harmless(kernel: tuple[socket.socket, Listener]) -> None:
    sender, listener = kernel
    for _ in range(5000):
        sender.send(message("cpu"))
    assert listener.observed.get(timeout=30) is Hotplug.CHANGED
    listener.stop()
    listener.stop()
    rest = []
    while (wake := listener.observed.get(timeout=30)) is not None:
        rest.append(wake)
    assert set(rest) <= {Hotplug.CHANGED}


def test_only_the_part_that_parses_is_loaded_and_only_for_a_uevent() -> None:
    program = f"""
import sys
from nodeagent.edge.kernel import uevents
assert "pyroute2" not in sys.modules
assert uevents._is_of_interest({message("cpu")!r})
assert not uevents._is_of_interest({message("block")!r})
print(*(name for name in sys.modules if name.startswith("pyroute2")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "pyroute2.netlink.uevent" in loaded
    assert not {"pyroute2.iproute", "pyroute2.ndb", "pyroute2.ipdb", "pyroute2.netlink.rtnl"} & set(loaded)
    assert len(loaded) <= 20


def test_the_kernels_own_uevents_wake() -> None:
    """The kernel sends a uevent for whatever is written to a device's uevent file."""
    listener = Listener(open_uevent_socket())
    Path("/sys/devices/system/cpu/cpu0/uevent").write_text("change")
    assert listener.observed.get(timeout=30) is Hotplug.CHANGED
    listener.stop()
    assert listener.observed.get(timeout=30) is None


def test_only_the_kernels_group_is_listened_to() -> None:
    with open_uevent_socket() as channel:
        _, groups = channel.getsockname()
    assert groups == GROUP_KERNEL


@root_only
def test_the_kernels_other_uevents_do_not() -> None:
    with open_uevent_socket() as channel:
        Path("/sys/devices/virtual/mem/null/uevent").write_text("change")
        assert select.select([channel], [], [], 30)[0]
        assert drain(channel) is None


@root_only
def test_what_a_process_sends_does_not_wake_even_in_the_kernels_group() -> None:
    with (
        open_uevent_socket() as channel,
        socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, KOBJECT_UEVENT) as forger,
    ):
        forger.sendto(message("cpu"), (0, GROUP_KERNEL))
        assert select.select([channel], [], [], 30)[0]
        assert drain(channel) is None


@root_only
def test_lost_uevents_wake() -> None:
    channel = open_uevent_socket()
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, KOBJECT_UEVENT) as storm:
        for _ in range(200):
            storm.sendto(message("block"), (0, GROUP_KERNEL))
    listener = Listener(channel)
    assert listener.observed.get(timeout=30) is Hotplug.OVERFLOW
    listener.stop()


def test_a_broken_socket_is_an_error_not_silence() -> None:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        receiver.connect(gone.getsockname())
    receiver.send(b"x")  # answered with ECONNREFUSED at the next read
    listener = Listener(receiver)
    found = listener.observed.get(timeout=30)
    assert isinstance(found, UeventError)
    assert "Connection refused" in found.message
    listener.stop()


def test_without_file_descriptors_it_is_an_error_and_nothing_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    channel = open_uevent_socket()
    monkeypatch.setattr(socket, "socketpair", none_left)
    with pytest.raises(UeventError, match="Too many open files"):
        Uevents(channel)
    assert channel.fileno() == -1


def test_refused_netlink_is_reported_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A protocol number that no kernel has stands in for a refusing one."""
    real = socket.socket
    monkeypatch.setattr(socket, "socket", lambda family, kind, _protocol: real(family, kind, 30))
    with pytest.raises(UeventError) as caught:
        open_uevent_socket()
    assert "Protocol not supported" in caught.value.message
    assert "AF_NETLINK" in (caught.value.hint or "")
