"""Nothing that happens to the agent or its state breaks a promise, makes one twice, or touches a process: proven on real kernels."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from integration.faults.mortal import NEVER, mortal
from integration.faults.system_calls import traced
from integration.guest.guest import Guest
from integration.node import CONFIG, STATE, Document, Node, container, pod
from tests.support.figures import Recorder, keep, report

SLEEP = ["sleep", "infinity"]
PINNED = pod("pinned", container("app", SLEEP, cpu="3"), container("side", SLEEP, cpu="1"))
SHARED = pod("shared", container("app", SLEEP, cpu="100m", limit_cpu="200m"))
NEW = pod("new", container("app", SLEEP, cpu="2"), init=(container("first", ["true"], cpu="2"),))
KILLS, KILLS_LONG = 2, 50
STARTS = 1
"""Steps at which the short form kills: the host's tests cover every step (tests/daemon/test_crash_points.py)."""


@pytest.fixture
def node(two_sockets: Guest) -> Iterator[Node]:
    node = Node(two_sockets)
    yield node
    node.run(f"rm -f {STATE}/*.aside-*")


def processes(node: Node) -> dict[str, tuple[str, str]]:
    """Every process of the pods: id and start time → cgroup, CPUs it may use."""
    script = (
        "for p in $(cat $(find /sys/fs/cgroup/nodeagent.slice/nodeagent-pods.service -path '*/pod*/cgroup.procs')); do"
        " echo $p $(awk '{print $22}' /proc/$p/stat) $(sed s/^0::// /proc/$p/cgroup)"
        " $(awk '/^Cpus_allowed_list/ {print $2}' /proc/$p/status); done"
    )
    lines = map(str.split, node.run(script).stdout.splitlines())
    return {f"{pid}@{since}": (cgroup, cpus) for pid, since, cgroup, cpus in lines}


