"""A cgroup above the pods' one may be given fewer CPUs, as `AllowedCPUs=` of its unit does: that is as if they went offline."""

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.core.cgroups.ancestor_cpusets import NOTHING, Withheld, find_withheld
from nodeagent.core.metrics.agent_metrics import DEGRADED_CONTAINERS
from nodeagent.core.model.config import RETRY_FOR_ROOM
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Cache, Topology
from nodeagent.core.resources.cpu.holdings import default_set, own_set_of
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree
from nodeagent.formats.node_view import Observation, ViewReader, view_document
from nodeagent.formats.syntax.json_values import JsonValue
from nodeagent.views.inspect.document import inspect_node
from tests.support.daemon_model import Daemon, Steps, at_rest, watched
from tests.support.node_model import Machine
from tests.support.pods import app, pod
from tests.support.world import PAGE, SMALL, node


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    with at_rest(
        monkeypatch, tmp_path, node(SMALL), (pod("a", app(cpu="2")), pod("b", app(cpu="1")), pod("c", app(cpu="100m")))
    ) as daemon:
        yield daemon


def cpus(daemon: Daemon, name: str) -> CpuSet:
    return next(daemon.machine.effective(path) for path in daemon.machine.groups if path.endswith(f"{name}/app"))


def promised(daemon: Daemon, name: str) -> CpuSet:
    found = own_set_of(daemon.agent.state.promises, f"uid-{name}", "app")
    assert found is not None
    return found


def withhold(daemon: Daemon, taken: CpuSet) -> None:
    daemon.machine.withheld = taken
    daemon.turn(WakeUpReason.TIMER)
    daemon.rest()


def degraded(daemon: Daemon) -> float:
    lines = daemon.agent.metrics.exposition.text().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(DEGRADED_CONTAINERS + " "))


def test_who_lacks_cpus_keeps_the_others_and_gets_them_back(daemon: Daemon) -> None:
    before, running = daemon.agent.state.promises, daemon.machine.running()
    mine, groups = promised(daemon, "a"), dict(daemon.machine.groups)
    values = {path: dict(group.values) for path, group in groups.items()}
    last = CpuSet.of(max(mine))

    withhold(daemon, last)
    assert cpus(daemon, "a") == mine - last
    assert degraded(daemon) == 1
    (problem,) = [p for p in daemon.agent.view.problems if "withholds CPUs" in p]
    assert f"withholds CPUs {last} from the pods" in problem
    assert f"AllowedCPUs={daemon.machine.node.managers.topology.online}`" in problem, (
        "with a list: cleared, it gives nothing back"
    )
    assert "AllowedCPUs" in problem
    changed = [line for line in daemon.said() if line["event"] == "machine_changed"]
    assert [line["gone"] for line in changed] == [str(last)]

    withhold(daemon, CpuSet())
    assert daemon.agent.view.problems == ()
    assert degraded(daemon) == 0
    assert daemon.agent.state.promises == before
    assert {path: dict(group.values) for path, group in daemon.machine.groups.items()} == values
    assert daemon.machine.running() == running


def test_who_lacks_all_shares_the_pool_and_nobody_new_is_put_there(daemon: Daemon) -> None:
    mine = promised(daemon, "b")
    withhold(daemon, mine)
    pool = cpus(daemon, "c")
    assert cpus(daemon, "b") == pool
    assert not daemon.machine.is_frozen(next(p for p in daemon.machine.groups if p.endswith("b/app")))
    free = default_set(daemon.agent.state.promises) - mine
    daemon.files.pods = (*daemon.files.pods, pod("d", app(cpu="2")))
    daemon.rest()
    assert promised(daemon, "d") <= free
    assert cpus(daemon, "d") == promised(daemon, "d")
    withhold(daemon, CpuSet())
    assert cpus(daemon, "b") == mine


def test_what_is_withheld_since_the_last_look_is_given_to_nobody(daemon: Daemon) -> None:
    """Nothing tells the agent of it, and a pod that comes before the next period was put on CPUs that it could not use."""
    free = default_set(daemon.agent.state.promises)
    daemon.machine.withheld = taken = CpuSet.of(min(free - daemon.agent.node.managers.reserved))
    daemon.files.pods = (*daemon.files.pods, pod("d", app(cpu="1")))
    daemon.turn(WakeUpReason.MANIFESTS)
    assert not promised(daemon, "d") & taken
    daemon.rest()
    assert cpus(daemon, "d") == promised(daemon, "d")
    assert [line for line in daemon.said() if line["event"] == "trouble"] == []


