"""Checks of kernel settings that can disturb measurements or increase latency, as a table with one row per setting.

Each row says how serious the result is on a node for services and on a node for benchmarks. A setting is skipped if its file doesn't exist.
"""

import re
import shlex
from collections.abc import Callable, Iterator

from msgspec import Struct

from nodeagent.formats.kernel.settings import (
    ASLR,
    BOOST,
    CLOCKSOURCE,
    CLOCKSOURCES,
    IDLE_STATE,
    KSM,
    NMI_WATCHDOG,
    NO_TURBO,
    PERF_RATE,
    RT_RUNTIME,
    STAT_INTERVAL,
    SWAPS,
    THP,
    TIMER_MIGRATION,
    VULNERABILITIES,
)
from nodeagent.views.check.verdicts import CheckResult, Level, NodeFacts, Purpose, SettingWrite

_BENCHMARK_PERF_RATE = 1000
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
_DEEP_US = 10
"""Exit latency, in microseconds, above which an idle state counts as deep. Leaving a shallow state (C1, C1E) takes at most a few
microseconds.
"""


class _Rule(Struct, frozen=True):
    """One row of the table: a kernel setting, and a test that finds its disadvantageous values."""

    check: str
    path: str
    is_costly: Callable[[str], bool]
    """Function that returns whether a value is disadvantageous. The value has no line end."""
    reason: str
    """Description of the disadvantage, which is shown if the value is disadvantageous. `{}` is replaced by the value."""
    fine: str
    """Description of a setting whose value isn't disadvantageous. `{}` is replaced by the value."""
    levels: tuple[Level, Level]
    """Levels of the result for a disadvantageous value: on a node for services, and on a node for benchmarks."""
    fix: str
    """Shell command that changes the setting. `{}` is replaced by the path. The command that undoes the change is appended later."""
    text: str = ""
    """Value that `--fix` writes. Empty means that `--fix` leaves the setting unchanged."""
    name: Callable[[str], str] = lambda text: text
    """Function that extracts the current value from the file's text, to show it and to restore it."""


def _chosen(text: str) -> str:
    """Return the word in brackets, or the whole text if there are none. The kernel marks the current one of several possible values with
    brackets.
    """
    found = re.search(r"\[([^]\s]+)\]", text)
    return found[1] if found else text


_WRITE = "echo {text} | sudo tee {path}"
_OK, _NOTE, _WARNING = Level.OK, Level.NOTE, Level.WARNING
_RULES = (
    _Rule(
        "thp", THP, lambda text: _chosen(text) == "always",
        "transparent huge pages are {}: the kernel compacts memory during an allocation, so the time of an allocation differs from run "
        "to run",
        "transparent huge pages are {}: only programs that ask for them get them", (_NOTE, _WARNING), _WRITE, "madvise", _chosen,
    ),
    _Rule(
        "ksm", KSM, lambda text: text == "1",
        "ksmd merges equal pages: it scans memory, and a write to a merged page takes a page fault",
        "ksmd doesn't scan memory", (_NOTE, _WARNING), _WRITE, "0",
    ),
    _Rule(
        "turbo", NO_TURBO, lambda text: text == "0",
        "turbo is on: the frequency depends on the temperature and on how many cores are busy, so results vary between runs",
        "turbo is off", (_OK, _WARNING), _WRITE, "1",
    ),
    _Rule(
        "boost", BOOST, lambda text: text == "1",
        "boost is on: the frequency depends on the temperature and on how many cores are busy, so results vary between runs",
        "boost is off", (_OK, _WARNING), _WRITE, "0",
    ),
    _Rule(
        "aslr", ASLR, lambda text: text != "0",
        "addresses are random (kernel.randomize_va_space is {}), so cache and TLB conflicts vary between runs",
        "addresses are the same in every run", (_OK, _NOTE), "setarch -R COMMAND # for one command; there is nothing to undo",
    ),
    _Rule(
        "clocksource", CLOCKSOURCE, lambda text: text in _SLOW_CLOCKS,
        "the clock is {}: reading the time takes a system call and about a microsecond",
        "the clock is {}", (_WARNING, _WARNING), _WRITE, "tsc",
    ),
    _Rule(
        "rt-throttling", RT_RUNTIME, lambda text: text != "-1",
        "real-time tasks (SCHED_FIFO, SCHED_RR) run for at most {} µs of each kernel.sched_rt_period_us, and then stop",
        "real-time tasks are not stopped", (_OK, _NOTE), "sudo sysctl -w kernel.sched_rt_runtime_us=-1",
    ),
    _Rule(
        "nmi-watchdog", NMI_WATCHDOG, lambda text: text == "1",
        "the watchdog interrupts every CPU every few seconds, and uses one performance counter of each CPU",
        "the watchdog is off", (_OK, _WARNING), "sudo sysctl -w kernel.nmi_watchdog=0", "0",
    ),
    _Rule(
        "stat-interval", STAT_INTERVAL, lambda text: text.isdigit() and int(text) < 10,
        "the kernel adds up each CPU's memory statistics up to every {} s, also on exclusive CPUs (vm.stat_interval)",
        "memory statistics are added up every {} s", (_OK, _NOTE), "sudo sysctl -w vm.stat_interval=120",
    ),
    _Rule(
        "perf-rate", PERF_RATE, lambda text: text.isdigit() and int(text) > _BENCHMARK_PERF_RATE,
        "perf may interrupt a CPU up to {} times a second (kernel.perf_event_max_sample_rate)",
        "perf interrupts a CPU at most {} times a second", (_OK, _NOTE), "sudo sysctl -w kernel.perf_event_max_sample_rate=1000",
    ),
    _Rule(
        "timer-migration", TIMER_MIGRATION, lambda text: text == "1",
        "timers of idle CPUs move to busy ones, which may be exclusive (kernel.timer_migration)",
        "timers stay on their CPUs", (_OK, _NOTE), "sudo sysctl -w kernel.timer_migration=0",
    ),
)  # fmt: skip


