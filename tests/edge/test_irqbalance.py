import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.kernel import irqbalance
from nodeagent.edge.kernel.irqbalance import IrqbalanceError, ban, leave, read, unban
from nodeagent.formats.kernel.irqbalance import Irqbalance


class Daemon:
    """Reads once from each client, and hangs up after its answer, as irqbalance does."""

    def __init__(self, path: Path) -> None:
        self.asked: list[bytes] = []
        self.answer = b""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            with client:
                self.asked.append(client.recv(500))
                client.sendall(self.answer)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "irqbalance77.sock")
    yield daemon
    daemon.close()


@pytest.fixture
def left_over(tmp_path: Path) -> None:
    """The socket of one that was killed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "irqbalance1.sock"))


@pytest.mark.usefixtures("left_over")
def test_it_tells_what_it_keeps_interrupts_off(daemon: Daemon, tmp_path: Path) -> None:
    daemon.answer = b"SLEEP 10 BANNED 0000f000"
    assert read(tmp_path) == Irqbalance(CpuSet.parse("12-15"))
    assert daemon.asked == [b"setup"]


@pytest.mark.usefixtures("left_over")
def test_it_is_asked_to_keep_interrupts_off(daemon: Daemon, tmp_path: Path) -> None:
    ban(CpuSet.of(2, 3), tmp_path)
    unban(tmp_path)
    assert daemon.asked == [b"settings cpus 2-3", b"settings cpus NULL"]


def test_it_is_asked_to_leave_interrupts_alone(daemon: Daemon, tmp_path: Path) -> None:
    leave({25, 24}, tmp_path)
    leave(set(), tmp_path)
    with pytest.raises(IrqbalanceError, match="cannot ask irqbalance to leave interrupts alone: a list of 65"):
        leave(set(range(100, 165)), tmp_path)
    assert daemon.asked == [b"settings ban irqs 24 25", b"settings ban irqs NONE"]


@pytest.mark.usefixtures("left_over")
def test_where_none_runs_nothing_happens(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    assert read(tmp_path / "none") is None
    ban(CpuSet.of(2), tmp_path)
    unban(tmp_path)


@pytest.mark.parametrize("answer", [b"", b"\xff\0", b"SLEEP"])
def test_an_answer_that_is_not_understood(daemon: Daemon, tmp_path: Path, answer: bytes) -> None:
    daemon.answer = answer
    with pytest.raises(
        IrqbalanceError,
        match=r"cannot read irqbalance's list of banned CPUs: .* is not an answer of irqbalance",
    ):
        read(tmp_path)


def test_more_than_it_would_read_is_not_sent(daemon: Daemon, tmp_path: Path) -> None:
    with pytest.raises(IrqbalanceError, match="exceeds irqbalance's limit"):
        ban(CpuSet.from_ids(range(0, 701, 2)), tmp_path)
    assert daemon.asked == []


def test_one_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(irqbalance, "CALL_SECONDS", 0.1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "irqbalance1.sock"))
        listener.listen(0)
        with pytest.raises(IrqbalanceError, match=r"no answer from irqbalance at .*/irqbalance1\.sock within 0\.1 s"):
            read(tmp_path)
        with pytest.raises(IrqbalanceError, match="no answer"):
            ban(CpuSet.of(0), tmp_path)  # its queue is full


def test_what_is_no_socket(tmp_path: Path) -> None:
    (tmp_path / "irqbalance1.sock").mkdir()
    assert read(tmp_path) is None
