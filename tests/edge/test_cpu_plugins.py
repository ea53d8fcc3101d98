"""CPU plugins' code: found by entry points, asked in a thread, twice, and not for ever."""

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import ClassVar

import pytest

from nodeagent.core.model.config import CpuPlugin
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.resources.cpu.points import PluginFailedError
from nodeagent.edge.plugins import cpu_plugins
from nodeagent.edge.plugins.cpu_plugins import BoundedCode, load_plugins

WITHIN = 60.0
"""Seconds: of what is to come, however loaded the machine is."""


class Plugin:
    def __init__(self) -> None:
        self.numbers = count()
        self.stop = threading.Event()
        self.has_begun = threading.Event()
        self.threads: set[int] = set()

    def sort(self, pod: str) -> object:
        self.threads.add(threading.get_ident())
        match pod:
            case "counts":
                return next(self.numbers)
            case "raises":
                raise RuntimeError("no\nidea")
            case "exits":
                sys.exit(1)
            case "stays":
                self.has_begun.set()
                self.stop.wait()
            case "two kinds":
                return 1 if next(self.numbers) % 2 else True
        return len(pod)


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    made = Plugin()
    yield made
    made.stop.set()


def test_it_is_asked_twice_in_one_thread_of_its_own(plugin: Plugin) -> None:
    code = BoundedCode("p", plugin, WITHIN)
    assert code.points == {"Sort"}
    assert [code.ask("Sort", text) for text in ("a", "bb", "a")] == [1, 2, 1]
    assert len(plugin.threads) == 1
    assert threading.get_ident() not in plugin.threads


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ("counts", "it gives two answers to one question: it must be a pure function"),
        ("two kinds", "it gives two answers to one question: it must be a pure function"),
        ("raises", r"it raises RuntimeError: no\\nidea"),
        ("exits", "it raises SystemExit: 1"),
    ],
)
def test_what_fails_is_said_and_the_next_question_is_asked(plugin: Plugin, question: str, why: str) -> None:
    code = BoundedCode("p", plugin, WITHIN)
    with pytest.raises(PluginFailedError) as said:
        code.ask("Sort", question)
    assert str(said.value).replace("\\\\", "\\") == f"CPU plugin p, Sort: {why}".replace("\\\\", "\\")
    assert code.ask("Sort", "abc") == 3


def test_who_is_too_late_is_not_asked_again(plugin: Plugin) -> None:
    code = BoundedCode("slow", plugin, 0.01)
    assert code.held_off == ""
    with pytest.raises(
        PluginFailedError, match=r"slow, Sort: it has not answered within 0\.01 s, and is not asked again"
    ):
        code.ask("Sort", "stays")
    assert plugin.has_begun.wait(WITHIN)
    plugin.stop.set()
    with pytest.raises(PluginFailedError, match="an earlier answer was too late"):
        code.ask("Sort", "a")
    assert code.held_off == "it has not answered within 0.01 s (Sort)"


class Slow:
    """Each question, asked twice, takes it so long by a clock of its own."""

    def __init__(self, seconds: float) -> None:
        self.now, self._seconds = 0.0, seconds / 2

    def clock(self) -> float:
        return self.now

    def sort(self, _pod: object) -> int:
        self.now += self._seconds
        return 0


def test_the_time_of_a_turn_is_bounded_too() -> None:
    slow, beats = Slow(0.95), []
    code = BoundedCode("slow", slow, WITHIN, 1.5, slow.clock)
    for _ in range(9):
        assert code.ask("Sort", "a") == 0, "without turns, each question counts for itself"
    for _ in range(3):
        code.begin_turn(lambda: beats.append(slow.now))
        assert code.ask("Sort", "a") == 0
    assert len(beats) == 3, "each answer is a sign of life"
    with pytest.raises(
        PluginFailedError, match=r"its answers have taken more than 1\.5 s in one sync, and is not asked again"
    ):
        code.ask("Sort", "b")
    assert code.held_off == "its answers have taken more than 1.5 s in one sync (Sort)"
    code.begin_turn(lambda: None)
    with pytest.raises(PluginFailedError, match="an earlier answer was too late"):
        code.ask("Sort", "b")


