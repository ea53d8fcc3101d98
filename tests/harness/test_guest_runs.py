"""How a run of tests in guests goes on after a failure, and what it says meanwhile; without a guest."""

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from integration import guests
from integration.guest.errors import EmulatorFailedError, GuestTimeoutError
from integration.guest.guest import Guest
from integration.guest.pace import Pace
from integration.guest.qemu import KVM, TCG, Accelerator
from integration.guests import GivenUpError, Guests

ROOT = Path(__file__).parents[2]


class Booted:
    """A guest that answers everything with nothing."""

    made: list["Booted"]
    is_closed = False

    @classmethod
    def boot(cls, *_: object, **__: object) -> Self:
        guest = cls()
        cls.made.append(guest)
        return guest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True

    def run(self, *_: object, **__: object) -> None:
        pass

    def get(self, _: str) -> bytes:
        return b""

    def when_in_vain(self, look: Callable[[], None]) -> None:
        self.look = look


@pytest.fixture
def of_one_process(monkeypatch: pytest.MonkeyPatch) -> Guests:
    Booted.made = []
    monkeypatch.setattr(guests, "Guest", Booted)
    monkeypatch.setattr(guests, "guest_image", lambda _: None)
    monkeypatch.setattr(guests, "examined", lambda _: "as it was")
    return Guests()


def test_tests_of_a_kind_share_a_guest(of_one_process: Guests) -> None:
    first = of_one_process.of("two_sockets", configured=False)
    assert of_one_process.of("two_sockets", configured=False) is first
    assert of_one_process.of("four_nodes", configured=False) is not first
    assert [guest.is_closed for guest in Booted.made] == [True, False]


def test_a_failure_is_looked_at_once_and_the_next_test_gets_a_new_guest(of_one_process: Guests) -> None:
    first = of_one_process.of("two_sockets", configured=False)
    assert of_one_process.failed(AssertionError()) == [("the guest after the failure", "as it was")]
    assert of_one_process.failed(AssertionError()) == [], "its teardown failed, too"
    assert of_one_process.of("two_sockets", configured=False) is not first
    assert [guest.is_closed for guest in Booted.made] == [True, False]


