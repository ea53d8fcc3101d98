import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeagent.edge.files.state_files import (
    StateFileError,
    lock_directory,
    read,
    remove,
    set_aside,
    temporary_path,
    write_atomically,
)


def names(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir())


@pytest.mark.parametrize("content", [b"", b"x", b"two\n" * 1_000_000], ids=["empty", "byte", "4 MB"])
def test_what_is_written_is_read(tmp_path: Path, content: bytes) -> None:
    path = str(tmp_path / "state")
    write_atomically(path, b"old")
    write_atomically(path, content)
    assert read(path, max_bytes=5_000_000) == content
    assert names(tmp_path) == ["state"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_mode_is_exact_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        write_atomically(str(tmp_path / "state"), b"x", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == mode


def test_a_crashed_writers_leftover_is_replaced_and_never_shows(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    write_atomically(path, b"old")
    Path(temporary_path(path)).write_bytes(b"half a n")
    assert read(path, max_bytes=100) == b"old"
    write_atomically(path, b"new")
    assert read(path, max_bytes=100) == b"new"
    assert names(tmp_path) == ["state"]


def test_the_temporary_file_is_hidden_and_in_the_same_directory(tmp_path: Path) -> None:
    assert Path(temporary_path(str(tmp_path / "state"))).parent == tmp_path
    assert Path(temporary_path("state")).name.startswith(".state.")


def test_a_leftover_symlink_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    path = str(tmp_path / "state")
    Path(temporary_path(path)).symlink_to(victim)
    write_atomically(path, b"new")
    assert victim.read_bytes() == b"precious"
    assert read(path, max_bytes=100) == b"new"


def test_a_symlink_at_the_path_is_replaced_not_followed(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "state"
    victim.write_bytes(b"precious")
    path.symlink_to(victim)
    write_atomically(str(path), b"new")
    assert victim.read_bytes() == b"precious"
    assert not path.is_symlink()
    assert path.read_bytes() == b"new"


def no_parent(base: Path) -> Path:
    return base / "absent" / "state"


def file_as_parent(base: Path) -> Path:
    (base / "file").write_bytes(b"")
    return base / "file" / "state"


def directory_in_place(base: Path) -> Path:
    (base / "state").mkdir()
    return base / "state"


def directory_at_temporary(base: Path) -> Path:
    Path(temporary_path(str(base / "state"))).mkdir()
    return base / "state"


def name_too_long(base: Path) -> Path:
    return base / ("s" * 300)


def no_files_here(base: Path) -> Path:
    return Path("/proc/state")


WRITE_FAILURES = [
    (no_parent, {errno.ENOENT}, "systemctl restart nodeagent` makes the directory"),
    (file_as_parent, {errno.ENOTDIR}, "move it away"),
    (directory_in_place, {errno.EISDIR}, "move it away"),
    (directory_at_temporary, {errno.EISDIR}, "move it away"),
    (name_too_long, {errno.ENAMETOOLONG}, "ls -la"),
    (no_files_here, {errno.ENOENT, errno.EACCES, errno.EPERM}, ""),
]


@pytest.mark.parametrize(("place", "errnos", "hint"), WRITE_FAILURES, ids=[f[0].__name__ for f in WRITE_FAILURES])
def test_a_write_that_fails_names_path_reason_and_next_step(
    tmp_path: Path, place: Callable[[Path], Path], errnos: set[int], hint: str
) -> None:
    path = str(place(tmp_path))
    before = names(tmp_path)
    with pytest.raises(StateFileError) as caught:
        write_atomically(path, b"new")
    assert caught.value.errno in errnos
    assert caught.value.errno is not None
    assert caught.value.path == path
    assert path in caught.value.message
    assert os.strerror(caught.value.errno) in caught.value.message
    assert hint in (caught.value.hint or "")
    assert names(tmp_path) == before


def run_with_file_size_limit(path: str, content_bytes: int) -> subprocess.CompletedProcess[str]:
    """A write that the kernel cuts short and then refuses, as on a full disk, without needing one: RLIMIT_FSIZE gives EFBIG."""
    script = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
from nodeagent.edge.files.state_files import StateFileError, write_atomically
try:
    write_atomically({path!r}, b"n" * {content_bytes})
except StateFileError as err:
    print(err.errno, err.hint)
"""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_a_write_cut_short_leaves_the_old_content_and_no_leftover(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    write_atomically(path, b"old")
    done = run_with_file_size_limit(path, 10_000)
    assert done.stdout.startswith(f"{errno.EFBIG} "), done
    assert read(path, max_bytes=100) == b"old"
    assert names(tmp_path) == ["state"]


def in_a_small_file_system(directory: Path, script: str) -> str:
    """Run a script with a file system of 64 KiB on `directory`, seen by nobody else."""
    unshare = [
        shutil.which("unshare") or "unshare",
        "--mount",
        *(() if os.geteuid() == 0 else ("--user", "--map-root-user")),
    ]
    mount = f"mount -t tmpfs -o size=64k tmpfs {directory} || exit 99; {sys.executable} - {directory}"
    done = subprocess.run([*unshare, "sh", "-c", mount], input=script, capture_output=True, text=True, check=False)
    if done.returncode == 99 or (done.returncode == 1 and "unshare" in done.stderr):
        pytest.skip(f"no mount namespace for a small file system here: {done.stderr.strip()}")
    return done.stdout + done.stderr


FULL_AND_READ_ONLY = """
import errno, os, subprocess, sys
from nodeagent.edge.files.state_files import StateFileError, read, write_atomically
directory = sys.argv[1]
path = directory + "/state"
write_atomically(path, b"old")
try:
    write_atomically(path, b"n" * 100_000)
except StateFileError as err:
    print(errno.errorcode[err.errno], err.hint)
print(read(path, max_bytes=100), os.listdir(directory))
subprocess.run(["mount", "-o", "remount,ro", directory], check=True)
try:
    write_atomically(path, b"new")
except StateFileError as err:
    print(errno.errorcode[err.errno], err.hint)
print(read(path, max_bytes=100), os.listdir(directory))
"""


def test_a_full_and_a_read_only_file_system_keep_the_old_content(tmp_path: Path) -> None:
    full, kept, read_only, kept_too = in_a_small_file_system(tmp_path, FULL_AND_READ_ONLY).splitlines()
    assert full.startswith("ENOSPC make room")
    assert read_only.startswith("EROFS mount the file system read-write")
    assert kept == kept_too == "b'old' ['state']"


def test_no_space_left_is_reported_with_its_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full answers ENOSPC to every write; it stands in for the temporary file."""
    path = str(tmp_path / "state")
    write_atomically(path, b"old")
    real_open = os.open

    def open_full(name: str, flags: int, mode: int = 0o777) -> int:
        return real_open("/dev/full", os.O_WRONLY) if name == temporary_path(path) else real_open(name, flags, mode)

    monkeypatch.setattr(os, "open", open_full)
    monkeypatch.setattr(os, "fchmod", lambda *_: None)  # it would change the device node
    with pytest.raises(StateFileError) as caught:
        write_atomically(path, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert "df" in (caught.value.hint or "")
    assert read(path, max_bytes=100) == b"old"


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_an_input_output_error_leaves_the_old_content_and_no_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = str(tmp_path / "state")
    write_atomically(path, b"old")

    def fail(*arguments: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(StateFileError) as caught:
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert caught.value.errno == errno.EIO
    assert "disk is failing" in (caught.value.hint or "")
    assert read(path, max_bytes=100) == b"old"
    assert names(tmp_path) == ["state"]


def calls_of(names: tuple[str, ...], act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls = []
    for name in names:
        real = getattr(os, name)

        def recording(
            *arguments: object, _name: str = name, _real: Callable[..., object] = real, **more: Any
        ) -> object:
            calls.append(_name)
            return _real(*arguments, **more)

        monkeypatch.setattr(os, name, recording)
    act()
    monkeypatch.undo()
    return calls


def test_the_order_of_the_system_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Durable only in this order: content before the name, the name before the answer."""
    watched = ("unlink", "open", "fchmod", "write", "fsync", "close", "replace")
    calls = calls_of(watched, lambda: write_atomically(str(tmp_path / "state"), b"x"), monkeypatch)
    assert calls == ["unlink", "open", "fchmod", "write", "fsync", "close", "replace", "open", "fsync", "close"]


def test_a_second_name_is_durable_before_the_first_is_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_bytes(b"damaged")
    calls = calls_of(("link", "open", "fsync"), lambda: set_aside(str(tmp_path / "state")), monkeypatch)
    assert calls == ["link", "open", "fsync"]
    calls = calls_of(("link", "open", "fsync"), lambda: set_aside(str(tmp_path / "state")), monkeypatch)
    assert calls == ["open", "fsync"], "a process that died in between may not have come that far"


def test_killed_at_any_system_call_the_file_is_old_or_new(tmp_path: Path) -> None:
    """Each call that changes something is the last one of a process, before it and after it."""
    seen = set()
    points = 0
    for point in range(100):
        directory = tmp_path / str(point)
        directory.mkdir()
        path = str(directory / "state")
        write_atomically(path, b"old")
        pid = os.fork()
        if pid == 0:
            _die_at(point, path)
            os._exit(0)  # never got that far
        _, status = os.waitpid(pid, 0)
        content = read(path, max_bytes=100)
        assert content in (b"old", b"new content")
        seen.add(content)
        write_atomically(path, b"next")
        assert names(directory) == ["state"]
        if os.WIFEXITED(status):
            break
        points += 1
    assert points == 18
    assert seen == {b"old", b"new content"}


def _die_at(point: int, path: str) -> None:
    passed = 0

    def step() -> None:
        nonlocal passed
        if passed == point:
            os.kill(os.getpid(), signal.SIGKILL)
        passed += 1

    for name in ("unlink", "open", "fchmod", "write", "fsync", "close", "replace"):
        real = getattr(os, name)

        def dying(*arguments: object, _real: Callable[..., object] = real, _name: str = name) -> object:
            step()
            try:
                return _real(*arguments)
            finally:
                if _name != "close":
                    step()

        setattr(os, name, dying)
    write_atomically(path, b"new content")


def test_absent_is_none(tmp_path: Path) -> None:
    assert read(str(tmp_path / "absent"), max_bytes=1) is None


def a_fifo(base: Path) -> None:
    os.mkfifo(base / "state")


def a_device(base: Path) -> None:
    (base / "state").symlink_to("/dev/zero")


def a_symlink(base: Path) -> None:
    (base / "real").write_bytes(b"x")
    (base / "state").symlink_to(base / "real")


def a_loop(base: Path) -> None:
    (base / "state").symlink_to(base / "state")


def a_directory(base: Path) -> None:
    (base / "state").mkdir()


def too_large(base: Path) -> None:
    (base / "state").write_bytes(b"x" * 101)


def sparse_terabyte(base: Path) -> None:
    with (base / "state").open("wb") as f:
        f.truncate(1 << 40)


@pytest.mark.parametrize(
    ("make", "follow", "word"),
    [
        (a_fifo, False, "not a regular file"),
        (a_device, True, "not a regular file"),
        (a_symlink, False, "symbolic link"),
        (a_loop, True, "symbolic link"),
        (a_directory, False, "directory"),
        (too_large, False, "larger than 100 bytes"),
        (sparse_terabyte, False, "larger than 100 bytes"),
    ],
)
def test_what_is_no_state_file_is_refused(
    tmp_path: Path, make: Callable[[Path], None], follow: bool, word: str
) -> None:
    make(tmp_path)
    path = str(tmp_path / "state")
    with pytest.raises(StateFileError) as caught:
        read(path, max_bytes=100, follow_symlinks=follow)
    assert path in caught.value.message
    assert word in f"{caught.value.message} {caught.value.hint}"
    way_out = "put a regular file there" if word == "not a regular file" else "move it away"
    assert way_out in (caught.value.hint or "")


def test_a_symlink_is_followed_where_the_caller_says_so(tmp_path: Path) -> None:
    a_symlink(tmp_path)
    assert read(str(tmp_path / "state"), max_bytes=100, follow_symlinks=True) == b"x"


def test_the_bound_itself_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"x" * 100)
    assert read(str(tmp_path / "state"), max_bytes=100) == b"x" * 100


def test_a_file_as_parent_is_an_error_not_absence(tmp_path: Path) -> None:
    with pytest.raises(StateFileError) as caught:
        read(str(file_as_parent(tmp_path)), max_bytes=100)
    assert caught.value.errno == errno.ENOTDIR


def test_setting_aside_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "state"
    (tmp_path / "state.aside-7").write_bytes(b"from before")
    (tmp_path / "state.aside-x").write_bytes(b"not ours")
    asides = []
    for content in (b"first", b"second"):
        write_atomically(str(path), content)
        asides.append(set_aside(str(path)))
        assert set_aside(str(path)) == asides[-1], "a crash before the next write makes no third name"
    write_atomically(str(path), b"third")
    assert asides == [f"{path}.aside-8", f"{path}.aside-9"]
    assert [Path(a).read_bytes() for a in asides] == [b"first", b"second"]
    assert (tmp_path / "state.aside-7").read_bytes() == b"from before"
    assert path.read_bytes() == b"third"


def test_whatever_lies_there_can_be_set_aside(tmp_path: Path) -> None:
    a_directory(tmp_path)
    assert set_aside(str(tmp_path / "state")) == str(tmp_path / "state.aside-1")
    a_loop(tmp_path)
    assert set_aside(str(tmp_path / "state")) == str(tmp_path / "state.aside-2")


def test_setting_aside_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StateFileError) as caught:
        set_aside(str(tmp_path / "state"))
    assert caught.value.errno == errno.ENOENT


def test_a_second_daemon_is_told_who_holds_the_directory(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"from nodeagent.edge.files.state_files import lock_directory; l = lock_directory({str(tmp_path)!r}); print('held'); input()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StateFileError) as caught:
            lock_directory(str(tmp_path))
        assert f"pid {holder.pid}" in caught.value.message
        assert str(tmp_path) in caught.value.message
        assert "systemctl stop" in (caught.value.hint or "")
    finally:
        holder.kill()
        holder.communicate()
    lock_directory(str(tmp_path)).release()  # a dead holder holds nothing


def test_released_the_lock_can_be_taken_again_and_is_not_inherited(tmp_path: Path) -> None:
    with lock_directory(str(tmp_path)):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        lock_directory(str(tmp_path)).release()
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(("place", "number"), [("absent", errno.ENOENT), ("file", errno.ENOTDIR)])
def test_no_directory_to_lock(tmp_path: Path, place: str, number: int) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StateFileError) as caught:
        lock_directory(str(tmp_path / place))
    assert caught.value.errno == number


def test_with_a_file_goes_what_a_crash_has_left_of_writing_it(tmp_path: Path) -> None:
    for there in (("state", ".state.new", "other"), (".state.new", "other"), ("other",)):
        for name in there:
            (tmp_path / name).touch()
        remove(str(tmp_path / "state"))
        assert names(tmp_path) == ["other"]
