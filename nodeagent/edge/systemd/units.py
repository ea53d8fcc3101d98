"""Properties of systemd units: AllowedCPUs=, AllowedMemoryNodes= and DeviceAllow=.

The agent changes them through systemctl, so that only systemd writes to the units' cgroups. It reads CPUs from the cgroups, because
systemd's properties also show values that systemd failed to apply.
"""

import shlex
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.unit_names import unit_of
from nodeagent.formats.kernel.unit_properties import (
    DEVICE_PROPERTIES,
    PROPERTIES,
    DeviceRules,
    UnitProperties,
    parse_device_rules,
    parse_units,
)

T = TypeVar("T")

CGROUPS = Path("/sys/fs/cgroup")
CONTROL = Path("/run/systemd/system.control")
"""Directory of the drop-ins that `systemctl set-property --runtime` writes, except for transient units."""
OURS = "nodeagent.slice"
CALL_SECONDS = 5.0
"""Timeout of a call in seconds. During a daemon-reload, systemd doesn't answer; this takes seconds if there are thousands of units."""
ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}
"""Environment variables of systemctl. NOTIFY_SOCKET isn't among them, because systemctl would send its own failures to that socket, as if
they were the agent's.
"""


class UnitsError(NodeAgentError):
    """systemd can't be reached, refuses a request, or hasn't answered in time."""


def read_units(
    possible: CpuSet,
    *,
    ours: str = OURS,
    cgroups: Path = CGROUPS,
    within: Collection[str] = (),
    without: Collection[str] = (),
) -> dict[str, CpuSet]:
    """Read `cpuset.cpus` of the top-level units and of the units directly below certain slices. Return the CPUs by cgroup path.

    Args:
        possible: CPUs to return for a unit whose `cpuset.cpus` is empty.
        ours: top-level unit of the pods. It and its children are left out.
        cgroups: mount point of cgroup v2.
        within: paths of the slices.
        without: paths of units to leave out.

    Raises:
        UnitsError: the cgroups can't be read.
    """
    found = {}
    for directory in ("", *sorted(within)):
        for name in _list_cgroups(cgroups / directory, may_be_gone=bool(directory)):
            unit, path = unit_of(name), f"{directory}/{name}" if directory else name
            is_ours = unit_of(path.partition("/")[0]) in {ours, OURS}
            if unit is None or is_ours or path in without or (cpus := _read_cpus(cgroups / path)) is None:
                continue
            found[path if directory else unit] = cpus or possible
    return found


def _list_cgroups(directory: Path, *, may_be_gone: bool) -> list[str]:
    try:
        return sorted(entry.name for entry in directory.iterdir() if entry.is_dir())
    except OSError as err:
        if may_be_gone and isinstance(err, FileNotFoundError):
            return []
        raise UnitsError(
            f"cannot list {directory}: {err.strerror}", hint="the host needs cgroup v2: see `nodeagent check`"
        ) from err


def _read_cpus(cgroup: Path) -> CpuSet | None:
    """Read `cpuset.cpus` of a cgroup. None means that the cgroup doesn't exist. Empty means that it may use all CPUs of its parent."""
    file = cgroup / "cpuset.cpus"
    try:
        return CpuSet.parse(file.read_text(encoding="ascii").strip())
    except FileNotFoundError:
        return CpuSet() if cgroup.is_dir() else None
    except (OSError, ValueError) as err:
        raise UnitsError(
            f"cannot read {file}: {err}", hint="see `nodeagent check`; the agent reads the file again at the next sync"
        ) from err


def start_deadline() -> float:
    """Return the time CALL_SECONDS from now, in seconds of time.monotonic(), as a deadline that several calls can share."""
    return time.monotonic() + CALL_SECONDS


def set_allowed_cpus(unit: str, cpus: CpuSet, systemctl: str = "systemctl", *, until: float | None = None) -> None:
    """Restrict a unit to CPUs, with effect on its running processes, until the next boot.

    systemd writes the drop-in `50-AllowedCPUs.conf`, replacing an earlier one. After a daemon-reload, other drop-ins override it: those
    with later names, and those that `systemctl set-property` wrote without --runtime.

    Args:
        unit: the unit's name.
        cpus: the CPUs, at least one.
        systemctl: the program to run.
        until: deadline from `start_deadline`. None means that this call has a deadline of its own.

    Raises:
        UnitsError: systemd refuses, or doesn't answer in time.
    """
    assert cpus, "an empty AllowedCPUs= means all CPUs"
    _set_properties(unit, (f"AllowedCPUs={cpus}",), systemctl, until)


def clear_allowed_cpus(
    unit: str, possible: CpuSet, systemctl: str = "systemctl", *, until: float | None = None
) -> None:
    """Let a unit use all CPUs again, if it had no AllowedCPUs= originally. Otherwise, restore the original with `set_allowed_cpus`.

    Clearing `AllowedCPUs=` doesn't change the cgroup of a running unit (systemd #43846). Therefore, the unit first gets all possible CPUs,
    which stay in its `cpuset.cpus` until the next boot.

    Raises:
        UnitsError: systemd refuses, or doesn't answer in time. The call can be repeated.
    """
    until = start_deadline() if until is None else until
    set_allowed_cpus(unit, possible, systemctl, until=until)
    _set_properties(unit, ("AllowedCPUs=",), systemctl, until)


