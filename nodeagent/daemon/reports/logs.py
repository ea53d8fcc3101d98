"""The agent's log, written to stderr by structlog: JSON for the journal, text on a terminal. Each line is an event with a fixed name.

In the journal, each line also has a priority, and fields by which it can be found: NODEAGENT_EVENT, NODEAGENT_POD, NODEAGENT_POD_UID,
NODEAGENT_CONTAINER.
"""

import logging
import os
import sys
from collections.abc import Mapping
from typing import Literal, Protocol, TextIO

from nodeagent.core.model.pod import Pod
from nodeagent.core.model.state import NodeState
from nodeagent.core.turn.world import EventKind, TurnEvent
from nodeagent.edge.observability.journal import SOCKET, Journal, is_journal
from nodeagent.lean_imports import without
from nodeagent.views.holdings.by_resource import promised_fields

# these imports would take 6 MiB of memory: 4 MiB for rich (coloured tracebacks), and 2 MiB for ssl (encryption for asyncio)
with without("rich"), without("ssl"):
    import structlog

AgentEvent = Literal[
    "started",
    "ready",
    "stopped",
    "start_refused",
    "reload_refused",
    "configuration_reloaded",
    "configuration_refused",
    "configuration_changed",
    "configuration_mended",
    "configuration_note",
    "configuration_not_kept",
    "unused_kubelet_fields",
    "waiting_for_launcher",
    "waiting_to_recover",
    "state_recovered",
    "state_set_aside",
    "checkpoint_changed_by_others",
    "checkpoint_differed",
    "cpus_returned",
    "manifest_refused",
    "machine_changed",
    "clock_stepped",
    "promise_short",
    "promise_kept_again",
    "cgroup_drift_corrected",
    "process_brought_back",
    "processes_gathered",
    "host_setting_changed_by_others",
    "host_settings_stay",
    "trouble",
    "trouble_over",
    "thread_failed",
    "cgroups_unwatched",
    "hotplug_unwatched",
    "not_served",
    "served_again",
    "serving_failed",
    "device_plugin_registered",
    "device_plugin_refused",
    "device_plugin_gone",
    "runtime_linked",
    "runtime_lost",
    "runtime_not_reached",
    "runtime_not_served",
    "container_denied",
    "container_began_unasked",
    "container_put_right",
    "cgroup_of_no_container",
    "pods_api_failed",
    "pods_api_answers",
    "reservation_made",
    "reservation_cancelled",
    "reservations_unusable",
]
"""Names of the events, except those that a turn decides (EventKind). docs/how-to/logs.md explains each event."""


class Log(Protocol):
    """Logger that accepts only the agent's events."""

    def info(self, event: AgentEvent | EventKind, /, **fields: object) -> None: ...

    def warning(self, event: AgentEvent | EventKind, /, **fields: object) -> None: ...

    def error(self, event: AgentEvent, /, **fields: object) -> None: ...


_AS_JSON = structlog.processors.JSONRenderer(sort_keys=True)
_PRIORITIES = {"debug": "7", "info": "6", "warning": "4", "error": "3", "critical": "2"}
"""syslog priority by name of structlog's log method."""
_WARNINGS = frozenset(
    {
        EventKind.POD_REFUSED,
        EventKind.CHANGE_REFUSED,
        EventKind.RESUME_REFUSED,
        EventKind.MANIFEST_SHADOWED,
        EventKind.MANIFEST_NOTE,
        EventKind.PROMISE_CHANGED,
    }
)


def make_log(stream: TextIO = sys.stderr, environment: Mapping[str, str] = os.environ, journal: str = SOCKET) -> Log:
    """Return the logger of this process, without configuring structlog globally.

    Args:
        stream: output for the lines that aren't sent to the journal.
        environment: environment variables. JOURNAL_STREAM tells whether the stream is connected to the journal.
        journal: path of the journal's socket.
    """
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    logger: object = structlog.PrintLogger(stream)
    if is_journal(stream, environment):
        logger = _JournalLogger(stream, journal)
        processors.append(_journal_fields)
    elif stream.isatty():
        # no colours, because stderr escapes their control characters
        processors.append(structlog.dev.ConsoleRenderer(colors=False))
    else:
        processors.append(_AS_JSON)
    log: Log = structlog.wrap_logger(
        logger,
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    return log


def _journal_fields(
    logger: object, method: str, event: structlog.typing.EventDict
) -> tuple[tuple[()], dict[str, dict[str, str]]]:
    fields = {
        "MESSAGE": str(_AS_JSON(logger, method, dict(event))),
        "PRIORITY": _PRIORITIES.get(method, "6"),
        "SYSLOG_IDENTIFIER": "nodeagent",
        "NODEAGENT_EVENT": str(event["event"]),
    }
    fields |= {f"NODEAGENT_{key.upper()}": str(event[key]) for key in ("pod", "pod_uid", "container") if key in event}
    return (), {"fields": fields}


class _JournalLogger:
    """Logger that sends each line to the journal. If the journal doesn't accept a line, it is written to stderr."""

    def __init__(self, stream: TextIO, path: str) -> None:
        self._stream = stream
        self._path = path
        self._journal: Journal | None = None

    def msg(self, *, fields: Mapping[str, str]) -> None:
        try:
            if self._journal is None:
                self._journal = Journal(self._path)
            self._journal.send(fields)
        except OSError:
            self._journal = None
            print(f"<{fields['PRIORITY']}>{fields['MESSAGE']}", file=self._stream, flush=True)

    debug = info = warning = error = critical = msg


def pod_fields(pod: Pod, container: str | None = None) -> dict[str, str]:
    """Return the log fields that name a pod, and a container if one is given."""
    fields = {"pod": pod.full_name, "pod_uid": pod.uid}
    return fields if container is None else {**fields, "container": container}


def log_event(log: Log, event: TurnEvent, state: NodeState, extra: Mapping[str, str | int]) -> None:
    """Log one event of a turn. `extra` contains fields about the whole turn, such as its duration."""
    fields: dict[str, str | int] = {
        **pod_fields(event.pod, event.container),
        "source": event.origin.name,
        **dict(event.fields),
    }
    if event.kind in {EventKind.POD_ADMITTED, EventKind.POD_RESUMED}:
        held = state.promises.of_pod(event.pod.uid)
        promised = {c.name: promised_fields(held, c.name) for c in event.pod.containers}
        cpus, nodes = (
            " ".join(f"{name}={own[key]}" for name, own in promised.items() if own[key] is not None)
            for key in ("cpus", "mems")
        )
        fields |= {"cpus": cpus or "shared", "numa": nodes}
        if event.report is not None:
            fields["why_shared"] = "; ".join(
                f"{c.name}: {c.why_shared}" for c in event.report.containers if c.why_shared is not None
            )
    fields.update(extra)
    write = log.warning if event.kind in _WARNINGS else log.info
    write(event.kind, **{key: value for key, value in fields.items() if value != ""})
