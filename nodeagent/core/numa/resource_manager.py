"""What a manager of one resource answers when it is asked to allocate."""

from msgspec import Struct

from nodeagent.core.metrics.manager_metrics import MetricDeltas
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import Refusal


class Allocation(Struct, frozen=True):
    """What an allocate call of a manager came to."""

    promises: Promises
    moves: MetricDeltas = ()
    refusal: Refusal | None = None