@pytest.mark.parametrize("reason", [WakeUpReason.MANIFESTS, WakeUpReason.TIMER])
def test_where_the_chain_cannot_be_read_for_a_moment_what_was_known_of_it_counts(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, reason: WakeUpReason
) -> None:
    """A cgroup above shows no CPUs while systemd enables its controllers again: what it withheld was granted in that turn."""
    taken = CpuSet.of(min(default_set(daemon.agent.state.promises) - daemon.agent.node.managers.reserved))
    withhold(daemon, taken)
    daemon.files.pods = (*daemon.files.pods, pod("d", app(cpu="1")))
    with monkeypatch.context() as moment:
        moment.setattr(daemon.agent.edges.tree, "read_chain", lambda: None)
        daemon.turn(reason)
    assert not promised(daemon, "d") & taken
    assert any("withholds CPUs" in problem for problem in daemon.agent.view.problems)


@pytest.mark.parametrize("taken", ["0", ""], ids=["something is withheld", "nothing"])
def test_the_problem_of_a_chain_that_could_not_be_read_ends_when_it_can(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    def unreadable() -> None:
        raise CgroupError("cannot read it", path="/pods", error=errno.EIO, hint="h")

    withhold(daemon, CpuSet.parse(taken))
    with monkeypatch.context() as moment:
        moment.setattr(daemon.agent.edges.tree, "read_chain", unreadable)
        daemon.turn(WakeUpReason.MANIFESTS)
    assert any("cannot read it" in problem for problem in daemon.agent.view.problems)
    daemon.turn(WakeUpReason.MANIFESTS)
    assert not any("cannot read it" in problem for problem in daemon.agent.view.problems)


def test_a_promise_that_cannot_be_kept_is_reported_with_its_pod_and_when_that_is_over_too(daemon: Daemon) -> None:
    held = promised(daemon, "a")
    withhold(daemon, CpuSet.of(max(held)))
    short = f"pod default/a, container app: CPUs {max(held)} of {held} are offline"
    assert short in daemon.agent.view.problems, "by its name, not by its UID"
    daemon.files.pods = daemon.files.pods[1:]
    daemon.rest()
    lines = [line for line in daemon.said() if line["event"].startswith("promise_")]
    assert [(line["event"], line["pod"], line["pod_uid"], line["container"]) for line in lines] == [
        ("promise_short", "default/a", "uid-a", "app"),
        ("promise_kept_again", "default/a", "uid-a", "app"),
    ]
    assert lines[0]["problem"] == lines[1]["problem"]


def test_a_start_sees_it_too(daemon: Daemon) -> None:
    daemon.machine.withheld = CpuSet.of(max(promised(daemon, "a")))
    daemon.start()
    daemon.turn(WakeUpReason.START)
    daemon.rest()
    assert degraded(daemon) == 1
    assert cpus(daemon, "a") == promised(daemon, "a") - daemon.machine.withheld


def test_a_start_places_nobody_on_what_is_withheld(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebooted, with one of the pod's CPUs reserved now, and others, that would be its next ones, withheld."""

    def restarted(directory: Path, taken: CpuSet) -> tuple[CpuSet, Daemon]:
        directory.mkdir()
        machine = Machine(node(SMALL, reserved="0"))
        daemon = Daemon(machine, directory, steps=Steps())
        with watched(monkeypatch, machine, daemon.steps):
            daemon.files.pods = (pod("a", app(cpu="2")),)
            daemon.start()
            daemon.rest()
            before = promised(daemon, "a")
        rebooted = Machine(node(SMALL, reserved=f"0,{min(before)}"))
        rebooted.withheld, rebooted.now_ms = taken, machine.now_ms + 1000
        daemon.machine = rebooted
        with watched(monkeypatch, rebooted, daemon.steps):
            daemon.start()
            daemon.turn(WakeUpReason.START)
            daemon.rest()
        return promised(daemon, "a"), daemon

    next_ones, _ = restarted(tmp_path / "whole", CpuSet())
    placed, daemon = restarted(tmp_path / "withheld", next_ones)
    assert len(placed) == 2
    assert not placed & next_ones
    assert [
        problem for problem in daemon.agent.view.problems if "offline" in problem and "withholds CPUs" not in problem
    ] == []
    assert [line for line in daemon.said() if line["event"] == "machine_changed"] == []
    daemon.machine.withheld = CpuSet()
    daemon.turn(WakeUpReason.TIMER)
    assert next_ones <= daemon.agent.node.topology.online
    assert promised(daemon, "a") == placed


@pytest.mark.parametrize("taken", ["one of a pod", "all that are reserved"])
def test_commands_see_the_machine_that_the_agent_decides_on(daemon: Daemon, taken: str) -> None:
    """The files of /sys say nothing of what is withheld: a command that read them again found differences that nobody puts right."""
    lost = CpuSet.of(max(promised(daemon, "a"))) if taken == "one of a pod" else daemon.agent.node.managers.reserved
    withhold(daemon, lost)
    reported = ViewReader()(JsonValue(json.loads(json.dumps(view_document(daemon.agent.view)))))
    assert reported.node.topology == daemon.agent.node.topology
    assert reported.node.rules.topology == daemon.agent.node.managers.topology
    assert not reported.node.topology.online & lost
    document = inspect_node(replace(reported, observation=Observation(1, PAGE, daemon.machine.observed())))
    assert document["differences"] == []
    assert document["node"]["cpus"]["offline"] == str(daemon.agent.node.topology.offline)
    assert any("withholds CPUs" in problem for problem in document["node"]["problems"])


def test_an_idle_look_writes_nothing(daemon: Daemon) -> None:
    withhold(daemon, CpuSet.of(max(promised(daemon, "a"))))
    writes, generation = len(daemon.machine.writes), daemon.agent.state.generation
    daemon.turn(WakeUpReason.TIMER)
    assert (len(daemon.machine.writes), daemon.agent.state.generation) == (writes, generation)


def sets(*texts: str) -> list[tuple[str, CpuSet]]:
    return [(path, CpuSet.parse(text)) for path, text in zip(("/c", "/c/slice", "/c/slice/unit"), texts, strict=False)]


@pytest.mark.parametrize(
    ("chain", "found"),
    [
        ([], NOTHING),
        (sets("0-7"), NOTHING),
        (sets("0-7", "0-7", "0-7"), NOTHING),
        (sets("0-5,7", "0-5,7"), NOTHING),
        (sets("0-7", "0-7", "0-5"), Withheld(CpuSet.parse("6-7"), "/c/slice/unit")),
        (sets("0-7", "0-6", "0-5"), Withheld(CpuSet.parse("6-7"), "/c/slice")),
        # a CPU that is coming: below it is not known yet, or no longer
        (sets("0-6", "0-7", "0-7"), NOTHING),
    ],
)
def test_what_is_withheld_and_by_whom(chain: list[tuple[str, CpuSet]], found: Withheld) -> None:
    assert find_withheld(chain) == found


def tree(base: Path, *texts: str | None) -> CgroupTree:
    directory = base
    for name, text in zip(("fs", "slice", "unit"), texts, strict=False):
        directory /= name
        directory.mkdir()
        if text is not None:
            (directory / "cgroup.controllers").write_text("cpuset cpu\n")
            (directory / "cpuset.cpus.effective").write_text(text)
    return CgroupTree(str(directory))


def test_the_chain_is_read_from_the_root_down(tmp_path: Path) -> None:
    found = tree(tmp_path, "0-7\n", "0-7\n", "2-7\n").read_chain()
    names = ("fs", "fs/slice", "fs/slice/unit")
    assert found == tuple(
        (str(tmp_path / n), CpuSet.parse(t)) for n, t in zip(names, ("0-7", "0-7", "2-7"), strict=True)
    )


def test_where_a_cgroup_has_no_cpuset_nothing_is_known(tmp_path: Path) -> None:
    for name, texts in {"a": (), "b": ("0-7\n", "\n", "0-7\n"), "c": ("0-7\n", "0-7\n", None)}.items():
        (tmp_path / name).mkdir()
        assert tree(tmp_path / name, *texts).read_chain() is None


def test_what_the_kernel_would_not_write_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CgroupError, match=r"slice/cpuset.cpus.effective"):
        tree(tmp_path, "0-7\n", "many\n", "0-7\n").read_chain()


def test_a_machine_without_cpus_is_as_if_they_were_offline() -> None:
    caches = [Cache(2, "unified", cpus) for cpus in SMALL.nodes.values()]
    whole = replace(SMALL, caches=(*caches, Cache(1, "data", CpuSet.of(max(SMALL.online)))))
    gone = CpuSet.of(max(whole.online))
    less = whole.without(gone)
    assert less == Topology.of(
        (cpu for cpu in whole.cpus if cpu.id not in gone),
        whole.numa,
        offline=gone,
        l3=[g - gone for g in whole.l3],
        caches=[replace(cache, cpus=cache.cpus - gone) for cache in caches],
    )
    assert whole.without(CpuSet()) is whole
    assert less.without(gone) is less


def test_a_machine_that_gets_its_cpus_back_has_room_for_refused_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(node(SMALL))
    daemon = Daemon(machine, tmp_path, steps=Steps(), config={"retry_refused": RETRY_FOR_ROOM})
    with watched(monkeypatch, machine, daemon.steps):
        daemon.start()
        daemon.rest()
        withhold(daemon, CpuSet.of(4, 5, 6, 7))
        daemon.files.pods = (pod("big", app(cpu="5")),)
        daemon.rest()
        (refused,) = daemon.agent.state.entries
        assert refused.refusal is not None
        withhold(daemon, CpuSet())
        (entry,) = daemon.agent.state.entries
        assert entry.is_active
