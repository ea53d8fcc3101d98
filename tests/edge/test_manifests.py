"""The manifest directory: what is read, what is said about what isn't, and that nothing in it can block or harm."""

import errno
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Set as AbstractSet
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st

from nodeagent.edge.files import manifests
from nodeagent.edge.files.manifest_watch import ManifestWatch, ManifestWatchError
from nodeagent.edge.files.manifests import (
    MAX_FILE_BYTES,
    MAX_READINGS,
    KnownManifests,
    ManifestDirectoryError,
    ManifestFile,
    scan_manifests,
)
from tests.support.wake_ups import Wakes

DEADLINE_SECONDS = 30.0


def scan(directory: Path) -> dict[str, ManifestFile]:
    return {file.name: file for file in scan_manifests(str(directory)).files}


def problem(directory: Path, name: str) -> str:
    file = scan(directory)[name]
    assert file.content is None
    assert file.problem is not None
    return file.problem


def test_files_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yaml", "B.yml", "a.json", "ü.json"):
        (tmp_path / name).write_text(name)
    scanned = scan_manifests(str(tmp_path))
    assert [(file.name, file.content) for file in scanned.files] == [
        (name, name.encode()) for name in ("B.yml", "a.json", "a.yaml", "b.yaml", "ü.json")
    ]
    assert scanned.unread == 0


@pytest.mark.parametrize(
    "name", ["milli.txt", "web.yaml.bak", "web.yaml~", "web.yaml.swp", "#web.yaml#", "web", "yaml", "web.YAML"]
)
def test_files_of_other_names_are_no_manifests(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("x")
    assert scan_manifests(str(tmp_path)).files == ()


def test_dot_files_and_directories_are_left_out_as_kubelet_does(tmp_path: Path) -> None:
    (tmp_path / ".hidden.yaml").write_text("x")
    (tmp_path / ".web.yaml.swp").write_text("x")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "pod.yaml").write_text("x")
    (tmp_path / "link-to-sub").symlink_to("sub")
    assert scan(tmp_path) == {}


def test_symbolic_links_are_followed_as_kubelet_does(tmp_path: Path) -> None:
    # The way configuration tools swap a set of files: pod.yaml -> ..data/pod.yaml, ..data -> ..2026.
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "pod.yaml").write_text("x")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "pod.yaml").symlink_to("..data/pod.yaml")
    assert scan(tmp_path) == {"pod.yaml": ManifestFile("pod.yaml", b"x")}


def test_a_path_of_a_file_is_a_directory_of_one(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text("x")
    path = str(tmp_path / "pod.yaml")
    assert scan_manifests(path).files == (ManifestFile(path, b"x"),)


def test_a_directory_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ManifestDirectoryError) as caught:
        scan_manifests(str(tmp_path / "none"))
    assert caught.value.missing
    assert str(caught.value) == f"cannot read manifest directory {tmp_path}/none: No such file or directory"
    assert "set manifestDirectory" in caught.value.hint


@pytest.mark.parametrize(
    ("path", "setting"),
    [
        ("/home/none/pods", "ProtectHome=no"),
        ("/root/none", "ProtectHome=no"),
        ("/run/user/0/none", "ProtectHome=no"),
        ("/tmp/none", "PrivateTmp=no"),
        ("/var/tmp/none", "PrivateTmp=no"),
        ("/homes/none", None),
    ],
)
def test_a_directory_that_the_unit_hides_names_the_units_setting(path: str, setting: str | None) -> None:
    with pytest.raises(ManifestDirectoryError) as caught:
        scan_manifests(path)
    assert caught.value.missing
    assert ("systemctl edit nodeagent" in caught.value.hint) is (setting is not None)
    assert setting is None or f"[Service] {setting}" in caught.value.hint
    unit = (Path(__file__).parents[2] / "systemd" / "nodeagent.service").read_text()
    assert setting is None or setting.replace("=no", "=yes") in unit.splitlines()


