"""What the metrics count, added up by the deciding thread; readers get one immutable snapshot per turn."""

from nodeagent.core.metric_moves import Series, apply_moves
from nodeagent.core.plan import SetAttribute
from nodeagent.core.step import Turn
from nodeagent.daemon.execution import Outcome
from nodeagent.daemon.snapshot import Snapshot


class Tally:
    def __init__(self) -> None:
        self._kubelet: dict[Series, int] = {}

    def count(self, decided: Turn, outcome: Outcome, drift: tuple[SetAttribute, ...]) -> None:
        apply_moves(self._kubelet, decided.moves)

    def publish(self, snapshot: Snapshot, seconds: float) -> None:
        pass
