"""Encoder and decoder of the file `host_settings`, which records the original values of the host settings that the agent has changed.

The file is sealed (`sealed.py`) and contains the record as JSON with sorted keys.
"""

import json
from functools import lru_cache
from typing import Any

from nodeagent.core.host.settings import WITH_TEXT, Change, Record, Setting, SettingKind
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.sealed import SealError, seal, unseal
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError

VERSION = 1
FORMAT = "nodeagent_host_settings"
MAX_BYTES = 64 * 2**20
_WITH_INSTANCE = frozenset({SettingKind.IRQ, SettingKind.QUEUE})
_WAY_OUT = "the original settings are unknown: `cat /proc/irq/*/smp_affinity_list` shows the current ones; a reboot resets them"


class HostRecordError(NodeAgentError):
    """The file `host_settings` can't be read by this version."""


def encode_record(boot: str, record: Record) -> bytes:
    """Encode a record of changes. `boot` is the ID of the boot in which the settings were changed, because a reboot resets all settings."""
    text = lru_cache(maxsize=None)(str)  # texts are cached, because many settings have the same few values
    settings = [
        [setting.kind.value, setting.name, text(change.before), [text(value) for value in change.ours]]
        for setting, change in sorted(record.items())
    ]
    instances = {s.name: change.instance for s, change in record.items() if change.instance is not None}
    body = json.dumps(
        {"boot": boot, "instances": instances, "settings": settings}, sort_keys=True, separators=(",", ":")
    )
    return seal(body.encode(), FORMAT, VERSION)


def decode_record(content: bytes) -> tuple[str, Record]:
    """Decode the boot ID and the record of changes.

    Raises:
        HostRecordError: the content is damaged or malformed, or a later version wrote it.
    """
    try:
        document = unseal(content, FORMAT, VERSION, _WAY_OUT)
        instances = dict(document.read_optional("instances", lambda listed: listed.by_name(JsonValue.whole), ()))
        changes: dict[Setting, Change[Any]] = {}
        for kind, name, before, ours in document.field("settings").each(lambda row: row.row(4)):
            setting = Setting(kind.one_of(SettingKind), name.text())
            instance = instances.get(setting.name) if setting.kind in _WITH_INSTANCE else None
            if setting.kind in WITH_TEXT:
                changes[setting] = Change(before.text(), ours.each(JsonValue.text))
            else:
                changes[setting] = Change(before.cpus(), ours.each(JsonValue.cpus), instance)
        return document.field("boot").text(), changes
    except (SealError, MisfitError) as err:
        raise HostRecordError(f"the record of changed host settings cannot be read: {err}", hint=_WAY_OUT) from err
