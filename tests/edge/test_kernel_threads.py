import errno
import os
import resource
from collections.abc import Iterator

import psutil
import pytest

from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.kernel.kernel_threads import KernelThreadsError, ThreadKey, find_unbound_threads, move_thread

KTHREADD = 2


def test_kernel_threads_are_told_apart_from_processes() -> None:
    """They have one parent, which is asked for here by other means. In a container there may be none."""
    before = dict(children_of_kthreadd())
    found = {key.pid: thread for key, thread in find_unbound_threads().items()}
    after = dict(children_of_kthreadd())
    everywhere = {pid for pid, cpus in before.items() if len(cpus) > 1 and after.get(pid) == cpus}
    assert everywhere <= found.keys() <= before.keys() | after.keys() | {KTHREADD}
    for pid in everywhere:
        assert found[pid].cpus == after[pid]
    assert find_unbound_threads(lambda: (os.getpid(), os.getppid())) == {}


def test_what_started_at_another_time_is_not_moved() -> None:
    own = os.sched_getaffinity(0)
    assert move_thread(ThreadKey(os.getpid(), 1), CpuSet.of(min(own))) == os.strerror(errno.ESRCH)
    assert os.sched_getaffinity(0) == own


def children_of_kthreadd() -> Iterator[tuple[int, CpuSet]]:
    for process in psutil.process_iter():
        try:
            if process.ppid() == KTHREADD:
                yield process.pid, CpuSet.from_ids(process.cpu_affinity() or ())
        except psutil.NoSuchProcess:
            continue


def test_a_thread_that_cannot_be_read_is_not_taken_for_one_that_has_ended() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(KernelThreadsError, match="cannot read /proc/2: Too many open files"):
            find_unbound_threads(lambda: (2,))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