@pytest.mark.parametrize(
    ("target", "setting"), [("/home/nobody-there/pod.yaml", "ProtectHome=no"), ("/opt/nobody-there/pod.yaml", None)]
)
def test_a_link_to_where_the_unit_sees_nothing_names_the_units_setting(
    target: str, setting: str | None, tmp_path: Path
) -> None:
    (tmp_path / "pod.yaml").symlink_to(target)
    reported = problem(tmp_path, "pod.yaml")
    assert target in reported
    assert ("systemctl edit nodeagent" in reported) is (setting is not None)
    assert setting is None or f"[Service] {setting}" in reported


def test_a_directory_that_cannot_be_reached_says_so(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ManifestDirectoryError) as caught:
        scan_manifests(str(tmp_path / "loop"))
    assert not caught.value.missing
    assert os.strerror(errno.ELOOP) in str(caught.value)


def test_dangling_and_circular_links(tmp_path: Path) -> None:
    (tmp_path / "dangling.yaml").symlink_to("nowhere")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    assert problem(tmp_path, "dangling.yaml").startswith(
        f"cannot open {tmp_path}/dangling.yaml: a symbolic link to a file that doesn't exist"
    )
    assert problem(tmp_path, "loop.yaml") == f"cannot open {tmp_path}/loop.yaml: Too many levels of symbolic links"


def test_special_files_neither_block_nor_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "device.yaml").symlink_to("/dev/full")
    (tmp_path / "tty.yaml").symlink_to("/dev/tty")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket.yaml"))
    (tmp_path / "good.yaml").write_text("x")
    try:
        assert problem(tmp_path, "fifo.yaml") == f"{tmp_path}/fifo.yaml is a FIFO, not a regular file"
        assert problem(tmp_path, "device.yaml") == f"{tmp_path}/device.yaml is a character device, not a regular file"
        assert problem(tmp_path, "tty.yaml") == f"{tmp_path}/tty.yaml is a character device, not a regular file"
        assert problem(tmp_path, "socket.yaml") == f"{tmp_path}/socket.yaml is a socket, not a regular file"
        assert scan(tmp_path)["good.yaml"].content == b"x"
        # Somebody who opened the FIFO would wake this writer; nobody does.
        with pytest.raises(OSError, match="No such device or address"):
            os.open(tmp_path / "fifo.yaml", os.O_WRONLY | os.O_NONBLOCK)
    finally:
        listener.close()


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "sparse.yaml").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "largest.yaml").write_bytes(b"#" * MAX_FILE_BYTES)
    assert problem(tmp_path, "sparse.yaml") == f"{tmp_path}/sparse.yaml is larger than {MAX_FILE_BYTES} bytes"
    assert len(scan(tmp_path)["largest.yaml"].content or b"") == MAX_FILE_BYTES


def test_one_scan_holds_a_bounded_amount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MAX_TOTAL_BYTES", 10)
    for name in "abcd":
        (tmp_path / f"{name}.yaml").write_bytes(b"1234")
    found = scan(tmp_path)
    assert [found[f"{name}.yaml"].content for name in "abcd"] == [b"1234", b"1234", None, None]
    assert found["c.yaml"].problem == f"{tmp_path}/c.yaml is not read: the files before it have 10 bytes already"


def test_of_too_many_files_the_first_by_name_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MAX_FILES", 3)
    for name in "edcba":
        (tmp_path / f"{name}.yaml").write_text(name)
    scanned = scan_manifests(str(tmp_path))
    assert [file.name for file in scanned.files] == ["a.yaml", "b.yaml", "c.yaml"]
    assert scanned.unread == 2


def test_ten_thousand_files_are_read_in_bounded_time(tmp_path: Path) -> None:
    for i in range(10_000):
        (tmp_path / f"{i:05}.yaml").write_text("x")
    began = time.process_time()
    scanned = scan_manifests(str(tmp_path))
    assert time.process_time() - began < 20
    assert len(scanned.files) == 10_000
    assert all(file.content == b"x" for file in scanned.files)


