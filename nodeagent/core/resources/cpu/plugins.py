"""Calls to CPU plugins, and checks of their answers. A plugin fails if its answer contains CPUs that aren't free, has the wrong number of
CPUs, or has the wrong type.

This module is loaded only if plugins are configured. It calls the plugins' code through an edge (edge/plugins), which limits the time of
each call.
"""

from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.config import CpuPlugin
from nodeagent.core.model.idset import CpuMask, CpuSet
from nodeagent.core.model.kernel_limits import MOST_CPUS
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import Reason, Refusal
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.cpu.holdings import exclusive_sets
from nodeagent.core.resources.cpu.manager import CpuManager
from nodeagent.core.resources.cpu.observing import PickObserver, PluginAnswered, Rule, Took
from nodeagent.core.resources.cpu.points import CpuShortage, PluginFailedError, Point, Question, ReturnedCpus, Scores

A = TypeVar("A")
HIGHEST = 1_000_000
"""Limit for each number in a plugin's answer. Numbers from -HIGHEST to HIGHEST are valid."""
MOST_CHARACTERS = 200
_SHOWN_SCORES = 4


class PluginChooser(Struct, frozen=True):
    """Implementation of `Chooser` (manager.py), which calls the functions of this module."""

    plugins: tuple[CpuPlugin, ...]

    def filtered(self, manager: CpuManager, question: Question, *, is_for_hints: bool) -> Question:
        return filtered(manager, question, is_for_hints=is_for_hints)

    def offered(self, manager: CpuManager, question: Question) -> Question:
        return offered(manager, question)

    def selected(self, manager: CpuManager, question: Question) -> CpuSet | CpuShortage:
        return selected(manager, question)

    def vetoed(self, question: Question, cpus: CpuSet) -> Refusal | None:
        return vetoed(self.plugins, question, cpus)


def filtered(manager: CpuManager, question: Question, *, is_for_hints: bool = False) -> Question:
    """Call the plugins' Filter and, if it leaves too few CPUs, PostFilter. Return the question with the remaining CPUs."""
    left = question

    def report_left(plugin: CpuPlugin, point: Point) -> None:
        if manager.observer is not None:
            manager.observer(PluginAnswered(plugin.name, point.value, left.free, None, is_for_hints))

    for plugin in _list_plugins_at(manager.plugins, Point.FILTER):
        left = replace(left, free=_check_cpus(plugin, Point.FILTER, left, _call_point(plugin, Point.FILTER, left)))
        report_left(plugin, Point.FILTER)
    if manager.usable(left, left.free.bits).bit_count() < question.count:
        for plugin in _list_plugins_at(manager.plugins, Point.POST_FILTER):
            answer = _call_point(plugin, Point.POST_FILTER, question)
            if answer is not None:
                left = replace(left, free=_check_cpus(plugin, Point.POST_FILTER, question, answer))
                report_left(plugin, Point.POST_FILTER)
                break
    return left


def offered(manager: CpuManager, question: Question) -> Question:
    """Call the plugins' Filter, PostFilter and PreScore. Return the question with the remaining CPUs and their scores."""
    remaining, observer = filtered(manager, question), manager.observer
    scores: dict[int, int] = {}
    for plugin in _list_plugins_at(manager.plugins, Point.PRE_SCORE):
        plugin_scores = _check_scores(plugin, remaining, _call_point(plugin, Point.PRE_SCORE, remaining))
        for cpu, score in plugin_scores.items():
            scores[cpu] = scores.get(cpu, 0) + score
        for score in sorted(set(plugin_scores.values()), reverse=True)[:_SHOWN_SCORES]:
            cpus = CpuSet.from_ids(cpu for cpu, cpu_score in plugin_scores.items() if cpu_score == score)
            _report_answer(observer, plugin, Point.PRE_SCORE, cpus, score)
    return replace(remaining, scores=MappingProxyType(scores))


def selected(manager: CpuManager, question: Question) -> CpuSet | CpuShortage:
    """Choose CPUs by the plugins' Select, or by the policy if no plugin selects CPUs.

    If several plugins select CPUs, the first plugin's selection wins. If there are plugins with Score, they score all selections and the
    policy's choice instead, and the highest sum of scores wins.
    """
    observer = manager.observer
    found: list[tuple[CpuPlugin | None, CpuSet]] = []
    for plugin in _list_plugins_at(manager.plugins, Point.SELECT):
        answer = _call_point(plugin, Point.SELECT, question)
        if answer is not None:
            found.append((plugin, _check_selection(manager, plugin, question, answer)))
            _report_answer(observer, plugin, Point.SELECT, found[-1][1])
    judges = _list_plugins_at(manager.plugins, Point.SCORE)
    if found and not judges:
        plugin_of_best, best = found[0]
        return _report_choice(observer, plugin_of_best, best)
    policy_choice, policy_question = _choose_by_policy(manager, question)
    if isinstance(policy_choice, CpuShortage):
        if not found:
            return policy_choice
    else:
        found.append((None, policy_choice))
    plugin_of_best, best = found[0]
    if len(found) > 1:
        plugin_of_best, best = max(
            found, key=lambda one: sum(_call_score(judge, question, one[1], observer) for judge in judges)
        )
    if plugin_of_best is None and observer is not None:
        manager.policy.select(policy_question)  # the choice is repeated, so that the observer is called for it
    return best if plugin_of_best is None else _report_choice(observer, plugin_of_best, best)


