"""Start requests and their checks. They check only what the launcher's own safety depends on; the shim reports all other failures."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MAX_ID = 120
MAX_CPU = 8191  # the largest CONFIG_NR_CPUS is 8192
MAX_CPUS = 2**20  # limit for all lists of one request, because the kernel gets each entry, and no request may take long
PATH_MAX = 4096  # limits.h
ID = re.compile(rf"[A-Za-z0-9._:@/-]{{1,{MAX_ID}}}")
PARTITION_KINDS = (
    "root",
    "isolated",
)  # values of cpuset.cpus.partition; ending a partition takes no right that the agent lacks
# host settings that name CPUs, and the format of their values
HOST_FILE = re.compile(
    r"/proc/irq/(default_smp_affinity|[0-9]{1,9}/smp_affinity_list)"
    r"|/sys/devices/virtual/workqueue/cpumask"
    r"|/sys/class/net/(?!\.{1,2}/)[^/\s]{1,15}/queues/(rx-[0-9]{1,5}/rps_cpus|tx-[0-9]{1,5}/xps_cpus)"
)
THREAD = re.compile(r"thread ([0-9]{1,9})@([0-9]{1,19})")  # id, and start in clock ticks since boot
HOST_VALUE = re.compile(r"[0-9a-f,-]{1,20000}")
CPU_LIST = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*")
IDENTIFIER = re.compile(r"[ -~]{0,400}")  # one line of the journal's header: a pod's name (253) and a container's (63)


class RefusedError(Exception):
    """Refusal of a request, with a code and a sentence for the client."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """Request to start a process: its command, cgroup and user. formats/wire/launcher_protocol.py explains each field."""

    id: str
    argv: list[str]
    env: dict[str, str]
    identifier: str
    cgroup: str | None = None
    cwd: str = "/"
    uid: int | None = None
    gid: int | None = None
    groups: Sequence[int] = ()
    log_file: str | None = None
    grace_seconds: int = 30


@dataclasses.dataclass(frozen=True, slots=True)
class FileWrite:
    """Value to write to a file of the kernel."""

    path: Path
    value: str


@dataclasses.dataclass(frozen=True, slots=True)
class ThreadMove:
    """New affinity of a kernel thread. The start time distinguishes it from a later thread with the same id."""

    pid: int
    start_ticks: int
    cpus: tuple[range, ...]


def parse_order(message: Mapping[str, Any], root: Path | None) -> Order:
    try:
        order = Order(**{name: value for name, value in message.items() if name != "op"})
        well_formed = {
            "id": ID.fullmatch(order.id) is not None,
            "identifier": IDENTIFIER.fullmatch(order.identifier) is not None,
            "argv": len(order.argv) > 0 and all(type(text) is str for text in order.argv),
            "env": all(type(text) is str for text in [*order.env, *order.env.values()]),
            "grace_seconds": type(order.grace_seconds) is int and 0 <= order.grace_seconds <= 2**31,
        }
        plain = order.cgroup is None or is_plain(order.cgroup)
    except (TypeError, ValueError, AttributeError, OSError, RuntimeError) as err:
        raise RefusedError("bad_request", f"start: {err}") from err
    wrong = [name for name, is_well_formed in well_formed.items() if not is_well_formed]
    if wrong:  # arguments and variables may be secret, so they are not shown
        raise RefusedError("bad_request", f"start of {order.id[:MAX_ID]!r}: not what it must be: {', '.join(wrong)}")
    is_ours = order.cgroup is None if root is None else order.cgroup is not None and is_inside(order.cgroup, root)
    if not plain or not is_ours:
        raise RefusedError("outside_cgroup", f"start: {order.cgroup} is not a plain path of a cgroup below {root}")
    return order


def partition_file(message: Mapping[str, Any], root: Path | None) -> tuple[Path, str]:
    """Return the write that a request to start a partition asks for."""
    kind = message.get("kind")
    if kind not in PARTITION_KINDS:
        raise RefusedError("bad_request", f"partition: not a cgroup and one of {', '.join(PARTITION_KINDS)}")
    return our_cgroup(message, root, "partition") / "cpuset.cpus.partition", str(kind)


def our_cgroup(message: Mapping[str, Any], root: Path | None, operation: str) -> Path:
    """Return the cgroup that a request is about: a pod's, or one below it."""
    cgroup = message.get("cgroup")
    if type(cgroup) is not str:
        raise RefusedError("bad_request", f"{operation}: no cgroup")
    try:
        is_ours = root is not None and is_inside(cgroup, root)
    except (ValueError, OSError, RuntimeError) as err:
        raise RefusedError("bad_request", f"{operation}: {err}") from err
    if not is_ours:
        raise RefusedError(
            "outside_cgroup", f"{operation}: {cgroup[:MAX_ID]!r} is not a plain path of a cgroup below {root}"
        )
    return Path(cgroup)


def host_writes(message: Mapping[str, Any]) -> list[FileWrite | ThreadMove]:
    """Return the writes of host settings that a request asks for."""
    writes = message.get("writes")
    if not isinstance(writes, list):
        raise RefusedError("bad_request", "host: writes is a list of [file, value]")
    found: list[FileWrite | ThreadMove] = []
    count = 0
    for pair in writes:
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(text) is str for text in pair)):
            raise RefusedError("bad_request", "host: writes is a list of [file, value]")
        place, value = pair
        if HOST_FILE.fullmatch(place) and HOST_VALUE.fullmatch(value):
            found.append(FileWrite(Path(place), value))
        elif (thread := THREAD.fullmatch(place)) and HOST_VALUE.fullmatch(value):
            cpus = cpus_of(value)
            count += sum(len(part) for part in cpus)
            found.append(ThreadMove(int(thread[1]), int(thread[2]), cpus))
        else:
            raise RefusedError("not_a_setting", f"host: {place[:MAX_ID]!r} is no file that names CPUs of the host")
    if count > MAX_CPUS:
        raise RefusedError("too_large", f"host: the lists of threads have {count} CPUs, at most {MAX_CPUS}")
    return found


def cpus_of(text: str) -> tuple[range, ...]:
    """Return the CPUs of a list such as 0-3,8 in the kernel's format: ascending, each CPU once, so that their number is bounded."""
    if not CPU_LIST.fullmatch(text):
        raise RefusedError("bad_request", f"host: {text[:MAX_ID]!r} is no list of CPUs")
    parts = []
    next_cpu = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus = range(int(first), int(last or first) + 1)
        if not next_cpu <= cpus.start < cpus.stop <= MAX_CPU + 1:
            raise RefusedError("bad_request", f"host: CPUs of a list ascend to at most {MAX_CPU}, not {part!r}")
        parts.append(cpus)
        next_cpu = cpus.stop
    return tuple(parts)


def is_inside(cgroup: str, root: Path) -> bool:
    # Only for a plain path that isn't long, because the search is quadratic in its parts.
    return is_plain(cgroup) and root in Path(cgroup).parents and Path(cgroup) != root / "holder"


def is_plain(cgroup: str) -> bool:
    """Whether a path has no '.', '..', doubled slash or symlink. Path() drops the first and third, resolve() also the others."""
    # resolve() asks the kernel once for each part of the path
    return len(cgroup) < PATH_MAX and str(Path(cgroup)) == cgroup and Path(cgroup).resolve() == Path(cgroup)
