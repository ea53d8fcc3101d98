"""When containers start, restart, stop and are over: kubelet's rules, by name, on a model of the node."""

from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.model.cgroup import Attribute
from nodeagent.core.model.pod import Container, Pod, QosClass, RestartPolicy
from nodeagent.core.model.state import ContainerStatus, Exit, Origin, Phase, PodEntry, shift_times
from nodeagent.core.resources.cpu.holdings import default_set, exclusive_cpus, own_set_of
from nodeagent.core.turn.actions import Terminate, TerminateAll
from nodeagent.core.turn.lifecycle import advance, next_start_at_ms, wake_at_ms
from nodeagent.core.turn.world import EventKind
from tests.support.node_model import Agent, CrashError, Machine, started
from tests.support.pods import app, cgroup_only, init, job, pod, sidecar
from tests.support.world import node

ALWAYS, ON_FAILURE, NEVER = RestartPolicy.ALWAYS, RestartPolicy.ON_FAILURE, RestartPolicy.NEVER
NODE = node()
SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


def run(*pods: Pod) -> tuple[Machine, Agent]:
    return started(NODE, *pods)


def status(agent: Agent, container: str = "app", *, pod_name: str = "a") -> ContainerStatus:
    return entry(agent, pod_name).status(container)


def entry(agent: Agent, pod_name: str = "a") -> PodEntry:
    return next(e for e in agent.state.entries if e.pod.name == pod_name)


def running(machine: Machine) -> list[str]:
    """Containers that run, without the pod's part."""
    return [name.partition("/")[2] for name in machine.running_containers()]


def delay_ms(machine: Machine, agent: Agent, *, code: int = 1) -> int:
    """End the app, and give the time until it runs again."""
    before = machine.now_ms
    machine.exit(machine.run_of("app"), code)
    agent.settle()
    assert running(machine) == ["app"]
    return machine.now_ms - before


# Restarts


