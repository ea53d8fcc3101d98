"""AllowedCPUs= and AllowedMemoryNodes= of systemd's units: which CPUs and memory everything on the host but the pods may use.

Changed through systemctl, so that systemd stays the only writer of these cgroups. Read from the cgroups: systemd also reports CPUs as
allowed that it could not set, and after a daemon-reload another drop-in may count.
"""

import shlex
import subprocess
import time
from collections.abc import Collection, Sequence
from pathlib import Path

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

CGROUPS = Path("/sys/fs/cgroup")
CONTROL = Path("/run/systemd/system.control")
"""Where `set-property --runtime` keeps what it sets, but for transient units: theirs goes with them."""
OURS = "nodeagent.slice"
CALL_SECONDS = 5.0
"""A daemon-reload, which systemd finishes before it answers anybody, takes seconds on a host with thousands of units."""
ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}
"""Not our own: systemctl would report its failures to our NOTIFY_SOCKET."""


class UnitsError(NodeAgentError):
    """systemd cannot be asked, or refuses. One that has not answered in time may still do it."""


def read_units(
    possible: CpuSet,
    *,
    ours: str = OURS,
    cgroups: Path = CGROUPS,
    within: Collection[str] = (),
    without: Collection[str] = (),
) -> dict[str, CpuSet]:
    """Return the CPUs that units may use, by the paths of their cgroups: what these hold, whatever systemd says.

    Those at the top of the hierarchy, and those directly in some slices.

    Args:
        possible: all CPUs: what a unit without a restriction may use.
        ours: a unit at the top that is left out, with all in it.
        cgroups: the root of all.
        within: paths of these slices.
        without: paths of units that are left out.

    Raises:
        UnitsError: the cgroups could not be read.
    """
    found = {}
    for directory in ("", *sorted(within)):
        for name in _names(cgroups / directory, may_be_gone=bool(directory)):
            unit, path = unit_of(name), f"{directory}/{name}" if directory else name
            is_ours = unit_of(path.partition("/")[0]) in {ours, OURS}
            if unit is None or is_ours or path in without or (cpus := _cpus_of(cgroups / path)) is None:
                continue
            found[path if directory else unit] = cpus or possible
    return found


def _names(directory: Path, *, may_be_gone: bool) -> list[str]:
    try:
        return sorted(entry.name for entry in directory.iterdir() if entry.is_dir())
    except OSError as err:
        if may_be_gone and isinstance(err, FileNotFoundError):
            return []
        raise UnitsError(
            f"cannot list {directory}: {err.strerror}", hint="the host needs cgroup v2: see `nodeagent check`"
        ) from err


def _cpus_of(cgroup: Path) -> CpuSet | None:
    """Return its `cpuset.cpus`; none of them: it is not restricted; None: it is gone."""
    file = cgroup / "cpuset.cpus"
    try:
        return CpuSet.parse(file.read_text(encoding="ascii").strip())
    except FileNotFoundError:
        return CpuSet() if cgroup.is_dir() else None
    except (OSError, ValueError) as err:
        raise UnitsError(f"cannot read {file}: {err}", hint="see `nodeagent check`; it is tried again") from err


def deadline() -> float:
    """Return until when systemd may take for all that it is asked together, on the monotonic clock, in seconds."""
    return time.monotonic() + CALL_SECONDS


def set_allowed_cpus(unit: str, cpus: CpuSet, systemctl: str = "systemctl", *, until: float | None = None) -> None:
    """Let a unit use these CPUs only, until the next boot: what runs there moves at once, and what starts there follows.

    systemd keeps it as a drop-in, `50-AllowedCPUs.conf`, of which it has one for each unit: who has asked before is overwritten. It may be
    taken back by a daemon-reload: drop-ins whose names come later, and those of `systemctl set-property` without --runtime, count more.

    Args:
        unit: its name.
        cpus: not none.
        systemctl: the program.
        until: a `deadline()`. None: one of its own.

    Raises:
        UnitsError: with what systemd said.
    """
    assert cpus, "no CPUs would be all CPUs"
    _set(unit, str(cpus), systemctl, deadline() if until is None else until)


def clear_allowed_cpus(
    unit: str, possible: CpuSet, systemctl: str = "systemctl", *, until: float | None = None
) -> None:
    """Let a unit use all CPUs again, and forget that we ever said anything.

    `AllowedCPUs=` without CPUs leaves those that the unit has (systemd #43846), so that it first gets all that the machine may ever have.
    They stay in its `cpuset.cpus`, which the kernel lets nobody empty while it has processes, and the drop-in stays without CPUs, until the
    next boot. If the unit had CPUs of its own before, set these instead.

    Raises:
        UnitsError: with what systemd said. It can be repeated.
    """
    until = deadline() if until is None else until
    set_allowed_cpus(unit, possible, systemctl, until=until)
    _set(unit, "", systemctl, until)


