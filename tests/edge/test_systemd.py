import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.edge.systemd.service_manager import NotifyError, ServiceManager


@pytest.fixture(params=["path", "abstract"])
def channel(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    name = str(tmp_path / "notify") if request.param == "path" else f"@nodeagent-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name.replace("@", "\0", 1))
        receiver.settimeout(10)
        yield name, receiver


def test_messages(channel: tuple[str, socket.socket]) -> None:
    name, receiver = channel
    manager = ServiceManager({"NOTIFY_SOCKET": name})
    table: list[tuple[Callable[[], None], bytes]] = [
        (lambda: manager.notify_ready("3 pods"), b"READY=1\nSTATUS=3 pods"),
        (lambda: manager.set_status("two\nREADY=1 lines"), b"STATUS=two READY=1 lines"),
        (manager.ping_watchdog, b"WATCHDOG=1"),
        (lambda: manager.extend_start(90), b"EXTEND_TIMEOUT_USEC=90000000"),
        (lambda: manager.notify_stopping("bye"), b"STOPPING=1\nSTATUS=bye"),
    ]
    for send, expected in table:
        send()
        assert receiver.recv(4096) == expected


def test_a_reload_carries_the_monotonic_time(channel: tuple[str, socket.socket]) -> None:
    name, receiver = channel
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    ServiceManager({"NOTIFY_SOCKET": name}).notify_reloading()
    first, second = receiver.recv(4096).decode().splitlines()
    assert first == "RELOADING=1"
    key, _, usec = second.partition("=")
    assert key == "MONOTONIC_USEC"
    assert before <= int(usec) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}])
def test_without_a_manager_messages_go_nowhere(environment: dict[str, str]) -> None:
    manager = ServiceManager(environment)
    manager.notify_ready("x")
    assert manager.watchdog_period_seconds() is None


def test_the_environment_is_read_once() -> None:
    environment = {"WATCHDOG_USEC": "10000000"}
    manager = ServiceManager(environment)
    environment.clear()
    assert manager.watchdog_period_seconds() == 5.0


@pytest.mark.parametrize(
    ("environment", "period"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_PID": str(os.getpid())}, None),
    ],
    ids=["no pid", "ours", "another's", "no time"],
)
def test_watchdog(environment: dict[str, str], period: float | None) -> None:
    assert ServiceManager(environment).watchdog_period_seconds() == period


@pytest.mark.parametrize(
    "environment",
    [
        {"NOTIFY_SOCKET": "relative"},
        {"NOTIFY_SOCKET": "@"},
        {"NOTIFY_SOCKET": "vsock:2:1234"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "9" * 30},
        {"WATCHDOG_USEC": "5", "WATCHDOG_PID": "-1"},
    ],
    ids=lambda e: " ".join(f"{k}={v}" for k, v in e.items()),
)
def test_malformed_variables_are_named(environment: dict[str, str]) -> None:
    with pytest.raises(NotifyError) as caught:
        ServiceManager(environment)
    assert any(name in caught.value.message and value in caught.value.message for name, value in environment.items())
    assert "unset" in (caught.value.hint or "")


def nobody(base: Path) -> str:
    return str(base / "absent")


def dead_socket(base: Path) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as gone:
        gone.bind(str(base / "dead"))
    return str(base / "dead")


def too_long(base: Path) -> str:
    return "/" + "x" * 200


@pytest.mark.parametrize("place", [nobody, dead_socket, too_long])
def test_nobody_listens(tmp_path: Path, place: Callable[[Path], str]) -> None:
    path = place(tmp_path)
    with pytest.raises(NotifyError) as caught:
        ServiceManager({"NOTIFY_SOCKET": path}).notify_ready("x")
    assert path in caught.value.message
    assert "READY=1" in caught.value.message
    assert "NotifyAccess" in (caught.value.hint or "")
