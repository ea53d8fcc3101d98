"""The kernel refuses a write to a cgroup: every write of admissions and removals in turn, with every answer, once and for good.

Whatever fails: no CPU has two owners, who runs stays where it is, nobody starts where it is not as promised, the reason is shown; and
when the kernel gives in, the end is the one that would have been.
"""

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeagent.core.cgroups.write_failures import WriteFailure, classify_failure
from nodeagent.core.cgroups.write_order import EnableControllers, MakeCgroup, RemoveCgroup, SetAttribute
from nodeagent.core.metrics.agent_metrics import CGROUP_WRITE_ERRORS, find_error_label
from nodeagent.core.model.cgroup import Attribute
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.daemon.turn.execution import ExecutionResult, FailureResponse, respond
from nodeagent.edge.cgroups.cgroupfs import files, tree
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree
from tests.daemon.test_crash_points import SCENARIOS, Life, Scenario, clone, prepared, settle
from tests.support.daemon_model import Steps, watched
from tests.support.figures import Recorder, keep, report
from tests.support.shares import share

CLASSES = {
    errno.ENOENT: WriteFailure.GONE,
    errno.ENODEV: WriteFailure.GONE,
    errno.EBUSY: WriteFailure.RETRY,
    errno.EAGAIN: WriteFailure.RETRY,
    None: WriteFailure.RETRY,
    errno.EINVAL: WriteFailure.REFUSED,
    errno.ERANGE: WriteFailure.REFUSED,
    errno.ENOSPC: WriteFailure.REFUSED,
    errno.EACCES: WriteFailure.REFUSED,
    errno.EOPNOTSUPP: WriteFailure.REFUSED,
}
CASES = ("admission", "removal", "removal with leftovers", "one goes and one comes", "an init container ends")
WRITES = ("cgroup ", "kill ", "start ")
"""Steps that write to a cgroup; a start writes to `cgroup.procs`."""


def failure(name: str, error: int | None) -> CgroupError:
    said = "it grants something else" if error is None else os.strerror(error)
    return CgroupError(f"cannot do '{name}': {said}", path=name, error=error, hint="it is denied on purpose")


class WhatIf:
    """One scenario with one write that fails."""

    def __init__(self, scenario: Scenario, life: Life, steps: Steps) -> None:
        self.life, self.steps = life, steps
        self.daemon = life.daemon(scenario.before, steps)
        self.daemon.start()
        self.daemon.rest()
        life.begin(scenario)
        self.started = set(life.machine.starts)
        steps.done.clear()
        life.meddle(scenario)
        self.daemon.files.pods = scenario.after
        self.hits: list[str] = []

    def deny(self, at: int, error: int | None, *, for_good: bool) -> None:
        """Let the write that is number `at` fail: this one time, or whenever it is tried."""
        count, names = 0, set[str]()

        def denies(name: str) -> CgroupError | None:
            nonlocal count
            if count == at:
                names.add(name)
            count += 1
            if count == at + 1 or (for_good and name in names):
                self.hits.append(name)
                return failure(name, error)
            return None

        self.steps.denies = denies

    def live_with(self, at: int, error: int | None, *, for_good: bool) -> None:
        """Live through the scenario while that write fails, and on when it does no more."""
        self.deny(at, error, for_good=for_good)
        self.settle()
        assert self.hits, "the write was not reached"
        self.judge()
        if for_good:
            self.judge_what_is_reported(error)
        self.steps.denies = lambda _name: None
        self.settle()

    def judge_what_is_reported(self, error: int | None) -> None:
        (name,) = {*self.hits}
        if len(self.hits) == 1:
            assert self.daemon.agent.view.problems == (), (
                "a new cgroup has that value already: there is nothing to write"
            )
            return
        reason = failure(name, error).message
        assert any(reason in text for text in self.daemon.agent.view.problems), (
            f"{name} fails for good: {self.daemon.agent.view.problems}"
        )
        if name.startswith("cgroup "):
            assert self.counted()[find_error_label(error)] == len(self.hits)

    def settle(self) -> None:
        settle(self.daemon)
        self.daemon.rest()  # what is told is tried again by the clock

    def judge(self) -> None:
        """While the write fails: whoever was started since is where it was promised to be."""
        machine, state = self.life.machine, self.daemon.agent.state
        for entry in state.entries:
            for status in entry.containers:
                path = entry.container_path(status.name)
                own = own_set_of(state.promises, entry.pod.uid, status.name)
                runs = {p.run_id for p in machine.groups[path].processes} if path in machine.groups else set()
                if own is not None and runs - self.started:
                    assert machine.effective(path) == own

    def counted(self) -> dict[str, float]:
        found = {}
        for line in self.daemon.agent.metrics.exposition.text().decode().splitlines():
            if line.startswith(CGROUP_WRITE_ERRORS + "{"):
                series, _, value = line.rpartition(" ")
                found[series.partition('"')[2].partition('"')[0]] = float(value)
        return found


