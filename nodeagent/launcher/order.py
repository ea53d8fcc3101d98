"""Parser of requests to the launcher. It checks only values that could endanger the launcher itself.

Any other error in a request affects only the container's process, whose start then fails.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MAX_ID = 120
MAX_CPU = 8191  # highest CPU number, because CONFIG_NR_CPUS is at most 8192
MAX_CPUS = 2**20  # limit on the total length of all CPU lists in a request, so that no request takes long
PATH_MAX = 4096  # value from limits.h
ID = re.compile(rf"[A-Za-z0-9._:@/-]{{1,{MAX_ID}}}")
# values that the launcher writes to cpuset.cpus.partition; the agent itself may write the third value, member
PARTITION_KINDS = ("root", "isolated")
HOST_FILE = re.compile(  # files of host settings whose values are lists of CPUs
    r"/proc/irq/(default_smp_affinity|[0-9]{1,9}/smp_affinity_list)"
    r"|/sys/devices/virtual/workqueue/cpumask"
    r"|/sys/class/net/(?!\.{1,2}/)[^/\s]{1,15}/queues/(rx-[0-9]{1,5}/rps_cpus|tx-[0-9]{1,5}/xps_cpus)"
)
CPU_FILE = re.compile(  # files with the settings of a single CPU, and files of boost
    r"/sys/devices/system/cpu/cpu[0-9]{1,4}/(power/pm_qos_resume_latency_us|cpufreq/(scaling_(governor|min_freq|max_freq)|boost))"
    r"|/sys/devices/system/cpu/(cpufreq/boost|intel_pstate/no_turbo)"
)
CPU_VALUE = re.compile(r"[a-z0-9_/-]{1,40}")
THREAD = re.compile(r"thread ([0-9]{1,9})@([0-9]{1,19})")  # a thread's ID, and its start time in clock ticks since boot
HOST_VALUE = re.compile(r"[0-9a-f,-]{1,20000}")
CPU_LIST = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*")
LINE = re.compile(r"[ -~]{1,400}")  # line for a terminal: printable ASCII, so that no line can command the terminal
SETTINGS = {"aslr", "transparentHugePages", "scheduler", "nice"}
# line in the header of a journal stream: printable ASCII, long enough for the names of a pod (253) and a container (63)
IDENTIFIER = re.compile(r"[ -~]{0,400}")


class RefusedError(Exception):
    """Refusal of a request, with a code and a message for the client."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """Request to start a process. formats/wire/launcher_protocol.py explains the fields."""

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
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class FileWrite:
    """A value to write to a file of the kernel."""

    path: Path
    value: str


@dataclasses.dataclass(frozen=True, slots=True)
class ThreadMove:
    """New CPU affinity of a kernel thread. The start time distinguishes the thread from a later thread with the same ID."""

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
            "settings": isinstance(order.settings, dict) and order.settings.keys() <= SETTINGS,
            "grace_seconds": type(order.grace_seconds) is int and 0 <= order.grace_seconds <= 2**31,
        }
        is_ours = order.cgroup is None if root is None else order.cgroup is not None and is_inside(order.cgroup, root)
    except (TypeError, ValueError, AttributeError, OSError, RuntimeError) as err:
        raise RefusedError("bad_request", f"start: {err}") from err
    wrong = [name for name, is_well_formed in well_formed.items() if not is_well_formed]
    if wrong:  # the message has no values, because arguments and variables may be secret
        raise RefusedError("bad_request", f"start of {order.id[:MAX_ID]!r}: invalid fields: {', '.join(wrong)}")
    if not is_ours:
        raise RefusedError("outside_cgroup", f"start: {order.cgroup} is not a plain path of a cgroup below {root}")
    return order


def parse_partition(message: Mapping[str, Any], root: Path | None) -> tuple[Path, str]:
    """Return the file and the value of a request to change a partition. Raise RefusedError if they aren't allowed."""
    kind = message.get("kind")
    if kind not in PARTITION_KINDS:
        raise RefusedError("bad_request", f"partition: kind must be one of {', '.join(PARTITION_KINDS)}")
    return parse_cgroup(message, root, "partition") / "cpuset.cpus.partition", str(kind)