def test_many_quick_answers_are_not_slow() -> None:
    quick = Slow(0.04)
    code = BoundedCode("quick", quick, WITHIN, 1.0, quick.clock)
    code.begin_turn(lambda: None)
    assert {code.ask("Sort", "a") for _ in range(100)} == {0}


# Whatever is code of the plugin runs in its thread


class Forged:
    """It says of itself that it is of another class, in the thread of whoever asks."""

    looked: ClassVar[set[int]] = set()

    @property
    def __class__(self) -> type:
        Forged.looked.add(threading.get_ident())
        return int


class OwnText(str):
    __slots__ = ()

    def __format__(self, _how: str) -> str:
        raise AssertionError

    def __str__(self) -> str:
        return self


FORGED = vars(cpu_plugins)["_Failure"]("I have not failed\x1b")
SHARED: dict[int, int] = {}
Hostile = type("A" * 1000 + "\x1b\n", (), {})


def grown() -> dict[int, int]:
    SHARED[len(SHARED)] = 0
    return SHARED


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raising(err: BaseException) -> object:
    raise err


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Forged, "it answers with Forged"),
        (lambda: FORGED, "it answers with _Failure"),
        (lambda: (True, "failed"), "it answers with tuple"),
        (Hostile, f"it answers with {'A' * 200}"),
        (grown, "it gives two answers to one question: it must be a pure function"),
        (lambda: True, "it answers with bool"),
        (lambda: OwnText("a"), "it answers with OwnText"),
        (lambda: {0: Forged()}, "its answer is not a map of CPUs to whole numbers"),
        (lambda: {True: 1}, "its answer is not a map of CPUs to whole numbers"),
        (lambda: dict.fromkeys(range(9000), 1), "it answers about 9000 CPUs, but no machine has so many"),
        (lambda: CpuSet(Forged()), "its answer is not a set of CPUs"),
        (lambda: raising(SpeechlessError()), "it raises SpeechlessError"),
        (lambda: raising(Hostile_error()), f"it raises {'E' * 200}"),
        (lambda: raising(RuntimeError(OwnText("b\x1b"))), "it raises RuntimeError: b\\x1b"),
    ],
)
def test_what_it_answers_is_looked_at_in_its_thread(answer: Callable[[], object], why: str) -> None:
    code = BoundedCode("p", SimpleNamespace(sort=lambda _pod: answer()), WITHIN)
    with pytest.raises(PluginFailedError) as said:
        code.ask("Sort", "pod")
    assert str(said.value) == f"CPU plugin p, Sort: {why}"
    assert threading.get_ident() not in Forged.looked


def Hostile_error() -> BaseException:  # noqa: N802 - named as what it makes
    made = type("E" * 1000, (Exception,), {})()
    assert isinstance(made, Exception)
    return made


def test_an_answer_is_not_the_plugins_any_more() -> None:
    kept = {1: 2}
    code = BoundedCode("p", SimpleNamespace(pre_score=lambda _q: kept, filter=lambda q: q), WITHIN)
    answer = code.ask("PreScore", "question")
    kept[3] = 4
    assert answer == {1: 2}
    assert code.ask("Filter", CpuSet.of(1, 2)) == CpuSet.of(1, 2)


# Entry points


def install(place: Path, name: str, code: str, entry: str | None = None) -> None:
    """Put a distribution with one module and one entry point there."""
    module = name.replace("-", "_")
    (place / f"{module}.py").write_text(dedent(code))
    about = place / f"{module}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[nodeagent.cpu_plugins]\n{entry or name} = {module}:make\n")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


GOOD = """
class Plugin:
    def __init__(self, options): self.options = options
    def sort(self, pod): return int(self.options.get("turn", 0))
def make(options):
    if "wrong" in options: raise ValueError("wrong is none of its options")
    return Plugin(options)
"""