def _choose_by_policy(manager: CpuManager, question: Question) -> tuple[CpuSet | CpuShortage, Question]:
    """Let the policy choose among the CPUs with the highest scores. CPUs with lower scores are added step by step until there are enough to
    choose from. Also return the question with the CPUs of the last step.
    """
    silent = manager.observed_by(None).policy
    best = 0
    cpus_by_score: dict[int, int] = {}
    for cpu in question.free if question.scores else ():
        score = question.scores.get(cpu, 0)
        cpus_by_score[score] = cpus_by_score.get(score, 0) | 1 << cpu
    for score in sorted(cpus_by_score, reverse=True):
        best |= cpus_by_score[score]
        if best.bit_count() < question.count:
            continue
        tier = replace(question, free=CpuSet(CpuMask(best)))
        chosen = silent.select(tier)
        if isinstance(chosen, CpuSet):
            return chosen, tier
    chosen = silent.select(question)
    assert chosen is not None, "the policy has an opinion on everything"
    return chosen, question


def vetoed(plugins: Iterable[CpuPlugin], question: Question, cpus: CpuSet) -> Refusal | None:
    """Call the plugins' Allocate, and return the first objection as a refusal. None means that no plugin objects."""
    for plugin in _list_plugins_at(plugins, Point.ALLOCATE):
        objection = _check_text(plugin, Point.ALLOCATE, _call_point(plugin, Point.ALLOCATE, question, cpus))
        if objection is not None:
            return Refusal(Reason.CPU_PLUGIN_REFUSED, f"CPU plugin {plugin.name} refuses CPUs {cpus}: {objection}")
    return None


def turn_of(plugins: Iterable[CpuPlugin], pod: Pod) -> tuple[int, ...] | Refusal:
    """Return a pod's sort key in the queue, which consists of the results of all plugins' Sort. If a plugin fails, return the refusal of
    the pod.
    """
    try:
        return tuple(
            _check_number(plugin, Point.SORT, _call_point(plugin, Point.SORT, pod))
            for plugin in _list_plugins_at(plugins, Point.SORT)
        )
    except PluginFailedError as err:
        return failed(err)


Item = TypeVar("Item")


def in_turn(plugins: Iterable[CpuPlugin], waiting: Iterable[Item], pod_of: Callable[[Item], Pod]) -> list[Item]:
    """Sort waiting pods by the plugins' Sort. Pods with equal keys keep their order. Pods for which Sort fails come last, and are refused
    when the agent decides on them.
    """
    turns = [(turn_of(plugins, pod_of(one)), one) for one in waiting]
    known = [(turn, one) for turn, one in turns if not isinstance(turn, Refusal)]
    return [
        *(one for _, one in sorted(known, key=lambda item: item[0])),
        *(one for turn, one in turns if isinstance(turn, Refusal)),
    ]


class Note(Struct, frozen=True):
    """Text for the log, which a plugin returned when it was told about released CPUs."""

    plugin: str
    pod_uid: str
    container: str
    text: str
    has_failed: bool = False
    """Whether the text is an error message, because the plugin failed. The CPUs are released nevertheless."""


def notes_on(plugins: Iterable[CpuPlugin], topology: Topology, before: Promises, after: Promises) -> list[Note]:
    """Call the plugins' Deallocate for each container that has released CPUs, even if the container still holds others. Return the plugins'
    texts for the log.
    """
    notes = []
    held_after = {(uid, name): cpus for uid, name, cpus in exclusive_sets(after)}
    lost = [(uid, name, cpus - held_after.get((uid, name), CpuSet())) for uid, name, cpus in exclusive_sets(before)]
    released = [held for held in lost if held[2]]
    for plugin in plugins:
        if plugin.code is None or Point.DEALLOCATE.value not in plugin.code.points:
            continue
        for uid, name, cpus in released:
            has_failed = False
            try:
                answer = _call_point(plugin, Point.DEALLOCATE, ReturnedCpus(topology, after, uid, name, cpus))
                note = _check_text(plugin, Point.DEALLOCATE, answer)
            except PluginFailedError as err:
                note, has_failed = str(err), True
            if note is not None:
                notes.append(Note(plugin.name, uid, name, note, has_failed))
    return notes


