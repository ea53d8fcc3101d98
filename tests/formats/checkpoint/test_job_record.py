"""What is kept of a job comes back as it was, and what is no record is none."""

import json

import pytest
from msgspec.structs import replace

from nodeagent.formats.checkpoint.job_record import JobRecord, format_record, parse_record
from nodeagent.formats.manifest.job_pod import PodOptionError, job_pod

RECORD = JobRecord(job_pod("make-7", "uid-7", {"cpu": "2", "memory": "1Gi"}), user=1000, pid=77, start_ticks=123)


def test_it_comes_back_as_it_was() -> None:
    assert parse_record(format_record(RECORD)) == RECORD
    waiting = replace(RECORD, ticket="a1", since_ms=5)
    assert parse_record(format_record(waiting)) == waiting


@pytest.mark.parametrize(
    "change",
    [
        {"pid": 0},
        {"pid": 2**40},
        {"pid": "7"},
        {"startTicks": None},
        {"user": -1},
        {"pod": []},
        {"pod": {"metadata": {"name": "A/b"}}},
    ],
)
def test_what_is_no_record_is_none(change: dict[str, object]) -> None:
    assert parse_record(json.dumps(json.loads(format_record(RECORD)) | change).encode()) is None


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_neither_is_any_other_text(text: bytes) -> None:
    assert parse_record(text) is None


@pytest.mark.parametrize(
    ("name", "amounts"),
    [
        ("Make", {"cpu": "1", "memory": "1Gi"}),
        ("a/b", {"cpu": "1", "memory": "1Gi"}),
        ("a", {"cpu": "many", "memory": "1Gi"}),
        ("a", {"cpu": "-1", "memory": "1Gi"}),
        ("a", {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "1Mi"}),
        ("a", {"cpu": "1", "memory": "1Gi", "no such thing": "1"}),
    ],
)
def test_a_job_is_judged_as_a_manifest(name: str, amounts: dict[str, str]) -> None:
    with pytest.raises(PodOptionError):
        job_pod(name, "uid", amounts)
