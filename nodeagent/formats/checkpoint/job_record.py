"""What is kept of a job while its owner lives, so that the agent's next process knows it: text of a file and back."""

import json

from msgspec import Struct

from nodeagent.core.model.pod import Pod
from nodeagent.formats.manifest.pod_manifest import named_pod_from_document, pod_to_document
from nodeagent.formats.syntax.findings import DocumentError
from nodeagent.formats.syntax.json_values import MisfitError, parsed

_MAX_PID = 2**22
"""The kernel's PID_MAX_LIMIT."""


class JobRecord(Struct, frozen=True):
    pod: Pod
    user: int
    """User id of its owner."""
    pid: int
    """Of its owner: the process that asked for it and becomes its command."""
    start_ticks: int
    """When that began, by the kernel's clock: with the pid its identity."""


def print_record(record: JobRecord) -> bytes:
    fields = {"pid": record.pid, "startTicks": record.start_ticks, "user": record.user}
    return json.dumps({**fields, "pod": pod_to_document(record.pod)}, sort_keys=True).encode() + b"\n"


def parse_record(text: bytes) -> JobRecord | None:
    """Read a record; None: the text is none."""
    try:
        document = parsed(text)
        pid = document.field("pid").whole(low=1)
        if pid > _MAX_PID:
            return None
        return JobRecord(
            pod=named_pod_from_document(document.field("pod").object()),
            user=document.field("user").whole(),
            pid=pid,
            start_ticks=document.field("startTicks").whole(),
        )
    except (MisfitError, DocumentError):
        return None
