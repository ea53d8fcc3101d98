"""The guests' host side where a fault would not show in their tests: the images' cache, answers that don't come, failing emulators."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from integration.guest import cache
from integration.guest.errors import CommandError, EmulatorFailedError, GuestDiedError, GuestTimeoutError
from integration.guest.guest import Guest
from integration.guest.machine import TWO_SOCKETS, HugePages
from integration.guest.protocol import SYNC, Kind, frame
from integration.guest.qemu import TCG
from integration.guest.session import Session


@pytest.mark.parametrize(
    "change",
    [
        {"distances": ((10,),)},
        {"distances": ((10, 21), (21,))},
        {"distances": ((10, 21), (21, 11))},
        {"huge_pages": (HugePages("2M", (1,)),)},
    ],
    ids=["a row missing", "a column missing", "not 10 to itself", "huge pages of a node missing"],
)
def test_a_machine_that_contradicts_itself_is_a_bug(change: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        replace(TWO_SOCKETS, **change)


def test_keys_tell_parts_apart() -> None:
    keys = [cache.content_key(parts) for parts in (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], [])]
    assert len(set(keys)) == len(keys)
    assert cache.content_key(["é"]) == cache.content_key(["é".encode()])


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NODEAGENT_CACHE", str(tmp_path))
    return tmp_path


def test_an_entry_appears_when_it_is_complete(directory: Path) -> None:
    entry = directory / "entry"
    with cache.building(entry) as unfinished:
        (unfinished / "file").write_text("x")
        assert not entry.exists()
    assert (entry / "file").read_text() == "x"


def test_an_interrupted_build_leaves_nothing(directory: Path) -> None:
    def build() -> None:
        with cache.building(directory / "entry") as unfinished:
            (unfinished / "file").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build()
    assert list(directory.iterdir()) == []


def test_a_killed_build_is_begun_anew(directory: Path) -> None:
    (directory / "entry.unfinished").mkdir()
    (directory / "entry.unfinished" / "half").write_text("x")
    with cache.building(directory / "entry"):
        pass
    assert list((directory / "entry").iterdir()) == []


Agent = tuple[Session, socket.socket]


@pytest.fixture
def agent() -> Iterator[Agent]:
    """A session, and the guest's end of its connection."""
    ours, theirs = socket.socketpair()
    session = Session(ours)
    theirs.settimeout(60)
    yield session, theirs
    theirs.close()
    session.close()


def hello(boot_id: str) -> bytes:
    about = {"boot_id": boot_id, "kernel": "6.1", "python": "3.11"}
    return SYNC + frame(Kind.HELLO, 0, json.dumps(about).encode())


def test_requests_run_at_once_and_get_their_own_answers(agent: Agent) -> None:
    session, guest = agent
    first, second = session.start({"op": "a"}), session.start({"op": "b"})
    guest.sendall(
        hello("1")[: len(SYNC)]
        + frame(Kind.STDOUT, 2, b"two")
        + frame(Kind.STDOUT, 1, b"o")
        + frame(Kind.EXIT, 2, b"3")
        + frame(Kind.STDOUT, 1, b"ne")
        + frame(Kind.STDERR, 1, b"!")
        + frame(Kind.EXIT, 1, b"0")
    )
    assert (first.wait(60), bytes(first.stdout), bytes(first.stderr)) == (0, b"one", b"!")
    assert (second.wait(60), bytes(second.stdout)) == (3, b"two")


def test_a_request_that_could_not_start_says_why(agent: Agent) -> None:
    session, guest = agent
    request = session.start({"op": "a"})
    guest.sendall(SYNC + frame(Kind.FAILED, 1, b'"No such file"'))
    with pytest.raises(CommandError, match="No such file"):
        request.wait(60)


def test_a_request_without_answer_is_no_end(agent: Agent) -> None:
    session, _ = agent
    assert session.start({"op": "a"}).wait(0) is None
    with pytest.raises(GuestTimeoutError):
        session.wait_hello(0)


def test_the_end_of_the_guest_ends_all_waiting(agent: Agent) -> None:
    session, guest = agent
    ended = threading.Event()
    request = session.start({"op": "a"}, on_end=ended.set)
    guest.close()
    with pytest.raises(GuestDiedError):
        request.wait(60)
    assert ended.wait(60)
    with pytest.raises(GuestDiedError):
        session.wait_hello(60)


def test_a_reset_ends_requests_and_a_new_boot_is_awaited(agent: Agent) -> None:
    session, guest = agent
    guest.sendall(hello("1"))
    assert session.wait_hello(60).boot_id == "1"
    request = session.start({"op": "a"})
    session.expect_reset()
    with pytest.raises(GuestDiedError, match="reset"):
        request.wait(60)
    guest.sendall(frame(Kind.STDOUT, 1, b"cut")[:-1] + hello("2"))
    assert session.wait_hello(60).boot_id == "2"


ASSERTION = "x.c:1: Assertion `a' failed."
STALL = "[ 60.0] rcu: INFO: rcu_sched detected stalls on CPUs/tasks:"


@pytest.mark.parametrize(
    ("boots", "seconds", "error"),
    [
        ((ASSERTION, ASSERTION, "comes"), 0, None),
        ((ASSERTION, ASSERTION, ASSERTION, "comes"), 0, EmulatorFailedError),
        (("panic", "comes"), 0, GuestDiedError),
        ((STALL, STALL, "comes"), 4, None),
        ((ASSERTION, STALL, STALL, "comes"), 182, EmulatorFailedError),
        ((STALL, STALL, f"{STALL} and comes"), 102, None),
        (("hangs", "comes"), 180, GuestTimeoutError),
    ],
    ids=str,
)
def test_a_boot_is_repeated_that_the_emulator_spoilt(
    monkeypatch: pytest.MonkeyPatch, boots: tuple[str, ...], seconds: float, error: type[Exception] | None
) -> None:
    made: list[Guest] = []
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("integration.guest.guest.time", clock)

    class Scripted(Guest):
        """The next of `boots`: it dies with those words, comes to a stop, hangs, or comes, at once or in the end."""

        def __init__(self, *_: object) -> None:
            self.accelerator = TCG
            self._boot = boots[len(made)]
            self._qmp: Any = SimpleNamespace(execute=lambda _: None)
            self._session: Any = SimpleNamespace(wait_hello=self._hello)
            self._looks = 0
            made.append(self)

        def _hello(self, timeout_seconds: float) -> None:
            self._looks += 1
            if self._boot == "comes" or (self._boot.endswith("comes") and self._looks > 49):
                return
            if self._boot in (ASSERTION, "panic"):
                raise GuestDiedError("the guest ended")
            clock.now += timeout_seconds
            raise GuestTimeoutError("not yet")

        def _job_seconds(self) -> float:
            return 0.1

        def _await_end(self) -> None:
            pass

        def close(self) -> None:
            pass

        def console_text(self) -> str:
            return self._boot

        def _own_messages(self) -> str:
            return self._boot

    nothing: Any = None
    with pytest.raises(error) if error else nullcontext():
        assert Scripted.boot(nothing, nothing) is made[-1]
    assert len(made) == len(boots) - (error is not None)
    assert clock.now == seconds