def test_names_that_cannot_be_printed_are_refused(tmp_path: Path) -> None:
    for name in (b"a\nb.yaml", b"\x1b[2J.yaml", b"\xff.yaml"):
        (tmp_path / os.fsdecode(name)).write_text("x")
    files = scan_manifests(str(tmp_path)).files
    assert [file.content for file in files] == [None, None, None]
    assert all(file.name.isprintable() and (file.problem or "").isprintable() for file in files)
    assert all("the name has characters that can't be printed" in (file.problem or "") for file in files)


def test_an_unreadable_file_is_named() -> None:
    # Not in tmp_path: root has to become somebody else to be refused anything, and that one must reach the directory.
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "secret.yaml").write_text("x")
        (directory / "secret.yaml").chmod(0)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65_534)
        try:
            found = problem(directory, "secret.yaml")
        finally:
            if root:
                os.seteuid(0)
    assert found == f"cannot read {directory}/secret.yaml: Permission denied"


def test_a_file_that_is_open_for_writing_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    with path.open("w") as file:
        file.write("half")
        file.flush()
        found = scan(tmp_path)["pod.yaml"]
        assert found.being_written
        assert found.content is None
        assert found.problem == f"{path} is being written: it is read when its writer closes it"
        file.write(" and half")
    assert scan(tmp_path)["pod.yaml"] == ManifestFile("pod.yaml", b"half and half")
    # Readers disturb nobody.
    with path.open():
        assert scan(tmp_path)["pod.yaml"].content == b"half and half"


WRITER = """
import sys
for _ in range(int(sys.argv[2])):
    with open(sys.argv[1], "w") as file:
        for part in range(20):
            file.write("x" * 1000)
            file.flush()
"""


def test_a_writer_beside_us_is_never_caught_half_done(tmp_path: Path) -> None:
    """Nor does it disturb us: the kernel tells of a writer that waits for our lease with a signal."""
    path = tmp_path / "pod.yaml"
    path.write_text("x" * 20_000)
    seen = {"whole": 0, "being_written": 0}
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path), "2000"]) as writer:
        while writer.poll() is None:
            found = scan(tmp_path)["pod.yaml"]
            if found.being_written:
                seen["being_written"] += 1
            else:
                assert found.content is not None
                # Between truncation and the first write there is no writer's lease to wait for, but the writer has it open.
                assert len(found.content) == 20_000
                seen["whole"] += 1
    assert writer.returncode == 0
    assert seen["whole"]
    assert seen["being_written"]


def test_files_that_vanish_during_the_scan_are_no_error(tmp_path: Path) -> None:
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for i in range(50):
                (tmp_path / f"{i}.yaml").write_text("x")
            for i in range(50):
                (tmp_path / f"{i}.yaml").unlink()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            for file in scan_manifests(str(tmp_path)).files:
                assert file.being_written or file.content in {b"", b"x"}
    finally:
        stop.set()
        thread.join()


def before_opening(
    name: str, happens: Callable[[], object], monkeypatch: pytest.MonkeyPatch, *, times: int = 1
) -> None:
    """Let something happen between the listing of a directory and the opening of this file of it."""
    real, left = os.open, [happens] * times

    def opened(path: Any, *args: Any, **kwargs: Any) -> int:
        if path == name and left:
            left.pop()()
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", opened)


def exchange(one: Path, other: Path) -> None:
    between = one.with_name(".t")
    one.rename(between)
    other.rename(one)
    between.rename(other)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    files = tmp_path / "a.yaml", tmp_path / "b.yaml"
    for file in files:
        file.write_text(file.name)
    return files


@pytest.fixture
def _within_one_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """All changes have one ctime."""
    real = os.fstat

    def stopped(handle: int) -> SimpleNamespace:
        found = real(handle)
        fields = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
        return SimpleNamespace(**{**fields, "st_ctime_ns": 0})

    monkeypatch.setattr(os, "fstat", stopped)