def parse_cgroup(message: Mapping[str, Any], root: Path | None, operation: str) -> Path:
    """Return the cgroup of a request. Raise RefusedError for a cgroup that isn't below the root."""
    cgroup = message.get("cgroup")
    if type(cgroup) is not str:
        raise RefusedError("bad_request", f"{operation}: cgroup must be a string")
    try:
        is_ours = root is not None and is_inside(cgroup, root)
    except (ValueError, OSError, RuntimeError) as err:
        raise RefusedError("bad_request", f"{operation}: {err}") from err
    if not is_ours:
        raise RefusedError(
            "outside_cgroup", f"{operation}: {cgroup[:MAX_ID]!r} is not a plain path of a cgroup below {root}"
        )
    return Path(cgroup)


def parse_host_writes(message: Mapping[str, Any]) -> list[FileWrite | ThreadMove]:
    writes = message.get("writes")
    if not isinstance(writes, list):
        raise RefusedError("bad_request", "host: writes must be a list of [file, value]")
    found: list[FileWrite | ThreadMove] = []
    count = 0
    for pair in writes:
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(text) is str for text in pair)):
            raise RefusedError("bad_request", "host: writes must be a list of [file, value]")
        place, value = pair
        is_of_cpus = HOST_FILE.fullmatch(place) and HOST_VALUE.fullmatch(value)
        if is_of_cpus or (CPU_FILE.fullmatch(place) and CPU_VALUE.fullmatch(value)):
            found.append(FileWrite(Path(place), value))
        elif (thread := THREAD.fullmatch(place)) and HOST_VALUE.fullmatch(value):
            cpus = parse_cpus(value)
            count += sum(len(part) for part in cpus)
            found.append(ThreadMove(int(thread[1]), int(thread[2]), cpus))
        else:
            raise RefusedError(
                "not_a_setting",
                f"host: {place[:MAX_ID]!r} is no file or thread that the launcher may change, or the value is invalid",
            )
    if count > MAX_CPUS:
        raise RefusedError(
            "too_large", f"host: the CPU lists of threads have {count} CPUs, more than the limit of {MAX_CPUS}"
        )
    return found


def parse_terminal_line(message: Mapping[str, Any]) -> tuple[int, int, str]:
    session, ticks, line = (message.get(name) for name in ("session", "ticks", "line"))
    if type(session) is type(ticks) is int and session > 0 and type(line) is str and LINE.fullmatch(line):
        return session, ticks, line
    raise RefusedError("bad_request", "tell: must have a session, a time in clock ticks and a line of printable ASCII")


def parse_cpus(text: str) -> tuple[range, ...]:
    """Parse a list in the kernel's format, such as 0-3,8.

    The CPUs must be in ascending order, which bounds the length of the list by the number of CPUs.
    """
    if not CPU_LIST.fullmatch(text):
        raise RefusedError("bad_request", f"host: {text[:MAX_ID]!r} is not a list of CPUs")
    parts = []
    next_cpu = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus = range(int(first), int(last or first) + 1)
        if not next_cpu <= cpus.start < cpus.stop <= MAX_CPU + 1:
            raise RefusedError(
                "bad_request",
                f"host: the CPUs of a list must be in ascending order and at most {MAX_CPU}, not {part!r}",
            )
        parts.append(cpus)
        next_cpu = cpus.stop
    return tuple(parts)


def is_inside(cgroup: str, root: Path) -> bool:
    return is_plain(cgroup) and cgroup.startswith(f"{root}/") and cgroup != f"{root}/holder"


def is_plain(cgroup: str) -> bool:
    """Return whether a path has no '.', '..', double slash or symlink."""
    return len(cgroup) < PATH_MAX and os.path.realpath(cgroup) == cgroup
