"""Reader of the kernel files for the report on a job's run: files of the job's cgroup, of its CPUs, and of the node."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.run_counters import (
    CGROUP,
    CGROUPS,
    COMMAND_LINE,
    CPU_INFO,
    CPU_STAT,
    INTERRUPTS,
    KERNEL,
    MEMORY_PEAK,
    MEMORY_STAT,
    MITIGATIONS,
    NUMA_STAT,
    PRESSURE_RESOURCES,
    SCHEDSTAT,
    SOFTIRQ_COUNTS,
    STAT,
    THROTTLE_COUNTS,
    THROTTLE_TIMES,
    FileTexts,
    frequency_file,
    idle_states_directory,
    pressure_file,
    siblings_file,
    thermal_file,
)
from nodeagent.formats.kernel.settings import ASLR, BOOST, NO_TURBO, THP

_COUNTED = (MEMORY_STAT, MEMORY_PEAK, SCHEDSTAT, INTERRUPTS, SOFTIRQ_COUNTS)
_OF_CPU = ("scaling_min_freq", "scaling_max_freq", "scaling_governor", "scaling_driver")


class RunFiles:
    """Reader of the kernel files for the report on one job's run."""

    def __init__(
        self, cgroup: str, cpus: CpuSet, root: Path = Path("/"), clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Determine the paths of the files to read.

        Args:
            cgroup: directory of the job's cgroup.
            cpus: CPUs of the job.
            root: directory that contains proc/ and sys/.
            clock: function that returns the nanoseconds of a monotonic clock.
        """
        self._cgroup, self._cpus, self._root, self._clock = cgroup, cpus, root, clock

    def read_sample(self) -> FileTexts:
        """Read the few files that are sampled repeatedly during the run: memory by NUMA node, CPU times, and CPU frequencies."""
        frequencies = (frequency_file(cpu, "scaling_cur_freq") for cpu in self._cpus)
        return self._read((CPU_STAT, *self._list_parents_stats(), NUMA_STAT, STAT, *frequencies))

    def read_counters(self) -> FileTexts:
        """Read all counters. The report shows their increase from the start to the end of the run."""
        sample, counters = self.read_sample(), self._read(self._list_counters())
        return FileTexts(counters.at_ns, {**sample.files, **counters.files}, {**sample.reasons, **counters.reasons})

    def read_environment(self) -> FileTexts:
        """Read the node's properties that influence how fast a command runs."""
        names = (KERNEL, CPU_INFO, COMMAND_LINE, THP, ASLR, NO_TURBO, BOOST, *map(siblings_file, self._cpus))
        return self._read((*names, *self._list(MITIGATIONS, "")))

    def _list_parents_stats(self) -> Iterator[str]:
        """Yield the path of cpu.stat in each cgroup above the job's cgroup.

        They are needed because a cgroup's own counters don't include the throttling by quotas of its ancestors.
        """
        mount = self._root / CGROUPS
        for parent in Path(self._cgroup).parents:
            if mount in parent.parents:
                yield str((parent / "cpu.stat").relative_to(self._root))

    def _list_counters(self) -> Iterator[str]:
        yield from _COUNTED
        yield from map(pressure_file, PRESSURE_RESOURCES)
        for cpu in self._cpus:
            yield from (thermal_file(cpu, name) for name in (*THROTTLE_COUNTS, *THROTTLE_TIMES))
            yield from (frequency_file(cpu, name) for name in _OF_CPU)
            for state in self._list(idle_states_directory(cpu), "state"):
                yield from (f"{state}/{name}" for name in ("name", "time", "usage"))

    def _list(self, directory: str, prefix: str) -> list[str]:
        with suppress(OSError):
            names = sorted(path.name for path in (self._root / directory).iterdir())
            return [f"{directory}/{name}" for name in names if name.startswith(prefix)]
        return []

    def _read(self, names: Iterable[str]) -> FileTexts:
        files, reasons = {}, {}
        at_ns = self._clock()
        for name in names:
            path = Path(self._cgroup, name.removeprefix(CGROUP)) if name.startswith(CGROUP) else self._root / name
            try:
                files[name] = path.read_bytes().decode(errors="replace")
            except OSError as err:
                reasons[name] = f"cannot read {path}: {os.strerror(err.errno or 0)}"
        return FileTexts(at_ns, files, reasons)
