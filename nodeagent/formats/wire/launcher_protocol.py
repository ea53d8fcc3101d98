"""Encoder and decoder of the launcher's protocol: one JSON object per packet, a request and its answer, pushed events
after `subscribe`.

The launcher stands alone and doesn't import this module; a test keeps both in step. The caller interprets the
answers.
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
MAX_ANSWER_BYTES = 208 * 1024  # what fits into one packet with the kernel's default send buffer


class LauncherProtocolError(NodeAgentError):
    """An answer of the launcher is unreadable for this version."""


DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Directories searched for a program whose environment has no PATH."""


class StartStage(StrEnum):
    """Stage at which a start failed. Up to `cgroup`, its processes were never in the container's cgroup."""

    FORK = "fork"
    DEADLINE = "deadline"  # the process hung, as in a frozen cgroup, and was killed
    CGROUP = "cgroup"
    SESSION = "session"
    OUTPUT = "output"
    USER = "user"
    CWD = "cwd"
    EXEC = "exec"


class UnknownEnd(StrEnum):
    """Reason why the exit status of a process is unknown."""

    LAUNCHER_RESTARTED = "launcher_restarted"  # the process was no longer the launcher's child
    HOST_REBOOTED = "host_rebooted"


class Hello(Struct, frozen=True):
    version: str
    protocol: int
    pid: int
    boot_id: str
    cgroup: str | None  # parent cgroup of all containers; None = without cgroups
    started_at_ms: int


class StartRequest(Struct, frozen=True):
    id: str  # [A-Za-z0-9._:@/-]{1,120}, unique forever: each restart of a container has a new one
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]  # the complete environment; the launcher adds nothing
    identifier: str  # SYSLOG_IDENTIFIER in the journal, printable ASCII
    cgroup: str | None
    cwd: str = "/"
    uid: int | None = None  # None = the launcher's user, root
    gid: int | None = None
    groups: tuple[int, ...] = ()  # supplementary groups; if uid, gid or groups is set, they replace root's
    log_file: str | None = None  # file for the output if there is no journal
    grace_seconds: int = 30  # time between SIGTERM and SIGKILL when the launcher itself has to stop


class Returned(Struct, frozen=True):
    code: int


class Killed(Struct, frozen=True):
    signal: int
    core_dumped: bool


class Running(Struct, frozen=True):
    id: str
    pid: int
    start_ticks: int  # together with pid and boot_id the identity of the process
    boot_id: str
    cgroup: str | None
    started_at_ms: int


class Exited(Struct, frozen=True):
    id: str
    pid: int
    cgroup: str | None
    started_at_ms: int
    finished_at_ms: int  # for an UnknownEnd, the time when it was noticed
    end: Returned | Killed | UnknownEnd

    @property
    def exit_code(self) -> int | None:
        """Exit code as in container statuses: 128 + n for signal n. None if unknown."""
        match self.end:
            case Returned(code):
                return code
            case Killed(signal):
                return 128 + signal
            case UnknownEnd():
                return None


RunStatus = Running | Exited


class StartFailed(Struct, frozen=True):
    """Nothing runs, and the launcher has forgotten the ID, which may therefore be started again."""

    id: str
    stage: StartStage
    errno: int
    message: str


class Refused(Struct, frozen=True):
    """The launcher refuses this request."""

    code: str
    message: str


class Page(Struct, frozen=True):
    """A part of the list, ordered by ID. If `more` is set, the next request starts after the last ID."""

    statuses: tuple[RunStatus, ...]
    more: bool


def encode_hello() -> bytes:
    return _encode("hello", {"protocol": PROTOCOL})


def encode_start(request: StartRequest) -> bytes:
    names = ("id", "cgroup", "argv", "cwd", "uid", "gid", "groups", "identifier", "log_file", "grace_seconds")
    return _encode("start", {name: getattr(request, name) for name in names} | {"env": dict(request.env)})


def encode_list(after: str) -> bytes:
    """Encode a request for the list after the ID `after`, which is "" at first."""
    return _encode("list", {"after": after})


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
    """Encode a request to gather the threads of a cgroup, given by its absolute path."""
    return _encode("gather", {"cgroup": cgroup})


def encode_host(writes: Sequence[tuple[str, str]]) -> bytes:
    """Encode a request to write settings of the host. `writes` has absolute paths and the texts to write."""
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
    raise _unreadable_error(packet, "no hello")


