"""The record of changed host settings: read as it was written, or refused."""

import pytest
from msgspec.structs import replace

from nodeagent.core.host.settings import NEW_IRQS, Change, Record, Setting, SettingKind
from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.checkpoint.host_record import (
    FORMAT,
    VERSION,
    HostRecordError,
    decode_record,
    encode_record,
)
from nodeagent.formats.checkpoint.sealed import seal

RECORD: Record = {
    Setting(SettingKind.IRQ, "24"): Change(CpuSet.parse("0-15"), (CpuSet.parse("0-15"), CpuSet.parse("0-1,4-15"))),
    Setting(SettingKind.IRQ, "25"): Change(CpuSet.parse("3"), (CpuSet.parse("3"),), instance=2**63),
    NEW_IRQS: Change(CpuSet.parse("0-15"), (CpuSet.parse("0-1,4-15"),)),
    Setting(SettingKind.QUEUE, "eth0/queues/rx-0/rps_cpus"): Change(CpuSet.parse("3"), (CpuSet(),), instance=2),
    Setting(SettingKind.IDLE_LATENCY, "3"): Change("n/a", ("n/a", "5")),
}


def test_it_comes_back_as_it_was() -> None:
    assert decode_record(encode_record("boot", RECORD)) == ("boot", RECORD)


@pytest.mark.parametrize("length", range(0, len(encode_record("boot", RECORD)) - 1, 7))
def test_half_of_it_is_refused(length: int) -> None:
    with pytest.raises(HostRecordError, match="the record of changed host settings cannot be read"):
        decode_record(encode_record("boot", RECORD)[:length])


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b"0-15", b"0-14", "checksum"),
        (b'"version":1', b'"version":2', "version 2 was written by a later nodeagent"),
        (b"nodeagent_host_settings", b"nodeagent_state", "header"),
    ],
)
def test_anything_else_is_refused(old: bytes, new: bytes, why: str) -> None:
    with pytest.raises(HostRecordError, match=why):
        decode_record(encode_record("boot", RECORD).replace(old, new))


def test_one_without_instances_is_understood() -> None:
    content = encode_record("boot", RECORD).split(b"\n")[1]
    older = seal(
        content.replace(b'"instances":{"25":9223372036854775808,"eth0/queues/rx-0/rps_cpus":2},', b""), FORMAT, VERSION
    )
    assert decode_record(older) == ("boot", {s: replace(change, instance=None) for s, change in RECORD.items()})