@pytest.mark.usefixtures("_within_one_tick")
@pytest.mark.parametrize("to", ["0.yaml", "z.yaml"])
def test_a_file_that_is_renamed_during_the_scan_is_read_under_its_new_name(
    to: str, pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_opening("a.yaml", lambda: pair[0].rename(tmp_path / to), monkeypatch)
    scanned = scan_manifests(str(tmp_path))
    assert {file.name: file.content for file in scanned.files} == {to: b"a.yaml", "b.yaml": b"b.yaml"}
    assert not scanned.is_partial


@pytest.mark.usefixtures("_within_one_tick")
def test_files_that_exchange_their_names_during_the_scan_are_both_read(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_opening("b.yaml", lambda: exchange(*pair), monkeypatch)
    scanned = scan_manifests(str(tmp_path))
    assert [file.content for file in scanned.files] == [b"b.yaml", b"a.yaml"]
    assert not scanned.is_partial


def test_files_that_have_their_own_names_again_after_the_scan_are_both_read(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, changed_ns, listings = os.scandir, tmp_path.stat().st_ctime_ns, 0

    def exchange_until_the_clock_moves() -> None:
        exchange(*pair)
        while tmp_path.stat().st_ctime_ns == changed_ns:
            exchange(*pair)
            exchange(*pair)

    def listed(directory: int) -> Any:
        nonlocal listings
        listings += 1
        if listings == 2:
            exchange(*pair)
        return real(directory)

    before_opening("b.yaml", exchange_until_the_clock_moves, monkeypatch)
    monkeypatch.setattr(os, "scandir", listed)
    scanned = scan_manifests(str(tmp_path))
    assert [file.content for file in scanned.files] == [b"a.yaml", b"b.yaml"]
    assert not scanned.is_partial


@pytest.mark.usefixtures("_within_one_tick")
def test_a_directory_that_changes_during_each_reading_is_known_in_part(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = 0

    def rename() -> None:
        nonlocal readings
        readings += 1
        (there,) = (file for file in tmp_path.iterdir() if file != pair[1])
        there.rename(tmp_path / f"{readings}.yaml")

    before_opening("b.yaml", rename, monkeypatch, times=100)
    scanned = scan_manifests(str(tmp_path))
    assert scanned.is_partial
    assert readings == MAX_READINGS


@pytest.mark.usefixtures("_within_one_tick")
def test_a_file_that_is_removed_and_made_again_during_the_scan_is_read(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the new file has the inode of the old one."""
    real = os.readlink

    def restored(name: str, *, dir_fd: int) -> str:
        (tmp_path / ".t").rename(pair[0])
        return real(name, dir_fd=dir_fd)

    before_opening("a.yaml", lambda: pair[0].rename(tmp_path / ".t"), monkeypatch)
    monkeypatch.setattr(os, "readlink", restored)
    assert scan(tmp_path)["a.yaml"].content == b"a.yaml"


def test_a_file_that_is_removed_during_the_scan_casts_no_doubt_on_the_rest(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_opening("a.yaml", pair[0].unlink, monkeypatch)
    scanned = scan_manifests(str(tmp_path))
    assert [file.name for file in scanned.files] == ["b.yaml"]
    assert not scanned.is_partial


def test_a_path_of_a_file_that_is_removed_during_the_scan_is_missing(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(pair[0])

    def once_found() -> None:
        before_opening(path, pair[0].unlink, monkeypatch)

    before_opening(path, once_found, monkeypatch)
    with pytest.raises(ManifestDirectoryError) as caught:
        scan_manifests(path)
    assert caught.value.missing


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Path, ManifestWatch, Wakes]]:
    wakes = Wakes()
    directory = tmp_path / "manifests"
    watch = ManifestWatch(str(directory), wakes)
    yield directory, watch, wakes
    watch.stop()


Watched = tuple[Path, ManifestWatch, Wakes]


def test_changes_of_files_wake(watched: Watched, tmp_path: Path) -> None:
    directory, watch, wakes = watched
    directory.mkdir()
    assert watch.renew()
    assert wakes.during(lambda: (directory / "a").write_text("x"))
    assert wakes.during(lambda: (directory / "a").write_text("y"))
    (tmp_path / "new").write_text("z")
    assert wakes.during(lambda: (tmp_path / "new").rename(directory / "a"))
    assert wakes.during((directory / "a").unlink)
    assert wakes.during(lambda: (directory / "link").symlink_to("..data"))


def test_the_close_of_a_writer_wakes_so_that_its_file_is_looked_at_again(watched: Watched) -> None:
    directory, watch, wakes = watched
    directory.mkdir()
    watch.renew()
    file = (directory / "a.yaml").open("wb", buffering=0)
    assert wakes.during(lambda: file.write(b"x"))
    assert scan(directory)["a.yaml"].being_written
    assert wakes.during(file.close)
    assert scan(directory)["a.yaml"].content == b"x"


def test_our_own_reading_does_not_wake_us(watched: Watched) -> None:
    directory, watch, wakes = watched
    directory.mkdir()
    (directory / "a.yaml").write_text("x")
    watch.renew()
    for _ in range(20):
        scan(directory)
    # Events come in order: had each reading caused one, they would be counted before this one.
    assert wakes.during((directory / "b").mkdir)
    assert wakes.count < 20


def test_a_directory_that_comes_later_is_found(watched: Watched) -> None:
    directory, watch, wakes = watched
    assert not watch.renew()
    assert wakes.during(directory.mkdir)
    assert watch.renew()
    assert wakes.during(lambda: (directory / "a").write_text("x"))


def test_a_replaced_directory_behind_a_link_is_watched_again(watched: Watched, tmp_path: Path) -> None:
    """Where the file system gives the new directory the old inode number, only the event of the removal tells the two apart."""
    directory, watch, wakes = watched
    target = tmp_path / "elsewhere" / "version"
    target.mkdir(parents=True)
    directory.symlink_to(target)
    watch.renew()
    assert wakes.during(target.rmdir)
    target.mkdir()
    watch.renew()
    assert watch.take_changed() is None
    assert wakes.during(lambda: (target / "a").write_text("x"))


def test_a_replaced_directory_is_watched_again(watched: Watched, tmp_path: Path) -> None:
    directory, watch, wakes = watched
    directory.mkdir()
    watch.renew()
    (tmp_path / "new").mkdir()

    def replace() -> None:
        directory.rename(tmp_path / "old")
        (tmp_path / "new").rename(directory)

    assert wakes.during(replace)
    assert watch.renew()
    assert wakes.during(lambda: (directory / "a").write_text("x"))


def test_a_directory_removed_and_made_again_is_watched_even_with_the_same_inode(watched: Watched) -> None:
    directory, watch, wakes = watched
    directory.mkdir()
    watch.renew()
    for _ in range(5):

        def again() -> None:
            directory.rmdir()
            directory.mkdir()

        # A wake-up that comes before the watch's own thread has seen the second half is followed by another one.
        assert wakes.during(again)
        deadline = time.monotonic() + DEADLINE_SECONDS
        woken = False
        while not woken and time.monotonic() < deadline:
            assert watch.renew()
            woken = wakes.during(lambda: (directory / "a").write_text("x"))
        assert woken
        (directory / "a").unlink()


def test_a_removed_directory_is_no_error(watched: Watched) -> None:
    directory, watch, wakes = watched
    directory.mkdir()
    watch.renew()
    assert wakes.during(directory.rmdir)
    assert not watch.renew()
    assert wakes.during(directory.mkdir)
    assert watch.renew()


def test_a_directory_behind_a_link_is_watched(watched: Watched, tmp_path: Path) -> None:
    directory, watch, wakes = watched
    (tmp_path / "real").mkdir()
    directory.symlink_to("real")
    assert watch.renew()
    assert wakes.during(lambda: (tmp_path / "real" / "a").write_text("x"))


def test_changed_files_are_named_unless_any_may_have_changed(watched: Watched, tmp_path: Path) -> None:
    directory, watch, wakes = watched
    watch.renew()
    assert watch.take_changed() is None, "there is no directory"
    assert wakes.during(directory.mkdir)
    (directory / "a").touch()
    watch.renew()
    assert watch.take_changed() is None, "nobody has watched before"
    assert wakes.during(lambda: os.truncate(directory / "a", 1))
    assert watch.take_changed() == {"a"}
    assert wakes.during(lambda: (directory / "a").rename(directory / "b"))
    assert watch.take_changed() == {"a", "b"}
    for _ in range(40):
        assert wakes.during(lambda: os.truncate(directory / "b", 1))
    assert watch.take_changed() is None, "so many events may be more than the kernel keeps"
    assert watch.take_changed() == frozenset()
    directory.rename(tmp_path / "old")
    directory.mkdir()
    watch.renew()
    assert watch.take_changed() is None, "it is another directory"


def test_stopping_leaves_no_thread(watched: Watched) -> None:
    directory, watch, _ = watched
    directory.mkdir()
    before = threading.active_count()
    watch.renew()
    assert threading.active_count() > before
    watch.stop()
    assert threading.active_count() == before
    watch.stop()


def test_a_watch_that_the_kernel_refuses_names_the_way_out_and_is_tried_again(watched: Watched) -> None:
    directory, watch, wakes = watched
    directory.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(ManifestWatchError) as caught:
            watch.renew()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.message == f"cannot watch {directory}: inotify instance limit reached"
    assert "max_user_instances" in caught.value.hint
    assert watch.renew()
    assert wakes.during((directory / "a").touch)


@given(st.data())
def test_what_is_known_of_unchanged_files_is_what_another_scan_finds(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as place:
        directory, known = Path(place), KnownManifests()
        names = st.sampled_from(("a.yaml", "b.yaml", "c.json", ".hidden.yaml", "other.txt"))
        for _ in range(data.draw(st.integers(1, 6))):
            changed = set[str]()
            for _ in range(data.draw(st.integers(0, 3))):
                file, content = directory / data.draw(names), data.draw(st.sampled_from((b"x", b"y", b"long")))
                changed.add(file.name)
                match data.draw(st.sampled_from(("write", "remove", "rename", "link"))):
                    case "write" if not file.is_symlink():
                        file.write_bytes(content)
                    case "remove":
                        file.unlink(missing_ok=True)
                    case "rename" if file.exists():
                        changed.add(file.rename(directory / data.draw(names)).name)
                    case "link" if not os.path.lexists(file):
                        file.symlink_to(directory / data.draw(names))
            part = data.draw(st.sampled_from((0.0, 0.0, 1.0)))
            assert scan_manifests(place, known, part, changed) == scan_manifests(place)


def test_a_scan_in_parts_finds_new_files_at_once_and_each_other_change_in_time(tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}.outside"
    outside.write_bytes(b"1")
    for number in range(10):
        (tmp_path / f"{number}.yaml").write_bytes(b"1")
    (tmp_path / "link.yaml").symlink_to(outside)
    long_ago = time.time_ns() - 10**10
    known = KnownManifests()
    with patch.object(time, "time_ns", lambda: long_ago + 2 * 10**10):  # nothing was changed just now
        first = scan_manifests(str(tmp_path), known)
        assert scan_manifests(str(tmp_path), known, 0.0) is first
        (tmp_path / "new.yaml").write_bytes(b"1")
        assert {file.name for file in scan_manifests(str(tmp_path), known, 0.0).files} >= {"new.yaml", "0.yaml"}
        outside.write_bytes(b"22")
        found = {file.name: file.content for file in scan_manifests(str(tmp_path), known, 0.0).files}
        assert found["link.yaml"] == b"22", "no watch tells of what a link leads to"
        (tmp_path / "7.yaml").write_bytes(b"333")
        seen = [scan_manifests(str(tmp_path), known, 0.25) for _ in range(5)]
        assert {file.name: file.content for file in seen[-1].files}["7.yaml"] == b"333"


def looked_at(
    directory: Path, known: KnownManifests, part: float, changed: AbstractSet[str]
) -> tuple[AbstractSet[str], dict[str, Any]]:
    """Scan, and return the names that were looked at, and the contents by name."""
    with patch.object(os, "stat", wraps=os.stat) as looked, patch.object(os, "scandir", wraps=os.scandir) as listed:
        found = scan_manifests(str(directory), known, part, changed)
    names = {call.args[0] for call in looked.call_args_list} | {"." for _ in listed.call_args_list}
    return names, {file.name: file.content for file in found.files}


def test_a_scan_looks_only_at_links_and_at_files_that_are_named_or_new_or_replaced(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}.yaml").write_bytes(b"1")
    (tmp_path / "link.yaml").symlink_to("0.yaml")
    long_ago = time.time_ns() - 10**10
    known = KnownManifests()
    with patch.object(time, "time_ns", lambda: long_ago + 2 * 10**10):  # nothing was changed just now
        scan_manifests(str(tmp_path), known)
        (tmp_path / "7.yaml").write_bytes(b"7")
        (tmp_path / ".8.yaml").write_bytes(b"8")
        (tmp_path / ".8.yaml").rename(tmp_path / "8.yaml")
        (tmp_path / "10.yaml").write_bytes(b"10")
        (tmp_path / "new.yaml").write_bytes(b"new")
        (tmp_path / "9.yaml").write_bytes(b"9")
        names, contents = looked_at(tmp_path, known, 0.0, {"7.yaml", "10.yaml", ".8.yaml", "gone.yaml", "beside.conf"})
        assert names == {"7.yaml", "10.yaml", "new.yaml", "link.yaml"}
        found = [contents[name] for name in ("7.yaml", "8.yaml", "10.yaml", "new.yaml")]
        assert found == [b"7", b"1", b"10", b"new"]
        assert [*contents] == sorted(contents)
        names, contents = looked_at(tmp_path, known, 0.01, set())
        assert names >= {".", "8.yaml", "link.yaml"}
        assert len(names) == 4, "and one in rotation"
        assert contents["8.yaml"] == b"8"
        assert contents["9.yaml"] == b"1", "nobody has named it"


@pytest.mark.parametrize(
    "renames", [["0.yaml new.yaml", "new.yaml last.yaml"], ["0.yaml 3.yaml", "1.yaml 0.yaml", "3.yaml 1.yaml"]]
)
def test_the_first_report_of_some_renames_finds_all_files(tmp_path: Path, renames: list[str]) -> None:
    for number in range(3):
        (tmp_path / f"{number}.yaml").write_bytes(b"%d" % number)
    long_ago = time.time_ns() - 10**10
    known = KnownManifests()
    with patch.object(time, "time_ns", lambda: long_ago + 2 * 10**10):  # as above
        scan_manifests(str(tmp_path), known)
        for one in renames:
            before, after = one.split()
            (tmp_path / before).rename(tmp_path / after)
        _, contents = looked_at(tmp_path, known, 0.0, set(renames[0].split()))
    assert sorted(contents.values()) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("limit", ["MAX_FILES", "MAX_TOTAL_BYTES"])
def test_a_named_file_beyond_a_limit_is_left_out_as_by_a_scan_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(manifests, limit, 3)
    known = KnownManifests()
    for name in ("a.yaml", "b.yaml", "c.yaml"):
        (tmp_path / name).write_bytes(b"1")
    scan_manifests(str(tmp_path), known)
    (tmp_path / "0.yaml").write_bytes(b"1")
    assert scan_manifests(str(tmp_path), known, 0.0, {"0.yaml"}) == scan_manifests(str(tmp_path))