def faults(writes: int) -> Iterator[tuple[int, int | None, bool]]:
    """Yield each answer at each write, once; and one of each class for good."""
    for at in range(writes):
        yield from ((at, error, False) for error in CLASSES)
        for kind in WriteFailure:
            errors = [error for error, of in CLASSES.items() if of is kind]
            yield at, errors[at % len(errors)], True


@pytest.mark.parametrize("name", CASES)
def test_every_write_may_fail_in_every_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Recorder, name: str
) -> None:
    scenario = SCENARIOS[name]
    base = prepared(scenario, tmp_path / "base", monkeypatch)

    @contextmanager
    def what_if() -> Iterator[WhatIf]:
        life, steps = clone(base, tmp_path / "life"), Steps()
        with watched(monkeypatch, life.machine, steps):
            yield WhatIf(scenario, life, steps)
        shutil.rmtree(life.directory)

    with what_if() as undisturbed:
        undisturbed.settle()
        expected = undisturbed.life.end(undisturbed.daemon)
    plan = [step for step in undisturbed.steps.done if step.startswith(WRITES)]
    injected = Counter[str]()
    for at, error, for_good in share(tuple(faults(len(plan)))):
        with what_if() as one:
            one.live_with(at, error, for_good=for_good)
            assert one.life.end(one.daemon) == expected, f"{find_error_label(error)} at {plan[at]}"
            assert one.daemon.agent.view.problems == ()
        injected[CLASSES[error]] += 1
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(injected.items()))
    report(record_property, f"{name}: {injected.total()} faults at {len(plan)} cgroup writes ({kinds})")
    keep("failed cgroup writes", name, faults=injected.total(), writes=len(plan))


@pytest.mark.parametrize(("error", "kind"), CLASSES.items(), ids=str)
def test_every_answer_of_the_kernel_has_its_class(error: int | None, kind: WriteFailure) -> None:
    assert classify_failure(error) is kind
    assert failure("write", error).failure is kind


def test_what_the_kernel_says_otherwise_needs_a_person() -> None:
    assert {classify_failure(e) for e in (errno.EPERM, errno.EROFS, errno.EIO, 9999)} == {WriteFailure.REFUSED}


def outcome(*errors: int | None) -> ExecutionResult:
    return ExecutionResult((), tuple((MakeCgroup(str(e)), failure(str(e), e)) for e in errors), (), frozenset())


def test_what_is_gone_is_looked_at_again_at_once_and_reported_if_that_does_not_help() -> None:
    first = respond(outcome(errno.ENOENT), FailureResponse(), lambda _: {})
    assert first == FailureResponse(has_vanished=True, pause_seconds=0.0)
    second = respond(outcome(errno.ENODEV), first, lambda _: {})
    assert "No such device" in " ".join(second.problems)
    assert second.pause_seconds == 1.0, "whoever removes cgroups again and again must not keep the agent busy"
    assert respond(outcome(errno.ENOENT), second, lambda _: {}).pause_seconds == 1.0
    assert respond(outcome(), second, lambda _: {}) == FailureResponse()


@pytest.mark.parametrize(
    ("errors", "reported", "pause_seconds"),
    [
        ([errno.EBUSY], 1, 1.0),
        ([None], 1, 1.0),
        ([errno.EINVAL], 1, None),
        ([errno.EINVAL, errno.EBUSY], 2, 1.0),
        ([errno.EINVAL, errno.ENOENT], 1, 0.0),
    ],
)
def test_the_most_pressing_failure_says_when_to_look_again(
    errors: list[int | None], reported: int, pause_seconds: float | None
) -> None:
    found = respond(outcome(*errors), FailureResponse(), lambda _: {})
    assert (len(found.problems), found.pause_seconds) == (reported, pause_seconds)


class _Failing:
    """The module os as the edge sees it, with one call that fails, if only for files of one name."""

    def __init__(self, call: str, error: int, name: str = "") -> None:
        self._call, self._error, self._name = call, error, name

    def __getattr__(self, name: str) -> Any:
        return self._fail if name == self._call else getattr(os, name)

    def _fail(self, of: object, *more: Any) -> Any:
        if str(of).endswith(self._name):
            raise OSError(self._error, os.strerror(self._error))
        return getattr(os, self._call)(of, *more)


