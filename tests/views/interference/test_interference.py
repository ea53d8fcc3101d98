"""Who is the owner, who is not, and which of the others could run elsewhere."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.cli.commands.interference import check_complete
from nodeagent.cli.support.counting import InterferenceError
from nodeagent.core.model.host_processes import HostThread
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import ContainerKind
from nodeagent.formats.kernel.cpu_use import CpuUse, Handling, Interrupt, TaskRun
from nodeagent.views.interference.cpu_owners import find_exclusive_owners
from nodeagent.views.interference.document import Observations, describe_idle_node, describe_interference, is_alone
from nodeagent.views.interference.text import render_interference
from tests.support import json_schema
from tests.support.described_nodes import golden
from tests.support.inspected_nodes import World
from tests.support.pods import app, pod

SECOND = 1_000_000_000
NOTHING = CpuUse(10 * SECOND, (), (), (), {}, {}, frozenset(), CpuSet(), 0)
NOBODY = Observations({}, {}, {}, {}, frozenset())
PODS = "/nodeagent.slice/nodeagent-pods.service"


def world() -> World:
    """On CPUs 1 and 5 `web`, on 4 `db`; `job` shares the others."""
    found = World()
    found.add(pod("web", app("app", cpu="2"), app("helper", cpu="500m")))
    found.add(pod("db", app("main", cpu="1")))
    found.add(pod("job", app("task")))
    return found


def process(pid: int, cgroup: str, name: str = "x") -> HostThread:
    return HostThread(pid, name, cgroup, is_kernel_thread=False, is_bound=False)


def kernel_thread(pid: int, *, is_bound: bool) -> HostThread:
    return HostThread(pid, "x", "/", is_kernel_thread=True, is_bound=is_bound)


def told(use: CpuUse, seen: Observations, *, ended_early: bool = False) -> dict[str, Any]:
    view = world().view()
    document = describe_interference(view, find_exclusive_owners(view), use, seen, ended_early=ended_early)
    json_schema.check(document, "interference")
    return document


def tasks(document: Mapping[str, Any], of: str = "default/web") -> list[tuple[str, str, str | None, int]]:
    (claim,) = (one for one in document["cpus"] if one["pod"] == of)
    return [(one["name"], one["kind"], one["of"], one["tasks"]) for one in claim["tasks"]]


def test_who_has_exclusive_cpus() -> None:
    found = find_exclusive_owners(world().view())
    assert [(one.pod, one.containers, str(one.cpus), one.cgroups) for one in found] == [
        ("default/web", ("app",), "1,5", ("poduid-web/app",)),
        ("default/db", ("main",), "4", ("poduid-db/main",)),
    ]
    assert [one.pod for one in find_exclusive_owners(world().view(), frozenset({"uid-db"}))] == ["default/db"]


def test_containers_that_have_cpus_in_turn_make_one_claim() -> None:
    found = World().add(pod("web", app("setup", kind=ContainerKind.INIT, cpu="1"), app("app", cpu="3")))
    (claim,) = find_exclusive_owners(found.view())
    assert (claim.containers, str(claim.cpus)) == (("setup", "app"), "1,4-5")
    assert claim.cgroups == ("poduid-web/setup", "poduid-web/app")


def test_where_nobody_else_ran_the_owners_are_alone() -> None:
    members = {"poduid-web/app": frozenset({100})}
    use = replace(NOTHING, runs=(TaskRun(1, 100, "web", 5, SECOND),))
    document = told(use, replace(NOBODY, members=members))
    assert is_alone(document)
    assert tasks(document) == []


def test_what_an_owner_starts_is_the_owners_even_if_it_has_ended() -> None:
    use = replace(
        NOTHING,
        runs=(TaskRun(1, 201, "true", 1, 5), TaskRun(1, 202, "true", 1, 5), TaskRun(4, 201, "true", 1, 5)),
        children={100: (201,), 201: (202,)},
    )
    document = told(use, replace(NOBODY, members={"poduid-web/app": frozenset({100})}))
    assert tasks(document) == []
    assert tasks(document, "default/db") == [("true", "ended", None, 1)], "on its own CPUs only"


def test_a_task_that_was_already_exiting_disturbs_nobody() -> None:
    """Whose it was can't be told: its cgroup doesn't list it any more, and it was forked before forks were counted."""
    use = replace(NOTHING, runs=(TaskRun(1, 201, "true", 1, 5), TaskRun(1, 202, "x", 1, 5)), exiting=frozenset({201}))
    assert tasks(told(use, NOBODY)) == [("x", "ended", None, 1)]


def test_each_kind_of_task_is_named_and_only_what_is_bound_may_stay() -> None:
    use = replace(
        NOTHING,
        runs=(
            TaskRun(1, 300, "ksoftirqd/1", 1, 9_000_000),
            TaskRun(1, 301, "kworker/u8:0", 1, 1_000_000),
            TaskRun(5, 302, "cron", 1, 2_000_000),
            TaskRun(1, 303, "sh", 4, 3_000_000),
            TaskRun(5, 303, "sh", 4, 3_000_000),
            TaskRun(1, 304, "sh", 4, 3_000_000),
            TaskRun(1, 305, "run", 1, 500_000),
        ),
    )
    seen = replace(
        NOBODY,
        threads={
            300: kernel_thread(300, is_bound=True),
            301: kernel_thread(301, is_bound=False),
            302: process(302, "/system.slice/cron.service"),
            305: process(305, f"{PODS}/shared/pool/payload/besteffort/poduid-job/task/below"),
        },
    )
    document = told(use, seen)
    assert tasks(document) == [
        ("sh", "ended", None, 2),
        ("cron", "process", "/system.slice/cron.service", 1),
        ("kworker/u8:0", "kernel-thread", None, 1),
        ("run", "container", "default/job task", 1),
        ("ksoftirqd/1", "bound-kernel-thread", None, 1),
    ]
    (first, *_, last) = document["cpus"][0]["tasks"]
    assert (first["times"], first["microseconds"], first["millicores"], first["cpus"]) == (12, 9000, 0, "1,5")
    assert (first["movable"], last["movable"], document["alone"]) == (True, False, False)


@pytest.mark.parametrize(("is_movable", "alone"), [(True, False), (None, False), (False, True)])
def test_interrupts_that_can_be_moved_are_somebody_else(*, is_movable: bool | None, alone: bool) -> None:
    use = replace(NOTHING, interrupts=(Handling(1, 25, 3, 9000), Handling(5, 25, 1, 1000), Handling(3, 26, 1, 1000)))
    document = told(use, replace(NOBODY, interrupts={25: Interrupt("eth0-rx", is_movable)}))
    assert document["alone"] is alone
    (found,) = document["cpus"][0]["interrupts"]
    assert (found["number"], found["name"], found["times"], found["microseconds"]) == (25, "eth0-rx", 4, 10)


@pytest.mark.parametrize(
    ("isolation", "device", "claimed"),
    [("affinity", "eth0", True), ("affinity", "eth1", False), ("none", "eth0", False)],
)
def test_interrupts_that_the_owner_wants_there_are_nobody_else(*, isolation: str, device: str, claimed: bool) -> None:
    found = World(interrupt_isolation=isolation)
    found.add(pod("web", replace(app("app", cpu="2"), interrupts=(device,))))
    found.add(pod("db", app("main", cpu="1")))
    view = found.view()
    use = replace(NOTHING, interrupts=(Handling(1, 25, 3, 9000),))
    seen = replace(NOBODY, interrupts_by_device={"eth0": frozenset({25})})
    document = describe_interference(view, find_exclusive_owners(view), use, seen)
    json_schema.check(document, "interference")
    web = next(one for one in document["cpus"] if one["pod"] == "default/web")
    assert (web["alone"], web["interrupts"][0]["claimed"]) == (claimed, claimed)
    verdict = "alone except for kernel work that can't move and claimed interrupts"
    assert (verdict in " ".join(render_interference(document).split())) is claimed

    elsewhere = describe_interference(
        view, find_exclusive_owners(view), replace(NOTHING, interrupts=(Handling(4, 25, 3, 9000),)), seen
    )
    assert not is_alone(elsewhere), "another pod does not want it"


def test_the_commands_own_processes_are_nobody() -> None:
    use = replace(NOTHING, runs=(TaskRun(1, 400, "nodeagent", 1, 5), TaskRun(1, 401, "thread", 1, 5)))
    seen = replace(NOBODY, threads={401: process(400, "/user.slice")}, callers=frozenset({400}))
    assert is_alone(told(use, seen))


def test_one_that_never_let_go_of_a_cpu_had_it_all_the_time() -> None:
    use = replace(NOTHING, unobserved=CpuSet.of(1, 4, 5))
    seen = replace(
        NOBODY,
        members={"poduid-db/main": frozenset({200})},
        threads={500: process(500, "/system.slice/stress.service", "stress")},
        running={5: (500,), 4: (500, 200)},
    )
    document = told(use, seen)
    (found,) = document["cpus"][0]["tasks"]
    assert (found["name"], found["millicores"], found["cpus"]) == ("stress", 1000, "5")
    assert tasks(document, "default/db") == [], "its owner had that one"


def test_the_worst_comes_first() -> None:
    use = replace(NOTHING, runs=(TaskRun(1, 1, "a", 1, 5_000), TaskRun(4, 1, "a", 1, 9_000)))
    assert [one["pod"] for one in told(use, NOBODY)["cpus"]] == ["default/db", "default/web"]


def test_its_text() -> None:
    use = replace(
        NOTHING,
        runs=(
            TaskRun(1, 1, "stress", 120, 4_800_000_000),
            TaskRun(1, 2, "kworker/u8:0", 3, 1_200_000),
            TaskRun(1, 3, "ksoftirqd/1", 7, 900_000),
            TaskRun(5, 4, "\x1b[31m", 1, 50_000),
            TaskRun(4, 5, "migration/4", 1, 20_000),
        ),
        interrupts=(Handling(1, 25, 300, 2_000_000), Handling(4, 40, 2, 10_000)),
        softirqs=(Handling(1, 1, 2500, 9_100_000), Handling(5, 1, 2500, 8_000_000), Handling(1, 99, 1, 1)),
        dropped=17,
    )
    seen = replace(
        NOBODY,
        threads={
            1: process(1, "/system.slice/stress.service"),
            2: kernel_thread(2, is_bound=False),
            3: kernel_thread(3, is_bound=True),
            5: kernel_thread(5, is_bound=True),
        },
        interrupts={25: Interrupt("eth0-rx-0", is_movable=True), 40: Interrupt("nvme0q3", is_movable=False)},
    )
    document = told(use, seen, ended_early=True)
    golden("interference.txt", render_interference(document))
    assert "\x1b[1;93mNOT ALONE\x1b[0m" in render_interference(document, coloured=True)


def test_of_cpus_that_changed_hands_meanwhile_nothing_is_said() -> None:
    """What ran there may have been another owner's."""
    held, later = find_exclusive_owners(world().view()), World().add(pod("web", app("app", cpu="2"))).view()
    use = replace(NOTHING, runs=(TaskRun(4, 1, "new", 1, 5),))
    document = describe_interference(later, held, use, NOBODY)
    json_schema.check(document, "interference")
    assert document["changed"] == [{"pod": "default/db", "cpus": "4"}]
    assert [one["pod"] for one in document["cpus"]] == ["default/web"]
    assert "default/db: CPUs 4: allocated or released during the measurement" in render_interference(document)
    with pytest.raises(InterferenceError, match="default/db"):
        check_complete(document)


def test_alone_is_not_said_where_it_was_not_all_counted() -> None:
    with pytest.raises(InterferenceError, match="tables were full"):
        check_complete(told(replace(NOTHING, dropped=1), NOBODY))
    check_complete(told(NOTHING, NOBODY))


def test_a_node_without_exclusive_cpus() -> None:
    json_schema.check(describe_idle_node(), "interference")
    assert is_alone(describe_idle_node())
    assert render_interference(describe_idle_node()) == "No pod has exclusive CPUs.\n"


def test_owners_that_nothing_disturbs_take_a_line_each() -> None:
    quiet = {"containers": ["app"], "tasks": [], "interrupts": [], "softirqs": [], "alone": True}
    document = describe_idle_node() | {"cpus": [{**quiet, "pod": f"a/{n}", "cpus": str(n)} for n in range(200)]}
    *lines, gap, counted = render_interference(document).splitlines()
    assert lines == [f"a/{n} app: CPUs {n}: alone" for n in range(200)]
    assert (gap, counted) == ("", "counted for 0.0 s")