def test_restarts_wait_0_10_20_40_and_at_most_300_seconds() -> None:
    machine, agent = run(pod("a"))
    waited = [delay_ms(machine, agent) // SECOND for _ in range(9)]
    assert waited == [0, 10, 20, 40, 80, 160, 300, 300, 300]
    assert status(agent).restarts == 9


@pytest.mark.parametrize("by_ms", [-HOUR, HOUR])
def test_a_restart_waits_as_long_when_the_clock_is_set(by_ms: int) -> None:
    machine, agent = run(pod("a"))
    assert [delay_ms(machine, agent) // SECOND for _ in range(3)] == [0, 10, 20]
    machine.exit(machine.run_of("app"), 1)
    agent.rest()
    machine.set_clock(by_ms)
    agent.state = shift_times(agent.state, by_ms)
    now_ms = machine.now_ms
    agent.settle()
    assert (running(machine), machine.now_ms - now_ms) == (["app"], 40 * SECOND)


@pytest.mark.parametrize(("by_ms", "ran_ms", "waits"), [(-HOUR, 11 * MINUTE, 0), (HOUR, MINUTE, 20)])
def test_how_long_a_container_ran_is_not_changed_by_setting_the_clock(by_ms: int, ran_ms: int, waits: int) -> None:
    machine, agent = run(pod("a"))
    assert [delay_ms(machine, agent) // SECOND for _ in range(2)] == [0, 10]
    machine.now_ms += ran_ms
    machine.set_clock(by_ms)
    agent.state = shift_times(agent.state, by_ms)
    agent.rest()
    assert delay_ms(machine, agent) == waits * SECOND


def test_an_end_that_was_not_seen_before_the_clock_was_set_back_is_none_of_the_future() -> None:
    machine, agent = run(pod("a"))
    assert [delay_ms(machine, agent) // SECOND for _ in range(2)] == [0, 10]
    machine.exit(machine.run_of("app"), 1)
    machine.set_clock(-HOUR)
    agent.state = shift_times(agent.state, -HOUR)
    now_ms = machine.now_ms
    agent.settle()
    assert (running(machine), machine.now_ms - now_ms) == (["app"], 20 * SECOND)


@pytest.mark.parametrize(
    ("ran_ms", "waits"),
    [
        pytest.param(10 * MINUTE + 1, [0, 10, 20], id="over ten minutes: as if it had never failed"),
        pytest.param(10 * MINUTE, [40, 80, 160], id="ten minutes: not yet"),
    ],
)
def test_a_long_run_resets_the_back_off(ran_ms: int, waits: list[int]) -> None:
    machine, agent = run(pod("a"))
    for _ in range(3):
        delay_ms(machine, agent)
    machine.now_ms += ran_ms
    assert [delay_ms(machine, agent) // SECOND for _ in range(3)] == waits


def test_back_off_counts_from_the_end_of_the_process_not_from_when_it_was_noticed() -> None:
    machine, agent = run(pod("a"))
    delay_ms(machine, agent)
    machine.exit(machine.run_of("app"), 1)
    machine.now_ms += 9 * SECOND
    agent.turn()
    assert running(machine) == []
    assert agent.last.wake_at_ms == machine.now_ms + SECOND
    machine.now_ms += SECOND
    agent.turn()
    assert running(machine) == ["app"]


def test_the_back_off_of_one_container_holds_up_no_other() -> None:
    machine, agent = run(pod("a", app("x"), app("y")))
    for _ in range(2):
        machine.exit(machine.run_of("x"), 1)
        agent.rest()
    assert running(machine) == ["y"]
    machine.exit(machine.run_of("y"), 1)
    agent.rest()
    assert running(machine) == ["y"]


def test_a_back_off_survives_the_agent() -> None:
    machine, agent = run(pod("a"))
    for _ in range(3):
        delay_ms(machine, agent)
    machine.exit(machine.run_of("app"), 1)
    agent.turn()
    agent.restart()
    agent.turn()
    assert running(machine) == []
    assert agent.last.wake_at_ms == machine.now_ms + 40 * SECOND


def test_the_step_of_a_container_that_fails_for_months_stays_bounded() -> None:
    ended = Exit(0, code=1)
    entry = PodEntry(
        pod("a"),
        qos=QosClass.BEST_EFFORT,
        origin=Origin("a.yaml"),
        decided_at_ms=0,
        containers=(ContainerStatus("app", attempt=10**6, started_at_ms=0, exit=ended, backoff_step=10**6),),
    )
    assert next_start_at_ms(entry, entry.pod.container("app"), entry.status("app")) == 300 * SECOND
    again = advance(entry, {}, {}, 300 * SECOND, frozenset()).status("app")
    assert again.attempt == 10**6 + 1
    assert again.backoff_step < 100


@pytest.mark.parametrize(
    ("policy", "how", "is_restarted", "phase"),
    [
        (ALWAYS, {"code": 0}, True, Phase.RUNNING),
        (ALWAYS, {"code": 3}, True, Phase.RUNNING),
        (ALWAYS, {"signal": 9}, True, Phase.RUNNING),
        (ON_FAILURE, {"code": 0}, False, Phase.SUCCEEDED),
        (ON_FAILURE, {"code": 3}, True, Phase.RUNNING),
        (ON_FAILURE, {"signal": 11}, True, Phase.RUNNING),
        (NEVER, {"code": 0}, False, Phase.SUCCEEDED),
        (NEVER, {"code": 3}, False, Phase.FAILED),
        (NEVER, {"signal": 15}, False, Phase.FAILED),
    ],
)
def test_restart_policy(policy: RestartPolicy, how: dict[str, Any], *, is_restarted: bool, phase: Phase) -> None:
    machine, agent = run(job("a", policy=policy))
    machine.exit(machine.run_of("app"), **how)
    agent.rest()
    assert running(machine) == (["app"] if is_restarted else [])
    assert entry(agent).phase is phase
    ended = status(agent).last_exit if is_restarted else status(agent).exit
    assert ended == Exit(machine.now_ms, **how)


@pytest.mark.parametrize(
    ("policy", "codes", "phase"),
    [
        (NEVER, [0, 0], Phase.SUCCEEDED),
        (NEVER, [0, 1], Phase.FAILED),
        (NEVER, [1, 0], Phase.FAILED),
        (ON_FAILURE, [0, 0], Phase.SUCCEEDED),
    ],
)
def test_a_pod_is_over_with_its_last_app(policy: RestartPolicy, codes: list[int], phase: Phase) -> None:
    machine, agent = run(job("a", app("x"), app("y"), policy=policy))
    machine.exit(machine.run_of("x"), codes[0])
    agent.rest()
    assert entry(agent).phase is Phase.RUNNING
    machine.exit(machine.run_of("y"), codes[1])
    agent.rest()
    assert entry(agent).phase is phase
    assert [f.fields for f in agent.reported(EventKind.POD_FINISHED)] == [(("phase", phase.value),)]


def test_a_pod_that_is_over_keeps_its_exit_codes_and_gives_its_cpus_back() -> None:
    machine, agent = run(job("a", app(cpu="2")))
    free = default_set(agent.state.promises)
    machine.exit(machine.run_of("app"), 7)
    agent.rest()
    assert len(default_set(agent.state.promises)) == len(free) + 2
    assert status(agent).exit == Exit(machine.now_ms, code=7)
    assert not any("uid-a" in path for path in machine.groups), "its cgroups are removed"
    agent.restart()
    agent.settle()
    assert status(agent).exit == Exit(machine.now_ms, code=7)
    assert len(machine.starts) == 1


# Init containers and sidecars


def test_init_containers_run_one_by_one_to_completion() -> None:
    machine, agent = run(pod("a", init("i1"), init("i2"), app()))
    order = []
    for _ in range(2):
        order += running(machine)
        assert entry(agent).phase is Phase.PENDING
        machine.exit(machine.run_of(order[-1]), 0)
        agent.rest()
    assert [*order, *running(machine)] == ["i1", "i2", "app"]
    assert entry(agent).phase is Phase.RUNNING
    assert agent.last.wake_at_ms is None, "nothing is due: a completed init container never starts again"


@pytest.mark.parametrize("policy", [ALWAYS, ON_FAILURE])
def test_a_failed_init_container_is_tried_again_with_back_off(policy: RestartPolicy) -> None:
    machine, agent = run(job("a", init(), app(), policy=policy))
    for _ in range(3):
        machine.exit(machine.run_of("init"), 1)
        agent.settle()
        assert running(machine) == ["init"]
    machine.exit(machine.run_of("init"), 0)
    agent.rest()
    assert running(machine) == ["app"]
    assert status(agent, "init").restarts == 3


def test_a_failed_init_container_fails_a_pod_that_never_restarts() -> None:
    machine, agent = run(job("a", sidecar(), init(), app()))
    assert running(machine) == ["init", "side"]
    machine.exit(machine.run_of("init"), 1)
    agent.rest()
    assert running(machine) == [], "the sidecar is stopped too"
    assert entry(agent).phase is Phase.FAILED
    assert status(agent).attempt == 0, "the app never ran"
    assert len(exclusive_cpus(agent.state.promises)) == 0


def test_an_init_container_does_not_run_again_when_an_app_restarts() -> None:
    machine, agent = run(pod("a", init(), app()))
    machine.exit(machine.run_of("init"), 0)
    agent.rest()
    for _ in range(2):
        delay_ms(machine, agent)
    assert status(agent, "init").attempt == 1


def test_what_an_init_container_leaves_behind_goes_before_the_next_one_starts() -> None:
    """The app takes over the CPUs of its init container: a process of that one on them is foreign (D12)."""
    machine, agent = run(pod("a", init(cpu="2"), app(cpu="2")))
    assert own_set_of(agent.state.promises, "uid-a", "app") == own_set_of(agent.state.promises, "uid-a", "init")
    machine.groups["poduid-a/init"].is_unkillable = True
    machine.exit(machine.run_of("init"), 0, leaving=1)
    agent.rest()
    assert running(machine) == []
    assert ("KILL", "poduid-a/init") in machine.signals
    assert agent.is_unsettled(), "nobody announces that the cgroup is empty: it must be looked at"
    machine.groups["poduid-a/init"].is_unkillable = False
    agent.rest()
    assert running(machine) == ["app"]


def test_sidecars_start_in_order_and_stay() -> None:
    machine, agent = run(pod("a", sidecar("s1"), init("i"), sidecar("s2"), app()))
    assert running(machine) == ["i", "s1"]
    machine.exit(machine.run_of("i"), 0)
    agent.rest()
    assert running(machine) == ["app", "s1", "s2"]
    assert [s.split("/")[1] for s in machine.starts] == ["s1", "i", "s2", "app"]


def test_the_next_container_waits_until_the_sidecar_before_it_has_started() -> None:
    machine = Machine(NODE)
    machine.launcher_answers = False
    agent = Agent(machine)
    agent.want(pod("a", sidecar("s1"), sidecar("s2"), app()))
    agent.rest()
    assert [s.attempt for s in entry(agent).containers] == [0, 0, 0], "nobody can say what runs"
    machine.launcher_answers = True
    agent.turn()
    assert [s.attempt for s in entry(agent).containers] == [1, 0, 0]
    agent.turn()
    assert [s.attempt for s in entry(agent).containers] == [1, 1, 0]
    agent.turn()
    assert [s.attempt for s in entry(agent).containers] == [1, 1, 1]


def test_a_sidecar_without_command_holds_nobody_up() -> None:
    machine, agent = run(pod("a", cgroup_sidecar(), app()))
    assert running(machine) == ["app"]
    assert entry(agent).phase is Phase.RUNNING


def cgroup_sidecar() -> Container:
    return replace(sidecar("side"), command=())


@pytest.mark.parametrize("policy", list(RestartPolicy))
@pytest.mark.parametrize("code", [0, 1])
def test_a_sidecar_is_restarted_under_every_policy(policy: RestartPolicy, code: int) -> None:
    machine, agent = run(job("a", sidecar(), app(), policy=policy))
    machine.exit(machine.run_of("side"), code)
    agent.rest()
    assert running(machine) == ["app", "side"]
    machine.exit(machine.run_of("side"), code)
    agent.rest()
    assert running(machine) == ["app"]
    assert agent.last.wake_at_ms == machine.now_ms + 10 * SECOND


def test_a_sidecar_in_back_off_does_not_hold_up_the_start_of_the_others() -> None:
    machine, agent = run(pod("a", sidecar(), init(), app()))
    for _ in range(2):
        machine.exit(machine.run_of("side"), 1)
        agent.rest()
    assert running(machine) == ["init"]
    machine.exit(machine.run_of("init"), 0)
    agent.rest()
    assert running(machine) == ["app"]


def test_a_pod_whose_apps_are_over_stops_its_sidecars_from_the_last_to_the_first_and_gives_its_cpus_back() -> None:
    machine, agent = run(job("a", sidecar("s1", cpu="1"), sidecar("s2", cpu="1"), app(cpu="2")))
    assert len(exclusive_cpus(agent.state.promises)) == 4
    machine.exit(machine.run_of("app"), 0)
    agent.rest()
    assert [name.split("/")[1] for kind, name in machine.signals if kind == "TERM"] == ["s2", "s1"]
    assert entry(agent).phase is Phase.SUCCEEDED
    assert len(exclusive_cpus(agent.state.promises)) == 0


def test_the_exit_code_of_a_stopped_sidecar_does_not_fail_the_pod() -> None:
    machine, agent = run(job("a", sidecar(), app()))
    machine.exit(machine.run_of("app"), 0)
    agent.rest()
    assert status(agent, "side").exit == Exit(machine.now_ms, signal=15)
    assert entry(agent).phase is Phase.SUCCEEDED


def test_a_sidecar_that_will_not_end_is_killed_after_the_grace_period_of_a_pod_that_is_over() -> None:
    machine, agent = run(job("a", sidecar(), app(), termination_grace_seconds=20))
    machine.groups["shared/pool/payload/besteffort/poduid-a/side"].processes[0].is_stubborn = True
    machine.exit(machine.run_of("app"), 0)
    agent.rest()
    assert entry(agent).phase is Phase.RUNNING
    assert agent.last.wake_at_ms == machine.now_ms + 20 * SECOND
    agent.settle()
    assert entry(agent).phase is Phase.SUCCEEDED


def test_a_sidecar_whose_start_was_only_decided_does_not_keep_a_pod_from_being_over() -> None:
    machine, agent = run(job("a", sidecar(cpu="1"), app(cpu="1")))
    machine.exit(machine.run_of("side"), 1)
    machine.broken["poduid-a/side", Attribute.CPU_WEIGHT] = "nothing may be started there"
    machine.groups["poduid-a/side"].values[Attribute.CPU_WEIGHT] = 77
    agent.rest()
    assert status(agent, "side").is_started
    assert running(machine) == ["app"]
    machine.exit(machine.run_of("app"), 0)
    agent.rest()
    assert entry(agent).phase is Phase.SUCCEEDED
    assert len(exclusive_cpus(agent.state.promises)) == 0
    assert not agent.is_unsettled()


# Termination


def asked_to_end() -> tuple[Machine, Agent]:
    """A pod that has got its SIGTERM, stays, and has 7 s."""
    machine = Machine(NODE)
    machine.stubborn = {"app"}
    agent = Agent(machine)
    agent.want(pod("a", termination_grace_seconds=7))
    agent.rest()
    agent.want()
    agent.rest()
    return machine, agent


def is_killed_after_the_grace_period(machine: Machine, agent: Agent) -> None:
    machine.now_ms += 7 * SECOND - 1
    agent.rest()
    assert running(machine) == ["app"]
    machine.now_ms += 1
    agent.rest()
    assert [kind for kind, _ in machine.signals] == ["TERM", "KILL"]
    assert agent.state.entries == ()


def test_termination_asks_then_kills_after_the_grace_period() -> None:
    machine, agent = asked_to_end()
    assert [kind for kind, _ in machine.signals] == ["TERM"], "asked once"
    assert entry(agent).phase is Phase.TERMINATING
    assert agent.last.wake_at_ms == machine.now_ms + 7 * SECOND
    is_killed_after_the_grace_period(machine, agent)


@pytest.mark.parametrize("by_ms", [-HOUR, HOUR])
def test_a_grace_period_lasts_as_long_when_the_clock_is_set(by_ms: int) -> None:
    machine, agent = asked_to_end()
    machine.set_clock(by_ms)
    agent.state = shift_times(agent.state, by_ms)
    is_killed_after_the_grace_period(machine, agent)


@pytest.mark.parametrize("kind", [app(), cgroup_only()], ids=["command", "slot"])
@pytest.mark.parametrize("who", ["launcher", "agent"])
def test_a_container_that_nobody_could_ask_in_its_grace_period_is_asked_before_it_is_killed(
    who: str, kind: Container
) -> None:
    machine = Machine(NODE)
    machine.stubborn = {"app"}
    agent = Agent(machine)
    agent.want(pod("a", kind, termination_grace_seconds=7))
    agent.rest()
    if not kind.command:
        machine.enter(next(path for path in machine.groups if path.endswith("/slot")), stubborn=True)
    agent.want()
    if who == "launcher":
        machine.launcher_answers = False
        agent.rest()
        machine.now_ms += 8 * SECOND
        machine.launcher_answers = True
    else:
        agent.dies_at = agent.effects + 1  # it has saved that the pod is to end
        with pytest.raises(CrashError):
            agent.turn()
        machine.now_ms += 8 * SECOND
        agent.restart()
    agent.rest()
    assert [kind for kind, _ in machine.signals] == ["TERM"]
    assert agent.last.wake_at_ms == machine.now_ms + 2 * SECOND
    machine.now_ms += 2 * SECOND
    agent.rest()
    assert [kind for kind, _ in machine.signals] == ["TERM", "KILL"]
    assert agent.state.entries == ()


@pytest.mark.parametrize("kind", [app(), cgroup_only()], ids=["command", "slot"])
def test_a_container_that_cannot_be_sent_sigterm_is_killed_after_its_grace_period(kind: Container) -> None:
    machine, agent = run(pod("a", kind, termination_grace_seconds=7))
    if not kind.command:
        machine.enter("shared/pool/payload/besteffort/poduid-a/slot")
    machine.is_deaf = True
    agent.want()
    for _ in range(7):
        agent.rest()
        assert machine.populated() != ()
        assert [type(action) for action in agent.actions()] == [Terminate if kind.command else TerminateAll]
        machine.now_ms += SECOND
    agent.rest()
    assert [kind for kind, _ in machine.signals] == ["KILL"]
    assert agent.state.entries == ()


@pytest.mark.parametrize("how", ["removed", "released", "changed"])
def test_a_sidecar_whose_time_is_over_is_killed_though_its_pod_is_to_end_now_for_another_reason(how: str) -> None:
    machine = Machine(NODE)
    machine.stubborn = {"side"}
    agent = Agent(machine)
    agent.want(job("a", sidecar(), app(), termination_grace_seconds=3600))
    agent.rest()
    machine.exit(machine.run_of("app"))
    agent.rest()
    machine.now_ms += HOUR
    match how:
        case "removed":
            agent.want()
        case "released":
            agent.released = frozenset({"uid-a"})
        case _:
            agent.want(job("a", app("new")))
    agent.rest()
    assert [(kind, name.split("/")[-1 if kind == "KILL" else 1]) for kind, name in machine.signals] == [
        ("TERM", "side"),
        ("KILL", "side"),
    ]


def test_a_process_that_ends_on_sigterm_is_not_killed() -> None:
    machine, agent = run(pod("a", app("x"), app("y")))
    agent.want()
    agent.rest()
    assert [kind for kind, _ in machine.signals] == ["TERM", "TERM"]
    assert agent.state.entries == ()
    assert machine.runs == {}, "the launcher may forget them"


def test_a_main_process_that_left_its_cgroup_is_asked_and_its_cpus_stay_its_own_until_it_ends() -> None:
    machine, agent = run(pod("a", app(cpu="2")))
    main = machine.run_of("app")
    machine.stray(main)
    machine.strays[0].is_stubborn = True
    agent.want()
    agent.rest()
    assert machine.signals == [("TERM", main)]
    assert entry(agent).phase is Phase.TERMINATING
    assert own_set_of(agent.state.promises, "uid-a", "app") is not None
    agent.settle()
    assert machine.signals == [("TERM", main), ("KILL", main)]
    assert agent.state.entries == ()


def test_the_next_init_container_waits_for_one_that_left_its_cgroup() -> None:
    machine, agent = run(pod("a", init(cpu="1"), app(cpu="1")))
    machine.stray(machine.run_of("init"))
    agent.rest()
    assert machine.running() == (next(iter(machine.runs)),), "the app is not started"


def test_what_the_main_process_leaves_behind_is_killed_at_once() -> None:
    machine, agent = run(pod("a", termination_grace_seconds=600))
    agent.want()
    machine.exit(machine.run_of("app"), 0, leaving=2)
    agent.rest()
    assert agent.state.entries == ()
    assert [kind for kind, _ in machine.signals] == ["KILL"]


def test_leftovers_of_a_container_are_killed_before_it_starts_again() -> None:
    machine, agent = run(pod("a"))
    machine.exit(machine.run_of("app"), 0, leaving=2)
    agent.rest()
    assert ("KILL", "shared/pool/payload/besteffort/poduid-a/app") in machine.signals
    assert running(machine) == ["app"]
    assert len(machine.groups["shared/pool/payload/besteffort/poduid-a/app"].processes) == 1


def test_apps_end_before_sidecars_and_sidecars_in_reverse_order() -> None:
    machine = Machine(NODE)
    machine.stubborn = {"app"}
    agent = Agent(machine)
    agent.want(pod("a", sidecar("s1"), sidecar("s2"), app(), termination_grace_seconds=30))
    agent.rest()
    agent.want()
    agent.rest()
    assert machine.signals == [("TERM", machine.run_of("app"))]
    machine.exit(machine.run_of("app"), 0)
    agent.rest()
    assert [name.split("/")[1] for _, name in machine.signals] == ["app", "s2", "s1"]


def test_an_init_container_is_ended_before_the_sidecar_beside_it() -> None:
    machine = Machine(NODE)
    machine.stubborn = {"init"}
    agent = Agent(machine)
    agent.want(pod("a", sidecar(), init(), app()))
    agent.rest()
    agent.want()
    agent.rest()
    assert machine.signals == [("TERM", machine.run_of("init"))]


def test_a_sidecar_is_asked_even_if_the_apps_used_up_the_grace_period() -> None:
    """kubelet always gives two seconds (minimumGracePeriodInSeconds)."""
    machine = Machine(NODE)
    machine.stubborn = {"app", "side"}
    agent = Agent(machine)
    agent.want(pod("a", sidecar(), app(), termination_grace_seconds=5))
    agent.rest()
    begun_ms, app_run, side_run = machine.now_ms, machine.run_of("app"), machine.run_of("side")
    agent.want()
    agent.settle()
    assert machine.signals == [
        ("TERM", app_run),
        ("KILL", "shared/pool/payload/besteffort/poduid-a/app"),
        ("TERM", side_run),
        ("KILL", "shared/pool/payload/besteffort/poduid-a/side"),
    ]
    assert machine.now_ms - begun_ms == 7 * SECOND


def test_a_grace_period_of_zero_still_leaves_two_seconds() -> None:
    machine = Machine(NODE)
    machine.stubborn = {"app"}
    agent = Agent(machine)
    agent.want(pod("a", termination_grace_seconds=0))
    agent.rest()
    agent.want()
    agent.rest()
    assert [kind for kind, _ in machine.signals] == ["TERM"]
    assert agent.last.wake_at_ms == machine.now_ms + 2 * SECOND


def test_a_pod_that_is_deleted_in_back_off_goes_at_once() -> None:
    machine, agent = run(pod("a"))
    for _ in range(2):
        machine.exit(machine.run_of("app"), 1)
        agent.rest()
    agent.want()
    agent.turn()
    assert agent.state.entries == ()


def test_what_cannot_be_killed_keeps_its_cpus_and_does_not_spin() -> None:
    machine, agent = run(pod("a", app(cpu="2"), termination_grace_seconds=5))
    cpus = exclusive_cpus(agent.state.promises)
    machine.groups["poduid-a/app"].is_unkillable = True
    machine.groups["poduid-a/app"].processes[0].is_stubborn = True
    agent.want()
    agent.rest()
    machine.now_ms += 3600 * SECOND
    agent.turn()
    agent.turn()
    assert exclusive_cpus(agent.state.promises) == cpus
    assert entry(agent).phase is Phase.TERMINATING
    assert agent.last.wake_at_ms is None, "the past is no moment to wake at"
    assert agent.is_unsettled()
    assert agent.actions(), "it is tried again at every look"
    machine.groups["poduid-a/app"].is_unkillable = False
    agent.rest()
    assert agent.state.entries == ()


def test_a_container_that_is_stopped_is_not_started_again() -> None:
    machine, agent = run(pod("a", app("x"), app("y")))
    machine.groups["shared/pool/payload/besteffort/poduid-a/y"].processes[0].is_stubborn = True
    agent.want()
    agent.rest()
    assert running(machine) == ["y"]
    machine.now_ms += 10 * SECOND
    agent.rest()
    assert running(machine) == ["y"]


# Ends of a special kind


def test_an_oom_kill_is_told_from_other_kills() -> None:
    machine, agent = run(pod("a"))
    machine.oom_kill(machine.run_of("app"))
    agent.rest()
    first = status(agent).last_exit
    assert first is not None
    assert (first.reason, first.signal) == ("OOMKilled", 9)
    machine.exit(machine.run_of("app"), signal=9)
    agent.rest()
    second = status(agent).exit
    assert second is not None
    assert second.reason == "Error", "the counter did not move"


def test_the_counter_of_an_earlier_life_of_the_cgroup_makes_no_oom_kill() -> None:
    machine, agent = run(pod("a"))
    machine.exit(machine.run_of("app"), 1, leaving=1)
    machine.groups[
        "shared/pool/payload/besteffort/poduid-a/app"
    ].oom_kills = 3  # a child, before the main process ended by itself
    agent.rest()
    machine.exit(machine.run_of("app"), signal=9)
    agent.rest()
    ended = status(agent).exit
    assert ended is not None
    assert not ended.is_oom_kill


def test_a_counter_that_began_anew_is_followed() -> None:
    machine, agent = run(pod("a"))
    machine.groups["shared/pool/payload/besteffort/poduid-a/app"].oom_kills = 5
    machine.oom_kill(machine.run_of("app"))
    agent.rest()
    machine.groups["shared/pool/payload/besteffort/poduid-a/app"].oom_kills = 0  # somebody made the cgroup anew
    machine.exit(machine.run_of("app"), 1)
    agent.settle()
    machine.oom_kill(machine.run_of("app"))
    agent.rest()
    ended = status(agent).exit
    assert ended is not None
    assert ended.is_oom_kill


def test_a_program_that_is_not_there_backs_off_like_a_failure() -> None:
    machine = Machine(NODE)
    machine.unstartable = {"app"}
    agent = Agent(machine)
    agent.want(pod("a"))
    agent.rest()
    assert status(agent).attempt == 2
    ended = status(agent).exit
    assert ended is not None
    assert (ended.reason, ended.code) == ("StartError", 128)
    assert agent.last.wake_at_ms == machine.now_ms + 10 * SECOND
    machine.unstartable.clear()
    agent.settle()
    assert running(machine) == ["app"]


def test_a_program_that_is_not_there_fails_a_pod_that_never_restarts() -> None:
    machine = Machine(NODE)
    machine.unstartable = {"app"}
    agent = Agent(machine)
    agent.want(job("a", sidecar(), app(cpu="2")))
    agent.settle()
    assert entry(agent).phase is Phase.FAILED
    assert running(machine) == []
    assert next(f.fields for f in agent.reported(EventKind.CONTAINER_EXITED)) == (
        ("reason", "StartError"),
        ("restarts", 0),
        ("exit_code", 128),
        ("start_error", "exec: No such file or directory"),
    )


@pytest.mark.parametrize(("policy", "runs_again"), [(ALWAYS, True), (ON_FAILURE, True), (NEVER, False)])
def test_a_started_run_that_nobody_knows_any_more_has_ended_in_an_unknown_way(
    policy: RestartPolicy, *, runs_again: bool
) -> None:
    """As after a reboot, when the launcher's records of what ran are gone too: no container runs twice under one number."""
    machine, agent = run(job("a", policy=policy))
    machine.runs.clear()
    machine.groups["shared/pool/payload/besteffort/poduid-a/app"].processes.clear()
    agent.restart()
    agent.rest()
    assert (running(machine) == ["app"]) is runs_again
    ended = status(agent).last_exit if runs_again else status(agent).exit
    assert ended == Exit(machine.now_ms)
    assert ended is not None
    assert ended.reason == "ContainerStatusUnknown"
    assert entry(agent).phase is (Phase.RUNNING if runs_again else Phase.FAILED)


def test_a_process_that_nobody_knows_is_ended_before_its_container_starts() -> None:
    """It would be on the container's CPUs, and its end could never be seen."""
    machine, agent = run(pod("a", app(cpu="2")))
    machine.runs.clear()
    agent.rest()
    assert machine.signals == [("KILL", "poduid-a/app")]
    assert running(machine) == ["app"]
    assert status(agent).restarts == 1


def test_an_end_that_nobody_saw_counts_as_a_failure() -> None:
    machine, agent = run(job("a", policy=ON_FAILURE))
    run_id = machine.run_of("app")
    machine.exit(run_id)
    machine.runs[run_id] = replace(machine.runs[run_id], exit=Exit(machine.now_ms))  # the launcher was not its parent
    agent.rest()
    assert running(machine) == ["app"]


# Containers without a command


def test_a_container_without_command_is_running_from_the_start_and_never_over() -> None:
    machine, agent = run(job("a", cgroup_only(cpu="2")))
    assert entry(agent).phase is Phase.RUNNING
    assert machine.starts == []
    path = "poduid-a/slot"
    machine.enter(path)
    agent.rest()
    machine.groups[path].processes.clear()
    agent.rest()
    assert entry(agent).phase is Phase.RUNNING
    assert len(exclusive_cpus(agent.state.promises)) == 2
    assert not agent.is_unsettled()


def test_who_entered_a_container_without_command_is_asked_and_then_killed() -> None:
    machine, agent = run(pod("a", cgroup_only(cpu="2"), termination_grace_seconds=4))
    machine.enter("poduid-a/slot", stubborn=True)
    machine.enter("poduid-a/slot")
    agent.want()
    agent.rest()
    assert machine.signals == [("TERM", "poduid-a/slot")]
    assert len(machine.groups["poduid-a/slot"].processes) == 1
    assert agent.last.wake_at_ms == machine.now_ms + 4 * SECOND
    agent.settle()
    assert machine.signals[1:] == [("KILL", "poduid-a/slot")]
    assert agent.state.entries == ()


def test_a_container_without_command_waits_for_nobody_but_its_pod_is_pending_while_init_containers_run() -> None:
    machine, agent = run(pod("a", init(), cgroup_only()))
    assert entry(agent).phase is Phase.PENDING
    machine.exit(machine.run_of("init"), 0)
    agent.rest()
    assert entry(agent).phase is Phase.RUNNING


def test_a_job_beside_a_container_without_command_is_not_over() -> None:
    machine, agent = run(job("a", app(), cgroup_only()))
    machine.exit(machine.run_of("app"), 0)
    agent.rest()
    assert entry(agent).phase is Phase.RUNNING


# Phases


def test_a_pod_is_pending_until_every_app_was_started_once() -> None:
    machine = Machine(NODE)
    agent = Agent(machine)
    agent.want(pod("a", app("x"), app("y")))
    agent.turn()
    assert entry(agent).phase is Phase.PENDING, "decided, not yet seen to run"
    agent.turn()
    assert entry(agent).phase is Phase.RUNNING
    machine.exit(machine.run_of("x"), 1)
    machine.exit(machine.run_of("y"), 1)
    agent.rest()
    machine.exit(machine.run_of("x"), 1)
    agent.rest()
    assert entry(agent).phase is Phase.RUNNING, "back-off is part of running"


def test_a_refused_pod_is_failed() -> None:
    _, agent = run(pod("a", app(cpu="1000")))
    assert entry(agent).phase is Phase.FAILED
    assert wake_at_ms(entry(agent), 0) is None


# Waking


@pytest.mark.parametrize("policy", list(RestartPolicy))
def test_a_pod_at_rest_wakes_nobody(policy: RestartPolicy) -> None:
    machine, agent = run(job("a", init(), sidecar(), app("x"), app("y"), policy=policy))
    machine.exit(machine.run_of("init"), 0)
    agent.rest()
    machine.exit(machine.run_of("x"), 0)
    agent.rest()
    assert agent.last.wake_at_ms is None
    assert not agent.is_unsettled()