def show_units(names: Collection[str], systemctl: str = "systemctl") -> dict[str, UnitProperties]:
    """Return what systemd knows of units, by the names asked for; also of those that there are not.

    Raises:
        UnitsError: with what systemd said.
    """
    asked = sorted(names)
    what = f"cannot ask systemd about {', '.join(asked)}"
    command = (systemctl, "--no-ask-password", "show", f"--property={','.join(PROPERTIES)}", "--", *asked)
    answer = _run(what, command, CALL_SECONDS)
    try:
        return dict(zip(asked, parse_units(answer), strict=True))
    except ValueError as err:
        raise UnitsError(f"{what}: its answer makes no sense: {err}", hint=f"see `{shlex.join(command)}`") from err


def show_device_rules(unit: str, systemctl: str = "systemctl", *, until: float | None = None) -> DeviceRules:
    """Return which devices a unit may use.

    Args:
        unit: its name.
        systemctl: the program.
        until: a `deadline()`. None: one of its own.

    Raises:
        UnitsError: with what systemd said.
    """
    what = f"cannot ask systemd about {unit}"
    command = (systemctl, "--no-ask-password", "show", f"--property={','.join(DEVICE_PROPERTIES)}", "--", unit)
    answer = _run(what, command, (deadline() if until is None else until) - time.monotonic())
    try:
        return parse_device_rules(answer)
    except ValueError as err:
        raise UnitsError(f"{what}: its answer makes no sense: {err}", hint=f"see `{shlex.join(command)}`") from err


def set_device_rules(
    unit: str, rules: Sequence[str], systemctl: str = "systemctl", *, until: float | None = None
) -> None:
    """Replace what a unit may use beside what every program needs, until the next boot; what runs there may or may not at once.

    Args:
        unit: its name. It need not be active.
        rules: as `DeviceAllow=` has them.
        systemctl: the program.
        until: a `deadline()`. None: one of its own.

    Raises:
        UnitsError: with what systemd said.
    """
    properties = ("DeviceAllow=", *(f"DeviceAllow={rule}" for rule in rules))
    _set_properties(unit, properties, systemctl, deadline() if until is None else until)


def keeps_device_rules(unit: str, control: Path = CONTROL) -> bool:
    """Whether systemd has a drop-in of `set_device_rules`: it stays when the unit's own file goes, and counts when that is back."""
    try:
        (control / f"{unit}.d" / "50-DeviceAllow.conf").stat()
    except OSError:  # what can't be looked at isn't there
        return False
    return True


def set_unit(
    unit: str, *, cpus: CpuSet | None = None, memory_nodes: NumaSet | None = None, systemctl: str = "systemctl"
) -> None:
    """Let a unit use these CPUs and memory nodes only, until the next boot: what runs there moves at once, and what starts there follows.

    Args:
        unit: its name. It need not be active.
        cpus: as they are to be; none: all, but systemd leaves a running unit those that it has (#43846). None: as they are.
        memory_nodes: likewise.
        systemctl: the program.

    Raises:
        UnitsError: with what systemd said.
    """
    properties = [] if cpus is None else [f"AllowedCPUs={cpus}"]
    properties += [] if memory_nodes is None else [f"AllowedMemoryNodes={memory_nodes}"]
    _set_properties(unit, properties, systemctl, deadline())


def _set(unit: str, cpus: str, systemctl: str, until: float) -> None:
    _set_properties(unit, (f"AllowedCPUs={cpus}",), systemctl, until)


def _set_properties(unit: str, properties: Sequence[str], systemctl: str, until: float) -> None:
    what = f"cannot set {' '.join(properties)} of {unit}"
    command = (systemctl, "--no-ask-password", "set-property", "--runtime", "--", unit, *properties)
    _run(what, command, until - time.monotonic())


def _run(what: str, command: Sequence[str], seconds: float) -> str:
    late = UnitsError(
        f"{what}: systemd has not answered for {CALL_SECONDS:g} s",
        hint="see `systemctl list-jobs` and `journalctl -b _PID=1`",
    )
    if seconds <= 0:  # it has not answered others that were asked before
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
            f"{what}: {command[0]} cannot be run: {err.strerror}", hint="the host needs systemd: see `nodeagent check`"
        ) from err
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"systemctl ends with status {done.returncode}"
        raise UnitsError(f"{what}: {said}", hint=f"try it yourself: sudo {shlex.join(command)}")
    return done.stdout
