"""The fork into a cgroup: where the kernel refuses it, and which kernels can do it. In guests: integration/test_service.py."""

import os
from pathlib import Path

import pytest

from nodeagent.launcher.fork import creates_in_cgroups, fork_into


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
