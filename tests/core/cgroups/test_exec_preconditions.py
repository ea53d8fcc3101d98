"""Who may enter a container's cgroup, and what the kernel says of one who did."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.cli.main import main
from nodeagent.cli.support.becoming import EXIT_NOT_ENTERED
from nodeagent.core.cgroups.desired_cgroups import desired_cgroups
from nodeagent.core.cgroups.exec_preconditions import find_obstacle
from nodeagent.core.model.cgroup import Attribute
from nodeagent.core.model.cgroup_layout import PAYLOAD, POOL
from nodeagent.core.model.config import Placement
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import ContainerKind
from nodeagent.core.model.state import JOBS, ContainerStatus, Origin, Phase
from nodeagent.core.model.waiting import Waiting
from nodeagent.edge.cgroups.cgroup_entry import CgroupEntryError, enter_cgroup, list_populated_below, read_own_cpus
from tests.support.inspected_nodes import NOW_MS, World, changed, ended, running
from tests.support.pods import app, pod

SLOT = "poduid-web/slot"
UNIFIED = next(
    (p for p in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")) if (p / "cgroup.procs").exists()), None
)


def made(*, command=False, statuses=(), **more):
    spec = {} if command else {"command": ()}
    return World().add(pod("web", app("slot", cpu="2", memory="64Mi", **spec)), *statuses, **more)


def asked(world, observed=None, below=()):
    return find_obstacle(
        world.state.entries[0],
        "slot",
        desired=world.desired_cgroups(),
        observed=world.observed() if observed is None else observed,
        used_below=below,
    )


def with_slot(world, change):
    observed = world.observed()
    return {**observed, SLOT: change(observed[SLOT])}


def test_an_open_container_can_be_entered():
    assert asked(made()) is None


def test_a_running_one_can_be_entered():
    assert asked(made(command=True)) is None


def test_one_whose_cpuset_names_its_own_cpus_that_are_offline_can_be_entered():
    world = made()
    kernel = replace(world.kernel, online=world.kernel.online - CpuSet.of(5))
    desired = desired_cgroups(world.config, world.managers, kernel, world.state)
    observed = with_slot(world, lambda s: replace(s, cpus_effective=CpuSet.of(1)))
    assert observed[SLOT].get(Attribute.CPUSET_CPUS) == CpuSet.of(1, 5)
    assert find_obstacle(world.state.entries[0], "slot", desired=desired, observed=observed, used_below=()) is None


PODS = {
    "terminating": (made(deleting_since_ms=NOW_MS), "is being ended"),
    "finished": (made(command=True, statuses=(ended("slot"),), outcome=Phase.FAILED), "has finished (Failed)"),
    "not started": (made(command=True, statuses=(ContainerStatus("slot"),)), "is not running"),
    "ended": (made(command=True, statuses=(ended("slot", 1),)), "is not running"),
    "stopping": (made(command=True, statuses=(running("slot", stop_by_ms=NOW_MS),)), "is being stopped"),
}


@pytest.mark.parametrize("name", PODS)
def test_state_forbids(name):
    world, expected = PODS[name]
    found = asked(world)
    assert found is not None
    assert expected in found.why
    assert found.next_step


def test_a_refused_pod_has_nothing_to_enter():
    world = made()
    entry = replace(world.state.entries[0], refusal=Waiting("OutOfcpu", "too little", NOW_MS), containers=())
    found = find_obstacle(entry, "slot", desired=(), observed={}, used_below=())
    assert found is not None
    assert "OutOfcpu: too little" in found.why
    assert "nodeagent retry default/web" in found.next_step


CGROUPS = {
    "frozen": (lambda s: changed(s, Attribute.FREEZE, value=True), "is frozen"),
    "frozen from above": (lambda s: replace(s, is_frozen=True), "is frozen"),
    "controllers for children": (
        lambda s: replace(s, subtree_control=frozenset({"cpu"})),
        "is the parent of other cgroups",
    ),
    "other cpuset": (
        lambda s: changed(s, Attribute.CPUSET_CPUS, CpuSet.of(2, 3), cpus_effective=CpuSet.of(2, 3)),
        "cpuset.cpus of poduid-web/slot is '2-3' instead of the allocated '1,5'",
    ),
    "no cpuset": (
        lambda s: replace(s, attributes=()),
        "cpuset.cpus of poduid-web/slot is '' instead of the allocated '1,5'",
    ),
    "other mems": (
        lambda s: changed(s, Attribute.CPUSET_MEMS, NumaSet.of(1)),
        "cpuset.mems of poduid-web/slot is '1' instead of the allocated '0-1'",
    ),
    "less granted": (
        lambda s: replace(s, cpus_effective=CpuSet.of(1)),
        "cpuset.cpus.effective of poduid-web/slot is '1' instead of the allocated '1,5'",
    ),
}


@pytest.mark.parametrize("name", CGROUPS)
def test_cgroup_forbids(name):
    change, expected = CGROUPS[name]
    world = made()
    found = asked(world, with_slot(world, change))
    assert found is not None
    assert expected in found.why
    assert found.next_step


def test_a_cgroup_that_is_not_there_cannot_be_entered():
    world = made()
    found = asked(world, {p: s for p, s in world.observed().items() if p != SLOT})
    assert found is not None
    assert f"no cgroup {SLOT}" in found.why


def test_a_runtimes_cgroups_below_forbid():
    found = asked(made(), below=("ctr-1", "ctr-2"))
    assert found is not None
    assert "(ctr-1, ctr-2)" in found.why
    assert "crictl exec" in found.next_step


def test_strangers_on_its_cpus_forbid():
    world = made()
    observed = world.observed()
    orphan = replace(observed[SLOT], path="podgone", is_populated=True, cpus_effective=CpuSet.of(5))
    found = asked(world, {**observed, "podgone": orphan})
    assert found is not None
    assert found.why == "processes of another cgroup (podgone) may run on its exclusive CPUs 5"


def test_another_pods_process_on_its_cpus_forbids():
    """Somebody moved it there, and it has not been put back yet."""
    world = made().add(pod("other", app("app")), running("app"))
    observed = world.observed()
    path = POOL
    assert asked(world, observed) is None
    found = asked(world, {**observed, path: replace(observed[path], cpus_effective=CpuSet.of(4, 5))})
    assert found is not None
    assert found.why == f"processes of another cgroup ({path}) may run on its exclusive CPUs 5"


@pytest.mark.parametrize(("status", "is_open"), [(running("setup"), False), (ended("setup"), True)])
def test_an_init_container_that_still_runs_on_its_cpus_forbids(status, is_open):
    setup = app("setup", kind=ContainerKind.INIT, cpu="2", memory="64Mi")
    slot = app("slot", command=(), cpu="2", memory="64Mi")
    world = World().add(pod("web", setup, slot), status, ContainerStatus("slot"))
    observed = world.observed()
    observed["poduid-web/setup"] = replace(observed["poduid-web/setup"], is_populated=not is_open)
    found = asked(world, observed)
    assert (found is None) == is_open
    assert is_open or "init container setup of pod default/web has not ended yet" in found.why


def test_a_starved_container_forbids():
    world = World(placement=Placement("static", (("strict-cpu-reservation", "true"),), CpuSet.of(0)))
    world.add(pod("web", app("slot", command=()))).add(pod("greedy", app("app", cpu="7", memory="64Mi")))
    found = find_obstacle(
        world.state.entries[0], "slot", desired=world.desired_cgroups(), observed=world.observed(), used_below=()
    )
    assert found is not None
    assert "Starved" in found.why


# The kernel's side


def test_used_below_names_the_populated_ones(tmp_path):
    for name, events in {"a": "populated 1\n", "b": "populated 0\n", "c": None, "d": "populated 1\nfrozen 0\n"}.items():
        (tmp_path / name).mkdir()
        if events is not None:
            (tmp_path / name / "cgroup.events").write_text(events)
    (tmp_path / "cgroup.procs").write_text("")
    assert list_populated_below(str(tmp_path), PAYLOAD) == ("a", "d")


def test_the_payload_s_own_processes_are_the_container_s(tmp_path):
    for name in ("payload", "payload/runtime", "payload/empty"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.events").write_text(f"populated {int(not name.endswith('empty'))}\n")
    assert list_populated_below(str(tmp_path), PAYLOAD) == ("payload/runtime",)


def test_used_below_of_nothing_names_the_path(tmp_path):
    with pytest.raises(CgroupEntryError) as caught:
        list_populated_below(str(tmp_path / "gone"), PAYLOAD)
    assert str(tmp_path / "gone") in caught.value.message
    assert "No such file" in caught.value.message
    assert caught.value.hint


def test_without_an_agent_and_its_configuration_nothing_is_entered(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    status = main(["exec", "--socket", str(tmp_path / "none"), "a", "b", "--", "true"])
    assert status == EXIT_NOT_ENTERED
    assert "\nhint: " in capsys.readouterr().err


def test_joining_nothing_names_the_path(tmp_path):
    with pytest.raises(CgroupEntryError, match="No such file") as caught:
        enter_cgroup(str(tmp_path))
    assert caught.value.path == f"{tmp_path}/cgroup.procs"
    assert caught.value.hint


def test_who_entered_the_cgroup_above_by_hand_keeps_others_out_and_is_named_as_the_cause(tmp_path, monkeypatch):
    """The kernel makes that one the root of threaded cgroups then, and lets processes into none below it."""
    (tmp_path / "cgroup.procs").touch()

    def refuse(descriptor, content):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(CgroupEntryError, match="Operation not supported") as caught:
        enter_cgroup(str(tmp_path))
    assert "into the cgroup above" in caught.value.hint


def test_own_cpus_are_the_kernels():
    assert read_own_cpus() == str(CpuSet.from_ids(os.sched_getaffinity(0)))


def in_process(program):
    imports = (
        "import os; from nodeagent.core.model.idset import CpuSet\n"
        "from nodeagent.edge.cgroups.cgroup_entry import enter_cgroup, read_own_cgroup, read_own_cpus"
    )
    done = subprocess.run([sys.executable, "-c", f"{imports}\n{program}"], capture_output=True, text=True, check=False)
    return done.stdout, done.stderr


@pytest.mark.skipif(
    UNIFIED is None or not os.access(UNIFIED, os.W_OK) or os.geteuid() != 0, reason="there is no cgroup v2 to write to"
)
def test_joining_a_cgroup_moves_this_process_and_forgets_its_affinity():
    assert UNIFIED is not None
    group = UNIFIED / f"nodeagent-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as err:
        pytest.skip(f"there is no cgroup v2 to write to: {err}")
    first = min(os.sched_getaffinity(0))
    try:
        out, err = in_process(
            f"all = os.sched_getaffinity(0); os.sched_setaffinity(0, {{{first}}}); enter_cgroup({str(group)!r}); "
            "print(read_own_cgroup()); print(set(CpuSet.parse(read_own_cpus())) == all)"
        )
    finally:
        group.rmdir()
    where, has_all = out.splitlines()
    assert (err, has_all) == ("", "True")
    assert where.endswith(f"/{group.name}")


def test_a_job_that_ends_has_no_manifest_to_put_back():
    world = made(deleting_since_ms=NOW_MS)
    entry = replace(world.state.entries[0], origin=Origin("make-7", JOBS))
    found = find_obstacle(entry, "slot", desired=(), observed={}, used_below=())
    assert found is not None
    assert found.next_step == "to run it again, run `nodeagent job` again"
