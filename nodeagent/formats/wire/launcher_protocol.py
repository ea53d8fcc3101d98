"""The launcher's protocol, spelled and read: one JSON object per packet, a request and its answer, pushed events after `subscribe`.

The launcher stands alone and does not import this; a test keeps the two in step. Interpreting an answer is up to the caller.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from msgspec import Struct

from nodeagent.errors import NodeAgentError

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

PROTOCOL = 1
MAX_REQUEST_BYTES = 192 * 1024
MAX_ANSWER_BYTES = 208 * 1024  # what the kernel's default send buffer lets through in one packet


class LauncherProtocolError(NodeAgentError):
    """An answer that this version cannot read."""


DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where the launcher looks for a program whose environment has no PATH."""


class StartStage(StrEnum):
    """How far a failed start came. Up to `cgroup` none of its processes was ever in the container's cgroup."""

    FORK = "fork"
    DEADLINE = "deadline"  # it hung, as in a frozen cgroup, and was killed
    CGROUP = "cgroup"
    SESSION = "session"
    OUTPUT = "output"
    USER = "user"
    CWD = "cwd"
    EXEC = "exec"


class UnknownEnd(StrEnum):
    """Why it is unknown how a process ended."""

    LAUNCHER_RESTARTED = "launcher_restarted"  # it was no longer the launcher's child
    HOST_REBOOTED = "host_rebooted"


class Hello(Struct, frozen=True):
    version: str
    protocol: int
    pid: int
    boot_id: str
    cgroup: str | None  # below which containers can be started; None = without cgroups
    started_at_ms: int


class StartRequest(Struct, frozen=True):
    id: str  # [A-Za-z0-9._:@/-]{1,120}, unique forever: each restart of a container has its own
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]  # the whole environment; nothing is added to it
    identifier: str  # the journal's SYSLOG_IDENTIFIER, printable ASCII
    cgroup: str | None
    cwd: str = "/"
    uid: int | None = None  # None = the launcher's, root
    gid: int | None = None
    groups: tuple[int, ...] = ()  # supplementary; where any of the three is given these replace root's
    log_file: str | None = None  # receives the output if there is no journal
    grace_seconds: int = 30  # between SIGTERM and SIGKILL when the launcher itself has to stop


class Returned(Struct, frozen=True):
    code: int


class Killed(Struct, frozen=True):
    signal: int
    core_dumped: bool


class Running(Struct, frozen=True):
    id: str
    pid: int
    start_ticks: int  # with pid and boot_id the process's identity
    boot_id: str
    cgroup: str | None
    started_at_ms: int


class Exited(Struct, frozen=True):
    id: str
    pid: int
    cgroup: str | None
    started_at_ms: int
    finished_at_ms: int  # for an UnknownEnd: when it was noticed
    end: Returned | Killed | UnknownEnd

    @property
    def exit_code(self) -> int | None:
        """As in containers' statuses: 128 + n for signal n; None = unknown."""
        match self.end:
            case Returned(code):
                return code
            case Killed(signal):
                return 128 + signal
            case UnknownEnd():
                return None


RunStatus = Running | Exited


class StartFailed(Struct, frozen=True):
    """Nothing runs, and nothing is remembered: the same id may be started again."""

    id: str
    stage: StartStage
    errno: int
    message: str


class Refused(Struct, frozen=True):
    """The launcher doesn't serve this request."""

    code: str
    message: str


class Page(Struct, frozen=True):
    """A part of the list, ordered by id. More: ask again after the last one's id."""

    statuses: tuple[RunStatus, ...]
    more: bool


def encode_hello() -> bytes:
    return _encode("hello", {"protocol": PROTOCOL})


def encode_start(request: StartRequest) -> bytes:
    names = ("id", "cgroup", "argv", "cwd", "uid", "gid", "groups", "identifier", "log_file", "grace_seconds")
    return _encode("start", {name: getattr(request, name) for name in names} | {"env": dict(request.env)})


def encode_list(after: str) -> bytes:
    """After: the last id that is already known, "" at first."""
    return _encode("list", {"after": after})


def encode_signal(run_id: str, signal: int) -> bytes:
    return _encode("signal", {"id": run_id, "signal": signal})


def encode_ack(ids: tuple[str, ...]) -> bytes:
    return _encode("ack", {"ids": ids})


def encode_subscribe() -> bytes:
    return _encode("subscribe", {})


def encode_partition(cgroup: str, kind: str) -> bytes:
    """Cgroup: absolute path. Kind: as in `cpuset.cpus.partition`."""
    return _encode("partition", {"cgroup": cgroup, "kind": kind})


def encode_gather(cgroup: str) -> bytes:
    """Cgroup: absolute path."""
    return _encode("gather", {"cgroup": cgroup})


def encode_host(writes: Sequence[tuple[str, str]]) -> bytes:
    """Writes: absolute path of a setting of the host, and what to write to it."""
    return _encode("host", {"writes": writes})


def decode_hello(packet: bytes) -> Hello | Refused:
    match _decode(packet):
        case Refused() as refused:
            return refused
        case {"hello": dict() as hello}:
            return Hello(
                version=_take(hello, "version", str),
                protocol=_take(hello, "protocol", int),
                pid=_take(hello, "pid", int),
                boot_id=_take(hello, "boot_id", str),
                cgroup=_take_or_none(hello, "cgroup", str),
                started_at_ms=_take(hello, "started_at_ms", int),
            )
    raise _unreadable(packet, "no hello")