def held_off(plugins: Iterable[CpuPlugin]) -> str | None:
    """Describe the plugins that the agent has stopped calling because they were too slow, and the effect on pods. None means that there are
    no such plugins.
    """
    reasons = [f"{one.name}: {one.code.held_off}" for one in plugins if one.code is not None and one.code.held_off]
    if not reasons:
        return None
    consequence = "pods that need a CPU plugin that was too late are refused until nodeagent is restarted"
    return f"{consequence} (systemctl restart nodeagent): {'; '.join(reasons)}"


def failed(err: PluginFailedError) -> Refusal:
    """Return the refusal for a pod whose decision needs an answer that a plugin failed to give."""
    return Refusal(Reason.CPU_PLUGIN_FAILED, str(err))


def _list_plugins_at(plugins: Iterable[CpuPlugin], point: Point) -> list[CpuPlugin]:
    for plugin in plugins:
        if plugin.code is None:
            raise PluginFailedError(
                plugin.name, None, "it is not installed here, and nothing can be decided without it"
            )
    return [plugin for plugin in plugins if plugin.code is not None and point.value in plugin.code.points]


def _call_point(plugin: CpuPlugin, point: Point, *question: object) -> object:
    assert plugin.code is not None, "only those with code are asked"
    return plugin.code.ask(point.value, *question)


def _report_answer(
    observer: PickObserver | None, plugin: CpuPlugin, point: Point, cpus: CpuSet, score: int | None = None
) -> None:
    if observer is not None:
        observer(PluginAnswered(plugin.name, point.value, cpus, score))


def _report_choice(observer: PickObserver | None, by: CpuPlugin | None, cpus: CpuSet) -> CpuSet:
    if observer is not None and by is not None:
        observer(Took(Rule.PLUGIN, cpus.bits, by.name))
    return cpus


# The types of answers must match exactly. Accessing an instance of a subclass could run the subclass's code.


def _check_type(plugin: CpuPlugin, point: Point, answer: object, kind: type[A]) -> A:
    if type(answer) is not kind:
        raise PluginFailedError(plugin.name, point, f"it answers with {type(answer).__name__}, not {kind.__name__}")
    return answer


def _check_cpus(plugin: CpuPlugin, point: Point, question: Question, answer: object) -> CpuSet:
    cpus = _check_type(plugin, point, answer, CpuSet)
    # The length is checked first, because a plugin's set may be of any size, and the other checks take longer for larger sets.
    if type(cpus.bits) is not int or cpus.bits.bit_length() > MOST_CPUS or cpus.bits < 0:
        raise PluginFailedError(plugin.name, point, "its answer is not a set of CPUs")
    unknown = cpus - question.topology.online
    if unknown:
        raise PluginFailedError(plugin.name, point, f"CPUs {unknown} do not exist, or are offline")
    taken = cpus - question.free
    if taken:
        raise PluginFailedError(
            plugin.name, point, f"CPUs {taken} are not among the CPUs offered to it ({question.free})"
        )
    return cpus


def _check_selection(manager: CpuManager, plugin: CpuPlugin, question: Question, answer: object) -> CpuSet:
    cpus = _check_cpus(plugin, Point.SELECT, question, answer)
    if len(cpus) != question.count:
        why = f"it selects {len(cpus)} CPUs ({cpus}), but was asked for {question.count}"
        raise PluginFailedError(plugin.name, Point.SELECT, why)
    halves = cpus - CpuSet(manager.usable(question, cpus.bits))
    if halves:
        why = f"CPUs {halves} are not whole cores, which full-pcpus-only asks for"
        raise PluginFailedError(plugin.name, Point.SELECT, why)
    return cpus


def _check_scores(plugin: CpuPlugin, question: Question, answer: object) -> Scores:
    scores = _check_type(plugin, Point.PRE_SCORE, answer, dict)
    if any(type(cpu) is not int or cpu not in question.free for cpu in scores):
        raise PluginFailedError(plugin.name, Point.PRE_SCORE, "it scores CPUs that were not offered to it")
    return {cpu: _check_number(plugin, Point.PRE_SCORE, score) for cpu, score in scores.items()}


def _call_score(plugin: CpuPlugin, question: Question, cpus: CpuSet, observer: PickObserver | None) -> int:
    score = _check_number(plugin, Point.SCORE, _call_point(plugin, Point.SCORE, question, cpus))
    _report_answer(observer, plugin, Point.SCORE, cpus, score)
    return score


def _check_number(plugin: CpuPlugin, point: Point, answer: object) -> int:
    number = _check_type(plugin, point, answer, int)
    if not -HIGHEST <= number <= HIGHEST:
        raise PluginFailedError(plugin.name, point, f"its scores must be between {-HIGHEST} and {HIGHEST}")
    return number


def _check_text(plugin: CpuPlugin, point: Point, answer: object) -> str | None:
    if answer is None:
        return None
    words = _check_type(plugin, point, answer, str)
    if not words or len(words) > MOST_CHARACTERS or not words.isprintable():
        why = f"its text must be one line of at most {MOST_CHARACTERS} characters"
        raise PluginFailedError(plugin.name, point, why)
    return words
