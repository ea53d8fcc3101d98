"""The cgroup file system by itself, on a cgroup of this machine: lists of any length, and signals that reach everybody."""

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodeagent.core.cgroups.write_failures import WriteFailure
from nodeagent.core.cgroups.write_order import GatherThreads, SetAttribute
from nodeagent.core.model.cgroup import Attribute, ByteLimit, CpuMax
from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError, CgroupFiles, MemoryInUseError
from nodeagent.edge.cgroups.cgroupfs.processes import HELD_AT_ONCE, CgroupProcesses
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree

MANY = 1301
"""More than a page of process ids."""
CROWD = f"""
import os, signal
for _ in range({MANY - 1}):
    if os.fork() == 0:
        break
signal.pause()
"""


def cgroup2() -> Path | None:
    """Where this machine's cgroup v2 hierarchy can be written to."""
    with Path("/proc/mounts").open(encoding="utf-8") as mounts:
        points = [Path(fields[1]) for fields in map(str.split, mounts) if fields[2] == "cgroup2"]
    return next((point for point in points if os.geteuid() == 0 and os.access(point, os.W_OK)), None)


HIERARCHY = cgroup2()
needs_cgroups = pytest.mark.skipif(HIERARCHY is None, reason="needs root and a cgroup v2 hierarchy")


@pytest.fixture
def pods() -> Iterator[Path]:
    """A cgroup of this machine, ended and removed afterwards."""
    assert HIERARCHY is not None
    made = HIERARCHY / f"nodeagent-test-{os.getpid()}"
    made.mkdir()
    yield made
    (made / "cgroup.kill").write_text("1")
    wait_until_empty(made)
    for directory, _, _ in os.walk(made, topdown=False):
        Path(directory).rmdir()


def wait_until_empty(cgroup: Path) -> None:
    """The kernel notifies on cgroup.events (POLLPRI). Ended processes of ours are waited for, as they count until then."""
    with (cgroup / "cgroup.events").open() as events:
        poller = select.poll()
        poller.register(events, select.POLLPRI)
        while "populated 1" in events.read():
            assert poller.poll(20_000), "the cgroup stays populated"
            events.seek(0)


def start(cgroup: Path, program: str, stdout: int | None = None) -> subprocess.Popen[bytes]:
    """Run a Python program in a cgroup from its first instruction on."""

    def enter() -> None:
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))

    words = [sys.executable, "-S", "-c", program]
    return subprocess.Popen(words, stdout=stdout, preexec_fn=enter)  # noqa: PLW1509 - this process has one thread


@pytest.fixture
def crowd(pods: Path) -> Iterator[Path]:
    cgroup = pods / "pod1"
    cgroup.mkdir()
    first = start(cgroup, CROWD)
    while len({*(cgroup / "cgroup.procs").read_text().split()}) < MANY:
        assert first.poll() is None
        os.sched_yield()
    yield cgroup
    with suppress(ProcessLookupError):
        os.kill(first.pid, signal.SIGKILL)
    first.wait()


class Counting(CgroupProcesses):
    lists = 0

    def list_pids(self, path: str) -> tuple[int, ...]:
        self.lists += 1
        return super().list_pids(path)


@needs_cgroups
def test_a_list_of_processes_is_read_to_its_end(crowd):
    assert len(CgroupTree(str(crowd.parent)).processes.list_pids("pod1")) == MANY