def decode_start(packet: bytes) -> RunStatus | StartFailed | Refused:
    match _decode(packet):
        case Refused() as refused:
            return refused
        case {"status": dict() as status}:
            return _status(status)
        case {"failed": dict() as failed}:
            return StartFailed(
                id=_take(failed, "id", str),
                stage=_member(StartStage, failed, "stage"),
                errno=_take(failed, "errno", int),
                message=_take(failed, "message", str),
            )
    raise _unreadable(packet, "neither a status nor a failed start")


def decode_list(packet: bytes) -> Page | Refused:
    match _decode(packet):
        case Refused() as refused:
            return refused
        case {"statuses": list() as statuses, "more": bool() as more} if all(isinstance(s, dict) for s in statuses):
            return Page(tuple(_status(status) for status in statuses), more)
    raise _unreadable(packet, "no list")


def decode_signal(packet: bytes) -> bool | Refused:
    """False: the process has already ended."""
    match _decode(packet):
        case Refused() as refused:
            return refused
        case {"delivered": bool() as delivered}:
            return delivered
    raise _unreadable(packet, "no answer to a signal")


def decode_ack(packet: bytes) -> tuple[str, ...] | Refused:
    """The ids that are now forgotten; not those that run, or that the launcher never knew."""
    match _decode(packet):
        case Refused() as refused:
            return refused
        case {"acked": list() as ids} if all(isinstance(i, str) for i in ids):
            return tuple(ids)
    raise _unreadable(packet, "no answer to an acknowledgement")


def decode_subscribe(packet: bytes) -> Refused | None:
    match _decode(packet):
        case Refused() as refused:
            return refused
        case {"subscribed": True}:
            return None
    raise _unreadable(packet, "no answer to a subscription")


def decode_partition(packet: bytes) -> Refused | None:
    match _decode(packet):
        case Refused() as refused:
            return refused
        case {"partition": str()}:
            return None
    raise _unreadable(packet, "no answer about a partition")


def decode_gather(packet: bytes) -> int | Refused:
    """How many threads were brought back."""
    match _decode(packet):
        case Refused() as refused:
            return refused
        case {"gathered": int(count)}:
            return count
    raise _unreadable(packet, "no number of gathered threads")


def decode_host(packet: bytes) -> tuple[str | None, ...] | Refused:
    """For each write: None, or why it failed."""
    match _decode(packet):
        case Refused() as refused:
            return refused
        case {"results": list() as results} if all(result is None or isinstance(result, str) for result in results):
            return tuple(results)
    raise _unreadable(packet, "no results of writes")


def _encode(operation: str, fields: Mapping[str, object]) -> bytes:
    return json.dumps({"op": operation} | dict(fields), sort_keys=True).encode()


def _decode(packet: bytes) -> Mapping[str, Any] | Refused:
    try:
        answer = json.loads(packet)
    except (ValueError, RecursionError) as err:
        raise _unreadable(packet, "no JSON") from err
    match answer:
        case {"refused": {"code": str() as code, "message": str() as message}}:
            return Refused(code, message)
        case dict():
            return answer
    raise _unreadable(packet, "no object")


def _status(fields: Mapping[str, Any]) -> RunStatus:
    run_id, pid, started_at_ms = (
        _take(fields, "id", str),
        _take(fields, "pid", int),
        _take(fields, "started_at_ms", int),
    )
    cgroup = _take_or_none(fields, "cgroup", str)
    finished_at_ms = _take_or_none(fields, "finished_at_ms", int)
    if finished_at_ms is None:
        start_ticks, boot_id = _take(fields, "start_ticks", int), _take(fields, "boot_id", str)
        return Running(run_id, pid, start_ticks, boot_id, cgroup, started_at_ms)
    return Exited(run_id, pid, cgroup, started_at_ms, finished_at_ms, _end(fields))


def _end(fields: Mapping[str, Any]) -> Returned | Killed | UnknownEnd:
    code, signal = _take_or_none(fields, "exit_code", int), _take_or_none(fields, "signal", int)
    if code is not None:
        return Returned(code)
    if signal is not None:
        return Killed(signal, _take(fields, "core_dumped", bool))
    return _member(UnknownEnd, fields, "unknown")


def _take(fields: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = fields.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _unreadable(repr(fields).encode(), f"{name} is not of type {kind.__name__}")
    return value


def _take_or_none(fields: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    return None if fields.get(name) is None else _take(fields, name, kind)


def _member(kind: type[E], fields: Mapping[str, Any], name: str) -> E:
    try:
        return kind(_take(fields, name, str))
    except ValueError as err:
        raise _unreadable(repr(fields).encode(), f"{name} is none of {', '.join(kind)}") from err


def _unreadable(packet: bytes, why: str) -> LauncherProtocolError:
    return LauncherProtocolError(
        f"cannot read the launcher's answer, {why}: {packet[:200]!r}",
        hint="the launcher may have another version: compare 'systemctl status nodeagent-launcher' and reload it",
    )
