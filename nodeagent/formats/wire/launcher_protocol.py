"""Encoder and decoder of the launcher's protocol: one JSON object per packet. Each request gets an answer. After `subscribe`, the launcher
also sends events.

The launcher doesn't import this module, because the launcher is independent of the agent. A test checks that both use the same
protocol. The caller interprets the answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from msgspec import Struct

from nodeagent.errors import NodeAgentError
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError, parse_json

T = TypeVar("T")

PROTOCOL = 1
MAX_REQUEST_BYTES = 192 * 1024
MAX_ANSWER_BYTES = 208 * 1024  # largest packet that fits into the kernel's default send buffer


class LauncherProtocolError(NodeAgentError):
    """An answer of the launcher can't be read by this version of the agent."""


DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Directories in which a program is searched for if its environment has no PATH."""


class StartStage(StrEnum):
    """Stage at which a start failed. After a failure at `fork` or `cgroup`, the process has not entered the container's cgroup."""

    FORK = "fork"
    DEADLINE = "deadline"  # the process hung before exec, for instance in a frozen cgroup, and was killed
    CGROUP = "cgroup"
    SESSION = "session"
    OUTPUT = "output"
    SETTINGS = "settings"
    USER = "user"
    CWD = "cwd"
    EXEC = "exec"


class UnknownEnd(StrEnum):
    """Reason why the exit status of a process is unknown."""

    LAUNCHER_RESTARTED = "launcher_restarted"  # the launcher was restarted, so the process was no longer its child
    HOST_REBOOTED = "host_rebooted"


class Hello(Struct, frozen=True):
    version: str
    protocol: int
    pid: int
    boot_id: str
    cgroup: str | None  # parent cgroup of all containers; None means that no cgroups are used
    started_at_ms: int


class StartRequest(Struct, frozen=True):
    id: str  # [A-Za-z0-9._:@/-]{1,120}, never reused: each restart of a container has a new id
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]  # the complete environment; the launcher adds nothing
    identifier: str  # SYSLOG_IDENTIFIER of the output in the journal, in printable ASCII
    cgroup: str | None
    cwd: str = "/"
    uid: int | None = None  # None means the user of the launcher, which is root
    gid: int | None = None
    # supplementary groups; if any of uid, gid and groups is set, these groups replace those of root
    groups: tuple[int, ...] = ()
    log_file: str | None = None  # file that gets the output if there is no journal
    grace_seconds: int = 30  # time between SIGTERM and SIGKILL when the launcher itself has to stop
    settings: tuple[tuple[str, Any], ...] = ()  # (name, value) pairs: the process's settings, named as in a profile


class Returned(Struct, frozen=True):
    code: int


class Killed(Struct, frozen=True):
    signal: int
    core_dumped: bool


class Running(Struct, frozen=True):
    id: str
    pid: int
    start_ticks: int  # start time, which identifies the process together with pid and boot_id
    boot_id: str
    cgroup: str | None
    started_at_ms: int


class Exited(Struct, frozen=True):
    id: str
    pid: int
    cgroup: str | None
    started_at_ms: int
    finished_at_ms: int  # time of the end; for an UnknownEnd, the time when the end was noticed
    end: Returned | Killed | UnknownEnd

    @property
    def exit_code(self) -> int | None:
        """Exit code as in container statuses: 128 + n after signal n. None means that the exit code is unknown."""
        match self.end:
            case Returned(code):
                return code
            case Killed(signal):
                return 128 + signal
            case UnknownEnd():
                return None


RunStatus = Running | Exited


class StartFailed(Struct, frozen=True):
    """The start failed, so the container's process doesn't run. The launcher has forgotten the run's ID, so the start can be repeated with
    the same ID.
    """

    id: str
    stage: StartStage
    errno: int
    message: str


class Refused(Struct, frozen=True):
    """Refusal of a request by the launcher, with an error code and a text for users."""

    code: str
    message: str


class Page(Struct, frozen=True):
    """A part of the launcher's list of runs. If `more` is set, a request with this page's token returns the next part."""

    statuses: tuple[RunStatus, ...]
    more: bool
    gone: tuple[str, ...] = ()  # IDs of runs that the launcher has forgotten
    token: str = (
        ""  # empty if the launcher lists all runs by ID; the next request then starts after the last ID of the page
    )
    is_whole: bool = (
        # whether the list starts again with this page, because the launcher doesn't know the token of the request
        False
    )


def encode_hello() -> bytes:
    return _encode("hello", {"protocol": PROTOCOL})


def encode_start(request: StartRequest) -> bytes:
    names = ("id", "cgroup", "argv", "cwd", "uid", "gid", "groups", "identifier", "log_file", "grace_seconds")
    fields = {name: getattr(request, name) for name in names} | {"env": dict(request.env)}
    # A launcher of an older version doesn't know the field, so it is left out if there are no settings.
    return _encode("start", fields | ({"settings": dict(request.settings)} if request.settings else {}))


def encode_list(since: str = "", after: str = "") -> bytes:
    """Encode a request for the runs that have changed since the answer with the token `since`. An empty token requests all runs.

    A launcher without support for tokens lists all runs after the ID `after`, which is empty for the first part.
    """
    return _encode("list", {"since": since, "after": after})


def encode_signal(run_id: str, signal: int) -> bytes:
    return _encode("signal", {"id": run_id, "signal": signal})


def encode_ack(ids: tuple[str, ...]) -> bytes:
    return _encode("ack", {"ids": ids})


def encode_subscribe() -> bytes:
    return _encode("subscribe", {})


def encode_partition(cgroup: str, kind: str) -> bytes:
    """Encode a request to set the partition type (`cpuset.cpus.partition`) of a cgroup, given by its absolute path."""
    return _encode("partition", {"cgroup": cgroup, "kind": kind})


