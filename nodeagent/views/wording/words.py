"""Single facts that `nodeagent inspect` shows, formatted as words: states, exits, quotas, amounts, times. views/inspect/text.py lays them
out.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.quantity import Quantity

Document = Mapping[str, Any]
_MAX_PLACES = 4
"""Maximum number of CPU locations that are listed one by one. If there are more, only the numbers of sockets, NUMA nodes and cores are
given.
"""
_MAX_EXACT = len("99999Mi")
"""Maximum number of characters for a missing amount that is shown exactly. A longer amount is rounded."""
_KILL_EXPECTED_MS = 5_000
_UNITS = ((2**60, "Ei"), (2**50, "Pi"), (2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki"))
_DECIMAL_UNITS = ((10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"))
_EXACT_UNITS = sorted(_UNITS + _DECIMAL_UNITS, reverse=True)
_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}
"""Signals that commonly end processes. Their numbers are the same on all supported architectures."""


def format_state(container: Document, at_ms: int) -> str:
    """Describe a container's state in a few words."""
    state = container["state"]
    match state["name"], state["reason"]:
        case "Exited", "NeverStarted":
            return "Never started"
        case "Exited", "NotYetObserved":
            return "Exited, not yet seen"
        case "Exited", "Error" if container["exit"]["signal"] is None:
            return f"Error {container['exit']['code']}"
        case "Waiting", "UnitInactive":
            return "Unit is not active"
        case "Waiting", "UnitUnknown":
            return "Unit is unknown to systemd"
        case ("Exited" | "Waiting", str(reason)):
            return reason
        case "Running" | "Open", "Stopping" if state["killAtMs"] is not None:
            return f"Stopping, killed {format_time_until(state['killAtMs'] - at_ms)}"
        case _, str(reason):
            return reason
        case "Open", _:
            return f"Open, {format_processes(container['processes'])}"
        case name, _:
            return str(name)


def format_processes(count: int | None) -> str:
    """Format the number of processes. None means that the number is unknown."""
    match count:
        case None:
            return "processes unknown"
        case 0:
            return "empty"
        case _:
            return format_count(count, "process", "processes")


def format_isolation(container: Document) -> str:
    """Describe the locations of exclusive CPUs, or the reason why CPUs are shared."""
    cores = " and ".join(container["coreClasses"])
    locations = ", ".join(filter(None, (format_places(container["places"]), cores and f"{cores} cores")))
    match container["isolation"]:
        case "container":
            alone = "exclusive, closed to the host" if is_closed_to_host(container) else "exclusive"
            return f"{alone}: {locations}" if locations else alone
        case "mixed":
            both = f"exclusive {container['promised']['cpus']} and the shared pool"
            return f"{both}: {locations}" if locations else both
        case "pod" | "host":
            return f"shared: {container['whyShared']}"
        case _:
            return ""


def format_places(places: Sequence[Mapping[str, Any]]) -> str:
    """Format locations as text, such as `socket 0, NUMA 0, cores 1 2 (whole), L3 0`. Several locations are joined by `; `."""
    if len(places) > _MAX_PLACES:
        counts = [
            format_count(len({p["socket"] for p in places}), "socket"),
            format_count(len({p["numa"] for p in places}), "NUMA node"),
            format_count(len({core for p in places for core in p["cores"]}), "core"),
        ]
        return ", ".join(counts) + (" (whole)" if all(p["wholeCores"] for p in places) else " (some in part)")
    texts = []
    for place in places:
        cores = place["cores"]
        numbers = " ".join(map(str, cores)) if len(cores) <= 8 else str(CpuSet.from_ids(cores))
        plural, part = "" if len(cores) == 1 else "s", "whole" if place["wholeCores"] else "in part"
        cache = "" if place["l3"] is None else f", L3 {place['l3']}"
        texts.append(f"socket {place['socket']}, NUMA {place['numa']}, core{plural} {numbers} ({part}){cache}")
    return "; ".join(texts)


def is_closed_to_host(container: Document) -> bool:
    """Return whether the kernel or systemd keeps host processes off the container's CPUs."""
    return container["closedToHost"] is not None