def test_an_installed_plugin_is_loaded_once_for_its_options(place: Path) -> None:
    install(place, "edge-good", GOOD)
    first = CpuPlugin("edge-good", (("turn", "7"),))
    (found,), wrong = load_plugins((first,))
    assert wrong == ()
    assert found.code is not None
    assert found.code.ask("Sort", "pod") == 7
    assert load_plugins((first,))[0] == (found,), "a reload of the same configuration changes nothing"
    (other,), _ = load_plugins((CpuPlugin("edge-good"),))
    assert other.code is not found.code


@pytest.mark.parametrize(
    ("name", "code", "options", "why"),
    [
        ("edge-options", GOOD, (("wrong", "1"),), "refuses its options: wrong is none of its options"),
        ("edge-import", "import no_such_module_at_all\n", (), "can't be loaded: ModuleNotFoundError"),
        ("edge-make", "def make(options): return 1 // 0\n", (), "can't be created: ZeroDivisionError"),
        (
            "edge-empty",
            "def make(options): return object()\n",
            (),
            "implements no extension point: it has no method sort, filter",
        ),
        (
            "edge-speechless",
            "class E(ValueError):\n    def __str__(self): raise RuntimeError\ndef make(options): raise E\n",
            (),
            "refuses its options: E (distribution edge-speechless)",
        ),
        (
            "edge-methods",
            "class P:\n    @property\n    def sort(self): raise RuntimeError('no')\ndef make(options): return P()\n",
            (),
            "can't be examined for its methods: RuntimeError: no (distribution edge-methods)",
        ),
        ("edge-nothing", "x = 1\n", (), "can't be loaded: AttributeError"),
    ],
)
def test_what_is_wrong_with_one_is_said_about_its_entry(
    place: Path, name: str, code: str, options: tuple[tuple[str, str], ...], why: str
) -> None:
    install(place, name, code)
    (_, unloaded), (refused,) = load_plugins((CpuPlugin("spread-caches"), CpuPlugin(name, options)))
    assert unloaded.code is None
    assert (refused.about, refused.entry) == ("cpuManagerPlugins", 1)
    assert refused.message.startswith(f"CPU plugin {name} {why}")


def test_what_is_not_installed_or_twice(place: Path) -> None:
    _, (refused,) = load_plugins((CpuPlugin("edge-absent"),))
    assert "CPU plugin edge-absent is not installed (entry points nodeagent.cpu_plugins here: " in refused.message
    assert "prefer-class, spread-caches)" in refused.message
    install(place, "edge-one", GOOD, entry="edge-same")
    install(place, "edge-two", GOOD, entry="edge-same")
    _, (refused,) = load_plugins((CpuPlugin("edge-same"),))
    assert "is installed more than once: edge_one:make, edge_two:make" in refused.message


def test_a_distribution_that_cannot_be_read_hides_no_other(place: Path) -> None:
    install(place, "edge-readable", GOOD)
    (place / "broken-1.dist-info").mkdir()
    _, wrong = load_plugins((CpuPlugin("edge-readable"),))
    assert wrong == ()
    _, (refused,) = load_plugins((CpuPlugin("edge-nowhere"),))
    assert f"; distributions that can't be read: 1, the first in {place}: " in refused.message


def test_methods_are_read_by_the_loading_thread(place: Path) -> None:
    code = """
        import threading
        class Plugin:
            threads = set()
            def __getattr__(self, name):
                self.threads.add(threading.get_ident())
                raise AttributeError(name)
            def sort(self, pod): return len(self.threads)
        def make(options): return Plugin()
        """
    install(place, "edge-looked-at", code)
    (found,), _ = load_plugins((CpuPlugin("edge-looked-at"),))
    assert found.code is not None
    assert found.code.ask("Sort", "pod") == 1
    module = importlib.import_module("edge_looked_at")
    assert threading.get_ident() not in module.Plugin.threads


def test_what_does_not_load_in_time_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_plugins, "LOADING_SECONDS", 0.01)
    install(place, "edge-slow", "import threading\nDONE = threading.Event()\ndef make(options): DONE.wait()\n")
    _, (refused,) = load_plugins((CpuPlugin("edge-slow"),))
    assert "was not loaded within 0.01 s" in refused.message
