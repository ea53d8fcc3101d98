"""Containers' files on a real file system: whole, for everybody to read, and gone without a trace."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.edge.files.placement_files import MAX_BYTES, PlacementFileError, PlacementFiles


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "placement"


@pytest.fixture
def files(base: Path) -> PlacementFiles:
    return PlacementFiles(str(base))


def test_what_is_written_is_read_until_it_is_removed(files: PlacementFiles, base: Path) -> None:
    assert files.read() == {}
    files.write("uid-a/app", b"A=1\n")
    files.write("uid-a/side", b"A=2\n")
    files.write("uid-b/app", b"A=3\n")
    files.write("uid-a/app", b"A=4\n")
    assert files.read() == {"uid-a/app": b"A=4\n", "uid-a/side": b"A=2\n", "uid-b/app": b"A=3\n"}
    files.remove("uid-a/app")
    assert files.read() == {"uid-a/side": b"A=2\n", "uid-b/app": b"A=3\n"}
    files.remove("uid-a/side")
    files.remove("uid-a/side")
    assert [path.name for path in base.iterdir()] == ["uid-b"], "the directory goes with its last file"


def test_only_the_files_of_the_named_pods_are_looked_for(
    files: PlacementFiles, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pod in ("uid-a", "uid-b", "uid-c"):
        files.write(f"{pod}/app", b"A=1\n")
    listed, lists = [], os.scandir

    def scan(path: str) -> Iterator[os.DirEntry[str]]:
        listed.append(str(path))
        return lists(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert files.read(["uid-b", "uid-gone"]) == {"uid-b/app": b"A=1\n"}
    assert listed == [str(base / "uid-b")]


@pytest.mark.parametrize("umask", [0o077, 0o000])
def test_everybody_may_read_and_nobody_else_write_whatever_the_umask(
    files: PlacementFiles, base: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        files.write("uid-a/app", b"A=1\n")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (base, base / "uid-a", base / "uid-a" / "app")]
    assert modes == [0o755, 0o755, 0o644]


def test_a_reader_never_sees_half_of_it(files: PlacementFiles, base: Path) -> None:
    """One that has it open reads on in the old file; the name leads to the new one."""
    files.write("uid-a/app", b"A=1\nB=1\n")
    with (base / "uid-a" / "app").open("rb") as reader:
        assert reader.read(4) == b"A=1\n"
        files.write("uid-a/app", b"A=2\nB=2\n")
        assert reader.read() == b"B=1\n"
    assert [path.name for path in (base / "uid-a").iterdir()] == ["app"]


def test_what_is_not_as_written_is_found_and_can_be_removed(files: PlacementFiles, base: Path) -> None:
    files.write("uid-a/app", b"A=1\n")
    (base / "uid-a" / ".app.new").write_bytes(b"half")
    (base / "uid-a" / "secret").write_bytes(b"")
    (base / "uid-a" / "secret").chmod(0o600)
    (base / "uid-a" / "link").symlink_to("/etc/passwd")
    (base / "uid-a" / "large").write_bytes(b"x" * (MAX_BYTES + 1))
    os.mkfifo(base / "uid-a" / "pipe")
    (base / "uid-a" / "directory").mkdir()
    (base / "uid-empty").mkdir()
    (base / "loose").write_bytes(b"")
    (base / "astray").symlink_to("/etc")
    found = files.read()
    assert found.pop("uid-a/app") == b"A=1\n"
    assert found.pop("uid-a/.app.new") == b"half"
    assert set(found.values()) == {None}
    names = ("secret", "link", "large", "pipe", "directory")
    assert set(found) == {*(f"uid-a/{name}" for name in names), "uid-empty", "loose", "astray"}
    for name in (*found, "uid-a/.app.new"):
        files.remove(name)
    assert files.read() == {"uid-a/app": b"A=1\n"}
    assert Path("/etc/passwd").exists()


def test_a_crashed_writers_leftover_is_replaced(files: PlacementFiles, base: Path) -> None:
    files.write("uid-a/app", b"A=1\n")
    (base / "uid-a" / ".app.new").write_bytes(b"much longer than what comes next\n")
    files.write("uid-a/app", b"A=2\n")
    assert files.read() == {"uid-a/app": b"A=2\n"}


def test_what_is_in_the_way_is_named_with_the_next_step(files: PlacementFiles, base: Path) -> None:
    with pytest.raises(PlacementFileError, match=r"cannot write .*/uid-a/app: No such file or directory") as no_runtime:
        PlacementFiles(str(base / "missing" / "placement")).write("uid-a/app", b"")
    assert "runtimeDirectory" in (no_runtime.value.hint or "")
    (base / "uid-a" / "app" / "inside").mkdir(parents=True)
    with pytest.raises(PlacementFileError) as a_directory:
        files.write("uid-a/app", b"")
    assert a_directory.value.errno == errno.EISDIR
    assert "move it away" in (a_directory.value.hint or "")
    with pytest.raises(PlacementFileError, match=r"cannot remove .*: Directory not empty"):
        files.remove("uid-a/app")
    with pytest.raises(PlacementFileError, match=r"cannot read .*: Not a directory"):
        PlacementFiles(__file__).read()


def test_a_full_file_system_leaves_the_old_content(files: PlacementFiles, base: Path) -> None:
    """A limit on the size of files stands for it: the kernel refuses the first byte beyond."""
    files.write("uid-a/app", b"A=1\n")
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2, 2))\n"
        "from nodeagent.edge.files.placement_files import PlacementFiles\n"
        f"PlacementFiles({str(base)!r}).write('uid-a/app', b'A=2\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "cannot write" in done.stderr
    assert "File too large" in done.stderr
    assert files.read()["uid-a/app"] == b"A=1\n"


def test_a_full_file_system_leaves_no_directory_and_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = PlacementFiles(str(tmp_path / "pods"))
    files.write("uid-a/app", b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fchmod", full)  # after the file was made, before its content is in it
        for name in ("uid-a/app", "uid-b/app"):
            with pytest.raises(PlacementFileError):
                files.write(name, b"new")
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == [
        "pods",
        "pods/uid-a",
        "pods/uid-a/app",
    ]
    assert files.read() == {"uid-a/app": b"old"}


def test_planted_links_are_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "uid-a").mkdir(parents=True, mode=0o700)
    (victim / "file").write_text("root's")
    base = tmp_path / "pods"
    base.mkdir()
    (base / "uid-a").symlink_to(victim / "uid-a")
    (base / "uid-b").mkdir()
    (base / "uid-b/.app.new").symlink_to(victim / "file")
    (base / "uid-b/app").symlink_to(victim / "file")
    PlacementFiles(str(base)).write("uid-a/app", b"mine")
    PlacementFiles(str(base)).write("uid-b/app", b"mine")
    base.rename(tmp_path / "moved")
    base.symlink_to(victim)
    PlacementFiles(str(base)).write("uid-c/app", b"mine")
    assert PlacementFiles(str(base)).read() == {"uid-c/app": b"mine"}
    assert PlacementFiles(str(tmp_path / "moved")).read() == {"uid-a/app": b"mine", "uid-b/app": b"mine"}
    assert (victim / "file").read_text() == "root's"
    assert (list((victim / "uid-a").iterdir()), (victim / "uid-a").stat().st_mode & 0o777) == ([], 0o700)


def test_a_file_in_the_place_of_a_directory_stays_as_it_is(files: PlacementFiles, base: Path) -> None:
    base.mkdir()
    (base / "uid-a").write_text("another program's")
    (base / "uid-a").chmod(0o600)
    with pytest.raises(PlacementFileError) as in_the_way:
        files.write("uid-a/app", b"A=1\n")
    assert in_the_way.value.errno == errno.EEXIST
    assert ((base / "uid-a").read_text(), stat.S_IMODE((base / "uid-a").stat().st_mode)) == ("another program's", 0o600)
