"""Shortened turn, which is enough if the last turn left nothing to do and no input has changed since. It checks only the values that aren't
among the inputs.
"""

from nodeagent.core.admission.managers import describe_suspended_plugins
from nodeagent.daemon.turn.decide import device_pools
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.look import Seen
from nodeagent.daemon.turn.memory import TurnMemory
from nodeagent.daemon.turn.problem import Problem
from nodeagent.daemon.turn.wakeups import WakeUpReason

_MAY_REST = frozenset({WakeUpReason.TIMER, WakeUpReason.CGROUPS, WakeUpReason.RUNS, WakeUpReason.MANIFESTS})
"""Wake-up reasons that permit a shortened turn. Anything that causes such a wake-up also changes the inputs, so nothing has to be done
while the inputs are the same.
"""


def list_inputs(edges: Edges, memory: TurnMemory, seen: Seen, standing: tuple[str, ...]) -> tuple[object, ...]:
    """Return everything that determines the result of a turn, except for the time and requests. The values are immutable."""
    return (
        memory.node,
        memory.state,
        memory.devices,
        memory.withheld_problem,
        seen.sources,
        seen.runs,
        seen.domains,
        seen.problems,
        edges.plugin_pools(),
        () if edges.plugins is None else edges.plugins.problems(),
        standing,
        describe_suspended_plugins(memory.node.managers),
        tuple(domain.standing_problem() for domain in edges.domains),
    )


def rest(edges: Edges, seen: Seen, reasons: frozenset[WakeUpReason], standing: tuple[str, ...]) -> float | None:
    """Make a shortened turn if the inputs haven't changed: check only the host settings, the files that other programs may have changed,
    and the checkpoints.

    Returns:
        Seconds until the next turn, if nothing wakes the agent earlier. None means that a complete turn is needed.
    """
    memory, settled = seen.memory, seen.memory.settled
    assert not isinstance(seen.domains, Problem)
    if seen.domains.strays or any(domain.needs_every_turn for domain in edges.domains):
        return None
    if settled is None or not reasons <= _MAY_REST or not memory.is_saved:
        return None
    if settled.wake_at_ms is not None and settled.wake_at_ms <= seen.now_ms:
        return None
    inputs = list_inputs(edges, memory, seen, standing)
    if any(now is not before and now != before for now, before in zip(inputs, settled.inputs, strict=True)):
        return None
    part = memory.node.config.checked_part if WakeUpReason.TIMER in reasons else 0.0
    if part:
        is_current = (
            not edges.host_settings.keep(settled.host, rescan=True)
            and not edges.host_settings.is_settling
            and (memory.devices is None or memory.devices == edges.machine.devices(memory.node.topology))
            and edges.placements.check(part)
            and not edges.claim_statuses.keep(memory.state, rescan=True)
            and not edges.recorder.update_checkpoints(memory.node, memory.state.promises, device_pools(edges, memory))
        )
        if not is_current:
            return None
    pause = memory.node.config.rescan_period_ms / 1000
    return pause if settled.wake_at_ms is None else min(pause, (settled.wake_at_ms - seen.now_ms) / 1000)
