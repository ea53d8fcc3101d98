"""Formatter and parser of the record of a waiting or running job, from which the agent recovers the job after a restart."""

import json

from msgspec import Struct

from nodeagent.core.model.config import DEFAULT_WEIGHT
from nodeagent.core.model.pod import Pod
from nodeagent.formats.manifest.pod_manifest import named_pod_from_document, pod_to_document
from nodeagent.formats.syntax.findings import DocumentError
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError, parse_json

_MAX_PID = 2**22
"""Largest process ID (the kernel's PID_MAX_LIMIT)."""


class JobRecord(Struct, frozen=True):
    pod: Pod
    user: int
    """User ID of the job's owner."""
    pid: int
    """ID of the process that requested the job. The process waits until the job starts, and then executes the job's command."""
    start_ticks: int
    """Start time of this process in the kernel's clock ticks. PID and start time together identify the process."""
    ticket: str = ""
    """Text by which the agent recognizes the job's request if the owner repeats it after the agent's restart. Empty means that the job
    isn't waiting for free resources.
    """
    since_ms: int = 0
    """Time of the request, in milliseconds since the epoch. 0 means that the job isn't waiting for free resources."""
    max_ms: int = 0
    """Maximum run time of the job, in milliseconds. 0 means that there is no limit."""
    ends_at_ms: int = 0
    """Time at which the job has to end, in milliseconds since boot. 0 means that the job has no time limit, or hasn't started."""
    reservation: str = ""
    """Name of the job's reservation. Empty means that the job belongs to no reservation."""
    weight: int = DEFAULT_WEIGHT
    """Weight of the job's user, as configured when the job was requested. Among jobs that wait behind other jobs, a user with fewer CPUs
    relative to the weight comes first.
    """


def format_record(record: JobRecord) -> bytes:
    fields: dict[str, object] = {"pid": record.pid, "startTicks": record.start_ticks, "user": record.user}
    if record.ticket:
        fields |= {"ticket": record.ticket, "sinceMs": record.since_ms}
    if record.max_ms or record.ends_at_ms:
        fields |= {"maxMs": record.max_ms, "endsAtMs": record.ends_at_ms}
    if record.reservation:
        fields |= {"reservation": record.reservation}
    if record.weight != DEFAULT_WEIGHT:
        fields |= {"weight": record.weight}
    return json.dumps({**fields, "pod": pod_to_document(record.pod)}, sort_keys=True).encode() + b"\n"


def parse_record(text: bytes) -> JobRecord | None:
    """Parse a record. None means that the text is malformed."""
    try:
        document = parse_json(text)
        return JobRecord(
            pod=named_pod_from_document(document.field("pod").object()),
            user=document.field("user").whole(),
            pid=document.field("pid").whole(1, _MAX_PID),
            start_ticks=document.field("startTicks").whole(),
            ticket=document.read_optional("ticket", JsonValue.text, ""),
            since_ms=document.read_optional("sinceMs", JsonValue.whole, 0),
            max_ms=document.read_optional("maxMs", JsonValue.whole, 0),
            ends_at_ms=document.read_optional("endsAtMs", JsonValue.whole, 0),
            reservation=document.read_optional("reservation", JsonValue.text, ""),
            weight=document.read_optional("weight", lambda value: value.whole(1), DEFAULT_WEIGHT),
        )
    except (MisfitError, DocumentError):
        return None
