"""`host_settings`: what settings of the host were before the agent changed them; bytes ↔ record.

Two lines, as `nodeagent_state` has them: a header with version and SHA-256 of the second line, and the record as JSON with sorted keys.
"""

import hashlib
import json
from collections.abc import Mapping

from nodeagent.core.host.settings import Change, Record, Setting, SettingKind
from nodeagent.errors import NodeAgentError
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError, parsed

VERSION = 1
FORMAT = "nodeagent_host_settings"
MAX_BYTES = 64 * 2**20


class HostRecordError(NodeAgentError):
    """The bytes are not a record that this version can read."""


def encode_record(boot: str, record: Record) -> bytes:
    """Spell a record.

    Args:
        boot: identity of the boot during which the settings were changed; no other has to put them back.
        record: the changes.
    """
    settings = [
        [setting.kind.value, setting.name, str(change.before), [str(value) for value in change.ours]]
        for setting, change in sorted(record.items())
    ]
    body = _json({"boot": boot, "settings": settings})
    header = _json({"format": FORMAT, "version": VERSION, "sha256": hashlib.sha256(body).hexdigest()})
    return header + b"\n" + body + b"\n"


def decode_record(content: bytes) -> tuple[str, Record]:
    """Read the boot's identity and the record.

    Raises:
        HostRecordError: truncated, damaged, of a later version, or something else.
    """
    head, _, rest = content.partition(b"\n")
    body = rest.removesuffix(b"\n")
    try:
        header = parsed(head)
        if header.field("format").text() != FORMAT or header.field("version").whole(1) > VERSION:
            raise _unreadable(f"its first line is not a header of {FORMAT}, version {VERSION}")
        if body == rest or hashlib.sha256(body).hexdigest() != header.field("sha256").text():
            raise _unreadable("its checksum does not match: it is truncated or damaged")
        document = parsed(body)
        return document.field("boot").text(), dict(document.field("settings").each(_setting))
    except MisfitError as err:
        raise _unreadable(str(err)) from err


def _setting(row: JsonValue) -> tuple[Setting, Change]:
    kind, name, before, ours = row.row(4)
    return Setting(kind.one_of(SettingKind), name.text()), Change(before.cpus(), ours.each(JsonValue.cpus))


def _json(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _unreadable(why: str) -> HostRecordError:
    return HostRecordError(
        f"the record of changed host settings cannot be read: {why}",
        hint="what the settings were is unknown: `cat /proc/irq/*/smp_affinity_list` shows what they are; a reboot resets them",
    )
