"""Nothing that lies in the launcher's state directory keeps it from starting, and nothing of it is lost."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.launcher import records
from nodeagent.launcher.records import ProcessRecord, RecordStore, Runs

ROOT = Path(__file__).parents[2]


def test_what_cannot_be_read_is_passed_over(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "directory.json").mkdir()
    (tmp_path / "torn.json").write_text("{")
    assert RecordStore(tmp_path).load() == []
    assert {path.name for path in tmp_path.iterdir()} == {"directory.json", "torn.unreadable-1"}
    reported = capfd.readouterr().err
    assert "record_unreadable" in reported
    assert "directory.json" in reported


@pytest.mark.parametrize("content", [b"", b"\0" * 200], ids=["empty", "zeros"])
def test_what_a_loss_of_power_leaves_of_a_start_is_removed(
    content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pod%2Fapp%2F1.json").write_bytes(content)
    (tmp_path / "pod%2Fapp%2F2.tmp").write_bytes(b'{"id": "pod/a')
    assert RecordStore(tmp_path).load() == []
    assert list(tmp_path.iterdir()) == []
    assert "record_empty" in capfd.readouterr().err


def test_a_disk_that_fails_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torn.json").write_text("{")

    def fails(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "rename", fails)
    assert RecordStore(tmp_path).load() == []
    assert (tmp_path / "torn.json").read_text() == "{"
    assert "record_not_set_aside" in capfd.readouterr().err
    monkeypatch.setattr(Path, "read_bytes", fails)
    assert RecordStore(tmp_path).load() == []
    assert "record_unreadable" in capfd.readouterr().err


def test_what_was_set_aside_before_stays(tmp_path: Path) -> None:
    for content in ("first", "second", "third"):
        (tmp_path / "torn.json").write_text(content)
        RecordStore(tmp_path).load()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "torn.unreadable-1": "first",
        "torn.unreadable-2": "second",
        "torn.unreadable-3": "third",
    }


def test_one_that_crashes_at_every_start_can_be_ended(tmp_path: Path) -> None:
    """The first crash comes with `crashed` in its log; then it starts over, until it is told to stop."""
    program = (
        "import sys; from nodeagent.launcher import server; from nodeagent.launcher.__main__ import main\n"
        "def broken(self): raise RuntimeError('every time')\n"
        "server.Launcher.recover_runs = broken\n"
        "sys.exit(main())"
    )
    words = ["--state-dir", str(tmp_path / "state"), "--socket", str(tmp_path / "l.sock")]
    with subprocess.Popen([sys.executable, "-c", program, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True) as one:
        assert one.stderr is not None
        crashes = (line for line in one.stderr if "crashed" in line)
        assert [next(crashes), next(crashes)], "it has started over"
        one.terminate()
        assert one.wait(60) in {1, -15}


def test_ends_that_come_together_share_one_sync_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(Path(f"/proc/self/fd/{number}").readlink().name))
    runs = [ProcessRecord(name, 1, 1, "boot", None, 30, 1) for name in ("a", "b", "c")]
    store = RecordStore(tmp_path)
    store.write(runs, durable=False)
    assert synced == []
    store.write(runs, durable=True)
    assert synced == ["a.tmp", "b.tmp", "c.tmp", tmp_path.name]
    assert store.load() == runs


CHANGES = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 9)),
    st.tuples(st.just("remove"), st.integers(0, 9)),
    st.tuples(st.just("ask"), st.integers(0, 1)),
)


@given(st.lists(CHANGES, max_size=60), st.integers(1, 4), st.integers(0, 5))
def test_whoever_asks_for_changes_knows_all_runs(steps: list[tuple[str, int]], limit: int, removed: int) -> None:
    """Two clients ask for a page each time, with changes in between; in the end they ask for the rest."""
    runs, known, tokens = Runs(), [dict[str, Any](), dict[str, Any]()], ["", ""]

    def ask(client: int) -> bool:
        page = runs.list_changes(tokens[client], limit)
        if page["whole"]:
            known[client] = {}
        for run_id in page["gone"]:
            known[client].pop(run_id, None)
        known[client] |= {status["id"]: status for status in page["statuses"]}
        tokens[client] = page["token"]
        assert len(page["statuses"]) + len(page["gone"]) <= limit
        return bool(page["more"])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(records, "MAX_REMOVED", removed)
        for number, (what, which) in enumerate(steps):
            if what == "ask":
                ask(which)
            elif what == "put":
                runs[str(which)] = ProcessRecord(str(which), 1, number, "boot", None, 30, 1)
            elif str(which) in runs:
                del runs[str(which)]
            assert len(runs.changed) <= len(runs) + removed
        for client in (0, 1):
            while ask(client):
                pass
    for client in (0, 1):
        assert known[client].keys() == runs.keys()
        assert all(status["start_ticks"] == runs[i].start_ticks for i, status in known[client].items())


@pytest.mark.parametrize("count", [0, 400])
def test_where_nothing_has_changed_an_answer_is_the_same_beside_any_number_of_runs(count: int) -> None:
    runs = Runs()
    for number in range(count):
        runs[f"run/{number}"] = ProcessRecord(f"run/{number}", 1, 1, "boot", None, 30, 1)
    token = f"{runs.epoch}:{count}"
    answer = {"statuses": [], "gone": [], "whole": False, "token": token, "more": False}
    assert runs.list_changes(token, 100) == answer