def pinned(running: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Those that must not move without need: on CPUs of their own."""
    return {key: place for key, place in running.items() if "/poduid-pinned/" in place[0]}


def members(text: str) -> set[int]:
    spans = (span.split("-") for span in text.split(",") if span)
    return {cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1)}


def judge_alone(state: Document, running: dict[str, tuple[str, str]]) -> None:
    """No CPU has two owners: each promised CPU is used by the processes of its own container only."""
    for uid, promised in state["promises"]["pods"].items():
        for name, cpus in promised.get("cpus", {}).items():
            for cgroup, used in running.values():
                if f"/pod{uid}/" not in cgroup:
                    assert not members(cpus) & members(used), f"{cgroup} may use {used}, {cpus} is {uid} {name}'s"


@dataclass(frozen=True)
class Quiet:
    """What exists when nothing is in progress."""

    promises: Document
    groups: tuple[str, ...]
    """Every value that the agent writes."""
    others: dict[str, tuple[str, str]]
    """The processes of all but the pod that comes and goes."""


def quiet(node: Node) -> Quiet:
    lines = node.footprint().splitlines()
    others = {key: place for key, place in processes(node).items() if "/poduid-new/" not in place[0]}
    return Quiet(node.state()["promises"], tuple(line for line in lines if "cgroup.procs" not in line), others)


def spread(count: int, changes: list[str]) -> list[int]:
    """This many steps, including the first and the last, a single one in the middle; repeated if there are fewer."""
    assert changes
    if count == 1:
        return [(len(changes) + 1) // 2]
    return [1 + at * (len(changes) - 1) // (count - 1) for at in range(count)]


def test_killed_at_any_step_it_goes_on_as_if_nothing_had_been(
    node: Node, request: pytest.FixtureRequest, record_property: Recorder
) -> None:
    is_long = request.config.getoption("--long")
    kills = KILLS_LONG if is_long else KILLS
    rounds = kills // 2
    told: list[str] = []
    node.apply(PINNED, SHARED)
    node.wait_running("pinned", "shared")
    before = quiet(node)
    with mortal(node) as agent:
        start = agent.changes()
        agent.dies_at(NEVER)
        node.apply(NEW)
        node.wait_running("new")
        admission, after = agent.changes(), quiet(node)
        agent.dies_at(NEVER)
        node.delete("new")
        node.wait_gone("new")
        removal = agent.changes()

        def survived(step: str, expected: Quiet) -> None:
            running = processes(node)
            assert pinned(before.others).items() <= running.items(), f"somebody moved or ended: {step}"
            judge_alone(node.state(), running)
            node.wait(lambda _: quiet(node) == expected, f"everything to be as without the death before {step}")
            told.append(step)

        for admitted, removed in zip(spread(rounds, admission), spread(rounds, removal), strict=True):
            with agent.death():
                agent.dies_at(admitted)
                node.apply(NEW)
            judge_alone(node.state(), processes(node))
            node.wait_running("new")
            survived(f"admission: {admission[admitted - 1]}", after)
            with agent.death():
                agent.dies_at(removed)
                node.delete("new")
            node.wait_gone("new")
            survived(f"removal: {removal[removed - 1]}", before)
        # few: a start that finds everything as it was saved changes nothing else
        starts = spread(len(start) if is_long else STARTS, start)
        for number in starts:
            with agent.death():
                agent.next_dies_at(number)
                node.run("systemctl restart nodeagent", check=False)
            survived(f"start: {start[number - 1]}", before)
    found = (
        f"{len(told)} kills, of {len(admission)} + {len(removal)} + {len(start)} steps of admission, removal and start"
    )
    report(record_property, "\n  ".join([found, *told]))
    keep("kills in a guest", "one run", kills=len(told))
    assert len(told) == kills + len(starts)
    assert node.unit("StartLimitIntervalUSec") == {"StartLimitIntervalUSec": "0"}, (
        "however often it dies, it is started again"
    )


OWN = (f"{STATE}/", "/sys/fs/cgroup/nodeagent.slice/nodeagent-pods.service/", "/run/nodeagent/placement")
CHANNELS = ("socket:", "UNIX", "pipe:", "anon_inode:", "NETLINK", "TCP", "/dev/null")
"""What a call may write to without changing anything, in strace -y's spelling."""


@pytest.mark.long
def test_what_can_be_killed_before_is_all_that_is_changed(node: Node, record_property: Recorder) -> None:
    """The kernel's check of the list of steps: strace sees no other change of a file or a process, and none outside."""
    with mortal(node) as agent:
        agent.dies_at(NEVER)
        with traced(node, node.main_pid()) as seen:
            node.apply(NEW)
            node.wait_running("new")
            node.delete("new")
            node.wait_gone("new")
            node.inspect()  # it reports a turn when that is over
        steps = agent.changes()
    real = [change for change in seen if not change.path.startswith(CHANNELS)]
    outside = [change.says for change in real if not change.path.startswith(OWN)]
    opened = Counter(f"{change.kind} {change.path}" for change in real if change.kind in KINDS)
    assert outside == []
    assert opened == Counter(steps)
    rest = {change.name for change in real if change.kind not in KINDS}
    assert rest <= {"write", "fchmod"}, "on files that were opened in one of the steps"
    report(
        record_property,
        f"strace: {len(real)} calls that change something, {opened.total()} of them the steps of the list",
    )


KINDS = {"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir"}


def damage(node: Node, *names: str) -> bytes:
    """Stop the agent and cut off the ends of its files; returns what the first of them holds then."""
    node.run("systemctl stop nodeagent")
    node.run(f"cd {STATE}; for f in {' '.join(names)}; do truncate -s -20 $f; done")
    return node.guest.get(f"{STATE}/{names[0]}")


def test_a_damaged_state_is_set_aside_and_made_anew_of_what_runs(node: Node) -> None:
    node.apply(PINNED, SHARED)
    node.wait_running("pinned", "shared")
    running, before, cursor = processes(node), quiet(node), node.cursor()
    damaged = damage(node, "nodeagent_state", "cpu_manager_state", "memory_manager_state")

    node.run("systemctl start nodeagent")

    assert processes(node) == running
    assert quiet(node) == before
    assert node.guest.get(f"{STATE}/nodeagent_state.aside-1") == damaged
    recovery = node.inspect()["node"]["recovery"]
    assert recovery["adopted"] == ["default/pinned", "default/shared"]
    assert recovery["differences"] == []
    assert recovery["setAside"][0] == f"{STATE}/nodeagent_state.aside-1"
    assert any("nodeagent_state" in problem for problem in recovery["problems"])
    assert node.wait_log(cursor, "state_recovered")["adopted"] == ["default/pinned", "default/shared"]
    assert not node.inspect()["differences"]


def test_what_a_recovery_finds_otherwise_is_reported_by_pod_and_container(node: Node) -> None:
    """While the agent is away, somebody takes a CPU from a container; no file is left that records what it was promised."""
    node.apply(PINNED, SHARED)
    node.wait_running("pinned", "shared")
    cgroup, cursor = node.cgroup("pinned", "app"), node.cursor()
    pids = node.pids(cgroup)
    damage(node, "nodeagent_state", "cpu_manager_state", "memory_manager_state")
    left = sorted(members(node.value(cgroup, "cpuset.cpus")))[:2]
    node.run(f"echo {','.join(map(str, left))} >{cgroup}/cpuset.cpus")

    node.run("systemctl start nodeagent")

    (difference,) = node.inspect()["node"]["recovery"]["differences"]
    assert (difference["pod"], difference["container"], difference["resource"]) == ("default/pinned", "app", "CPUs")
    line = node.wait_log(cursor, "promise_changed")
    assert (line["pod"], line["container"]) == ("default/pinned", "app")
    assert node.pids(cgroup) == pids, "it runs on"
    judge_alone(node.state(), processes(node))


def test_strict_recovery_refuses_to_start_and_is_not_started_again(node: Node) -> None:
    node.apply(PINNED, SHARED)
    node.wait_running("pinned", "shared")
    running, before, usual, cursor = processes(node), quiet(node), node.guest.get(CONFIG), node.cursor()
    damaged = damage(node, "nodeagent_state")
    node.guest.put(CONFIG, usual.replace(b"stateRecovery: recover", b"stateRecovery: strict"))
    try:
        assert node.run("systemctl start nodeagent", check=False).returncode != 0
        shown = node.unit("ExecMainStatus", "ActiveState", "SubState", "NRestarts")
        assert shown == {"ExecMainStatus": "78", "ActiveState": "failed", "SubState": "failed", "NRestarts": "0"}
        refused = node.wait_log(cursor, "start_refused")
        assert f"{STATE}/nodeagent_state" in refused["problem"]
        assert node.guest.get(f"{STATE}/nodeagent_state") == damaged, "nothing is set aside, nothing written"
        assert processes(node) == running
    finally:
        node.guest.put(CONFIG, usual)
        node.run("systemctl reset-failed nodeagent; systemctl start nodeagent")
    assert processes(node) == running
    assert quiet(node) == before


@dataclass(frozen=True)
class Disk:
    """A file system for the state directory, and its faults."""

    error: str
    says: str
    fails: str
    repair: str
    made: str = f"mount -t tmpfs -o size=128k,mode=0700 small {STATE}"
    removed: str = "true"

    @contextmanager
    def holds_the_state(self, node: Node) -> Iterator[None]:
        """On a node without pods."""
        node.run("systemctl stop nodeagent")
        node.run(self.made)
        node.run("systemctl start nodeagent")
        try:
            yield
        finally:
            node.run(self.repair, check=False)
            node.clear()
            node.run("systemctl stop nodeagent")
            node.run(f"umount {STATE}; {self.removed}; systemctl start nodeagent")


def device(target: str) -> str:
    """Put another device under the file system, like a failing disk; nothing is flushed or awaited before."""
    return (
        f"dmsetup suspend --nolockfs --noflush failing; dmsetup load failing --table '0 16384 {target}';"
        " dmsetup resume failing"
    )


DISKS = {
    "full": Disk(
        error="ENOSPC",
        says="No space left on device",
        fails=f"dd if=/dev/zero of={STATE}/filler bs=4k 2>/dev/null || true",
        repair=f"rm {STATE}/filler",
    ),
    "read-only": Disk(
        error="EROFS",
        says="Read-only file system",
        fails=f"mount -o remount,ro {STATE}",
        repair=f"mount -o remount,rw {STATE}",
    ),
    "broken": Disk(
        error="EIO",
        says="Input/output error",
        fails=device("error"),
        repair=device("linear /dev/ram0 0"),
        made=(
            "modprobe brd rd_nr=1 rd_size=8192; dmsetup create failing --table '0 16384 linear /dev/ram0 0';"
            # without a journal: with one, the file system would make itself read-only at the first error
            f" mkfs.ext4 -q -O ^has_journal /dev/mapper/failing; mount /dev/mapper/failing {STATE};"
            f" rmdir {STATE}/lost+found; chmod 0700 {STATE}"
        ),
        removed="dmsetup remove failing; rmmod brd",
    ),
}


@pytest.mark.parametrize(
    "kind", ["full", pytest.param("read-only", marks=pytest.mark.long), pytest.param("broken", marks=pytest.mark.long)]
)
def test_a_disk_that_takes_nothing_refuses_the_pod_and_leaves_the_others_alone(node: Node, kind: str) -> None:
    disk = DISKS[kind]
    with disk.holds_the_state(node):
        node.apply(PINNED, SHARED)
        node.wait_running("pinned", "shared")
        running, before, pid, cursor = processes(node), quiet(node), node.main_pid(), node.cursor()
        node.run(disk.fails)

        node.apply(NEW)

        line = node.wait_log(cursor, "pod_refused", of=("new",))
        assert (line["pod"], line["reason"]) == ("default/new", "StateNotSaved")
        assert disk.says in line["message"]
        document = node.inspect()
        (refused,) = [one for one in document["pods"] if one["name"] == "new"]
        assert refused["refusal"]["reason"] == "StateNotSaved"
        assert any(disk.says in problem for problem in document["node"]["problems"])
        unready = node.run("curl -sS -w '%{http_code}' http://127.0.0.1:9753/readyz").stdout
        assert unready.endswith("503")
        assert disk.says in unready
        assert node.metrics()[f'nodeagent_state_save_errors_total{{reason="{disk.error}"}}'] >= 1
        assert node.metrics()['nodeagent_pod_refusals_total{reason="StateNotSaved"}'] == 1
        assert (processes(node), quiet(node), node.main_pid()) == (running, before, pid)

        node.run(disk.repair)
        node.wait_running("new")
        assert node.main_pid() == pid
        assert pinned(running).items() <= processes(node).items()
        assert node.run("curl -sS -o /dev/null -w '%{http_code}' http://127.0.0.1:9753/readyz").stdout == "200"
