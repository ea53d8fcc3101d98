"""Report on one run: how much the kernel's counters increased between the first and the last instruction, and the verdict on the run."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from nodeagent.core.certificate.disturbances import (
    THRESHOLDS,
    MeasuredRate,
    Threshold,
    find_disturbances,
    find_verdict,
)
from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.cpu_counts import Increase, count_increases, interrupt_kind, parse_cpu_counts
from nodeagent.formats.kernel.pressure import parse_pressure_us
from nodeagent.formats.kernel.run_counters import (
    COMMAND_LINE,
    CPU_INFO,
    CPU_STAT,
    INTERRUPTS,
    KERNEL,
    MEMORY_PEAK,
    MEMORY_STAT,
    MITIGATIONS,
    PRESSURE_RESOURCES,
    SCHEDSTAT,
    SOFTIRQ_COUNTS,
    STAT,
    THROTTLE_COUNTS,
    THROTTLE_TIMES,
    FileTexts,
    frequency_file,
    parse_idle_states,
    parse_microcode,
    parse_siblings,
    parse_task_switches,
    pressure_file,
    thermal_file,
)
from nodeagent.formats.kernel.settings import ASLR, BOOST, NO_TURBO, THP, remove_unknown_parameters
from nodeagent.views.certificate.intervals import (
    TICK_US,
    find_busy_us,
    find_sibling_us,
    find_throttled_us,
    share,
    subtract_cpu_times,
)
from nodeagent.views.certificate.samples import Samples
from nodeagent.views.job_report import JobLocation

KIND = "RunReport"
VERSION = 1
"""Version of the document. New fields don't increase the version, and fields are never renamed or removed."""

Document = dict[str, Any]


class OtherTasks(Struct, frozen=True):
    """Tasks on the job's CPUs that don't belong to the job, as far as the caller may see them."""

    tasks: list[Document] | None
    """Tasks as documents, sorted by CPU time. None means that the tasks are unknown."""
    is_complete: bool
    """Whether the kernel counted the time of every task on these CPUs."""
    reasons: Mapping[str, str] = {}
    """Reasons why values are unknown, by the name of the report's field."""
    counted_us: int = 0
    """Time during which the kernel counted tasks, in microseconds. It is slightly longer than the run."""


class RunObservation(Struct, frozen=True):
    """Everything that was observed about one run."""

    location: JobLocation
    first: FileTexts
    last: FileTexts
    samples: Samples
    environment: FileTexts
    result: Mapping[str, Any]
    """Result from the process that waited for the command: times, exit status and resource usage."""
    others: OtherTasks
    bound_interrupts: frozenset[str]
    """Labels of the interrupts that the kernel doesn't allow anyone to move to other CPUs."""
    own_interrupts: frozenset[str]
    """Labels of the interrupts of the devices that are allocated to the job."""
    configuration_hash: str | None
    quiet: Mapping[str, Any] | None = None
    """Settings that keep the host quiet for the job: the profile's name, the applied settings with their values, and the settings that
    aren't in effect, with the reasons.

    None means that the job requested no such settings.
    """
    thresholds: Mapping[str, Threshold] = THRESHOLDS
    is_first_run: bool = True
    """Whether no earlier command has run in this cgroup."""