def encode_gather(cgroup: str) -> bytes:
    """Encode a request to extend the affinity of every thread of a cgroup to all CPUs of the cgroup. `cgroup` is an absolute path."""
    return _encode("gather", {"cgroup": cgroup})


def encode_host(writes: Sequence[tuple[str, str]]) -> bytes:
    """Encode a request to write settings of the host. `writes` contains absolute paths and the texts to write."""
    return _encode("host", {"writes": writes})


def encode_tell(session: int, ticks: int, line: str) -> bytes:
    """Encode a request to write a line to the terminal of a session. `ticks` is a time in clock ticks since boot; a session that began
    later gets no line, because its ID was reused.
    """
    return _encode("tell", {"session": session, "ticks": ticks, "line": line})


def decode_hello(packet: bytes) -> Hello | Refused:
    return _decode(packet, lambda answer: _read_hello(answer.field("hello")))


def _read_hello(hello: JsonValue) -> Hello:
    return Hello(
        version=hello.field("version").text(),
        protocol=hello.field("protocol").whole(),
        pid=hello.field("pid").whole(),
        boot_id=hello.field("boot_id").text(),
        cgroup=hello.read_optional("cgroup", JsonValue.text, None),
        started_at_ms=hello.field("started_at_ms").whole(),
    )


def decode_start(packet: bytes) -> RunStatus | StartFailed | Refused:
    return _decode(packet, _read_start)


def _read_start(answer: JsonValue) -> RunStatus | StartFailed:
    failed = answer.optional("failed")
    if failed is None:
        return _read_status(answer.field("status"))
    return StartFailed(
        id=failed.field("id").text(),
        stage=failed.field("stage").one_of(StartStage),
        errno=failed.field("errno").whole(),
        message=failed.field("message").text(),
    )


def decode_list(packet: bytes) -> Page | Refused:
    return _decode(
        packet,
        lambda answer: Page(
            statuses=answer.field("statuses").each(_read_status),
            more=answer.field("more").flag(),
            gone=answer.read_optional("gone", lambda gone: gone.each(JsonValue.text), ()),
            token=answer.read_optional("token", JsonValue.text, ""),
            is_whole=answer.read_optional("whole", JsonValue.flag, False),
        ),
    )


def decode_signal(packet: bytes) -> bool | Refused:
    """Decode the answer to a signal request: whether the signal was delivered. False means that the process had already exited."""
    return _decode(packet, lambda answer: answer.field("delivered").flag())


def decode_ack(packet: bytes) -> tuple[str, ...] | Refused:
    """Decode the answer to an acknowledgement: the IDs of runs that the launcher has now forgotten. IDs of running processes and unknown
    IDs are not included.
    """
    return _decode(packet, lambda answer: answer.field("acked").each(JsonValue.text))


def decode_subscribe(packet: bytes) -> Refused | None:
    result = _decode(packet, lambda answer: answer.field("subscribed").flag())
    return result if isinstance(result, Refused) else None


def decode_partition(packet: bytes) -> Refused | None:
    result = _decode(packet, lambda answer: answer.field("partition").text())
    return result if isinstance(result, Refused) else None


def decode_gather(packet: bytes) -> int | Refused:
    """Decode the answer to a gather request: the number of threads whose affinity the launcher changed."""
    return _decode(packet, lambda answer: answer.field("gathered").whole())


def decode_host(packet: bytes) -> tuple[str | None, ...] | Refused:
    """Decode the answer to a request to write host settings: the error of each write. None means success."""
    return _decode(packet, lambda answer: answer.field("results").each(lambda item: item.or_none(JsonValue.text)))


def decode_tell(packet: bytes) -> bool | Refused:
    """Decode the answer to a request to write a line: whether the launcher wrote the line to the terminal."""
    return _decode(packet, lambda answer: answer.field("told").flag())


def _encode(operation: str, fields: Mapping[str, object]) -> bytes:
    return json.dumps({"op": operation} | dict(fields), sort_keys=True).encode()


def _decode(packet: bytes, read: Callable[[JsonValue], T]) -> T | Refused:
    try:
        answer = parse_json(packet)
        refused = answer.optional("refused")
        if refused is not None:
            return Refused(refused.field("code").text(), refused.field("message").text())
        return read(answer)
    except MisfitError as err:
        raise LauncherProtocolError(
            f"cannot read the launcher's answer, {err}: {packet[:200]!r}",
            hint="the launcher may have another version: check `systemctl status nodeagent-launcher` and reload it",
        ) from err


def _read_status(status: JsonValue) -> RunStatus:
    run_id, pid, started_at_ms = (
        status.field("id").text(),
        status.field("pid").whole(),
        status.field("started_at_ms").whole(),
    )
    cgroup = status.read_optional("cgroup", JsonValue.text, None)
    finished_at_ms = status.read_optional("finished_at_ms", JsonValue.whole, None)
    if finished_at_ms is None:
        start_ticks, boot_id = status.field("start_ticks").whole(), status.field("boot_id").text()
        return Running(run_id, pid, start_ticks, boot_id, cgroup, started_at_ms)
    code = status.read_optional("exit_code", JsonValue.whole, None)
    signal = status.read_optional("signal", JsonValue.whole, None)
    end: Returned | Killed | UnknownEnd
    if code is not None:
        end = Returned(code)
    elif signal is not None:
        end = Killed(signal, status.field("core_dumped").flag())
    else:
        end = status.field("unknown").one_of(UnknownEnd)
    return Exited(run_id, pid, cgroup, started_at_ms, finished_at_ms, end)
