"""What the launcher writes for the agent outside of pods: settings of the host that name CPUs, and where kernel threads may run."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.processes.launcher import MOVES_CPUS, LauncherError
from nodeagent.launcher.order import MAX_CPU, MAX_CPUS, RefusedError, ThreadMove, parse_cpus, parse_host_writes
from nodeagent.launcher.records import PF_KTHREAD, is_kernel_thread, read_parent_and_start_ticks
from tests.support.launcher_process import LauncherProcess

NOBODYS_THREAD = "thread 999999999@1"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[LauncherProcess]:
    launcher = LauncherProcess(tmp_path, tmp_path / "cgroup")
    launcher.run()
    yield launcher
    launcher.clean_up()


def test_settings_of_the_host_are_written_one_by_one(running: LauncherProcess) -> None:
    """No such interrupt has a file, so nothing of this host is changed. Many do not fit into one request."""
    files = [f"/proc/irq/{900_000_000 + number}/smp_affinity_list" for number in range(3000)]
    results = running.client.write_host([(file, "0-3") for file in files])
    assert results == (os.strerror(errno.ENOENT),) * len(files)
    assert running.client.write_host([]) == ()


@pytest.mark.parametrize("value", ["0", "5", "n/a"])
def test_settings_of_one_cpu_are_written(running: LauncherProcess, value: str) -> None:
    file = "/sys/devices/system/cpu/cpu9999/power/pm_qos_resume_latency_us"
    assert running.client.write_host([(file, value)]) == (os.strerror(errno.ENOENT),)


@pytest.mark.parametrize(
    ("file", "value"),
    [
        ("/proc/irq/24/smp_affinity_list", "0-3\n"),
        ("/proc/irq/24/smp_affinity_list", ""),
        ("/proc/irq/24/smp_affinity_list", "all"),
        ("/proc/irq/../sysrq-trigger", "b"),
        ("/proc/sysrq-trigger", "b"),
        ("/proc/irq/24/smp_affinity", "f"),
        ("/sys/devices/virtual/workqueue/../../cpumask", "f"),
        ("/sys/devices/virtual/workqueue/a/b/cpumask", "f"),
        ("/sys/class/net/../queues/rx-0/rps_cpus", "f"),
        ("/sys/class/net/./queues/rx-0/rps_cpus", "f"),
        ("/sys/class/net/eth0/mtu", "f"),
        ("/sys/devices/system/cpu/cpu3/online", "0"),
        ("/sys/devices/system/cpu/cpu3/../cpu4/power/pm_qos_resume_latency_us", "5"),
        ("/sys/devices/system/cpu/cpu3/power/pm_qos_resume_latency_us", "5 "),
        ("/sys/devices/system/cpu/cpu3/power/pm_qos_resume_latency_us", ""),
        ("sys/class/net/eth0/queues/rx-0/rps_cpus", "f"),
    ],
)
def test_nothing_but_settings_that_name_cpus_is_written(running: LauncherProcess, file: str, value: str) -> None:
    with pytest.raises(LauncherError, match="not_a_setting"):
        running.client.write_host([("/proc/irq/900000000/smp_affinity_list", "0"), (file, value)])


@pytest.mark.parametrize(("change", "why"), [(0, "no kernel thread"), (1, "of another start")])
def test_a_process_is_never_moved(running: LauncherProcess, change: int, why: str) -> None:
    own = os.sched_getaffinity(0)
    start_ticks = read_parent_and_start_ticks(os.getpid())[1] + change
    results = running.client.write_host([(f"thread {os.getpid()}@{start_ticks}", str(min(own)))])
    assert results == (os.strerror(errno.ESRCH),), why
    assert os.sched_getaffinity(0) == own


@pytest.mark.parametrize(
    ("flags", "start_ticks", "expected"),
    [(PF_KTHREAD | 0x40, 7, True), (PF_KTHREAD, 8, False), (0x40, 7, False), (0, 8, False)],
)
def test_a_kernel_thread_is_known_by_its_flag_and_its_start(flags: int, start_ticks: int, expected: bool) -> None:
    fields = ["S", "2", "0", "0", "0", "-1", str(flags), *["0"] * 12, str(start_ticks), "0"]
    assert is_kernel_thread(fields, 7) is expected


@pytest.mark.parametrize(
    "text", ["", "-", "1-", "-1", "1,", ",1", "3-2", "1,1", "0-3,3", "5,1-2", "a", "0-8192", "8192", "99999", "1--2"]
)
def test_a_list_that_the_kernel_would_not_print_is_refused_before_anything_is_written(text: str) -> None:
    with pytest.raises(RefusedError, match=r"not a list of CPUs|ascend|may change"):
        parse_host_writes({"writes": [[NOBODYS_THREAD, "0"], [NOBODYS_THREAD, text]]})


@given(st.frozensets(st.integers(0, MAX_CPU), min_size=1))
def test_what_the_agent_prints_is_read_as_it_is_meant(ids: frozenset[int]) -> None:
    text = str(CpuSet.from_ids(ids))
    assert [cpu for part in parse_cpus(text) for cpu in part] == sorted(ids)


def test_a_request_names_a_bounded_number_of_cpus() -> None:
    """Two of the longest that fit into a packet: CPUs again and again in each list, and every CPU for many threads."""
    again = [["thread 2@1", ",".join(["0-65535"] * 125)]] * 185
    everywhere = [[NOBODYS_THREAD, f"0-{MAX_CPU}"]] * 5000
    for writes in (again, everywhere):
        with pytest.raises(RefusedError):
            parse_host_writes({"writes": writes})
    most = parse_host_writes({"writes": everywhere[: MAX_CPUS // (MAX_CPU + 1)]})
    assert sum(len(part) for move in most if isinstance(move, ThreadMove) for part in move.cpus) == MAX_CPUS


def test_the_agent_asks_for_no_more_at_once(running: LauncherProcess) -> None:
    writes = [(NOBODYS_THREAD, f"0-{MAX_CPU}")] * (2 * MAX_CPUS // (MAX_CPU + 1) + 1)
    assert running.client.write_host(writes) == (os.strerror(errno.ENOENT),) * len(writes)
    assert MOVES_CPUS == MAX_CPUS