def check_kernel_settings(facts: NodeFacts) -> Iterator[CheckResult]:
    """Check each setting of the table, then swap, idle states and mitigations, which the table can't express."""
    yield from _check_swap(facts)
    for rule in _RULES:
        text = facts.text(rule.path)
        if text is not None:
            yield _apply_rule(rule, text, facts)
    yield from _check_idle_states(facts)
    yield from _check_mitigations(facts)


def _level(facts: NodeFacts, levels: tuple[Level, Level]) -> Level:
    return levels[facts.purpose is Purpose.BENCHMARK]


def _apply_rule(rule: _Rule, text: str, facts: NodeFacts) -> CheckResult:
    value, level = rule.name(text), _level(facts, rule.levels)
    if not rule.is_costly(text):
        return CheckResult(rule.check, Level.OK, rule.fine.format(value))
    if level is Level.OK:
        return CheckResult(
            rule.check, Level.OK, f"{rule.path.rpartition('/')[2]} is {value}, which matters for benchmarks only"
        )
    has_value = rule.path != CLOCKSOURCE or rule.text in (facts.text(CLOCKSOURCES) or "").split()
    if not has_value:
        return CheckResult(
            rule.check, level, rule.reason.format(value), "sudo dmesg | grep -i tsc # says why the kernel left tsc"
        )
    fix = rule.fix.format(text=rule.text, path=f"/{rule.path}")
    if "undo" not in fix:
        back = f"echo {value} | sudo tee /{rule.path}"
        fix += f" # until the next boot; undo: {back}"
    writes = (SettingWrite(rule.path, rule.text, value),) if rule.text and level is Level.WARNING else ()
    return CheckResult(rule.check, level, rule.reason.format(value), fix, writes)


def _check_swap(facts: NodeFacts) -> Iterator[CheckResult]:
    text = facts.text(SWAPS)
    if text is None:
        return
    rows = [line.split() for line in text.splitlines()[1:]]
    used = {row[0]: int(row[3]) for row in rows if len(row) > 3 and row[3].isdigit() and int(row[3])}
    if not used:
        said = "no swap is in use" if rows else "there is no swap"
        yield CheckResult("swap", Level.OK, said)
        return
    total_kib = sum(used.values())
    amount = f"{total_kib >> 10} MiB" if total_kib >= 2**10 else f"{total_kib} KiB"
    cost = (
        "a page that comes back from zram is decompressed first"
        if all(name.startswith("/dev/zram") for name in used)
        else "a page that comes back from a disk takes milliseconds"
    )
    why = f"{amount} of swap are in use: {cost}"
    # `swapon -a` would only bring back what /etc/fstab has, and zram is usually not in this file.
    names = shlex.join(row[0].replace(r"\040", " ") for row in rows if row)
    fix = f"sudo swapoff {names} # needs as much free memory; undo: sudo swapon {names}"
    yield CheckResult("swap", _level(facts, (Level.NOTE, Level.WARNING)), why, fix)


def _check_idle_states(facts: NodeFacts) -> Iterator[CheckResult]:
    """Check whether an enabled idle state of CPU 0 takes long to exit."""
    states, off = [], []
    for number in range(16):
        name, exit_us, disabled = (
            facts.text(IDLE_STATE.format(number, part)) for part in ("name", "latency", "disable")
        )
        if name is None:
            break
        if exit_us is not None and exit_us.isdigit() and disabled == "0":
            states.append((name, int(exit_us)))
        elif disabled == "1":
            off.append(number)
    if not states:
        return
    deepest, latency = max(states, key=lambda state: state[1])
    if latency <= _DEEP_US:
        yield CheckResult("c-states", Level.OK, f"idle CPUs wake up within {latency} µs ({deepest}, as of CPU 0)")
        return
    why = f"idle CPUs sleep as deep as {deepest}, and then take up to {latency} µs to wake up (as of CPU 0)"
    undo = "".join(("sudo cpupower idle-set -E", *(f" && sudo cpupower idle-set -d {number}" for number in off)))
    fix = f"sudo cpupower idle-set -D {_DEEP_US} # until the next boot; undo: {undo}"
    yield CheckResult("c-states", _level(facts, (Level.NOTE, Level.WARNING)), why, fix)


def _check_mitigations(facts: NodeFacts) -> Iterator[CheckResult]:
    """List the mitigations of CPU vulnerabilities that are on. They make system calls and context switches slower."""
    known = [name for name in VULNERABILITIES if (facts.text(name) or "").startswith("Mitigation")]
    if not any(facts.text(name) is not None for name in VULNERABILITIES):
        return
    names = ", ".join(name.rpartition("/")[2] for name in known)
    said = (
        f"mitigations are on against {names}: system calls and context switches cost more, so compare equal nodes only"
        if known
        else "no mitigation of a CPU vulnerability is on"
    )
    yield CheckResult("mitigations", _level(facts, (Level.OK, Level.NOTE)) if known else Level.OK, said)
