"""The fork into a cgroup: on the cgroup v2 that is mounted here, and where the kernel refuses."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.launcher import fork
from nodeagent.launcher.fork import creates_in_cgroups, fork_into


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A new cgroup."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    path = next((Path(mount[1], f"fork-{os.getpid()}") for mount in mounts if mount[2] == "cgroup2"), None)
    try:
        assert path is not None
        path.mkdir()
    except (AssertionError, OSError):
        pytest.skip("no cgroup v2 here in which cgroups can be made")
    yield path
    path.rmdir()


def exit_status(pid: int | None) -> int:
    assert pid is not None
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_the_child_is_in_the_cgroup_from_its_beginning_and_the_parent_stays(
    cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not creates_in_cgroups(os.uname().release):  # where this cgroup is, an older kernel can do it, too
        monkeypatch.setattr(fork, "_is_possible", True)
    before = Path("/proc/self/cgroup").read_text()
    pid = fork_into(str(cgroup))
    if pid == 0:
        place = Path("/proc/self/cgroup").read_text().rpartition("0::")[2].strip()
        os._exit(42 if place.endswith(f"/{cgroup.name}") else 1)
    assert exit_status(pid) == 42
    assert Path("/proc/self/cgroup").read_text() == before


def test_nothing_is_forked_and_no_file_stays_open_where_the_kernel_refuses(tmp_path: Path) -> None:
    files = len(list(Path("/proc/self/fd").iterdir()))
    assert fork_into(str(tmp_path)) is None
    assert fork_into(str(tmp_path / "missing")) is None
    assert len(list(Path("/proc/self/fd").iterdir())) == files
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize(
    ("release", "can"),
    [
        ("6.12.118+deb13-cloud-amd64", True),
        ("6.4.0-rc1", True),
        ("7.0.3", True),
        ("10.1", True),
        ("6.3.13", False),
        ("6.1.0-37-amd64", False),
        ("5.14.0-503.el9.x86_64", False),
        ("unknown", False),
    ],
)
def test_older_kernels_move_the_child_instead(release: str, *, can: bool) -> None:
    assert creates_in_cgroups(release) is can
