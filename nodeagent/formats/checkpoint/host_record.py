"""`host_settings`: what settings of the host were before the agent changed them; bytes ↔ record.

A sealed file (`sealed.py`) with the record as JSON with sorted keys.
"""

import json
from collections.abc import Mapping

from nodeagent.core.host.settings import Change, Record, Setting, SettingKind
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.sealed import SealError, sealed, unsealed
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError

VERSION = 1
FORMAT = "nodeagent_host_settings"
MAX_BYTES = 64 * 2**20
_WITH_INSTANCE = frozenset({SettingKind.IRQ, SettingKind.QUEUE})
_WAY_OUT = (
    "what the settings were is unknown: `cat /proc/irq/*/smp_affinity_list` shows what they are; a reboot resets them"
)


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
    instances = {s.name: change.instance for s, change in record.items() if change.instance is not None}
    body = json.dumps(
        {"boot": boot, "instances": instances, "settings": settings}, sort_keys=True, separators=(",", ":")
    )
    return sealed(body.encode(), FORMAT, VERSION)


def decode_record(content: bytes) -> tuple[str, Record]:
    """Read the boot's identity and the record.

    Raises:
        HostRecordError: truncated, damaged, of a later version, or something else.
    """
    try:
        document = unsealed(content, FORMAT, VERSION, _WAY_OUT)
        instances = document.optional("instances")
        of = {} if instances is None else dict(instances.by_name(JsonValue.whole))
        settings = document.field("settings").each(lambda row: _setting(row, of))
        return document.field("boot").text(), dict(settings)
    except (SealError, MisfitError) as err:
        raise HostRecordError(f"the record of changed host settings cannot be read: {err}", hint=_WAY_OUT) from err


def _setting(row: JsonValue, instances: Mapping[str, int]) -> tuple[Setting, Change]:
    kind, name, before, ours = row.row(4)
    setting = Setting(kind.one_of(SettingKind), name.text())
    instance = instances.get(setting.name) if setting.kind in _WITH_INSTANCE else None
    return setting, Change(before.cpus(), ours.each(JsonValue.cpus), instance)