def show_units(names: Collection[str], systemctl: str = "systemctl") -> dict[str, UnitProperties]:
    """Return the properties of units, by name. A unit that doesn't exist has properties, too, with LoadState=not-found.

    Raises:
        UnitsError: systemd refuses, or doesn't answer in time.
    """
    asked = sorted(names)

    def parse(answer: str) -> dict[str, UnitProperties]:
        return dict(zip(asked, parse_units(answer), strict=True))

    return _show(asked, PROPERTIES, parse, systemctl, None)


def list_unit_names(systemctl: str = "systemctl") -> list[str]:
    """Return the names of all units that are loaded or have a unit file.

    Raises:
        UnitsError: systemd refuses, or doesn't answer in time.
    """
    asked = (("list-units", "--all", "--plain"), ("list-unit-files",))
    answers = [
        _run("cannot list units", (systemctl, *words, "--full", "--no-legend", "--no-ask-password"), None)
        for words in asked
    ]
    return sorted({line.split()[0] for answer in answers for line in answer.splitlines() if line.strip()})


def show_device_rules(unit: str, systemctl: str = "systemctl", *, until: float | None = None) -> DeviceRules:
    """Return a unit's DevicePolicy= and DeviceAllow=. `until` has the same meaning as in `set_allowed_cpus`.

    Raises:
        UnitsError: systemd refuses, or doesn't answer in time.
    """
    return _show((unit,), DEVICE_PROPERTIES, parse_device_rules, systemctl, until)


def set_device_rules(
    unit: str, rules: Sequence[str], systemctl: str = "systemctl", *, until: float | None = None
) -> None:
    """Replace a unit's DeviceAllow= until the next boot, with immediate effect on its running processes. The unit may also be inactive.

    Args:
        unit: the unit's name.
        rules: new values of `DeviceAllow=`.
        systemctl: the program to run.
        until: deadline, as in `set_allowed_cpus`.

    Raises:
        UnitsError: systemd refuses, or doesn't answer in time.
    """
    properties = ("DeviceAllow=", *(f"DeviceAllow={rule}" for rule in rules))
    _set_properties(unit, properties, systemctl, until)


def has_device_drop_in(unit: str, control: Path = CONTROL) -> bool:
    """Return whether the drop-in that `set_device_rules` writes exists.

    The drop-in survives the removal of the unit's file, and applies again if a unit file of this name is installed later.
    """
    try:
        (control / f"{unit}.d" / "50-DeviceAllow.conf").stat()
    except OSError:  # a file that can't be read counts as missing
        return False
    return True


def set_unit(
    unit: str, *, cpus: CpuSet | None = None, memory_nodes: NumaSet | None = None, systemctl: str = "systemctl"
) -> None:
    """Restrict a unit to CPUs and memory nodes until the next boot. Running processes are moved at once. The unit may also be inactive.

    Args:
        unit: the unit's name.
        cpus: the CPUs. None means that they stay unchanged. An empty set allows all CPUs, but only from the unit's next start on (systemd
            #43846).
        memory_nodes: the memory nodes. None and an empty set have the same meanings as for the CPUs.
        systemctl: the program to run.

    Raises:
        UnitsError: systemd refuses, or doesn't answer in time.
    """
    properties = [] if cpus is None else [f"AllowedCPUs={cpus}"]
    properties += [] if memory_nodes is None else [f"AllowedMemoryNodes={memory_nodes}"]
    _set_properties(unit, properties, systemctl, None)


def _show(
    units: Sequence[str], properties: Sequence[str], parse: Callable[[str], T], systemctl: str, until: float | None
) -> T:
    failure = f"cannot ask systemd about {', '.join(units)}"
    command = (systemctl, "--no-ask-password", "show", f"--property={','.join(properties)}", "--", *units)
    answer = _run(failure, command, until)
    try:
        return parse(answer)
    except ValueError as err:
        raise UnitsError(f"{failure}: cannot parse the answer: {err}", hint=f"see `{shlex.join(command)}`") from err


def _set_properties(unit: str, properties: Sequence[str], systemctl: str, until: float | None) -> None:
    failure = f"cannot set {' '.join(properties)} of {unit}"
    _run(failure, (systemctl, "--no-ask-password", "set-property", "--runtime", "--", unit, *properties), until)


def _run(failure: str, command: Sequence[str], until: float | None) -> str:
    late = UnitsError(
        f"{failure}: systemd has not answered for {CALL_SECONDS:g} s",
        hint="see `systemctl list-jobs` and `journalctl -b _PID=1`",
    )
    seconds = CALL_SECONDS if until is None else until - time.monotonic()
    if seconds <= 0:  # earlier calls have used up the time until the shared deadline
        raise late
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            stdin=subprocess.DEVNULL,
            env=ENVIRONMENT,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as err:
        raise late from err
    except OSError as err:
        raise UnitsError(
            f"{failure}: cannot run {command[0]}: {err.strerror}",
            hint="the host needs systemd: see `nodeagent check`",
        ) from err
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or f"systemctl has exited with status {done.returncode}"
        raise UnitsError(f"{failure}: {reason}", hint=f"try it yourself: sudo {shlex.join(command)}")
    return done.stdout
