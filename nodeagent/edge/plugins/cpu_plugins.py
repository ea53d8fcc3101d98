"""CPU plugins' code: found by entry points, and asked in a thread of its own, for a time.

Loaded only where plugins are configured. What they answer is judged in core/resources/cpu/plugins.py.
"""

import re
import threading
import time
from collections.abc import Callable
from importlib.metadata import EntryPoint, distributions
from queue import Empty, SimpleQueue

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.config import CpuPlugin
from nodeagent.core.model.idset import MOST_CPUS, CpuSet
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.resources.cpu.points import PluginFailedError, Point
from nodeagent.errors import printable

GROUP = "nodeagent.cpu_plugins"
FIELD = "cpuManagerPlugins"
SECONDS = 1.0
"""For one question; an answer takes microseconds, and a loaded machine may not run the thread at once."""
TURN_SECONDS = 1.0
"""For all questions of a turn together: a thousand slow answers would hold up everybody."""
UNCOUNTED_SECONDS = 0.05
"""Of each question's time, for that of a turn: what a loaded machine makes of microseconds."""
LOADING_SECONDS = 10.0
_MOST_CHARACTERS = 200
_UNTIL = "is not asked again until nodeagent is restarted"


class _Failure(Struct, frozen=True):
    why: str


_Heard = tuple[bool, object]
"""Whether it has failed, and why or else its answer: of types that run nobody's code when they are looked at."""
_Asked = tuple[Callable[..., object], tuple[object, ...], "SimpleQueue[_Heard]"]


