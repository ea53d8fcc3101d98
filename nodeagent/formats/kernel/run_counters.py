"""Kernel counters before and after one run of a command: the texts of files, and parsers of the values in them.

An unreadable value is None, and `FileTexts.reasons` gives the reason.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.cgroup_values import CgroupValueError, parse_flat_keyed
from nodeagent.formats.kernel.sysfs_sample import CPUS

CGROUP = "cgroup/"
"""Prefix of the names of the job's cgroup files. All other names are paths below the root."""
CPU_STAT, NUMA_STAT, MEMORY_STAT, MEMORY_PEAK = (
    f"{CGROUP}{name}" for name in ("cpu.stat", "memory.numa_stat", "memory.stat", "memory.peak")
)
CGROUPS = "sys/fs/cgroup"
"""Mount point of the cgroups, as a path below the root."""
PRESSURE_RESOURCES = ("cpu", "memory", "io", "irq")
THROTTLE_COUNTS = ("core_throttle_count", "package_throttle_count")
THROTTLE_TIMES = ("core_throttle_total_time_ms", "package_throttle_total_time_ms")
SCHEDSTAT, STAT, INTERRUPTS, SOFTIRQ_COUNTS = "proc/schedstat", "proc/stat", "proc/interrupts", "proc/softirqs"
KERNEL, CPU_INFO, COMMAND_LINE = "proc/sys/kernel/osrelease", "proc/cpuinfo", "proc/cmdline"
MITIGATIONS = f"{CPUS}/vulnerabilities"
_USER_HZ = 100
"""Ticks per second in /proc/stat, on all architectures that Debian supports."""
_STAT_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


class FileTexts(Struct, frozen=True):
    """Texts of files that were read at about the same time."""

    at_ns: int
    """Time of reading, in nanoseconds of CLOCK_MONOTONIC."""
    files: Mapping[str, str]
    reasons: Mapping[str, str]
    """Reasons why the other files couldn't be read, by file name."""

    def number(self, name: str) -> int | None:
        """Return the whole number in a file. None means that the file is missing or contains no whole number."""
        text = self.files.get(name, "").strip()
        return int(text) if text.isascii() and text.isdecimal() else None

    def counters(self, name: str) -> Mapping[str, int]:
        """Return the numbers of a flat keyed file. The result is empty if the file is missing or malformed."""
        try:
            return parse_flat_keyed(self.files.get(name, ""))
        except CgroupValueError:
            return {}


def pressure_file(resource: str) -> str:
    return f"{CGROUP}{resource}.pressure"


def thermal_file(cpu: int, name: str) -> str:
    return f"{CPUS}/cpu{cpu}/thermal_throttle/{name}"


def frequency_file(cpu: int, name: str) -> str:
    return f"{CPUS}/cpu{cpu}/cpufreq/{name}"


def siblings_file(cpu: int) -> str:
    return f"{CPUS}/cpu{cpu}/topology/thread_siblings_list"


def idle_states_directory(cpu: int) -> str:
    return f"{CPUS}/cpu{cpu}/cpuidle"


def parse_siblings(texts: FileTexts, cpus: CpuSet) -> CpuSet | None:
    """Return the other threads of these CPUs' cores. None means that the file with a core's threads is missing for some CPU."""
    found = [texts.files.get(siblings_file(cpu)) for cpu in cpus]
    if None in found:
        return None
    return CpuSet.from_ids(cpu for text in found for cpu in CpuSet.parse((text or "").strip())) - cpus


def parse_cpu_times_us(text: str) -> dict[int, dict[str, int]]:
    """Parse the CPUs' lines of /proc/stat (proc_stat(5)). The result contains microseconds by column name, for each CPU."""
    found = {}
    for line in text.splitlines():
        name, *columns = line.split()[: len(_STAT_FIELDS) + 1] or [""]
        cpu = name.removeprefix("cpu")
        if name.startswith("cpu") and cpu.isdecimal() and all(column.isdecimal() for column in columns):
            times_us = (int(ticks) * 1_000_000 // _USER_HZ for ticks in columns)
            found[int(cpu)] = dict(zip(_STAT_FIELDS, times_us, strict=False))
    return found


def parse_idle_states(texts: FileTexts, cpus: Iterable[int]) -> dict[str, tuple[int, int]]:
    """Return the time in microseconds and the number of entries of each idle state by name, as sums over these CPUs."""
    found: dict[str, tuple[int, int]] = {}
    for cpu in cpus:
        directory = f"{idle_states_directory(cpu)}/"
        for path, name in texts.files.items():
            if path.startswith(directory) and path.endswith("/name"):
                state = path.removesuffix("/name")
                time_us, times = texts.number(f"{state}/time") or 0, texts.number(f"{state}/usage") or 0
                before = found.get(name.strip(), (0, 0))
                found[name.strip()] = before[0] + time_us, before[1] + times
    return found


def parse_microcode(cpuinfo: str, cpu: int) -> tuple[str | None, str | None]:
    """Return a CPU's model and microcode version from /proc/cpuinfo. None means that the file lacks this field."""
    for block in cpuinfo.split("\n\n"):
        fields = {
            name.strip(): value.strip() for name, _, value in (line.partition(":") for line in block.splitlines())
        }
        if fields.get("processor") == str(cpu):
            return fields.get("model name"), fields.get("microcode")
    return None, None


def parse_task_switches(sched: str) -> dict[str, int]:
    """Parse the whole numbers of /proc/PID/sched, such as `se.nr_migrations`, by name."""
    pairs = (line.partition(":") for line in sched.splitlines())
    return {name.strip(): int(value) for name, _, value in pairs if value.strip().isdecimal()}
