"""The journal's own protocol, as a journal would read it."""

import io
import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.daemon.reports import logs
from nodeagent.edge.observability import journal


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        there.bind(str(tmp_path / "journal"))
        there.settimeout(20)
        yield there


def read(there: socket.socket) -> dict[str, str]:
    data, files, _, _ = socket.recv_fds(there, 1 << 20, 1)
    if files:
        with os.fdopen(files[0], "rb") as stream:
            stream.seek(0)
            data = stream.read()
    fields = {}
    while data:
        head, _, data = data.partition(b"\n")
        name, equals, value = head.partition(b"=")
        if not equals:
            (size,) = struct.unpack("<Q", data[:8])
            value, data = data[8 : 8 + size], data[8 + size + 1 :]
        fields[name.decode()] = value.decode()
    return fields


def log_of(tmp_path: Path) -> tuple[logs.Log, io.TextIOWrapper]:
    stream = (tmp_path / "stderr").open("w+")
    there = os.fstat(stream.fileno())
    environment = {"JOURNAL_STREAM": f"{there.st_dev}:{there.st_ino}"}
    return logs.make_log(stream, environment, str(tmp_path / "journal")), stream


def test_a_line_has_its_priority_and_its_pod(listener: socket.socket, tmp_path: Path) -> None:
    log, _ = log_of(tmp_path)
    log.warning("pod_refused", pod="default/a", pod_uid="u1", message="line\nbreak")
    fields = read(listener)
    message = json.loads(fields.pop("MESSAGE"))
    assert message["message"] == "line\nbreak"
    assert fields == {
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "nodeagent",
        "NODEAGENT_EVENT": "pod_refused",
        "NODEAGENT_POD": "default/a",
        "NODEAGENT_POD_UID": "u1",
    }


@pytest.mark.parametrize(("method", "priority"), [("info", "6"), ("warning", "4"), ("error", "3")])
def test_priorities(listener: socket.socket, tmp_path: Path, method: str, priority: str) -> None:
    log, _ = log_of(tmp_path)
    getattr(log, method)("something")
    assert read(listener)["PRIORITY"] == priority


def test_values_with_line_breaks_stay_one_value(listener: socket.socket, tmp_path: Path) -> None:
    journal.Journal(str(tmp_path / "journal")).send({"A": "x\nB=y", "C": "z"})
    assert read(listener) == {"A": "x\nB=y", "C": "z"}


def test_what_is_too_long_for_a_datagram_comes_in_a_sealed_file(listener: socket.socket, tmp_path: Path) -> None:
    value = "x" * 4_000_000
    journal.Journal(str(tmp_path / "journal")).send({"MESSAGE": value})
    assert read(listener) == {"MESSAGE": value}


def test_without_a_journal_lines_go_to_stderr_with_their_priority(listener: socket.socket, tmp_path: Path) -> None:
    log, stream = log_of(tmp_path)
    (tmp_path / "journal").rename(tmp_path / "elsewhere")
    log.error("trouble", problem="p")
    stream.seek(0)
    text = stream.read()
    assert text.startswith("<3>{")
    assert json.loads(text[3:])["problem"] == "p"
    (tmp_path / "elsewhere").rename(tmp_path / "journal")
    log.error("trouble", problem="q")
    assert json.loads(read(listener)["MESSAGE"])["problem"] == "q", "it is used again as soon as it is there"


def test_another_stream_is_no_journal() -> None:
    assert not journal.is_journal(io.StringIO(), {"JOURNAL_STREAM": "1:2"})
    with Path(os.devnull).open("w") as stream:
        assert not journal.is_journal(stream, {"JOURNAL_STREAM": "1:2"})
        assert not journal.is_journal(stream, {})
