"""The log: structlog to stderr, JSON for the journal, pretty on a terminal; one line per fact, a fixed event name, fields with units."""

import logging
import sys
from collections.abc import Mapping
from typing import TextIO

import structlog

from nodeagent.core.state import NodeState
from nodeagent.core.step import Event, Fact

Log = structlog.typing.FilteringBoundLogger
_WARNINGS = frozenset({Event.POD_REFUSED, Event.MANIFEST_SHADOWED, Event.PROMISE_CHANGED})


def make_log(stream: TextIO = sys.stderr) -> Log:
    """Give the logger of this process; nothing global is configured."""
    pretty = stream.isatty()
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.dev.ConsoleRenderer() if pretty else structlog.processors.JSONRenderer(sort_keys=True),
    ]
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    return log


def log_fact(log: Log, fact: Fact, state: NodeState, extra: Mapping[str, str | int]) -> None:
    """Write the canonical line of one fact.

    Args:
        log: where to.
        fact: what happened.
        state: after the turn.
        extra: what the turn as a whole took (writes, duration).

    """
    fields: dict[str, str | int] = {"pod_uid": fact.pod.uid, "pod": fact.pod.full_name, "source": fact.source}
    if fact.container is not None:
        fields["container"] = fact.container
    fields.update(fact.fields)
    if fact.event is Event.POD_ADMITTED:
        own = {c.name: state.promises.own_set(fact.pod.uid, c.name) for c in fact.pod.containers}
        fields["cpus"] = " ".join(f"{name}={cpus}" for name, cpus in own.items() if cpus is not None) or "shared"
        fields["numa"] = " ".join(
            f"{name}={nodes}" for name in own if (nodes := state.promises.memory_nodes(fact.pod.uid, name))
        )
        if fact.report is not None:
            fields["why_shared"] = "; ".join(
                f"{c.name}: {c.why_shared}" for c in fact.report.containers if c.why_shared is not None
            )
    fields.update(extra)
    write = log.warning if fact.event in _WARNINGS else log.info
    write(fact.event.value, **{key: value for key, value in fields.items() if value != ""})
