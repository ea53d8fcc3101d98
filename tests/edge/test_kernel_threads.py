import errno
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.kernel.kernel_threads import KernelThread, KernelThreads, KernelThreadsError, ThreadKey, move_thread

KTHREADD = 2


KERNEL, BOUND = 0x0020_0000, 0x0400_0000


class Processes:
    """A /proc with processes that a test makes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def put(
        self, pid: int, name: str, flags: int, cpus: str = "0-3", cgroup: str = "0::/", start_ticks: int = 9
    ) -> None:
        place = self.directory / str(pid)
        place.mkdir(exist_ok=True)
        fields = ["S", "2", *"0000", str(flags), *"0" * 12, str(start_ticks), *"0" * 30]
        (place / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
        (place / "status").write_text(f"Name:\t{name}\nCpus_allowed_list:\t{cpus}\nVmSize: 0\n")
        (place / "cgroup").write_text(f"{cgroup}\n")


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    (tmp_path / "self").mkdir()
    return Processes(tmp_path)


def test_kernel_threads_are_told_apart_from_processes() -> None:
    """They have one parent, which is asked for here by other means. In a container there may be none."""
    before = dict(children_of_kthreadd())
    found = {key.pid: thread for key, thread in KernelThreads().find().items()}
    after = dict(children_of_kthreadd())
    assert found.keys() <= before.keys() | after.keys() | {KTHREADD}
    for pid in found.keys() & before.keys():
        assert found[pid].cpus == after.get(pid, before[pid])


def test_bound_threads_and_those_that_work_for_a_process_are_left_out(processes: Processes) -> None:
    processes.put(2, "kthreadd", KERNEL)
    processes.put(3, "kworker/0:1", KERNEL | BOUND, "0")
    processes.put(4, "vhost-77", KERNEL, cgroup="0::/machine.slice")
    processes.put(77, "qemu", 0)
    threads = KernelThreads(str(processes.directory))
    assert threads.find() == {ThreadKey(2, 9): KernelThread("kthreadd", CpuSet.parse("0-3"))}


def test_without_a_rescan_only_what_is_new_is_told_apart_and_each_affinity_is_read(processes: Processes) -> None:
    processes.put(2, "kthreadd", KERNEL)
    processes.put(77, "bash", 0)
    threads = KernelThreads(str(processes.directory))
    threads.find()
    threads.find()  # looks again at what it saw for the first time
    for pid in (2, 77):
        (processes.directory / str(pid) / "stat").unlink()  # reading it would be an ended process
    (processes.directory / "77/status").unlink()
    (processes.directory / "2/status").write_text("Name:\tkthreadd\nCpus_allowed_list:\t1\n")
    processes.put(78, "kswapd0", KERNEL)
    assert threads.find(rescan=False) == {
        ThreadKey(2, 9): KernelThread("kthreadd", CpuSet.of(1)),
        ThreadKey(78, 9): KernelThread("kswapd0", CpuSet.parse("0-3")),
    }


def test_a_rescan_finds_that_a_new_worker_is_bound(processes: Processes) -> None:
    processes.put(5, "kworker/u8:1", KERNEL)
    threads = KernelThreads(str(processes.directory))
    assert threads.find(rescan=False)
    processes.put(5, "kworker/u8:1", KERNEL | BOUND)
    assert threads.find() == {}


def test_a_thread_that_enters_a_cgroup_just_after_it_has_appeared_is_left_out_at_the_next_look(
    processes: Processes,
) -> None:
    processes.put(4, "vhost-77", KERNEL)
    threads = KernelThreads(str(processes.directory))
    assert threads.find(rescan=False)
    processes.put(4, "vhost-77", KERNEL, cgroup="0::/machine.slice")
    assert threads.find(rescan=False) == {}


def test_a_thread_that_comes_back_from_a_cgroup_is_found_by_a_rescan(processes: Processes) -> None:
    processes.put(6, "kswapd0", KERNEL, cgroup="0::/cset")
    threads = KernelThreads(str(processes.directory))
    assert threads.find() == threads.find() == {}
    processes.put(6, "kswapd0", KERNEL)
    assert threads.find().keys() == {ThreadKey(6, 9)}


def test_a_later_process_with_the_same_id_is_another(processes: Processes) -> None:
    processes.put(5, "kswapd0", KERNEL)
    threads = KernelThreads(str(processes.directory))
    threads.find()
    (processes.directory / "5").rename(processes.directory / "gone")
    processes.put(5, "bash", 0)
    assert threads.find(rescan=False) == {}


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


def test_a_thread_that_cannot_be_read_is_not_taken_for_one_that_has_ended(processes: Processes) -> None:
    processes.put(2, "kthreadd", KERNEL)
    (processes.directory / "2/stat").unlink()
    (processes.directory / "2/stat").symlink_to("stat")
    with pytest.raises(KernelThreadsError, match=r"cannot read .*/2: Too many levels of symbolic links"):
        KernelThreads(str(processes.directory)).find()


def test_processes_that_cannot_be_listed_are_not_taken_for_none(tmp_path: Path) -> None:
    with pytest.raises(KernelThreadsError, match=r"cannot list .*: No such file or directory"):
        KernelThreads(str(tmp_path / "none")).find()