def describe_run(seen: RunObservation) -> Document:
    """Describe a run. Unknown values are None, with the reasons in the field `unknown`."""
    unknown: dict[str, str] = dict(seen.others.reasons)
    cpus = seen.location.exclusive_cpus or seen.location.shared_cpus
    elapsed_us = max(1, (seen.last.at_ns - seen.first.at_ns) // 1000)
    times = subtract_cpu_times(seen.first, seen.last)
    cgroup = _describe_cgroup(seen, unknown)
    memory = _describe_memory(seen, unknown)
    interrupts = _describe_interrupts(seen, cpus, unknown)
    limits = _find_limits(seen, cpus)
    frequency = _describe_frequency(seen, cpus, limits, unknown)
    thermal = _describe_thermal(seen, cpus, unknown)
    siblings = parse_siblings(seen.environment, cpus)
    if times is not None and not all(cpu in times for cpu in cpus):
        times = None  # a CPU was offline, or its line has an unexpected form
    steal_us = None if times is None else sum(times[cpu].get("steal", 0) for cpu in cpus)
    used_us = cgroup["cpuMicroseconds"]
    others_us = None if used_us is None else find_busy_us(seen.first, seen.last, cpus, used_us)
    sibling_us = None if siblings is None else find_sibling_us(seen.first, seen.last, siblings)
    reasons = {
        "siblings.cpus": (siblings, "the kernel doesn't show the cores' threads"),
        "interruptMicroseconds": (times, seen.last.reasons.get(STAT, "the kernel's file has an unknown form")),
        "stealMicroseconds": (steal_us, seen.last.reasons.get(STAT, "the kernel's file has an unknown form")),
        "others.microseconds": (others_us, seen.last.reasons.get(SCHEDSTAT, "the job's own CPU time is unknown")),
    }
    unknown |= {name: reason for name, (value, reason) in reasons.items() if value is None}
    pressure = _describe_pressure(seen, unknown)
    throttled = find_throttled_us(seen.first, seen.last, cpus)
    measured = {
        "other-tasks": _judge_others(seen.others, others_us, elapsed_us * len(cpus)),
        "sibling": None if sibling_us is None else _judge_siblings(sibling_us, elapsed_us),
        "remote-memory": None
        if memory["remoteBytes"] is None
        else MeasuredRate(memory["remotePerMille"], memory["remoteBytes"]),
        "throttling": None
        if throttled is None
        else MeasuredRate(share(throttled[0], elapsed_us), throttled[0], throttled[1]),
        "thermal-throttling": None if thermal["times"] is None else MeasuredRate(thermal["times"], thermal["times"]),
        "steal": None if times is None else _judge_steal(times, elapsed_us, cpus),
        "interrupts": _judge_interrupts(interrupts, elapsed_us),
        "frequency": _judge_drops((high, low) for low, high in seen.samples.khz.values()),
        "frequency-limit": _judge_drops(limits),
        "memory-pressure": None
        if pressure["memory"] is None
        else MeasuredRate(share(pressure["memory"]["full"], elapsed_us), pressure["memory"]["full"]),
    }
    return {
        "kind": KIND,
        "version": VERSION,
        "verdict": find_verdict(measured, seen.thresholds),
        "disturbances": [
            {
                "name": one.name,
                "value": one.quantity.rate,
                "unit": one.threshold.unit,
                "threshold": one.threshold.most,
                "sizePerMille": round(1000 * one.size),
                "amount": one.quantity.amount,
                "amountUnit": one.threshold.amount_unit,
                "source": one.quantity.source or None,
                "remedy": one.threshold.remedy,
            }
            for one in find_disturbances(measured, seen.thresholds)
        ],
        "measures": [
            {
                "name": name,
                "value": None if quantity is None else quantity.rate,
                "unit": seen.thresholds[name].unit,
                "threshold": seen.thresholds[name].most,
                "amount": None if quantity is None else quantity.amount,
                "amountUnit": seen.thresholds[name].amount_unit,
                "source": None if quantity is None else quantity.source or None,
            }
            for name, quantity in measured.items()
        ],
        "pod": seen.location.pod,
        "exclusiveCPUs": str(seen.location.exclusive_cpus),
        "sharedCPUs": str(seen.location.shared_cpus),
        "numaNodes": str(seen.location.nodes),
        "microseconds": elapsed_us,
        **{name: seen.result.get(name) for name in ("commandSha256", "startedAtMs", "endedAtMs", "exit", "resources")},
        "cgroup": cgroup,
        "memory": memory,
        "timeline": [
            {
                "microseconds": one.elapsed_us,
                "measures": [{"name": name, "value": one.rates[name]} for name in one.rates],
            }
            for one in seen.samples.intervals
        ],
        "others": {
            "microseconds": others_us,
            "longestMicroseconds": None,
            "longestAtMostMicroseconds": max((one["microseconds"] for one in seen.others.tasks), default=0)
            if seen.others.is_complete and seen.others.tasks is not None
            else None,
            "complete": seen.others.is_complete,
            "tasks": seen.others.tasks,
        },
        "siblings": {
            "cpus": None if siblings is None else str(siblings),
            "busyMicroseconds": None if sibling_us is None else sum(sibling_us.values()),
        },
        "interrupts": interrupts,
        "softirqs": _describe_softirqs(seen, cpus, unknown),
        "interruptMicroseconds": None
        if times is None
        else sum(times[cpu].get(name, 0) for cpu in cpus for name in ("irq", "softirq")),
        "stealMicroseconds": steal_us,
        "mainThread": _describe_main_thread(seen, unknown),
        "pressure": pressure,
        "frequency": frequency,
        "idleStates": _describe_idle_states(seen, cpus, unknown),
        "thermalThrottling": thermal,
        "quiet": None
        if seen.quiet is None
        else {
            "profile": seen.quiet["profile"] or None,
            "applied": [{"setting": name, "value": value} for name, value in seen.quiet["applied"].items()],
            "missing": [{"setting": name, "reason": reason} for name, reason in seen.quiet["missing"].items()],
        },
        "node": _describe_node(seen, cpus, unknown),
        "unknown": [{"field": field, "reason": reason} for field, reason in sorted(unknown.items())],
    }


def _judge_others(others: OtherTasks, others_us: int | None, whole_us: int) -> MeasuredRate | None:
    """Judge the time of other tasks on all CPUs together.

    If the kernel counted every task, tasks that are bound to these CPUs don't count as a disturbance. The time is then a share of the run's
    duration, so that a task that fully uses one of many CPUs is noticed. Otherwise, the time is a share of the CPU time of all CPUs,
    because its error grows with their number.
    """
    movable = [one for one in others.tasks or [] if one["movable"]]
    if others.is_complete:
        others_us, whole_us = sum(one["microseconds"] for one in movable), others.counted_us
    if others_us is None:
        return None
    return MeasuredRate(share(others_us, whole_us), others_us, movable[0]["name"] if movable else "")


def _judge_siblings(sibling_us: Mapping[int, int], elapsed_us: int) -> MeasuredRate:
    """Judge only the busiest sibling thread, so that the same threshold suits any number of siblings, and idle siblings don't hide a busy
    one.
    """
    most_us = max(sibling_us.values(), default=0)
    return MeasuredRate(share(most_us, elapsed_us), most_us)


def _judge_steal(times: Mapping[int, Mapping[str, int]], elapsed_us: int, cpus: CpuSet) -> MeasuredRate:
    """Judge the time that the hypervisor took (steal), minus the error of its counter. Only the CPU that lost the most time is judged, so
    that the other CPUs don't hide the loss.
    """
    most_us = max(0, max((times[cpu].get("steal", 0) for cpu in cpus), default=0) - TICK_US)
    return MeasuredRate(share(most_us, elapsed_us), most_us)


def _judge_interrupts(interrupts: list[Document] | None, elapsed_us: int) -> MeasuredRate | None:
    """Judge the device interrupts only on the CPU that handled the most of them, so that the other CPUs don't hide them."""
    if interrupts is None:
        return None
    by_cpu: dict[int, int] = {}
    disturbing = [one for one in interrupts if one["kind"] == "device"]
    for one in disturbing:
        for item in one["byCpu"]:
            by_cpu[item["cpu"]] = by_cpu.get(item["cpu"], 0) + item["times"]
    most = max(by_cpu.values(), default=0)
    source = f"IRQ {disturbing[0]['label']} {disturbing[0]['source']}".strip() if disturbing else ""
    return MeasuredRate(most * 1_000_000 // elapsed_us, most, source)


def _judge_drops(khz: Iterable[tuple[int, int]]) -> MeasuredRate | None:
    """Judge only the CPU whose frequency fell most. CPUs aren't compared with each other, because cores of different kinds always have
    different frequencies.

    Args:
        khz: two frequencies of each CPU: the earlier or highest one, then the later or lowest one.
    """
    drops = (MeasuredRate(share(max(0, was - is_khz), was), max(0, was - is_khz)) for was, is_khz in khz)
    return max(drops, key=lambda one: (one.rate, one.amount), default=None)


def _find_limits(seen: RunObservation, cpus: CpuSet) -> list[tuple[int, int]]:
    """Return each CPU's frequency limits at the start and at the end. A CPU is left out unless both limits are known."""
    pairs = (
        [texts.number(frequency_file(cpu, "scaling_max_freq")) for texts in (seen.first, seen.last)] for cpu in cpus
    )
    return [(first, last) for first, last in pairs if first is not None and last is not None]


def _describe_cgroup(seen: RunObservation, unknown: dict[str, str]) -> Document:
    """Describe the resource usage of the job's processes, from the counters of the job's cgroup."""
    found: Document = {}
    for file, fields in (
        (
            CPU_STAT,
            {
                "cpuMicroseconds": "usage_usec",
                "throttledMicroseconds": "throttled_usec",
                "periods": "nr_periods",
                "throttledPeriods": "nr_throttled",
            },
        ),
        (MEMORY_STAT, {"pageFaults": "pgfault", "majorPageFaults": "pgmajfault"}),
    ):
        was, now = seen.first.counters(file), seen.last.counters(file)
        for field, key in fields.items():
            found[field] = now[key] - was[key] if key in was and key in now else None
            if found[field] is None:
                unknown[f"cgroup.{field}"] = seen.last.reasons.get(file, f"the file has no {key}")
    found["peakBytes"] = seen.last.number(MEMORY_PEAK) if seen.is_first_run else None
    if found["peakBytes"] is None:
        unknown["cgroup.peakBytes"] = (
            seen.last.reasons.get(MEMORY_PEAK, "the file has no number")
            if seen.is_first_run
            else "the kernel's peak includes the earlier runs of this job"
        )
    return found


def _describe_memory(seen: RunObservation, unknown: dict[str, str]) -> Document:
    by_node, remote = seen.samples.memory_bytes, seen.samples.remote_bytes
    if by_node is None:
        unknown["memory"] = "the memory by NUMA node could not be read while the command ran"
    return {
        "byNode": None
        if by_node is None
        else [{"numaNode": node, "bytes": size} for node, size in sorted(by_node.items())],
        "remoteBytes": None if by_node is None else remote,
        "remotePerMille": None if by_node is None else share(remote, sum(by_node.values())),
        "samples": seen.samples.count,
    }


def _count_increases(
    seen: RunObservation, file: str, cpus: CpuSet, field: str, unknown: dict[str, str]
) -> list[Increase] | None:
    first, last = (texts.files.get(file) for texts in (seen.first, seen.last))
    was, now = (None if text is None else parse_cpu_counts(text.encode()) for text in (first, last))
    if was is None or now is None:
        unknown[field] = seen.last.reasons.get(file, "the kernel's file has an unknown form")
        return None
    return sorted(count_increases(was, now, cpus), key=lambda row: (-sum(row.by_cpu.values()), row.label))


def _describe_interrupts(seen: RunObservation, cpus: CpuSet, unknown: dict[str, str]) -> list[Document] | None:
    rows = _count_increases(seen, INTERRUPTS, cpus, "interrupts", unknown)
    if rows is None:
        return None
    return [
        {
            "label": row.label,
            "source": row.source or None,
            "kind": "claimed"
            if row.label in seen.own_interrupts
            else interrupt_kind(row, is_bound=row.label in seen.bound_interrupts),
            "times": sum(row.by_cpu.values()),
            "byCpu": [{"cpu": cpu, "times": times} for cpu, times in sorted(row.by_cpu.items())],
        }
        for row in rows
    ]


def _describe_softirqs(seen: RunObservation, cpus: CpuSet, unknown: dict[str, str]) -> list[Document] | None:
    rows = _count_increases(seen, SOFTIRQ_COUNTS, cpus, "softirqs", unknown)
    return None if rows is None else [{"name": row.label, "times": sum(row.by_cpu.values())} for row in rows]


def _describe_pressure(seen: RunObservation, unknown: dict[str, str]) -> Document:
    """Describe for how long some or all of the job's tasks had to wait for a resource (PSI)."""
    found: Document = {}
    for resource in PRESSURE_RESOURCES:
        file = pressure_file(resource)
        was, now = (parse_pressure_us(texts.files.get(file, "")) for texts in (seen.first, seen.last))
        found[resource] = {share: now[share] - was[share] for share in now if share in was} if was and now else None
        if found[resource] is None:
            unknown[f"pressure.{resource}"] = seen.last.reasons.get(file, "the kernel's file is empty")
    return found


def _describe_frequency(
    seen: RunObservation, cpus: CpuSet, limits: Sequence[tuple[int, int]], unknown: dict[str, str]
) -> Document:
    governors = {text.strip() for cpu in cpus if (text := seen.last.files.get(frequency_file(cpu, "scaling_governor")))}
    drivers = {text.strip() for cpu in cpus if (text := seen.last.files.get(frequency_file(cpu, "scaling_driver")))}
    if not limits:
        unknown["frequency"] = next(
            (reason for name, reason in seen.last.reasons.items() if name.endswith("/scaling_max_freq")),
            "the kernel's file has an unknown form",
        )
    elif not seen.samples.khz:
        unknown["frequency.lowestKilohertz"] = "no CPU was busy long enough for its frequency to be read"
    return {
        "lowestKilohertz": min((low for low, _ in seen.samples.khz.values()), default=None),
        "highestKilohertz": max((high for _, high in seen.samples.khz.values()), default=None),
        "limitAtStartKilohertz": min((first for first, _ in limits), default=None),
        "limitAtEndKilohertz": min((last for _, last in limits), default=None),
        "governors": sorted(governors),
        "drivers": sorted(drivers),
    }


def _describe_thermal(seen: RunObservation, cpus: CpuSet, unknown: dict[str, str]) -> Document:
    """Describe how often and how long CPUs were throttled because of heat.

    The largest count of any CPU is used, not the sum, because the CPUs of a core or package share their counters.
    """
    found: Document = {}
    for field, names in (("times", THROTTLE_COUNTS), ("milliseconds", THROTTLE_TIMES)):
        files = [thermal_file(cpu, name) for cpu in cpus for name in names]
        pairs = [(seen.first.number(file), seen.last.number(file)) for file in files]
        found[field] = max(
            (max(0, now - was) for was, now in pairs if was is not None and now is not None), default=None
        )
        if found[field] is None:
            unknown[f"thermalThrottling.{field}"] = next(
                (seen.last.reasons[file] for file in files if file in seen.last.reasons), "the job has no CPUs"
            )
    return found


def _describe_idle_states(seen: RunObservation, cpus: CpuSet, unknown: dict[str, str]) -> list[Document] | None:
    was, now = (parse_idle_states(texts, cpus) for texts in (seen.first, seen.last))
    if not now:
        unknown["idleStates"] = "the kernel shows no idle states of these CPUs"
        return None
    return [
        {
            "name": name,
            "microseconds": time_us - was.get(name, (time_us, 0))[0],
            "times": times - was.get(name, (0, times))[1],
        }
        for name, (time_us, times) in now.items()
    ]


def _describe_main_thread(seen: RunObservation, unknown: dict[str, str]) -> Document:
    """Describe the context switches of the command's main thread. The kernel still shows this thread's counters at the end
    of the command.
    """
    found = parse_task_switches(seen.result.get("sched") or "")
    fields = {
        "migrations": "se.nr_migrations",
        "voluntarySwitches": "nr_voluntary_switches",
        "involuntarySwitches": "nr_involuntary_switches",
    }
    if not found:
        unknown["mainThread"] = "/proc/PID/sched of the command could not be read at its end"
    return {field: found.get(key) for field, key in fields.items()}


def _describe_node(seen: RunObservation, cpus: CpuSet, unknown: dict[str, str]) -> Document:
    """Describe the properties of the node that affect the speed of a run."""
    texts = seen.environment
    model, microcode = parse_microcode(texts.files.get(CPU_INFO, ""), next(iter(cpus), 0))
    cmdline = texts.files.get(COMMAND_LINE)
    found: Document = {
        "kernel": _strip(texts.files.get(KERNEL)),
        "model": model,
        "microcode": microcode,
        "mitigations": {
            name.removeprefix(f"{MITIGATIONS}/"): text.strip()
            for name, text in sorted(texts.files.items())
            if name.startswith(f"{MITIGATIONS}/")
        },
        "bootParameters": None if cmdline is None else remove_unknown_parameters(cmdline).strip(),
        "bootCommandLineSha256": None if cmdline is None else hashlib.sha256(cmdline.encode()).hexdigest(),
        "configurationHash": seen.configuration_hash,
        "transparentHugePages": _strip(texts.files.get(THP)),
        "addressSpaceRandomisation": texts.number(ASLR),
        "noTurbo": texts.number(NO_TURBO),
        "boost": texts.number(BOOST),
    }
    for field, file in (
        ("kernel", KERNEL),
        ("model", CPU_INFO),
        ("microcode", CPU_INFO),
        ("bootParameters", COMMAND_LINE),
        ("bootCommandLineSha256", COMMAND_LINE),
        ("transparentHugePages", THP),
        ("addressSpaceRandomisation", ASLR),
        ("noTurbo", NO_TURBO),
        ("boost", BOOST),
    ):
        if found[field] is None:
            unknown[f"node.{field}"] = texts.reasons.get(file, f"{file} doesn't have it")
    if seen.configuration_hash is None:
        unknown["node.configurationHash"] = "the agent is older than this program"
    return found


def _strip(text: str | None) -> str | None:
    return None if text is None else text.strip()