@needs_cgroups
def test_every_process_of_many_gets_the_signal_and_the_list_is_not_read_for_each(crowd):
    processes = Counting(CgroupFiles(crowd.parent))

    processes.terminate("pod1")

    wait_until_empty(crowd)
    assert processes.lists <= 1 + -(-MANY // HELD_AT_ONCE)


def test_a_process_that_cannot_be_held_keeps_the_signal_from_no_other(tmp_path):
    """One of another PID namespace is listed as 0."""
    ours = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    (tmp_path / "cgroup.procs").write_text(f"0\n{ours.pid}\n")
    with pytest.raises(CgroupError, match="hold process 0 to end it"):
        CgroupTree(str(tmp_path)).processes.terminate("")
    assert ours.wait(20) == -signal.SIGTERM


def test_a_process_that_left_between_the_looks_gets_no_signal(tmp_path):
    """A process id that was in the first list only belongs to somebody else now."""
    ours = [subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"]) for _ in range(2)]
    left, stayed = (process.pid for process in ours)

    class Leaving(Counting):
        def list_pids(self, path: str) -> tuple[int, ...]:
            super().list_pids(path)
            return (left, stayed) if self.lists == 1 else (stayed,)

    Leaving(CgroupFiles(tmp_path)).terminate("pod1")

    assert ours[1].wait(20) == -signal.SIGTERM
    assert ours[0].poll() is None
    ours[0].kill()
    ours[0].wait()


def test_a_process_that_is_listed_twice_is_one(tmp_path):
    """The kernel's list may name one that moved while it was read more than once (cgroup-v2.rst, cgroup.procs)."""
    (tmp_path / "pod1").mkdir()
    (tmp_path / "pod1" / "cgroup.procs").write_text("7\n9\n7\n")
    assert CgroupTree(str(tmp_path)).processes.list_pids("pod1") == (7, 9)


def test_threads_and_ids_of_a_cgroup_are_those_of_all_below_it(tmp_path):
    for name, threads in (("pod1", "7\n9\n"), ("pod1/app", ""), ("pod1/app/part", "11\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.threads").write_text(threads)
    tree = CgroupTree(str(tmp_path))
    assert tree.processes.list_threads("pod1") == {7, 9, 11}
    assert tree.processes.list_cgroup_ids("pod1") == {
        (tmp_path / name).stat().st_ino for name in ("pod1", "pod1/app", "pod1/app/part")
    }
    assert (tree.processes.list_threads("pod2"), tree.processes.list_cgroup_ids("pod2")) == (
        frozenset(),
        frozenset(),
    ), "it has gone"


THREADED = """
import os, signal, threading
thread = threading.Thread(target=lambda: signal.sigwait({signal.SIGUSR1}), daemon=True)
thread.start()
with open("%s/cgroup.threads", "w") as threads:
    threads.write(str(thread.native_id))
print("moved", flush=True)
signal.pause()
"""


@needs_cgroups
@pytest.mark.parametrize("where", ["slot", "slot/part"])
def test_processes_with_threads_in_threaded_cgroups_are_found_and_ended(pods, where):
    """A threaded cgroup's list of processes cannot be read: they are in that of its domain (cgroup-v2.rst, Threads)."""
    (pods / "slot" / "part").mkdir(parents=True)
    (pods / "slot" / "part" / "cgroup.type").write_text("threaded")
    (pods / "slot" / "unused").mkdir()
    assert (pods / "slot" / "unused" / "cgroup.type").read_text() == "domain invalid\n"
    process = start(pods / where, THREADED % (pods / "slot" / "part"), stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"moved\n"
    tree = CgroupTree(str(pods))

    assert tree.processes.list_pids("slot") == (process.pid,)
    tree.processes.terminate("slot")

    assert process.wait(20) == -signal.SIGTERM
    process.stdout.close()


@pytest.mark.parametrize(
    ("events", "kills"),
    [
        pytest.param("low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n", 0, id="nothing happened"),
        pytest.param(
            "max 90\noom 3\noom_kill 6\noom_group_kill 3\n", 3, id="three runs of one process, each killed twice over"
        ),
        pytest.param("oom 3\noom_kill 3\noom_group_kill 3\n", 3, id="each had ended before the second kill"),
        pytest.param("oom 3\noom_kill 5\noom_group_kill 3\n", 3, id="one of them had"),
        pytest.param("oom 1\noom_kill 5\noom_group_kill 1\n", 4, id="four processes at once"),
        pytest.param("oom 2\noom_kill 2\noom_group_kill 0\n", 2, id="in a cgroup below, of its own limit"),
        pytest.param("oom 2\noom_kill 2\n", 2, id="a kernel before 5.17"),
        pytest.param(None, 0, id="no memory controller"),
    ],
)
def test_a_process_killed_for_memory_counts_once(tmp_path, events, kills):
    (tmp_path / "cgroup.controllers").write_text("memory\n")
    if events is not None:
        (tmp_path / "memory.events").write_text(events)
    assert CgroupTree(str(tmp_path)).read(frozenset())[""].oom_kills == kills


def noting_opens(monkeypatch):
    """The names of the files that are opened from now on."""
    opened, opens = [], os.open

    def open_file(path, *args, **more):
        opened.append(str(path).rpartition("/")[2])
        return opens(path, *args, **more)

    monkeypatch.setattr(os, "open", open_file)
    return opened


def test_files_of_controllers_that_a_cgroup_does_not_have_are_not_looked_for(tmp_path, monkeypatch):
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    opened = noting_opens(monkeypatch)
    CgroupTree(str(tmp_path)).read(frozenset())
    controllers = {name.partition(".")[0] for name in opened if "." in name}
    assert controllers == {"cgroup", "cpu", "memory"}


def test_only_the_changed_files_are_read_again_and_those_that_the_kernel_changes(tmp_path, monkeypatch):
    names = ("cgroup.events", "cpu.weight", "cpu.max", "cpuset.cpus", "cpuset.cpus.effective")

    def write(*texts):
        for name, text in zip(names, texts, strict=True):
            (tmp_path / name).write_text(f"{text}\n")

    (tmp_path / "cgroup.controllers").write_text("cpu cpuset\n")
    write("populated 0", "100", "max 100000", "0-3", "0-3")
    told = iter([None, {("", "cpu.weight")}, {("", "cgroup.subtree_control")}])
    tree = CgroupTree(str(tmp_path), watch=SimpleNamespace(take_changes=lambda: next(told)))
    tree.read_changed(frozenset(), 0.0)
    write("populated 1", "7", "1 2", "0-2", "1")
    opened = noting_opens(monkeypatch)
    now = tree.read_changed(frozenset(), 0.0)[""]
    assert set(opened) & set(names) == {"cgroup.events", "cpu.weight", "cpuset.cpus.effective"}
    assert (now.is_populated, now.get(Attribute.CPU_WEIGHT), now.cpus_effective) == (True, 7, CpuSet.of(1))
    assert (now.get(Attribute.CPU_MAX), now.get(Attribute.CPUSET_CPUS)) == (CpuMax(None, 100000), CpuSet.of(0, 1, 2, 3))
    assert tree.read_changed(frozenset(), 0.0)[""].get(Attribute.CPU_MAX) == CpuMax(1, 2), "then each file is read"


def test_nothing_is_kept_of_cgroups_that_a_container_makes(tmp_path):
    told = {"pod1/app/deep": "cpuset.cpus"}
    for path in ("", "pod1", "pod1/app", *told):
        (tmp_path / path).mkdir(exist_ok=True)
        (tmp_path / path / "cgroup.controllers").write_text("cpuset\n")
    tree = CgroupTree(str(tmp_path), watch=SimpleNamespace(take_changes=told.items))
    for part in (1.0, 0.0):
        seen = tree.read_changed(frozenset(), part)
        assert tree._read_texts.keys() == seen.keys() == {"", "pod1", "pod1/app"}  # noqa: SLF001 - what is kept


def test_a_cgroup_without_cgroups_below_is_not_listed(tmp_path, monkeypatch):
    (tmp_path / "pod1/app/payload").mkdir(parents=True)
    (tmp_path / "pod1/app/payload/cgroup.procs").write_text("7\n")
    listed, lists = [], os.scandir

    def scan(path):
        listed.append(os.path.relpath(path, tmp_path))
        return lists(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert CgroupTree(str(tmp_path)).processes.list_pids("pod1") == (7,)
    assert listed == ["pod1", "pod1/app"]


@pytest.mark.parametrize(
    "name", ["cgroup.events", "memory.events", "cpuset.cpus.effective", "cpuset.mems.effective", "cpu.weight"]
)
def test_a_file_with_a_text_that_the_kernel_would_not_write_is_named(tmp_path, name):
    (tmp_path / "cgroup.controllers").write_text("cpu cpuset memory\n")
    (tmp_path / name).write_text("nonsense of another program\n")
    with pytest.raises(CgroupError, match=re.escape(f"cannot parse {tmp_path / name}: ")):
        CgroupTree(str(tmp_path)).read(frozenset())


def test_cgroups_with_equal_files_share_their_values(tmp_path):
    for path in ("pod1", "pod2"):
        (tmp_path / path).mkdir()
    for directory in (tmp_path, tmp_path / "pod1", tmp_path / "pod2"):
        (directory / "cgroup.controllers").write_text("cpuset\n")
        (directory / "cpuset.cpus.effective").write_text("0-3\n")
    seen = CgroupTree(str(tmp_path)).read(frozenset())
    assert [cgroup.path for cgroup in seen.values()] == ["", "pod1", "pod2"]
    assert seen["pod1"].cpus_effective is seen["pod2"].cpus_effective


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_directory_that_may_not_be_looked_into_is_named() -> None:
    with tempfile.TemporaryDirectory() as directory:  # nobody else may enter it
        os.seteuid(65_534)
        try:
            with pytest.raises(CgroupError) as refused:
                CgroupTree(f"{directory}/pods").read_chain()
        finally:
            os.seteuid(0)
        assert refused.value.message == f"cannot read {directory}/pods/cpuset.cpus.effective: Permission denied"
        assert "run as root" in refused.value.hint
        assert CgroupTree(f"{directory}/pods").read_chain() is None


def container_in(root, effective, partition):
    """A pod's cgroup with one container, whose only process is this one."""
    (root / "pod1/app/payload").mkdir(parents=True)
    for path, files in {
        "": {},
        "pod1": {"cpuset.cpus.partition": partition},
        "pod1/app": {"cpuset.cpus.effective": str(effective), "cgroup.events": "populated 1\nfrozen 0\n"},
    }.items():
        for name, text in {"cgroup.controllers": "cpuset\n", **files}.items():
            (root / path / name).write_text(text)
    (root / "pod1/app/payload/cpuset.cpus").write_text("0\n")
    (root / "pod1/app/payload/cgroup.threads").write_text(f"{os.getpid()}\n")


@pytest.mark.parametrize(
    ("partition", "is_seen"), [("root\n", True), ("root invalid (why)\n", True), ("member\n", False)]
)
def test_threads_that_may_run_elsewhere_are_seen_in_partitions(tmp_path, partition, is_seen):
    mine = CpuSet.from_ids(os.sched_getaffinity(0))
    container_in(tmp_path, mine, partition)
    tree = CgroupTree(str(tmp_path))
    assert tree.read(frozenset())["pod1/app"].elsewhere == CpuSet()
    (tmp_path / "pod1/app/cpuset.cpus.effective").write_text(f"{min(mine)}\n")
    assert tree.read(frozenset())["pod1/app"].elsewhere == (mine - CpuSet.of(min(mine)) if is_seen else CpuSet())


@pytest.mark.parametrize("where", [".", "payload/nested/deeper"])
def test_so_are_those_wherever_they_are_in_the_container(tmp_path, where):
    mine = CpuSet.from_ids(os.sched_getaffinity(0))
    container_in(tmp_path, min(mine), "root\n")
    nested = tmp_path / "pod1/app" / where
    nested.mkdir(parents=True, exist_ok=True)
    (tmp_path / "pod1/app/payload/cgroup.threads").rename(nested / "cgroup.threads")
    assert CgroupTree(str(tmp_path)).read(frozenset())["pod1/app"].elsewhere == mine - CpuSet.of(min(mine))


def test_threads_are_gathered_where_the_kernel_does_so_and_those_that_are_at_home_are_left_alone(tmp_path):
    """Only a cpuset keeps the kernel from giving a thread all CPUs: where there is none, it stays elsewhere, which is said."""
    mine = CpuSet.from_ids(os.sched_getaffinity(0))
    container_in(tmp_path, mine, "root\n")
    tree, gather = CgroupTree(str(tmp_path)), GatherThreads("pod1/app", vacates=CpuSet())
    narrowed = {min(mine)}
    os.sched_setaffinity(0, narrowed)
    try:
        tree.apply(gather)
        assert os.sched_getaffinity(0) == narrowed
        (tmp_path / "pod1/app/cpuset.cpus.effective").write_text("8191\n")
        with pytest.raises(CgroupError, match=f"threads of .*/pod1/app may still run on {mine}") as caught:
            tree.apply(gather)
        assert caught.value.failure is WriteFailure.RETRY
        assert os.sched_getaffinity(0) == set(mine)
    finally:
        os.sched_setaffinity(0, set(mine))
    (tmp_path / "pod1/app/payload/cgroup.threads").write_text("4194305\n")
    tree.apply(gather)


def test_threads_that_are_elsewhere_for_one_look_only_are_not(tmp_path):
    """CPUs come and go between two looks."""
    mine = CpuSet.from_ids(os.sched_getaffinity(0))
    container_in(tmp_path, mine, "root\n")

    class Changing(CgroupTree):
        looks = 0

        def _find_outside(self, path):
            self.looks += 1
            return mine if self.looks == 1 else super()._find_outside(path)

    tree = Changing(str(tmp_path))
    assert tree.read(frozenset())["pod1/app"].elsewhere == CpuSet()
    assert tree.looks == 2


class Looks:
    """Whether a process is alive, look by look."""

    def __init__(self, *seen: bool) -> None:
        self._seen = list(seen)

    def __call__(self) -> bool:
        return self._seen.pop(0)


def test_a_process_is_taken_in_if_it_lives_before_and_after(tmp_path):
    procs = tmp_path / "job" / "payload" / "cgroup.procs"
    procs.parent.mkdir(parents=True)
    procs.touch()
    tree = CgroupTree(str(tmp_path))
    assert not tree.processes.take_in("job", 7, Looks(False))
    assert procs.read_text() == ""
    assert tree.processes.take_in("job", 7, Looks(True, True))
    assert procs.read_text() == "7"
    procs.unlink()
    with pytest.raises(CgroupError, match="write '7'"):
        tree.processes.take_in("job", 7, Looks(True))


def test_another_process_that_has_the_number_by_then_is_put_back_to_where_its_parent_is(tmp_path):
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    home = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    ours = tmp_path / home.strip("/")
    for directory in (tmp_path / "job" / "payload", tmp_path / "job", ours):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.procs").touch()
    born = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    assert not CgroupTree(str(tmp_path)).processes.take_in("job", born.pid, Looks(True, False))
    assert (ours / "cgroup.procs").read_text() == str(born.pid)
    born.kill()
    born.wait()


def test_processes_below_a_cgroup_of_others_are_found_unless_they_are_known(tmp_path: Path) -> None:
    populated = {
        "kubepods.slice": "0-7",
        "kubepods.slice/pod-a.slice": "0-7",
        "kubepods.slice/pod-a.slice/known.scope": "2",
        "kubepods.slice/pod-a.slice/known.scope/inner": "2",
        "kubepods.slice/pod-a.slice/strange.scope": "3-4",
        "kubepods.slice/pod-b.slice": "5",
        "kubepods.slice/pod-b.slice/deep.scope": "5",
        "kubepods.slice/pod-b.slice/deep.scope/inner": "",
    }
    for path, cpus in populated.items():
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        if cpus:
            (tmp_path / path / "cpuset.cpus.effective").write_text(f"{cpus}\n")
    empty = tmp_path / "kubepods.slice/pod-c.slice/empty.scope"
    empty.mkdir(parents=True)
    (empty / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    pods = tmp_path / "pods"
    for directory in (tmp_path, pods):
        directory.mkdir(exist_ok=True)
        (directory / "cgroup.controllers").write_text("cpuset")
    found = CgroupTree(str(pods)).read_occupied_below("kubepods.slice", lambda path: path.endswith("/known.scope"))
    assert found == {
        "kubepods.slice/pod-a.slice/strange.scope": CpuSet.parse("3-4"),
        "kubepods.slice/pod-b.slice/deep.scope/inner": CpuSet.of(5),
    }
    assert CgroupTree(str(pods)).read_occupied_below("kubepods", lambda _: False) == {}


def test_of_a_cgroup_of_others_what_concerns_us_is_read_with_the_cpus_of_those_above_it(tmp_path: Path) -> None:
    for directory, cpus in ((tmp_path, "0-7"), (tmp_path / "pods", "0-7")):
        directory.mkdir(exist_ok=True)
        (directory / "cgroup.controllers").write_text("cpuset")
        (directory / "cpuset.cpus.effective").write_text(cpus)
    scope = tmp_path / "kubepods.slice/app.scope"
    scope.mkdir(parents=True)
    tree = CgroupTree(str(tmp_path / "pods"))
    assert tree.read_foreign("kubepods.slice/gone.scope") is None
    (scope / "cgroup.controllers").write_text("")
    (scope / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    there = tree.read_foreign("kubepods.slice/app.scope")
    assert there is not None
    assert (there.path, there.is_populated, there.cpus_effective) == (str(scope), True, CpuSet.parse("0-7"))
    (scope / "cpuset.cpus").write_text("2-3\n")
    (scope / "cpuset.cpus.effective").write_text("2\n")
    (scope / "cpu.max").write_text("max 100000\n")
    there = tree.read_foreign(str(scope))
    assert there is not None
    assert (there.get(Attribute.CPUSET_CPUS), there.cpus_effective) == (CpuSet.of(2, 3), CpuSet.of(2))
    assert there.get(Attribute.CPU_MAX) == CpuMax(None, 100_000)
    everything = tree.read_foreign(str(tmp_path))
    assert everything is not None, "the root of all says nothing of its processes"
    assert everything.cpus_effective == CpuSet.parse("0-7")


@pytest.mark.parametrize(("limit", "is_set"), [(4096, False), (8191, False), (8192, True), (None, True)])
def test_a_memory_limit_below_what_is_in_use_is_not_set(tmp_path, limit, is_set):
    (tmp_path / "memory.current").write_text("8192\n")
    (tmp_path / "memory.max").write_text("max\n")
    change = SetAttribute("", Attribute.MEMORY_MAX, ByteLimit(limit), before=ByteLimit(None))
    tree = CgroupTree(tmp_path)
    if is_set:
        tree.apply(change)
    else:
        with pytest.raises(MemoryInUseError, match=f"more than {limit} bytes are in use") as caught:
            tree.apply(change)
        assert caught.value.failure is WriteFailure.REFUSED
    assert (tmp_path / "memory.max").read_text().strip() == ("max" if limit is None or not is_set else str(limit))
