"""Forking into a cgroup. Guests have the real cgroups: every start there is one."""

import errno
import os
from pathlib import Path

import pytest

from nodeagent.launcher import clone


def test_a_child_is_one_like_any_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(clone, "CLONE_INTO_CGROUP", 0)
    ours, theirs = os.pipe()
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    pid = clone.fork_into(str(tmp_path))
    if pid == 0:
        os.write(theirs, b"%d" % os.getppid())
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert os.read(ours, 16) == b"%d" % os.getpid()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    os.close(ours)
    os.close(theirs)


def test_a_directory_that_is_no_cgroup_takes_no_child(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=str(tmp_path)) as refused:
        clone.fork_into(str(tmp_path))
    assert refused.value.errno == errno.EBADF
    with pytest.raises(FileNotFoundError):
        clone.fork_into(str(tmp_path / "none"))


def test_a_kernel_that_would_leave_a_child_the_cpus_of_its_parent_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(clone, "CLONE_INTO_CGROUP", 0)
    monkeypatch.setattr(clone, "FIRST_KERNEL", (99, 0))
    with pytest.raises(OSError, match=str(tmp_path)) as refused:
        clone.fork_into(str(tmp_path))
    assert refused.value.errno == errno.ENOSYS
