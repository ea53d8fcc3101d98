"""Counting from one look to the next: one count at a time, a reason instead of one that isn't possible, and nothing left at the end."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nodeagent.cli.support import counting
from nodeagent.cli.support.counting import LiveCount
from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.kernel.tracefs import TracefsError
from nodeagent.formats.kernel.cpu_use import CpuHistograms
from nodeagent.formats.node_view import NodeView
from tests.support.inspected_nodes import World
from tests.support.kernel_histograms import record, switches
from tests.support.pods import app, pod

SECOND = 1_000_000_000


class Kernel:
    """Counts that a task unlike the owner's runs on CPU 1 for half of each second; refuses on request."""

    def __init__(self) -> None:
        self.instances = 0
        self.refusal: TracefsError | None = None
        self.text: bytes | None = None
        self.exits: tuple[int, ...] = ()

    @contextmanager
    def recording(self, cpus: CpuSet) -> Iterator["Kernel"]:
        if self.refusal is not None:
            raise self.refusal
        assert self.instances == 0, "one at a time"
        assert cpus == CpuSet.of(1, 5)
        self.instances += 1
        yield self
        self.instances -= 1

    def begin(self) -> None: ...

    def end(self) -> CpuHistograms:
        busy = switches([(0, 1, 0, 2**22), (SECOND // 2, 1, 2**22, 0)], {2**22: "intruder"})
        return record(self.text or busy, began_ns=0, ended_ns=SECOND, exits=self.exits)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    found = Kernel()
    monkeypatch.setattr(counting, "record", found.recording)
    monkeypatch.setattr(counting, "leave_cpus", lambda _: None)
    return found


def view(**more: Any) -> NodeView:
    return World().add(pod("web", app("app", cpu="2"))).view(**more)


def look(count: LiveCount, seen: NodeView) -> Any:
    return count.begin(seen, count.end())


def test_each_look_has_what_ran_since_the_one_before(kernel: Kernel) -> None:
    with LiveCount() as count:
        assert look(count, view()) is None, "it has only begun"
        for _ in range(2):
            (claim,) = look(count, view())["cpus"]
            assert [(one["name"], one["microseconds"]) for one in claim["tasks"]] == [("intruder", 500_000)]
        assert kernel.instances == 1
    assert kernel.instances == 0


def test_an_owners_task_that_exits_while_counting_begins_is_no_strangers(kernel: Kernel) -> None:
    """It was never seen in its cgroup: it was forked before forks were counted, and is switched from once more."""
    kernel.exits = (2**22,)
    with LiveCount() as count:
        look(count, view())
        (claim,) = look(count, view())["cpus"]
        assert claim["tasks"] == []


def test_cpus_that_were_given_meanwhile_are_counted_from_the_next_look_on(kernel: Kernel) -> None:
    with LiveCount() as count:
        assert look(count, World().view())["cpus"] == []
        assert kernel.instances == 0, "nothing is counted for nobody"
        assert look(count, view()) is None
        found = look(count, World().view())
        assert (found["cpus"], [one["pod"] for one in found["changed"]]) == ([], ["default/web"])
        assert kernel.instances == 0


def test_what_the_kernel_refuses_is_said_and_tried_again(kernel: Kernel) -> None:
    kernel.refusal = TracefsError("cannot make it: Permission denied", hint="run this as root")
    with LiveCount() as count:
        assert look(count, view()) == "cannot make it: Permission denied (run this as root)"
        kernel.refusal = None
        assert look(count, view()) is None
        assert look(count, view())["cpus"]


def test_what_is_not_understood_is_said_and_does_not_stay(kernel: Kernel) -> None:
    kernel.text = b"x"
    with LiveCount() as count:
        look(count, view())
        assert "sched_switch" in look(count, view())
    assert kernel.instances == 0


@pytest.mark.parametrize(
    ("seen", "reason"),
    [({"cgroups": None}, "cgroups cannot be read"), ({"cgroup_root": None}, "is unknown")],
)
def test_where_it_is_unknown_whose_processes_are_whose_nothing_is_counted(
    seen: dict[str, Any], reason: str, kernel: Kernel
) -> None:
    with LiveCount() as count:
        assert reason in look(count, view(**seen))
        assert kernel.instances == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_nothing_is_left_by_one_that_is_told_to_end(
    number: signal.Signals, kernel: Kernel, request: pytest.FixtureRequest
) -> None:
    if number == signal.SIGINT:  # which is ignored where the tests run in the background
        before = signal.signal(number, signal.default_int_handler)
        request.addfinalizer(lambda: signal.signal(number, before))

    def interrupted() -> None:
        with LiveCount() as count:
            look(count, view())
            signal.raise_signal(number)

    handler = signal.getsignal(number)
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        interrupted()
    assert kernel.instances == 0
    assert signal.getsignal(number) == handler
