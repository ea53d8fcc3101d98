"""Code of CPU plugins. It is found through entry points, and called in a thread with a timeout. core/resources/cpu/plugins.py checks the
answers.

This module is imported only if plugins are configured.
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
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.kernel_limits import MOST_CPUS
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.resources.cpu.points import PluginFailedError, Point
from nodeagent.errors import printable

GROUP = "nodeagent.cpu_plugins"
FIELD = "cpuManagerPlugins"
SECONDS = 1.0
"""Timeout in seconds of one question. A plugin normally answers within microseconds, but on a loaded machine its thread may start late."""
TURN_SECONDS = 1.0
"""Maximum time, in seconds, that one plugin may take for all its answers in a turn."""
UNCOUNTED_SECONDS = 0.05
"""Seconds of each question that don't count towards TURN_SECONDS. They allow for the late start of the
plugin's thread on a loaded machine.
"""
LOADING_SECONDS = 10.0
_MOST_CHARACTERS = 200
_UNTIL = "is not asked again until nodeagent is restarted"


class _Failure(Struct, frozen=True):
    reason: str


_Result = _Failure | object
"""Result of a question: a failure, or a copy of the answer, which contains no code of the plugin."""
_Question = tuple[Callable[..., object], tuple[object, ...], "SimpleQueue[_Result]"]


class BoundedCode:
    """Code of one plugin, called in a thread of its own.

    If an answer is late, the plugin isn't asked any more, because its thread may never return from the call.
    """

    def __init__(
        self,
        name: str,
        code: object,
        seconds: float = SECONDS,
        turn_seconds: float = TURN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Find the methods of the plugin that implement extension points. Looking them up may already run code of the plugin.

        Args:
            name: the plugin's name, for messages.
            code: the object that the plugin's entry point has created.
            seconds: timeout of each question.
            turn_seconds: time limit of all questions in a turn. Without a call of `begin_turn`, there is no such limit.
            clock: monotonic clock, in seconds.
        """
        found = {point.value: getattr(code, point.method, None) for point in Point}
        self._name = name
        self._methods = {point: method for point, method in found.items() if callable(method)}
        self._seconds, self._turn_seconds = seconds, turn_seconds
        self._clock = clock
        self._left: float | None = None
        """Seconds that are left of the turn's time limit. None means that there is no turn, and so no limit, as in commands."""
        self._alive: Callable[[], None] = lambda: None
        self._held_off = ""
        self._questions: SimpleQueue[_Question] | None = None

    @property
    def points(self) -> frozenset[str]:
        """Return the names of the extension points that the plugin implements."""
        return frozenset(self._methods)

    @property
    def held_off(self) -> str:
        """Return the reason why the plugin isn't asked any more. Empty means that it is asked."""
        return self._held_off

    def begin_turn(self, alive: Callable[[], None]) -> None:
        """Restart the time limit of this plugin for a new turn. `alive` is called after each answer."""
        self._left, self._alive = self._turn_seconds, alive

    def ask(self, point: str, *question: object) -> object:
        """Ask the plugin, and return its answer. Only the answer's type is checked here (see `PluginCode`).

        Raises:
            PluginFailedError: the plugin failed or was late, now or before.
        """
        if self._held_off:
            raise self._make_error(point, f"an earlier answer was too late, and it {_UNTIL}")
        if self._questions is None:
            self._questions = SimpleQueue()
            threading.Thread(
                target=_answer_all, args=(self._questions,), name=f"cpu-plugin-{self._name}"[:15], daemon=True
            ).start()
        answers: SimpleQueue[_Result] = SimpleQueue()
        began = self._clock()
        self._questions.put((self._methods[point], question, answers))
        try:
            answer = answers.get(timeout=self._seconds)
        except Empty:
            raise self._hold_off(point, f"it has not answered within {self._seconds:g} s") from None
        if self._left is not None:
            self._left -= max(0.0, self._clock() - began - UNCOUNTED_SECONDS)
            if self._left < 0:
                raise self._hold_off(point, f"its answers have taken more than {self._turn_seconds:g} s in one sync")
        self._alive()
        if type(answer) is _Failure:
            raise self._make_error(point, answer.reason)
        return answer

    def _hold_off(self, point: str, reason: str) -> PluginFailedError:
        self._held_off = f"{reason} ({point})"
        return self._make_error(point, f"{reason}, and {_UNTIL}")

    def _make_error(self, point: str, reason: str) -> PluginFailedError:
        return PluginFailedError(self._name, Point(point), reason)


# The following functions run in the plugin's thread, because even reading an answer or an exception may run the plugin's code.


def _answer_all(questions: "SimpleQueue[_Question]") -> None:
    while True:
        method, question, answers = questions.get()
        answers.put(_answer(method, question))


def _answer(method: Callable[..., object], question: tuple[object, ...]) -> _Result:
    """Call a method twice and compare the answers. They differ if the plugin's answer depends on more than the question, such as the clock
    or a random number.

    Each answer is copied at once, because the plugin may change the object later.
    """
    try:
        first = _copy_answer(method(*question))
        second = _copy_answer(method(*question))
    except BaseException as err:  # noqa: BLE001 - whatever it raises, only the pod that was asked about is refused
        return _Failure(f"it raises {_describe_error(err)}")
    if type(first) is not type(second) or first != second:
        return _Failure("it gives two answers to one question: it must be a pure function")
    return first


