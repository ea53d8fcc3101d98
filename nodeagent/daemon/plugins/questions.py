"""Questions to device plugins. Each is asked in a separate thread, so that the deciding thread never waits for an answer.

A decision that needs a missing answer is postponed. When the answer has arrived, a turn makes the whole decision anew, with all answers so
far.
"""

import threading
import time
from collections.abc import Callable, Hashable
from typing import TypeVar, cast

from nodeagent.core.model.device_pools import DevicePluginFailedError, DevicePluginPostponedError

T = TypeVar("T")

KEPT_SECONDS = 600.0
"""Seconds for which the answers for a decision are kept if the decision isn't made again. kubelet retries the creation of a container after
at most 300 s.
"""
MOST_KEPT = 256
"""Maximum number of decisions whose answers are kept. If there are more, the answers for the oldest decisions are dropped."""


MOST_QUESTIONS = 512
"""Maximum number of questions for one decision.

Without the limit, a plugin whose devices change all the time would cause a new question after each change, and the decision would never
end.
"""


class _Inquiry:
    """Questions of one decision. The lock of `Questions` protects this object."""

    def __init__(self) -> None:
        self.answers: dict[Hashable, object] = {}
        """Answers so far, by question. If the plugin failed to answer, the error is stored instead."""
        self.used: set[Hashable] = set()
        """Questions whose answers were used in the current turn."""
        self.missing: Hashable | None = None
        """Question that still needs an answer. None means that the last question has an answer."""
        self.is_current = False
        """Whether the decision was attempted in the current turn."""
        self.made_at = 0.0
        self.count = 0
        """Number of questions that have been sent for this decision."""


class Questions:
    """Questions to device plugins. A lane consists of the questions to one plugin for one purpose, and asks only one question at a time.

    `wake` is called when an answer has arrived.
    """

    def __init__(self, wake: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._wake = wake
        self._clock = clock
        self._lock = threading.Lock()
        self._asking: dict[Hashable, str] = {}
        """Asker of the question that waits for an answer, by lane."""
        self._inquiries: dict[str, _Inquiry] = {}
        """Questions of each decision, by asker (for instance, a pod's UID)."""

    def begin_turn(self) -> None:
        """Forget the decisions that the last turn made with all answers, and the answers that no decision has used. Call this method before
        each turn.
        """
        oldest = self._clock() - KEPT_SECONDS
        with self._lock:
            for asker, decision in tuple(self._inquiries.items()):
                if decision.missing is None if decision.is_current else decision.made_at < oldest:
                    del self._inquiries[asker]
                elif decision.is_current:
                    needed = {*decision.used, decision.missing}
                    decision.answers = {asked: answer for asked, answer in decision.answers.items() if asked in needed}
                    decision.used, decision.is_current = set(), False
            for asker in sorted(self._inquiries, key=lambda one: self._inquiries[one].made_at)[:-MOST_KEPT]:
                del self._inquiries[asker]

    def is_free(self, lane: Hashable, asker: str) -> bool:
        """Return whether this asker can continue now: either the answer it waits for has arrived, or no other asker's question is pending
        in the lane.
        """
        with self._lock:
            decision = self._inquiries.get(asker)
            has_answer = decision is not None and decision.missing in decision.answers
            return has_answer or self._asking.get(lane, asker) == asker

    def find_answer(self, asker: str, lane: Hashable, asked: Hashable, ask: Callable[[], T]) -> T:
        """Return the answer to a question. If there is none yet, send the question, provided that the lane is free.

        Args:
            asker: the decision, for instance a pod's UID.
            lane: the lane of the question.
            asked: the question. In one decision, equal questions are sent only once.
            ask: function that sends the question and returns the answer, or raises DevicePluginFailedError. It runs in a separate thread.

        Raises:
            DevicePluginPostponedError: the plugin hasn't answered yet.
            DevicePluginFailedError: the plugin failed to answer.
        """
        with self._lock:
            decision = self._inquiries.setdefault(asker, _Inquiry())
            decision.is_current, decision.made_at = True, self._clock()
            decision.missing = None if asked in decision.answers else asked
            if decision.missing is None:
                decision.used.add(asked)
                answer = decision.answers[asked]
                if isinstance(answer, DevicePluginFailedError):
                    raise DevicePluginFailedError(str(answer))
                return cast("T", answer)
            if lane not in self._asking:
                decision.count += 1
                if decision.count > MOST_QUESTIONS:
                    decision.missing = None
                    raise DevicePluginFailedError(
                        f"one decision has needed more than {MOST_QUESTIONS} calls of the plugin"
                    )
                thread = threading.Thread(target=self._ask, args=(asker, lane, asked, ask), daemon=True)
                thread.name = "plugin-question"
                thread.start()
                self._asking[lane] = asker
        raise DevicePluginPostponedError("it has not answered yet")

    def _ask(self, asker: str, lane: Hashable, asked: Hashable, ask: Callable[[], object]) -> None:
        answer: object
        try:
            answer = ask()
        except DevicePluginFailedError as err:
            # the traceback is dropped, because its frames refer to data that the plugin has sent
            answer = DevicePluginFailedError(str(err))
        except Exception as err:  # noqa: BLE001 - whatever it is, the decision must not wait for ever
            answer = DevicePluginFailedError(f"asking it has failed: {type(err).__name__}: {err}")
        with self._lock:
            del self._asking[lane]
            decision = self._inquiries.get(asker)
            if decision is not None and decision.missing == asked:
                decision.answers[asked] = answer
        self._wake()
