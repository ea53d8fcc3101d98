import errno
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.edge.transport.listening import ListenError, listen
from nodeagent.formats.syntax.bind_address import TcpAddress, UnixAddress


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_tcp(host: str) -> None:
    with listen(TcpAddress(host, 0)) as listener, socket.create_connection(listener.getsockname()[:2], timeout=10):
        listener.settimeout(10)
        listener.accept()[0].close()


def test_a_unix_socket_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with listen(UnixAddress(str(tmp_path / "s"))):
            assert mode_of(tmp_path / "s") == 0o600
    finally:
        os.umask(before)


def test_a_unix_socket_of_a_group_is_open_to_its_members_and_owner_alone(tmp_path: Path) -> None:
    for directory in (tmp_path, *tmp_path.parents[:3]):
        directory.chmod(0o755)
    path, group = tmp_path / "s", 54321
    become = "os.setgroups([]); os.setresgid(gid, gid, gid); os.setresuid(1234, 1234, 1234)"
    connect = f"import os, socket, sys; gid = int(sys.argv[1]); {become}; socket.socket(socket.AF_UNIX).connect({str(path)!r})"
    with listen(UnixAddress(str(path)), group=group):
        assert mode_of(path) == 0o660
        ended = {
            gid: subprocess.run([sys.executable, "-I", "-c", connect, str(gid)], stderr=subprocess.PIPE, check=False)
            for gid in (group, 4321, os.getegid())
        }
    assert {gid: done.returncode for gid, done in ended.items()} == {group: 0, 4321: 1, os.getegid(): 1}
    assert b"PermissionError" in ended[4321].stderr


def test_a_dead_daemons_socket_is_replaced(tmp_path: Path) -> None:
    address = UnixAddress(str(tmp_path / "s"))
    listen(address).close()
    assert (tmp_path / "s").is_socket()
    with listen(address) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(address.path)
        listener.accept()[0].close()


def test_a_planted_link_is_not_followed_to_what_is_there(tmp_path: Path) -> None:
    """To a file of others, a socket that nobody listens on, or a name that is free."""
    victim, dead, free = tmp_path / "victim", tmp_path / "dead", tmp_path / "free"
    victim.write_text("root's")
    listen(UnixAddress(str(dead))).close()
    mode = dead.stat().st_mode
    for target in (victim, dead, free):
        link = tmp_path / "s"
        link.symlink_to(target)
        with pytest.raises(ListenError):
            listen(UnixAddress(str(link)))
        link.unlink()
    assert (victim.read_text(), dead.stat().st_mode, free.exists()) == ("root's", mode, False)


def test_a_live_socket_is_not_replaced(tmp_path: Path) -> None:
    address = UnixAddress(str(tmp_path / "s"))
    with listen(address) as listener:
        with pytest.raises(ListenError) as caught:
            listen(address)
        assert caught.value.errno == errno.EADDRINUSE
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(address.path)
        listener.accept()[0].close()


def test_a_live_socket_with_a_full_backlog_is_not_replaced(tmp_path: Path) -> None:
    address = UnixAddress(str(tmp_path / "s"))
    waiting = []
    with listen(address):
        while True:
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            waiting.append(client)
            if client.connect_ex(address.path) == errno.EAGAIN:
                break
        with pytest.raises(ListenError) as caught:
            listen(address)
    for client in waiting:
        client.close()
    assert caught.value.errno == errno.EADDRINUSE
    assert len(waiting) < 1000


def test_where_the_unit_may_not_write_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def bind(_self: socket.socket, _path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(
        "nodeagent.edge.transport.listening.socket.socket", type("Bound", (socket.socket,), {"bind": bind})
    )
    with pytest.raises(ListenError) as caught:
        listen(UnixAddress(str(tmp_path / "s")), field="devicePluginSocket")
    assert caught.value.hint == (
        "name its directory in ReadWritePaths= of the unit (`systemctl edit nodeagent`), or set another devicePluginSocket"
    )


def test_two_on_one_port() -> None:
    with listen(TcpAddress("127.0.0.1", 0)) as listener:
        address = TcpAddress("127.0.0.1", listener.getsockname()[1])
        with pytest.raises(ListenError) as caught:
            listen(address)
    assert caught.value.errno == errno.EADDRINUSE
    assert str(address) in caught.value.message
    assert "another process" in (caught.value.hint or "")


def a_file(base: Path) -> UnixAddress:
    (base / "s").write_bytes(b"precious")
    return UnixAddress(str(base / "s"))


def no_directory(base: Path) -> UnixAddress:
    return UnixAddress(str(base / "absent" / "s"))


def a_file_as_parent(base: Path) -> UnixAddress:
    (base / "s").write_bytes(b"precious")
    return UnixAddress(str(base / "s" / "s"))


def a_foreign_address(_: Path) -> TcpAddress:
    return TcpAddress("192.0.2.1", 9753)  # TEST-NET-1: nobody's


def no_name(_: Path) -> TcpAddress:
    return TcpAddress("no.such.name.invalid", 9753)


@pytest.mark.parametrize(
    ("place", "number"),
    [
        (a_file, errno.EADDRINUSE),
        (no_directory, errno.ENOENT),
        (a_file_as_parent, errno.ENOTDIR),
        (a_foreign_address, errno.EADDRNOTAVAIL),
        (no_name, None),
    ],
)
def test_what_cannot_be_listened_on(
    tmp_path: Path, place: Callable[[Path], UnixAddress | TcpAddress], number: int | None
) -> None:
    address = place(tmp_path)
    with pytest.raises(ListenError) as caught:
        listen(address)
    assert caught.value.errno == number
    assert str(address) in caught.value.message
    assert caught.value.hint
    if (tmp_path / "s").exists():
        assert (tmp_path / "s").read_bytes() == b"precious"