class BoundedCode:
    """One plugin's code. What comes too late is never heard, and nothing more is asked then: its thread may run for ever."""

    def __init__(
        self,
        name: str,
        code: object,
        seconds: float = SECONDS,
        turn_seconds: float = TURN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the methods that implement points, which may run code of the plugin.

        Args:
            name: for the texts.
            code: what the plugin has made.
            seconds: for each question.
            turn_seconds: for a turn, once there are turns (`begin_turn`): commands have none.
            clock: in seconds.
        """
        found = {point.value: getattr(code, point.method, None) for point in Point}
        self._name = name
        self._methods = {point: method for point, method in found.items() if callable(method)}
        self._seconds, self._turn_seconds = seconds, turn_seconds
        self._clock = clock
        self._left: float | None = None
        """Of the turn's time. None: there are no turns."""
        self._alive: Callable[[], None] = lambda: None
        self._held_off = ""
        self._questions: SimpleQueue[_Asked] | None = None

    @property
    def points(self) -> frozenset[str]:
        """See `PluginCode`."""
        return frozenset(self._methods)

    @property
    def held_off(self) -> str:
        """See `PluginCode`."""
        return self._held_off

    def begin_turn(self, alive: Callable[[], None]) -> None:
        """See `PluginCode`."""
        self._left, self._alive = self._turn_seconds, alive

    def ask(self, point: str, *question: object) -> object:
        """See `PluginCode`."""
        if self._held_off:
            raise self._failed(point, f"it was too late before, and {_UNTIL}")
        if self._questions is None:
            self._questions = SimpleQueue()
            threading.Thread(
                target=_answer_all, args=(self._questions,), name=f"cpu-plugin-{self._name}"[:15], daemon=True
            ).start()
        answers: SimpleQueue[_Heard] = SimpleQueue()
        began = self._clock()
        self._questions.put((self._methods[point], question, answers))
        try:
            has_failed, answer = answers.get(timeout=self._seconds)
        except Empty:
            raise self._hold_off(point, f"it has not answered within {self._seconds:g} s") from None
        if self._left is not None:
            self._left -= max(0.0, self._clock() - began - UNCOUNTED_SECONDS)
            if self._left < 0:
                raise self._hold_off(point, f"it has taken more than {self._turn_seconds:g} s of one turn")
        self._alive()
        if has_failed:
            raise self._failed(point, str(answer))
        return answer

    def _hold_off(self, point: str, why: str) -> PluginFailedError:
        self._held_off = f"{why} ({point})"
        return self._failed(point, f"{why}, and {_UNTIL}")

    def _failed(self, point: str, why: str) -> PluginFailedError:
        return PluginFailedError(self._name, Point(point), why)


# In the plugin's thread: whatever runs code of a plugin, be it only by a look at what it has answered or raised.


def _answer_all(questions: "SimpleQueue[_Asked]") -> None:
    while True:
        method, question, answers = questions.get()
        answers.put(_answer(method, question))


def _answer(method: Callable[..., object], question: tuple[object, ...]) -> _Heard:
    """Ask twice: whoever rolls dice, counts calls or looks at a clock doesn't answer the same.

    Each answer is copied before anything else happens: an object that the plugin keeps may change later.
    """
    try:
        first = _copied(method(*question))
        second = _copied(method(*question))
    except BaseException as err:  # noqa: BLE001 - whatever it raises, only the pod that was asked about is refused
        return True, f"it raises {_shown(err)}"
    if type(first) is not type(second) or first != second:
        return True, "it gives two answers to one question: it must be a pure function"
    return (True, first.why) if type(first) is _Failure else (False, first)


def _copied(answer: object) -> object:
    """Return a value that is nobody else's, of one of the types of answers exactly: a subclass may run code when it is looked at."""
    if answer is None or type(answer) is int or type(answer) is str:
        return answer
    if type(answer) is CpuSet:
        return CpuSet(answer.bits) if type(answer.bits) is int else _Failure("what it answers is no set of CPUs")
    if type(answer) is dict:
        copy = answer.copy()
        if len(copy) > MOST_CPUS:
            return _Failure(f"it answers about {len(copy)} CPUs, and no machine has as many")
        if all(type(cpu) is int and type(score) is int for cpu, score in copy.items()):
            return copy
        return _Failure("what it answers are no numbers of CPUs")
    return _Failure(f"it answers with {_cut(type(answer).__name__)}")


def _shown(err: BaseException) -> str:
    kind = _cut(type.__dict__["__name__"].__get__(type(err)))
    text = _words_of(err)
    return kind if text is None else _cut(f"{kind}: {text}")


def _words_of(err: BaseException) -> str | None:
    try:
        return _cut(str(err))
    except BaseException:  # noqa: BLE001 - its text is the plugin's code, too
        return None


def _cut(text: str) -> str:
    """Return what can be shown of a text; if it is of a class of the plugin's own, as one that is of none."""
    return printable(str.__getitem__(text, slice(_MOST_CHARACTERS)))


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
        answers: SimpleQueue[BoundedCode | _Failure] = SimpleQueue()
        make = threading.Thread(target=lambda: answers.put(_made(plugin)), name="cpu-plugin-load", daemon=True)
        make.start()
        try:
            made = answers.get(timeout=LOADING_SECONDS)
        except Empty:
            return _Failure(f"is not loaded within {LOADING_SECONDS:g} s")
        if isinstance(made, _Failure):
            return made
        _LOADED[key] = made
    return _LOADED[key]


# In the loading thread, for the same reason.


def _made(plugin: CpuPlugin) -> BoundedCode | _Failure:
    """Find, import and make a plugin. Whatever is wrong with it, it is refused with its name."""
    step, of = "can't be looked for", ""
    try:
        entry = _entry_of(plugin.name)
        if isinstance(entry, _Failure):
            return entry
        of = f" (distribution {_cut(entry.dist.name)})" if entry.dist is not None else ""
        step = "can't be loaded"
        make = entry.load()
        step = "can't be made"
        made = make(dict(plugin.options))
        step = "can't be asked what it implements"
        code = BoundedCode(plugin.name, made)
    except BaseException as err:  # noqa: BLE001 - others' code
        if step == "can't be made" and isinstance(err, ValueError):
            return _Failure(f"refuses its options: {_words_of(err) or _shown(err)}{of}")
        return _Failure(f"{step}: {_shown(err)}{of}")
    if not code.points:
        names = ", ".join(p.method for p in Point)
        return _Failure(f"implements none of the points: it has no method {names}{of}")
    return code


def _entry_of(name: str) -> EntryPoint | _Failure:
    """Return the one entry point of this name. A distribution that can't be read hides no other, and of one name the first counts."""
    there: dict[str, tuple[EntryPoint, ...]] = {}
    broken = []
    for each in distributions():
        try:
            there.setdefault(_canonical(each.metadata["Name"]), tuple(each.entry_points.select(group=GROUP)))
        except Exception as err:  # noqa: BLE001 - its files may hold anything, or be gone
            broken.append(f"{_cut(str(each.locate_file('')))}: {_shown(err)}")
    installed = [entry for entries in there.values() for entry in entries]
    alike = {entry.value: entry for entry in installed if entry.name == name}
    if not alike:
        names = ", ".join(_cut(one) for one in sorted({entry.name for entry in installed})) or "none"
        unread = f"; distributions that can't be read: {len(broken)}, the first in {broken[0]}" if broken else ""
        return _Failure(f"is not installed (entry points {GROUP} here: {names}{unread})")
    if len(alike) > 1:
        return _Failure(f"is installed more than once: {', '.join(map(_cut, sorted(alike)))}")
    (entry,) = alike.values()
    return entry


def _canonical(name: str) -> str:
    """Return a distribution's name as the packaging standards compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