def test_what_is_shown_of_a_guest_is_how_it_was_when_a_wait_was_in_vain(
    of_one_process: Guests, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_one_process.of("two_sockets", configured=False)
    Booted.made[-1].look()
    monkeypatch.setattr(guests, "examined", lambda _: "cleared up")
    assert of_one_process.failed(GuestTimeoutError("in vain")) == [("the guest after the failure", "as it was")]
    of_one_process.of("two_sockets", configured=False)
    assert of_one_process.failed(AssertionError()) == [("the guest after the failure", "cleared up")]


@pytest.mark.parametrize(("error", "tried"), [(GuestTimeoutError, 4), (AssertionError, 10)])
def test_failures_do_not_go_on_for_hours(error: type[Exception], tried: int, of_one_process: Guests) -> None:
    for _ in range(tried):
        of_one_process.of("two_sockets", configured=False)
        of_one_process.failed(error("in the test"))
        of_one_process.failed(error("in its teardown"))
    with pytest.raises(GivenUpError, match=f"not tried, after {tried} failures, "):
        of_one_process.of("four_nodes", configured=False)
    assert len(Booted.made) == tried


@pytest.mark.parametrize("step", ["boot", "run"])
def test_what_does_not_come_up_is_tried_twice_and_the_other_kinds_go_on(
    step: str, of_one_process: Guests, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise GuestTimeoutError("it does not come up")

    with monkeypatch.context() as broken:
        broken.setattr(Booted, step, fails)
        examined = [("the guest after the failure", "as it was")] if step == "run" else []
        for _ in range(2):
            with pytest.raises(GuestTimeoutError) as failed:
                of_one_process.of("four_nodes", configured=False)
            assert of_one_process.failed(failed.value) == examined
        for _ in range(12):
            with pytest.raises(GivenUpError, match="it does not come up") as later:
                of_one_process.of("four_nodes", configured=False)
            assert of_one_process.failed(later.value) == []
    assert len(Booted.made) == (2 if step == "run" else 0)
    of_one_process.of("two_sockets", configured=False)


STUBS = {
    "guest/__init__.py": "",
    "guest/images.py": "def guest_image(_): return None\n",
    "guest/machine.py": """
FOUR_CACHES, FOUR_NODES, TWO_CARDS, TWO_SOCKETS = 'caches', 'nodes', 'cards', 'sockets'
Machine = str
""",
    "guest/guest.py": """
class Guest:
    made = 0
    @classmethod
    def boot(cls, image, machine, *, cmdline):
        guest = cls()
        cls.made += 1
        guest.name = f"{machine} {cls.made}"
        return guest
    def __enter__(self): return self
    def __exit__(self, *_): print("off", self.name)
    def run(self, *_, **__): pass
    def get(self, _): return b""
    def when_in_vain(self, _): pass
    def console_text(self): return f"{self.name} complains"
""",
    "node.py": "CONFIG = ''\nclass Node:\n    def __init__(self, _): pass\n    def clear(self): pass\n",
    "examination.py": """
def examined(guest): return f'{guest.name} as it was'
def complaints(console): return console
""",
    "test_pinning.py": """
import pytest
from pathlib import Path
from integration.guest.errors import EmulatorFailedError

def is_first(name):
    before = Path(f"tried {name}").exists()
    Path(f"tried {name}").touch()
    return not before

@pytest.mark.reinstalls
def test_reinstalls(two_sockets): print("reinstalls", two_sockets.name)

def test_fails(two_sockets):
    print("fails", two_sockets.name)
    assert False, "as always"

@pytest.fixture
def careless(two_sockets):
    yield two_sockets
    assert not is_first("careless"), "left badly"

def test_leaves_badly(careless): print("leaves badly", careless.name)

def test_meets_a_processor_that_stops(two_sockets):
    print("meets", two_sockets.name)
    if is_first("processor"):
        raise EmulatorFailedError("nothing runs any more")

def test_passes(two_sockets): print("passes", two_sockets.name)
""",
    "test_policies.py": """
import pytest
from pathlib import Path

@pytest.mark.parametrize("number", range(2))
def test_is_late(four_nodes, number):
    print("is late", four_nodes.name)
    file = Path(f"tried {number}")
    if not file.exists():
        file.touch()
        assert False, f"{number} is late"
""",
    "../tests/test_host.py": """
def test_of_the_host():
    print("of the host")
    assert False
""",
}
"""What a run of the guests' tests needs of integration/ beside its own modules, without guests."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for directory in ("integration/guest", "tests"):
        (tmp_path / directory).mkdir(parents=True)
    ours = (
        "__init__",
        "conftest",
        "guests",
        "lanes",
        "processor_time",
        "progress",
        "repeats",
        "guest/errors",
        "guest/releases",
    )
    for file in ("conftest.py", "pyproject.toml", *(f"integration/{name}.py" for name in ours)):
        shutil.copy(ROOT / file, tmp_path / file)
    for name, text in STUBS.items():
        (tmp_path / "integration" / name).write_text(text)
    return tmp_path


def run_of(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--all", *arguments],
        cwd=project,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        check=False,
        capture_output=True,
        text=True,
    )


def test_each_failure_takes_a_guest_with_it_and_what_reinstalls_comes_last(project: Path) -> None:
    run = run_of(project, "-s", "integration/test_pinning.py", "tests")
    printed, _, _ = run.stdout.partition("= processor time")
    done = re.findall(
        r"(fails|leaves badly|meets|passes|reinstalls|off|of the host)( sockets \d)?$", printed, re.MULTILINE
    )
    assert [f"{what}{where}" for what, where in done] == [
        "of the host",
        "fails sockets 1",
        "off sockets 1",
        "fails sockets 2",
        "off sockets 2",
        "leaves badly sockets 3",
        "off sockets 3",
        "leaves badly sockets 4",
        "meets sockets 4",
        "off sockets 4",
        "meets sockets 5",
        "passes sockets 5",
        "reinstalls sockets 5",
        "off sockets 5",
    ], run.stdout + run.stderr
    for name in ("sockets 1 as it was", "sockets 2 as it was", "sockets 4 complains"):
        assert run.stdout.index(name) < run.stdout.index("= FAILURES ="), "at once"
    assert "2 failed, 5 passed, 3 rerun" in run.stdout


FLAKY = {
    "integration/test_pinning.py::test_leaves_badly[two_sockets]": "left badly",
    "integration/test_pinning.py::test_meets_a_processor_that_stops[two_sockets]": "nothing runs any more",
    "integration/test_policies.py::test_is_late[four_nodes-0]": "0 is late",
    "integration/test_policies.py::test_is_late[four_nodes-1]": "1 is late",
}


IN_TWO_LANES = ("--numprocesses=2", "--dist=loadscope")


@pytest.mark.whole
@pytest.mark.parametrize(
    ("chosen", "flaky", "status", "at_once"),
    [
        ("passes", [], 0, IN_TWO_LANES),
        ("late", [2, 3], 0, IN_TWO_LANES),
        ("late or badly", [0, 2, 3], 1, IN_TWO_LANES),
        ("late or badly", [0, 2, 3], 1, ()),
        ("badly or stops", [0, 1], 0, ()),
        ("late or stops", [1, 2, 3], 0, ()),
        ("fails or badly", [0], 1, IN_TWO_LANES),
    ],
)
def test_what_passes_when_repeated_is_named_last_and_two_not_spoiled_by_the_emulator_are_the_most(
    project: Path, chosen: str, flaky: list[int], status: int, at_once: tuple[str, ...]
) -> None:
    run = run_of(project, *at_once, "-k", chosen, "integration")
    assert run.returncode == status, run.stdout + run.stderr
    reported = run.stdout.splitlines()
    summary = next(at for at, line in enumerate(reported) if re.search(r"\d (?:passed|failed).* in [\d.]+s", line))
    after = "\n".join(reported[summary + 1 :])
    assert re.findall(r"^FLAKY (.*)", after, re.MULTILINE) == [list(FLAKY)[at] for at in flaky]
    assert all(list(FLAKY.values())[at] in after for at in flaky)
    assert ("too many" in after) == bool(status and len(flaky) > 2)


class Hanging(Guest):
    """What is asked of it never comes to its end; each look at the clock is 100 s after the one before."""

    def __init__(self, *, console: str, accelerator: Accelerator = TCG) -> None:
        self.accelerator = accelerator
        self._console = console
        self._measured = Pace(lambda: 0.1, itertools.count(0, 100).__next__)
        self._when_in_vain = None
        self._was_in_vain = False

    def start(self, *_: object, **__: object) -> Any:
        class Endless:
            stdout = stderr = b""

            def __getattr__(self, _: str) -> Any:
                return lambda *_: None

        return Endless()

    def console_text(self) -> str:
        return self._console

    def _own_messages(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("hanging", "expected"),
    [
        (Hanging(console="[ 1.0] rcu: INFO: rcu_preempt self-detected stall on CPU"), EmulatorFailedError),
        (Hanging(console="[ 1.0] rcu: INFO: rcu_sched detected stalls on CPUs/tasks:"), EmulatorFailedError),
        (Hanging(console="[ 1.0] rcu: Hierarchical SRCU implementation."), GuestTimeoutError),
        (
            Hanging(console="[ 1.0] rcu: INFO: rcu_sched detected stalls on CPUs/tasks:", accelerator=KVM),
            GuestTimeoutError,
        ),
    ],
)
def test_a_processor_that_stops_is_told_from_a_wait_in_vain(hanging: Hanging, expected: type[Exception]) -> None:
    looks: list[str] = []
    hanging.when_in_vain(lambda: looks.append("a look at it"))
    for _ in range(2):
        with pytest.raises(expected):
            hanging.run("systemctl start nodeagent")
    assert looks == ["a look at it"]