def list_remarks(container: Document, at_ms: int) -> list[str]:
    """List everything unusual about a container, one sentence each."""
    state, remarks = container["state"], []
    if container["differs"]:
        remarks.append("NOT AS ALLOCATED: see the differences below")
    if state["killAtMs"] is not None and at_ms - state["killAtMs"] > _KILL_EXPECTED_MS:
        remarks.append(
            f"killed {format_age(at_ms - state['killAtMs'])} ago but still running, so it keeps its CPUs: a process may hang in the kernel"
        )
    if state["nextStartAtMs"] is not None:
        remarks.append(f"next start {format_time_until(state['nextStartAtMs'] - at_ms)}")
    if container["exit"] is not None and (state["name"] != "Exited" or container["exit"]["reason"] != "Completed"):
        remarks.append(f"ended {format_exit(container['exit'], at_ms)}")
    if container["lastExit"] is not None:
        remarks.append(f"the previous run ended {format_exit(container['lastExit'], at_ms)}")
    if container["oomKills"]:
        remarks.append(f"{format_count(container['oomKills'], 'process', 'processes')} OOM-killed in its cgroup")
    return [*remarks, *container["notes"]]


def format_exit(ended: Document, at_ms: int) -> str:
    """Describe how and when a process ended."""
    when = f"{format_age(at_ms - ended['finishedAtMs'])} ago"
    if ended["startError"] is not None:
        return f"{when}: {ended['reason']}: {ended['startError']}"
    if ended["signal"] is not None:
        number = ended["signal"]
        how = f"signal {number}" + (f" ({_SIGNALS[number]})" if number in _SIGNALS else "")
    elif ended["code"] is not None:
        how = f"exit code {ended['code']}"
    else:
        how = "exit status unknown"
    return f"{when}: {ended['reason']}, {how}"


def format_quota(quota: Document | None) -> str:
    """Format a CPU quota in thousandths of a CPU. `-` means that the controller isn't enabled."""
    if quota is None:
        return "-"
    return "none" if quota["limitMillicores"] is None else f"{quota['limitMillicores']}m"


def format_bytes(amount: int | None) -> str:
    """Format an amount of bytes exactly, with the largest unit that needs no fraction."""
    if amount is None:
        return "no limit"
    for size, unit in _EXACT_UNITS:
        if amount and amount % size == 0:
            return f"{amount // size}{unit}"
    return str(amount)


def format_requested_bytes(amount: Quantity) -> str:
    """Format an amount of bytes as in a manifest. If it isn't a whole number of bytes, also give the exact number, because the canonical
    form (`107374182400m` for `0.1Gi`) is hard to read.
    """
    if amount.value() * 10**9 == amount.nano:
        return str(amount)
    exact = f"{Decimal(amount.nano).scaleb(-9).normalize():f} bytes"
    for size, unit in _UNITS:
        thousandths, rest = divmod(amount.nano, size * 10**6)
        if thousandths and not rest:
            return f"{Decimal(thousandths).scaleb(-3).normalize():f}{unit} ({exact})"
    return exact


def format_readable_bytes(amount: int) -> str:
    """Format an amount of bytes for a table. A whole number of MiB is exact; other amounts are rounded down to a tenth of their largest
    unit.
    """
    if amount % 2**20 == 0 or amount < 2**10:
        return format_bytes(amount)
    size, unit = next(one for one in _UNITS if amount >= one[0])
    tenths = amount * 10 // size
    return f"{tenths // 10}.{tenths % 10}{unit}"


def format_readable_share(part: int, whole: int) -> str:
    """Format a part and the total, in bytes, with the same unit. Whole numbers of MiB are exact; other amounts are rounded down to a tenth
    of the unit.
    """
    amounts = (part, whole)
    if any(amount % 2**20 for amount in amounts):
        size, unit = next((one for one in _UNITS if (part or whole) >= one[0]), _UNITS[-1])
    else:
        size, unit = next(one for one in _UNITS if not any(amount % one[0] for amount in amounts))
    numbers = (f"{amount // size}" + (f".{amount * 10 // size % 10}" if amount % size else "") for amount in amounts)
    first, total = (f"{number}{unit}" for number in numbers)
    return f"{first if part else 0} of {total}"


def format_missing_bytes(amount: int) -> str:
    """Format a missing amount of bytes. An amount with few digits is exact; other amounts are rounded up to a tenth of their
    largest unit.
    """
    exact = format_bytes(amount)
    if len(exact) <= _MAX_EXACT:
        return exact
    size, unit = next(one for one in _UNITS if amount >= one[0])
    tenths = -(-amount * 10 // size)
    return f"{tenths // 10}.{tenths % 10}{unit}"


def format_age(span_ms: int) -> str:
    """Format a time span in its two largest units, such as `2 h 5 min`."""
    seconds = max(0, span_ms) // 1000
    for size, unit, smaller_size, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // smaller_size
            return f"{seconds // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds} s"


def format_time_until(span_ms: int) -> str:
    """Format how far away an event is, such as `in 5 min`. The result is `now` for a past event."""
    return f"in {format_age(span_ms)}" if span_ms > 0 else "now"


def format_count(number: int, name: str, plural: str | None = None) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {plural or name + 's'}"
