import errno
import os
from collections.abc import Iterator

import psutil

from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.kernel_threads import ThreadKey, move, unbound

KTHREADD = 2


def test_kernel_threads_are_told_apart_from_processes() -> None:
    """They have one parent, which is asked for here by other means. In a container there may be none."""
    before = dict(children_of_kthreadd())
    found = {key.pid: thread for key, thread in unbound().items()}
    after = dict(children_of_kthreadd())
    everywhere = {pid for pid, cpus in before.items() if len(cpus) > 1 and after.get(pid) == cpus}
    assert everywhere <= found.keys() <= before.keys() | after.keys() | {KTHREADD}
    for pid in everywhere:
        assert found[pid].cpus == after[pid]
    assert unbound(lambda: (os.getpid(), os.getppid())) == {}


def test_what_started_at_another_time_is_not_moved() -> None:
    own = os.sched_getaffinity(0)
    assert move(ThreadKey(os.getpid(), 1), CpuSet.of(min(own))) == os.strerror(errno.ESRCH)
    assert os.sched_getaffinity(0) == own


def children_of_kthreadd() -> Iterator[tuple[int, CpuSet]]:
    for process in psutil.process_iter():
        try:
            if process.ppid() == KTHREADD:
                yield process.pid, CpuSet.from_ids(process.cpu_affinity() or ())
        except psutil.NoSuchProcess:
            continue