NEXT_STEPS = {
    errno.EACCES: "Delegate=yes",
    errno.ENOENT: "see cgroup.controllers",
    errno.ENODEV: "another program has removed this cgroup",
    errno.EBUSY: "see its cgroup.procs",
    errno.EAGAIN: "see cgroup.max.descendants",
    errno.ENOSPC: "compare cpuset.*.effective",
    errno.EINVAL: "do these CPUs and nodes exist?",
    errno.ERANGE: "out of the kernel's bounds",
    errno.EOPNOTSUPP: "see cgroup.type",
}


@pytest.mark.parametrize("error", [error for error in CLASSES if error is not None], ids=find_error_label)
def test_a_failed_write_names_file_value_reason_and_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    (tmp_path / "pod1").mkdir()
    (tmp_path / "pod1" / "cpu.weight").touch()
    monkeypatch.setattr(files, "os", _Failing("write", error))
    with pytest.raises(CgroupError) as raised:
        CgroupTree(str(tmp_path)).apply(SetAttribute("pod1", Attribute.CPU_WEIGHT, 7, 100))
    assert raised.value.message == f"cannot write '7' to {tmp_path}/pod1/cpu.weight: {os.strerror(error)}"
    assert raised.value.failure is CLASSES[error]
    assert NEXT_STEPS[error] in (raised.value.hint or "")


WAYS: dict[str, tuple[str, Callable[[CgroupTree], None]]] = {
    "a value, opened": ("open", lambda tree: tree.apply(SetAttribute("pod1", Attribute.CPU_WEIGHT, 7, 100))),
    "controllers": ("write", lambda tree: tree.apply(EnableControllers("pod1", ("cpuset", "cpu")))),
    "a new cgroup": ("mkdir", lambda tree: tree.apply(MakeCgroup("pod1/app"))),
    "a removal": ("rmdir", lambda tree: tree.apply(RemoveCgroup("pod1"))),
    "a kill": ("write", lambda tree: tree.processes.kill("pod1")),
}
"""What is written how, and the system call that fails."""
HARMLESS = {("a removal", errno.ENOENT), ("a kill", errno.ENOENT), ("a kill", errno.ENODEV)}
"""What was wanted is so already."""


@pytest.mark.parametrize("error", [error for error in CLASSES if error is not None], ids=find_error_label)
@pytest.mark.parametrize("way", WAYS)
def test_every_kind_of_write_passes_the_kernels_answer_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, error: int
) -> None:
    call, do = WAYS[way]
    (tmp_path / "pod1").mkdir()
    for name in ("cpu.weight", "cgroup.subtree_control", "cgroup.kill"):
        (tmp_path / "pod1" / name).touch()
    failing: Any = _Failing(call, error)
    with monkeypatch.context() as patched:
        if call in {"mkdir", "rmdir"}:
            patched.setattr(os, call, getattr(failing, call))  # pathlib's
        else:
            patched.setattr(files, "os", failing)
        if (way, error) in HARMLESS:
            do(CgroupTree(str(tmp_path)))
            return
        with pytest.raises(CgroupError) as raised:
            do(CgroupTree(str(tmp_path)))
    assert (raised.value.errno, raised.value.failure) == (error, CLASSES[error])
    assert f"{tmp_path}/pod1" in raised.value.message


@pytest.mark.parametrize(("call", "name"), [("open", "cgroup.events"), ("pread", "")])
def test_a_cgroup_that_goes_while_it_freezes_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, name: str
) -> None:
    (tmp_path / "cgroup.freeze").touch()
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    monkeypatch.setattr(tree, "os", _Failing(call, errno.ENODEV, name))
    with pytest.raises(CgroupError) as raised:
        CgroupTree(str(tmp_path)).apply(SetAttribute("", Attribute.FREEZE, True, False))
    assert (tmp_path / "cgroup.freeze").read_text() == "1"
    assert raised.value.failure is WriteFailure.GONE


@pytest.mark.parametrize("call", ["open", "read"])
def test_a_cgroup_that_goes_while_it_is_read_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    monkeypatch.setattr(files, "os", _Failing(call, errno.ENODEV))
    assert CgroupTree(str(tmp_path)).read(frozenset()) == {}


def test_a_cgroup_that_goes_before_it_is_verified_is_gone(tmp_path: Path) -> None:
    (tmp_path / "cpuset.cpus").touch()
    with pytest.raises(CgroupError) as raised:
        CgroupTree(str(tmp_path)).apply(SetAttribute("", Attribute.CPUSET_CPUS, CpuSet.parse("1"), None))
    assert raised.value.failure is WriteFailure.GONE
