"""CPU plugins' code: found by entry points, and asked in a thread of its own, for a time.

Loaded only where plugins are configured. What they answer is judged in core/cpu/plugins.py.
"""

import threading
from collections.abc import Callable
from importlib.metadata import entry_points
from queue import Empty, SimpleQueue

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.cpu.points import PluginFailedError, Point
from nodeagent.core.model.config import CpuPlugin
from nodeagent.core.model.refusals import StartRefused
from nodeagent.errors import printable

GROUP = "nodeagent.cpu_plugins"
FIELD = "cpuManagerPlugins"
SECONDS = 1.0
"""For one question; an answer takes microseconds, and a loaded machine may not run the thread at once."""
LOADING_SECONDS = 10.0
_MOST_CHARACTERS = 200


class _Failure(Struct, frozen=True):
    why: str


class BoundedCode:
    """One plugin's code. What comes too late is never heard, and nothing more is asked then: its thread may run for ever."""

    def __init__(self, name: str, code: object, seconds: float = SECONDS) -> None:
        """Take the methods that implement points; `seconds` for each question."""
        found = {point.value: getattr(code, point.method, None) for point in Point}
        self._name = name
        self._methods = {point: method for point, method in found.items() if callable(method)}
        self._seconds = seconds
        self._is_late = False
        self._questions: SimpleQueue[tuple[Callable[..., object], tuple[object, ...], SimpleQueue[object]]] | None = (
            None
        )

    @property
    def points(self) -> frozenset[str]:
        """See `PluginCode`."""
        return frozenset(self._methods)

    def ask(self, point: str, *question: object) -> object:
        """See `PluginCode`."""
        if self._is_late:
            raise self._failed(point, "it was too late before, and is not asked again until nodeagent is restarted")
        if self._questions is None:
            self._questions = SimpleQueue()
            threading.Thread(
                target=_answer_all, args=(self._questions,), name=f"cpu-plugin-{self._name}"[:15], daemon=True
            ).start()
        answers: SimpleQueue[object] = SimpleQueue()
        self._questions.put((self._methods[point], question, answers))
        try:
            answer = answers.get(timeout=self._seconds)
        except Empty:
            self._is_late = True
            why = f"it has not answered within {self._seconds:g} s, and is not asked again until nodeagent is restarted"
            raise self._failed(point, why) from None
        if isinstance(answer, _Failure):
            raise self._failed(point, answer.why)
        return answer

    def _failed(self, point: str, why: str) -> PluginFailedError:
        return PluginFailedError(self._name, Point(point), why)


def _answer_all(
    questions: "SimpleQueue[tuple[Callable[..., object], tuple[object, ...], SimpleQueue[object]]]",
) -> None:
    while True:
        method, question, answers = questions.get()
        answers.put(_answer(method, question))


def _answer(method: Callable[..., object], question: tuple[object, ...]) -> object:
    """Ask twice: whoever rolls dice, counts calls or looks at a clock doesn't answer the same."""
    try:
        first, second = method(*question), method(*question)
        if type(first) is not type(second) or first != second:
            return _Failure("it gives two answers to one question: it must be a pure function")
    except BaseException as err:  # noqa: BLE001 - whatever it raises, only the pod that was asked about is refused
        return _Failure(f"it raises {_shown(err)}")
    return first


def _shown(err: BaseException) -> str:
    try:
        text = f"{type(err).__name__}: {err}"
    except BaseException:  # noqa: BLE001 - its text is the plugin's code, too
        text = type(err).__name__
    return printable(text[:_MOST_CHARACTERS])


_LOADED: dict[tuple[str, tuple[tuple[str, str], ...]], BoundedCode] = {}
"""One of a kind for the life of the process: a reload doesn't revive what was too late, and equal configurations are equal."""


def loaded(plugins: tuple[CpuPlugin, ...]) -> tuple[tuple[CpuPlugin, ...], tuple[StartRefused, ...]]:
    """Return the plugins with their code, and what is wrong with those that have none."""
    found, wrong = [], []
    for index, plugin in enumerate(plugins):
        code = _load(plugin)
        if isinstance(code, _Failure):
            wrong.append(StartRefused(f"CPU plugin {plugin.name} {code.why}", FIELD, entry=index))
        found.append(plugin if isinstance(code, _Failure) else replace(plugin, code=code))
    return tuple(found), tuple(wrong)


def _load(plugin: CpuPlugin) -> BoundedCode | _Failure:
    key = plugin.name, plugin.options
    if key not in _LOADED:
        installed = entry_points(group=GROUP)
        alike = {entry.value: entry for entry in installed if entry.name == plugin.name}
        if not alike:
            names = ", ".join(sorted({entry.name for entry in installed})) or "none"
            return _Failure(f"is not installed (entry points {GROUP} here: {names})")
        if len(alike) > 1:
            return _Failure(f"is installed more than once: {', '.join(sorted(alike))}")
        (entry,) = alike.values()

        answers: SimpleQueue[object] = SimpleQueue()
        make = threading.Thread(
            target=lambda: answers.put(_made(entry.load, plugin)), name="cpu-plugin-load", daemon=True
        )
        make.start()
        try:
            made = answers.get(timeout=LOADING_SECONDS)
        except Empty:
            return _Failure(f"is not loaded within {LOADING_SECONDS:g} s")
        if isinstance(made, _Failure):
            return made
        code = BoundedCode(plugin.name, made)
        if not code.points:
            return _Failure(f"implements none of the points: it has no method {', '.join(p.method for p in Point)}")
        _LOADED[key] = code
    return _LOADED[key]


def _made(load: Callable[[], Callable[[dict[str, str]], object]], plugin: CpuPlugin) -> object:
    try:
        make = load()
    except BaseException as err:  # noqa: BLE001 - a plugin that can't be imported is refused with its name, whatever is wrong
        return _Failure(f"can't be loaded: {_shown(err)}")
    try:
        return make(dict(plugin.options))
    except ValueError as err:
        return _Failure(f"refuses its options: {printable(str(err)[:_MOST_CHARACTERS])}")
    except BaseException as err:  # noqa: BLE001 - as above
        return _Failure(f"can't be made: {_shown(err)}")
