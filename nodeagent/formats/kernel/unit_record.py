"""Record of a systemd unit's properties before the agent changed any, as text."""

import json

from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.formats.syntax.json_values import MisfitError, parsed


def print_unit_record(before: UnitSettings) -> bytes:
    document = {"cpus": str(before.allowed_cpus), "mems": str(before.allowed_memory_nodes)}
    return f"{json.dumps(document, sort_keys=True)}\n".encode()


def parse_unit_record(content: bytes) -> UnitSettings | None:
    """Parse a record. None means that the record is damaged or has another form."""
    try:
        document = parsed(content)
        return UnitSettings(document.field("cpus").cpus(), document.field("mems").nodes())
    except MisfitError:
        return None