def _copy_answer(answer: object) -> _Result:
    """Copy an answer. Only exact types are accepted, because a subclass may have methods that run code of the plugin."""
    if answer is None or type(answer) is int or type(answer) is str:
        return answer
    if type(answer) is CpuSet:
        return CpuSet(answer.bits) if type(answer.bits) is int else _Failure("its answer is not a set of CPUs")
    if type(answer) is dict:
        copy = answer.copy()
        if len(copy) > MOST_CPUS:
            return _Failure(f"it answers about {len(copy)} CPUs, but no machine has so many")
        if all(type(cpu) is int and type(score) is int for cpu, score in copy.items()):
            return copy
        return _Failure("its answer is not a map of CPUs to whole numbers")
    return _Failure(f"it answers with {_shorten(type(answer).__name__)}")


def _describe_error(err: BaseException) -> str:
    kind = _shorten(type.__dict__["__name__"].__get__(type(err)))
    text = _get_message(err)
    return kind if text is None else _shorten(f"{kind}: {text}")


def _get_message(err: BaseException) -> str | None:
    try:
        return _shorten(str(err))
    except BaseException:  # noqa: BLE001 - its text is the plugin's code, too
        return None


def _shorten(text: str) -> str:
    """Return the beginning of a text, with only printable characters, as a plain str. The text may be of a subclass whose methods are the
    plugin's code.
    """
    return printable(str.__getitem__(text, slice(_MOST_CHARACTERS)))


_LOADED: dict[tuple[str, tuple[tuple[str, str], ...]], BoundedCode] = {}
"""Loaded plugins by name and options. They stay loaded after a reload of the configuration, so that a plugin that was late isn't asked
again.
"""


def load_plugins(plugins: tuple[CpuPlugin, ...]) -> tuple[tuple[CpuPlugin, ...], tuple[StartRefused, ...]]:
    """Load the code of plugins.

    Returns:
        The plugins, with their code if it could be loaded, and a refusal for each plugin that can't be loaded.
    """
    with_code, problems = [], []
    for index, plugin in enumerate(plugins):
        code = _load(plugin)
        if isinstance(code, _Failure):
            problems.append(StartRefused(f"CPU plugin {plugin.name} {code.reason}", FIELD, entry=index))
        with_code.append(plugin if isinstance(code, _Failure) else replace(plugin, code=code))
    return tuple(with_code), tuple(problems)


def _load(plugin: CpuPlugin) -> BoundedCode | _Failure:
    key = plugin.name, plugin.options
    if key not in _LOADED:
        answers: SimpleQueue[BoundedCode | _Failure] = SimpleQueue()
        make = threading.Thread(target=lambda: answers.put(_make_code(plugin)), name="cpu-plugin-load", daemon=True)
        make.start()
        try:
            made = answers.get(timeout=LOADING_SECONDS)
        except Empty:
            return _Failure(f"was not loaded within {LOADING_SECONDS:g} s")
        if isinstance(made, _Failure):
            return made
        _LOADED[key] = made
    return _LOADED[key]


# The following functions run in the loading thread, because they run the plugin's code, too.


def _make_code(plugin: CpuPlugin) -> BoundedCode | _Failure:
    step, origin = "can't be searched for", ""
    try:
        entry = _find_entry_point(plugin.name)
        if isinstance(entry, _Failure):
            return entry
        origin = f" (distribution {_shorten(entry.dist.name)})" if entry.dist is not None else ""
        step = "can't be loaded"
        make = entry.load()
        step = "can't be created"
        made = make(dict(plugin.options))
        step = "can't be examined for its methods"
        code = BoundedCode(plugin.name, made)
    except BaseException as err:  # noqa: BLE001 - others' code
        if step == "can't be created" and isinstance(err, ValueError):
            return _Failure(f"refuses its options: {_get_message(err) or _describe_error(err)}{origin}")
        return _Failure(f"{step}: {_describe_error(err)}{origin}")
    if not code.points:
        names = ", ".join(p.method for p in Point)
        return _Failure(f"implements no extension point: it has no method {names}{origin}")
    return code


def _find_entry_point(name: str) -> EntryPoint | _Failure:
    """Find the entry point of a CPU plugin. If a distribution is installed several times, the first on sys.path counts. If entry points of
    the same name differ, return a failure.
    """
    entries_of: dict[str, tuple[EntryPoint, ...]] = {}
    broken = []
    for distribution in distributions():
        try:
            # the name is normalized as in the package `packaging`
            key = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
            entries_of.setdefault(key, tuple(distribution.entry_points.select(group=GROUP)))
        except Exception as err:  # noqa: BLE001 - its files may hold anything, or be gone
            broken.append(f"{_shorten(str(distribution.locate_file('')))}: {_describe_error(err)}")
    installed = [entry for entries in entries_of.values() for entry in entries]
    found = {entry.value: entry for entry in installed if entry.name == name}
    if not found:
        names = ", ".join(_shorten(one) for one in sorted({entry.name for entry in installed})) or "none"
        unread = f"; distributions that can't be read: {len(broken)}, the first in {broken[0]}" if broken else ""
        return _Failure(f"is not installed (entry points {GROUP} here: {names}{unread})")
    if len(found) > 1:
        return _Failure(f"is installed more than once: {', '.join(map(_shorten, sorted(found)))}")
    (entry,) = found.values()
    return entry
