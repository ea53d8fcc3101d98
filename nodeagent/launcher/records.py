"""Records of processes, one file per process in the state directory."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nodeagent.launcher.report import log

PF_KTHREAD = 0x0020_0000  # value from linux/sched.h
MAX_REMOVED = 1000  # limit on the ids of removed records that are remembered
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessRecord:
    """Record of a process, kept until the agent acknowledges the end of the process. The agent receives the record's fields as the
    process's status.
    """

    id: str
    pid: int
    # field 22 of /proc/PID/stat: start time, which together with boot ID and pid identifies the process
    start_ticks: int
    boot_id: str
    cgroup: str | None
    grace_seconds: int
    started_at_ms: int
    finished_at_ms: int | None = None  # None while the process runs
    exit_code: int | None = None
    signal: int | None = None
    core_dumped: bool = False
    unknown: str | None = None  # reason why a finished run has neither exit code nor signal

    def as_document(self) -> dict[str, Any]:
        """Return the fields as JSON values. `dataclasses.asdict` would copy every value, and take ten times as long."""
        return {name: getattr(self, name) for name in self.__slots__}


class Runs(dict[str, ProcessRecord]):
    """Records by run ID, in the order in which they changed, so that a client can request only changed records."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = os.urandom(8).hex()  # identifies this process, because another launcher counts its changes from 0
        self.count = 0
        # number of the last change of each record by ID, oldest first, including removed records
        self.changed: dict[str, int] = {}
        self.complete_since = 0  # number of a change; all records removed after this change are remembered

    def __setitem__(self, run_id: str, run: ProcessRecord) -> None:
        super().__setitem__(run_id, run)
        self._note(run_id)

    def __delitem__(self, run_id: str) -> None:
        super().__delitem__(run_id)
        self._note(run_id)
        if len(self.changed) - len(self) > MAX_REMOVED:
            self.changed = {known: number for known, number in self.changed.items() if known in self}
            self.complete_since = self.count

    def _note(self, run_id: str) -> None:
        self.count += 1
        self.changed.pop(run_id, None)
        self.changed[run_id] = self.count

    def list_changes(self, since: str, limit: int) -> dict[str, Any]:
        """Return the changes since the earlier answer that had the token `since`. If the token is unknown, return all records."""
        epoch, _, text = since.partition(":")
        known = int(text) if epoch == self.epoch else -1
        is_whole = known < self.complete_since
        newer = list(
            itertools.takewhile(lambda run_id: is_whole or self.changed[run_id] > known, reversed(self.changed))
        )
        page = newer[::-1][:limit]
        more = len(newer) > limit
        return {
            "statuses": [self[run_id].as_document() for run_id in page if run_id in self],
            "gone": [run_id for run_id in page if run_id not in self],
            "whole": is_whole,
            "token": f"{self.epoch}:{self.changed[page[-1]] if more else self.count}",
            "more": more,
        }


class RecordStore:
    """Storage of records, one JSON file per run in the state directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, run_id: str) -> Path:
        return Path(f"{self._stem(run_id)}.json")

    def _stem(self, run_id: str) -> str:
        return f"{self.directory}/{urllib.parse.quote(run_id, safe='')}"

    def write(self, runs: Sequence[ProcessRecord], *, durable: bool) -> None:
        """Replace the file of each record atomically. With `durable`, the files are on disk (synced) when this method returns."""
        for run in runs:
            path = self._stem(run.id)
            file = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                content = memoryview(json.dumps(run.as_document()).encode())
                while content:
                    content = content[os.write(file, content) :]
                if durable:
                    os.fsync(file)
            finally:
                os.close(file)
            os.replace(f"{path}.tmp", f"{path}.json")  # noqa: PTH105 - pathlib takes a tenth of a start
        if durable:
            directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(directory)
            os.close(directory)

    def forget(self, run_id: str) -> None:
        self._remove(self.path(run_id))

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as err:  # the next launcher reads the record again, and the agent acknowledges it again
            log("record_not_removed", path=str(path), error=str(err))

    def load(self) -> list[ProcessRecord]:
        known, runs = {field.name for field in dataclasses.fields(ProcessRecord)}, []
        for path in sorted(self.directory.glob("*.tmp")):  # an interrupted write leaves such a file
            self._remove(path)
        for path in sorted(self.directory.glob("*.json")):
            try:
                text = path.read_bytes()
                if not text.strip(b"\0"):
                    # a power failure can empty a file, because records of starts aren't synced
                    log("record_empty", path=str(path))
                    self._remove(path)
                    continue
                content = json.loads(text)
                run = ProcessRecord(**{name: value for name, value in content.items() if name in known})
                if not (is_sound(run) and path == self.path(run.id)):
                    raise ValueError("it contains a value that no launcher writes")  # noqa: TRY301 - set aside like all
                runs.append(run)
            except OSError as err:  # the process may still run, but can't be reported
                log("record_unreadable", path=str(path), error=str(err))
            except (ValueError, TypeError, AttributeError, RecursionError) as err:
                # a power failure or a failing disk has damaged the record, so the process has probably ended as well
                log("record_set_aside", path=str(path), error=str(err))
                names = (path.with_suffix(f".unreadable-{number}") for number in itertools.count(1))
                try:
                    path.rename(next(name for name in names if not os.path.lexists(name)))
                except OSError as failure:
                    log("record_not_set_aside", path=str(path), error=str(failure))
        return runs


def is_sound(run: ProcessRecord) -> bool:
    """Return whether the values in a record have the right types, and the PID is valid."""
    kinds = {"int": (int,), "str": (str,), "bool": (bool,), "None": (type(None),)}
    return 0 < run.pid < 2**31 and all(
        type(getattr(run, field.name)) in [kind for name in str(field.type).split(" | ") for kind in kinds[name]]
        for field in dataclasses.fields(run)
    )


def read_parent_and_start_ticks(pid: int) -> tuple[int, int]:
    fields = read_stat_fields(pid)
    return int(fields[1]), int(fields[19])


def is_kernel_thread(fields: list[str], start_ticks: int) -> bool:
    """Return whether the fields of /proc/PID/stat belong to a kernel thread with this start time."""
    return bool(int(fields[6]) & PF_KTHREAD) and int(fields[19]) == start_ticks


def read_stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from field 3 on (proc(5)). The preceding field 2 may contain blanks and parentheses."""
    stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(stat, 4096).decode(errors="replace").rpartition(")")[2].split()
    finally:
        os.close(stat)
