"""What is seen by nobody's word: everything is looked at again at every period, and when somebody listens again who did not."""

import gc
import io
import json
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.core.model.config import Config
from nodeagent.core.model.promises import Promises
from nodeagent.daemon import service
from nodeagent.daemon.reports.logs import make_log
from nodeagent.daemon.turn.wakeups import Rescans, WakeUpReason, Wakeups
from nodeagent.edge.kernel.uevents import Hotplug, UeventError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_timer_is_added_when_a_period_has_passed_without_it() -> None:
    clock = Clock()
    rescans = Rescans(clock)
    seen = []
    for reason in (
        WakeUpReason.RUNS,
        WakeUpReason.RUNS,
        WakeUpReason.TIMER,
        WakeUpReason.RUNS,
        WakeUpReason.RUNS,
        WakeUpReason.RUNS,
        WakeUpReason.RUNS,
    ):
        clock.now += 4
        seen.append(WakeUpReason.TIMER in rescans.add_timer(frozenset({reason}), 10))
    assert seen == [False, False, True, False, False, True, False]


def test_those_who_wake_all_the_time_keep_no_rescan_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container ends every three seconds, for two minutes; the loop of the service, with a stand-in for the agent."""
    clock, turns = Clock(), list[tuple[float, frozenset[WakeUpReason]]]()
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(service, "Rescans", lambda: Rescans(clock))

    collecting: list[bool] = []

    def turn(reasons: frozenset[WakeUpReason], _standing: tuple[str, ...]) -> float:
        collecting.append(gc.isenabled())
        turns.append((clock.now, reasons))
        return 10.0

    def wait(_seconds: float) -> frozenset[WakeUpReason]:
        clock.now += 3
        return frozenset({WakeUpReason.RUNS if clock.now < 220 else WakeUpReason.STOP})

    config = Config(cpu_manager_reconcile_period_ms=10_000, file_check_frequency_ms=20_000)
    state = SimpleNamespace(entries=(), promises=Promises())
    statuses: list[str] = []
    view = SimpleNamespace(state=state, problems=(), wrong={})
    agent: Any = SimpleNamespace(
        turn=turn,
        wakeups=SimpleNamespace(wait=wait),
        node=SimpleNamespace(config=config),
        view=view,
        memory=SimpleNamespace(has_reconciled=True),
        unit_directories=(),
        edges=SimpleNamespace(log=make_log(io.StringIO())),
        metrics=SimpleNamespace(),
    )
    manager: Any = SimpleNamespace(
        watchdog_period_seconds=lambda: None,
        set_status=statuses.append,
        notify_ready=statuses.append,
        ping_watchdog=lambda: None,
    )
    config_file: Any = SimpleNamespace(look=lambda _: None, problem=None, refused_at_seconds=0.0)
    nothing: Any = SimpleNamespace(listen=tuple, renew=lambda _: None, is_ready=True)
    gc.disable()
    try:
        service.run_turns(agent, nothing, nothing, config_file, manager, nothing)
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
        gc.enable()
    assert collecting == [False] + [True] * 38, "the collector is off until the first turn is done"
    rescans = [at for at, reasons in turns if reasons & {WakeUpReason.START, WakeUpReason.TIMER}]
    assert len(turns) == 39
    assert turns[0][1] == {WakeUpReason.START, WakeUpReason.RUNS}, "a subscription before it needs no turn of its own"
    assert set(statuses) == {"0 pods, 0 exclusive CPUs, 0 problems, 0 refused"}
    assert [later - before for before, later in pairwise(rescans)] == [12.0] * 9


class EndError(Exception):
    """The test has seen enough."""


def test_what_came_and_went_while_nobody_listened_is_looked_at_when_somebody_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel refuses, twice; gives a socket that breaks; gives another."""
    wakeups, log, slept = Wakeups(), io.StringIO(), list[float]()
    refused = UeventError("cannot listen", hint="look")
    opened = iter([refused, refused, "first", "second"])
    heard: list[tuple[object, frozenset[WakeUpReason]]] = []

    def taken(what: object) -> None:
        heard.append((what, wakeups.wait(0) - {WakeUpReason.TIMER}))

    def open_socket() -> Any:
        found = next(opened)
        if isinstance(found, UeventError):
            raise found
        return found

    def uevents(channel: str) -> Iterator[Hotplug]:
        taken(channel)
        yield Hotplug.OVERFLOW
        taken("lost")
        if channel == "second":
            raise EndError
        raise UeventError("broken", hint="look")

    monkeypatch.setattr(service, "open_uevent_socket", open_socket)
    monkeypatch.setattr(service, "Uevents", uevents)
    monkeypatch.setattr(service, "time", SimpleNamespace(sleep=slept.append))
    with pytest.raises(EndError):
        service.follow_hotplug(wakeups, make_log(log), [])
    hotplug = frozenset({WakeUpReason.HOTPLUG})
    assert heard == [("first", hotplug), ("lost", hotplug), ("second", hotplug), ("lost", hotplug)]
    assert log.getvalue().count("hotplug_unwatched") == 2, "each problem is told once"
    assert slept == [60.0] * 3


def test_whoever_has_listened_since_before_the_first_turn_is_woken_by_events_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wakeups = Wakeups()
    heard: list[frozenset[WakeUpReason]] = []

    def uevents(_channel: str) -> Iterator[Hotplug]:
        heard.append(wakeups.wait(0))
        yield Hotplug.CHANGED
        heard.append(wakeups.wait(0))
        raise EndError

    monkeypatch.setattr(service, "Uevents", uevents)
    monkeypatch.setattr(service, "open_uevent_socket", lambda: "channel")
    opened = service.open_uevents()
    with pytest.raises(EndError):
        service.follow_hotplug(wakeups, make_log(io.StringIO()), opened)
    assert heard == [{WakeUpReason.TIMER}, {WakeUpReason.HOTPLUG}]
    assert opened == [], "after an error, the next one is a new one"


def test_without_uevents_the_agent_starts_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise UeventError("cannot listen", hint="look")

    monkeypatch.setattr(service, "open_uevent_socket", refuse)
    assert service.open_uevents() == []


def test_a_thread_that_fails_is_seen_and_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log, slept = io.StringIO(), list[float]()
    results = iter([ValueError("a bug"), RecursionError("another"), None])

    def work() -> None:
        if (error := next(results)) is not None:
            raise error

    monkeypatch.setattr(service, "time", SimpleNamespace(sleep=slept.append))
    service.keep_working("nri", make_log(log), work)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [(line["event"], line["thread"], line["problem"]) for line in lines] == [
        ("thread_failed", "nri", "ValueError: a bug; it begins again"),
        ("thread_failed", "nri", "RecursionError: another; it begins again"),
    ]
    assert slept == [1.0, 1.0]
    assert next(results, "worked") == "worked"