def decode_start(packet: bytes) -> RunStatus | StartFailed | Refused:
    match _decode(packet):
        case Refused() as refused:
            return refused
        case {"status": dict() as status}:
            return _decode_status(status)
        case {"failed": dict() as failed}:
            return StartFailed(
                id=_take(failed, "id", str),
                stage=_take_member(StartStage, failed, "stage"),
                errno=_take(failed, "errno", int),
                message=_take(failed, "message", str),
            )
    raise _unreadable_error(packet, "neither a status nor a failed start")


def decode_list(packet: bytes) -> Page | Refused:
    match _decode(packet):
        case Refused() as refused:
            return refused
        case {"statuses": list() as statuses, "more": bool() as more} if all(isinstance(s, dict) for s in statuses):
            return Page(tuple(_decode_status(status) for status in statuses), more)
    raise _unreadable_error(packet, "no list")


def decode_signal(packet: bytes) -> bool | Refused:
    """Decode whether a signal was delivered. False means that the process had already ended."""
    return _decode_field(packet, "delivered", bool, "no answer to a signal")


def decode_ack(packet: bytes) -> tuple[str, ...] | Refused:
    """Decode the IDs that the launcher has now forgotten. Running and unknown ones are not included."""
    match _decode(packet):
        case Refused() as refused:
            return refused
        case {"acked": list() as ids} if all(isinstance(i, str) for i in ids):
            return tuple(ids)
    raise _unreadable_error(packet, "no answer to an acknowledgement")


def decode_subscribe(packet: bytes) -> Refused | None:
    match _decode(packet):
        case Refused() as refused:
            return refused
        case {"subscribed": True}:
            return None
    raise _unreadable_error(packet, "no answer to a subscription")


def decode_partition(packet: bytes) -> Refused | None:
    answer = _decode_field(packet, "partition", str, "no answer about a partition")
    return answer if isinstance(answer, Refused) else None


def decode_gather(packet: bytes) -> int | Refused:
    """Decode the number of gathered threads."""
    return _decode_field(packet, "gathered", int, "no number of gathered threads")


def decode_host(packet: bytes) -> tuple[str | None, ...] | Refused:
    """Decode the result of each write: None, or the reason for the failure."""
    match _decode(packet):
        case Refused() as refused:
            return refused
        case {"results": list() as results} if all(result is None or isinstance(result, str) for result in results):
            return tuple(results)
    raise _unreadable_error(packet, "no results of writes")


def _decode_field(packet: bytes, name: str, kind: type[T], why: str) -> T | Refused:
    answer = _decode(packet)
    if isinstance(answer, Refused):
        return answer
    value = answer.get(name)
    if isinstance(value, kind):
        return value
    raise _unreadable_error(packet, why)


def _encode(operation: str, fields: Mapping[str, object]) -> bytes:
    return json.dumps({"op": operation} | dict(fields), sort_keys=True).encode()


def _decode(packet: bytes) -> Mapping[str, Any] | Refused:
    try:
        answer = json.loads(packet)
    except (ValueError, RecursionError) as err:
        raise _unreadable_error(packet, "no JSON") from err
    match answer:
        case {"refused": {"code": str() as code, "message": str() as message}}:
            return Refused(code, message)
        case dict():
            return answer
    raise _unreadable_error(packet, "no object")


def _decode_status(fields: Mapping[str, Any]) -> RunStatus:
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
    code, signal = _take_or_none(fields, "exit_code", int), _take_or_none(fields, "signal", int)
    end: Returned | Killed | UnknownEnd
    if code is not None:
        end = Returned(code)
    elif signal is not None:
        end = Killed(signal, _take(fields, "core_dumped", bool))
    else:
        end = _take_member(UnknownEnd, fields, "unknown")
    return Exited(run_id, pid, cgroup, started_at_ms, finished_at_ms, end)


def _take(fields: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = fields.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _unreadable_error(repr(fields).encode(), f"{name} is not of type {kind.__name__}")
    return value


def _take_or_none(fields: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    return None if fields.get(name) is None else _take(fields, name, kind)


def _take_member(kind: type[E], fields: Mapping[str, Any], name: str) -> E:
    try:
        return kind(_take(fields, name, str))
    except ValueError as err:
        raise _unreadable_error(repr(fields).encode(), f"{name} is none of {', '.join(kind)}") from err


def _unreadable_error(packet: bytes, why: str) -> LauncherProtocolError:
    return LauncherProtocolError(
        f"cannot read the launcher's answer, {why}: {packet[:200]!r}",
        hint="the launcher may have another version: check `systemctl status nodeagent-launcher` and reload it",
    )
