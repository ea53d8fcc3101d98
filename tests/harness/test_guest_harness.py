"""The guests' host side where a fault would not show in their tests: the images' cache, answers that don't come, failing emulators."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from integration.guest import cache
from integration.guest.errors import CommandError, GuestDiedError, GuestTimeoutError
from integration.guest.guest import Guest
from integration.guest.machine import TWO_SOCKETS, HugePages
from integration.guest.protocol import SYNC, Kind, frame
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


@pytest.mark.parametrize(
    ("failures", "said", "boots", "is_given"),
    [(2, "x.c:1: Assertion `a' failed.", 3, True), (9, "x.c:1: Assertion `a' failed.", 3, False), (1, "", 1, False)],
)
def test_an_emulator_that_fails_by_itself_is_started_again(
    failures: int, said: str, boots: int, *, is_given: bool
) -> None:
    made: list[Guest] = []

    class Failing(Guest):
        def __init__(self, *_: object) -> None:
            made.append(self)
            self._qmp: Any = SimpleNamespace(execute=lambda _: None)
            self._session: Any = SimpleNamespace(wait_hello=lambda _: None)

        def _job_seconds(self) -> float:
            return 0.1

        def close(self) -> None:
            pass

        def _own_messages(self) -> str:
            return said

        @contextmanager
        def _explained(self) -> Iterator[None]:
            if len(made) <= failures:
                raise GuestDiedError(f"the guest ended\n{said}")
            yield

    nothing: Any = None
    with nullcontext() if is_given else pytest.raises(GuestDiedError):
        assert Failing.boot(nothing, nothing) is made[-1]
    assert len(made) == boots
