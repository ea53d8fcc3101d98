"""Instances of tracefs come and go with their process, and triggers are written as the kernel reads them (which the guest proves)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.kernel.tracefs import CpuRecording, TracefsError, make_temporary_directory, record, remove_abandoned
from tests.support.launcher_process import wait_for

FILES = (
    "buffer_size_kb",
    "set_event_pid",
    *(
        f"events/{event}/{file}"
        for event in (
            "sched/sched_switch",
            "sched/sched_process_exit",
            "sched/sched_process_fork",
            "cgroup/cgroup_attach_task",
            "irq/irq_handler_entry",
            "irq/irq_handler_exit",
            "irq/softirq_entry",
            "irq/softirq_exit",
        )
        for file in ("trigger", "hist")
    ),
)


@pytest.fixture
def tracefs(tmp_path: Path) -> Path:
    """Enough of it to be recognised; what is made in it stays empty, as only the kernel can fill it."""
    (tmp_path / "instances").mkdir()
    (tmp_path / "events/sched/sched_switch").mkdir(parents=True)
    (tmp_path / "events/sched/sched_switch/hist").touch()
    return tmp_path


@pytest.fixture
def instance(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def test_counters_are_made_first_and_run_only_from_the_beginning_on(instance: Path) -> None:
    counters = CpuRecording(instance, CpuSet.parse("2-3"))
    trigger = instance / "events/irq/softirq_exit/trigger"
    made = "hist:keys=common_cpu,vec:vals=common_timestamp:clock=mono:size=2048"

    counters.prepare()
    assert (instance / "buffer_size_kb").read_text() == "1"
    assert trigger.read_text() == f"{made}:pause if CPU>=2&&CPU<=3"
    exits = instance / "events/sched/sched_process_exit"
    assert (exits / "trigger").read_text() == "hist:keys=pid:size=8192", "on all CPUs, as a task may exit on any"
    (exits / "hist").write_bytes(b"exits")
    counters.begin()
    assert (exits / "trigger").read_text().endswith(":pause")
    (exits / "hist").write_bytes(b"exits since")
    assert trigger.read_text().endswith(f"{made}:cont if CPU>=2&&CPU<=3")
    assert (instance / "set_event_pid").read_text() == ""

    (instance / "events/sched/sched_switch/hist").write_bytes(b"\xffswitches")
    record = counters.end()
    assert (instance / "set_event_pid").read_text() == str(os.getpid())
    assert record.switches.text == b"\xffswitches"
    assert record.exits == b"exits", "those before the others were counted"
    assert record.softirq_exits.from_ns <= record.softirq_exits.by_ns <= record.softirq_entries.from_ns
    assert record.switches.by_ns <= record.ended_ns


def test_a_counter_that_the_kernel_refuses_is_named_and_the_instance_goes(tracefs: Path) -> None:
    with pytest.raises(TracefsError, match=r"cannot write '1' to .*/buffer_size_kb: No such file"):
        record(CpuSet.of(1), tracefs).__enter__()
    assert list((tracefs / "instances").iterdir()) == []


def test_only_what_dead_processes_left_is_removed(tracefs: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    stay = {f"nodeagent-{os.getpid()}-{start}", "overlap", "nodeagent-x-y", "nodeagent-1"}
    for name in (*stay, f"nodeagent-{dead.pid}-{start}", f"nodeagent-{os.getpid()}-1"):
        (tracefs / "instances" / name).mkdir()

    remove_abandoned(tracefs)

    assert {path.name for path in (tracefs / "instances").iterdir()} == stay


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(1)", "raise OSError('x')", "pass"])
def test_a_directory_goes_with_its_process_however_that_ends(tracefs: Path, end: str) -> None:
    path = tracefs / "instances/mine"
    program = f"""
import os, pathlib, signal
from nodeagent.edge.kernel.tracefs import make_temporary_directory
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT, signal.SIGTERM, signal.SIGHUP}})
with make_temporary_directory(pathlib.Path({str(path)!r})) as made:
    print(made.is_dir(), flush=True)
    {end}
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.stdout, done.returncode == 0) == ("True\n", end == "pass")
    wait_for(lambda: not path.exists(), "it is gone")


def test_it_goes_also_where_everything_that_the_process_has_started_is_told_to_end(tracefs: Path) -> None:
    """As systemd does it once a unit's main process has ended."""
    path = tracefs / "instances/mine"
    program = f"""
import os, pathlib, re, signal
from nodeagent.edge.kernel.tracefs import make_temporary_directory
with make_temporary_directory(pathlib.Path({str(path)!r})):
    (remover,) = pathlib.Path(f"/proc/self/task/{{os.getpid()}}/children").read_text().split()
    status = pathlib.Path(f"/proc/{{remover}}/status")
    while not int(re.search("SigIgn:(.*)", status.read_text())[1], 16) >> signal.SIGTERM - 1 & 1:
        os.sched_yield()
    os.kill(int(remover), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    wait_for(lambda: not path.exists(), "it is gone")


def test_what_is_there_already_is_not_taken_over(tracefs: Path) -> None:
    (tracefs / "instances/mine/used").mkdir(parents=True)
    with (
        pytest.raises(TracefsError, match=r"cannot make .*: File exists"),
        make_temporary_directory(tracefs / "instances/mine"),
    ):
        pass
    assert (tracefs / "instances/mine/used").is_dir()


def test_what_cannot_be_removed_now_hinders_nobody(tracefs: Path) -> None:
    (tracefs / "instances/nodeagent-1-1/used").mkdir(parents=True)
    remove_abandoned(tracefs)
    assert (tracefs / "instances/nodeagent-1-1").is_dir()


@pytest.mark.parametrize(
    ("present", "problem", "hint"),
    [
        ((), "there is no tracefs at", "mount -t tracefs"),
        (("instances",), "keeps no histograms", "CONFIG_HIST_TRIGGERS"),
    ],
)
def test_a_kernel_that_cannot_says_what_it_lacks(
    tmp_path: Path, present: tuple[str, ...], problem: str, hint: str
) -> None:
    for name in present:
        (tmp_path / name).mkdir()
    with pytest.raises(TracefsError, match=problem) as caught:
        record(CpuSet.of(1), tmp_path).__enter__()
    assert re.search(hint, caught.value.hint)
