"""The files of the kernel around a job's run, as a tree that a test changes: a job on CPUs 2 and 3, whose siblings are 6 and 7."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from nodeagent.cli.support.run_report import ReportedRuns
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.views.certificate.run_report import OtherTasks
from nodeagent.views.job_report import JobLocation

MIB = 2**20
PODS = "sys/fs/cgroup/pods.slice"
JOB = f"{PODS}/one"
"""Cgroup of the job, and the one above it."""
CPUS = CpuSet.parse("2-3")
UNCOUNTED = OtherTasks(None, is_complete=False, reasons={"others.tasks": "not root"})
RESULT = {
    "commandSha256": "00",
    "startedAtMs": 1_000,
    "endedAtMs": 11_000,
    "exit": {"status": 0, "signal": None},
    "resources": dict.fromkeys(
        (
            "userMicroseconds",
            "systemMicroseconds",
            "maxResidentBytes",
            "minorPageFaults",
            "majorPageFaults",
            "voluntarySwitches",
            "involuntarySwitches",
        ),
        7,
    ),
    "sched": "se.nr_migrations                  :                    2\nnr_switches   :   9\nnr_voluntary_switches : 4\n"
    "nr_involuntary_switches : 5\nse.sum_exec_runtime : 12.5\n",
}


class RunTree:
    """Counters of a run of 10 s that keeps both CPUs busy. A test changes them while it runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.seconds = 0.0
        self.ran = dict.fromkeys((2, 3, 6, 7), 0.0)
        """Seconds that tasks have been on a CPU, by CPU. The scheduler's clock counts those of interrupts and of the hypervisor, too."""
        self.running = dict.fromkeys((2, 3, 6, 7), 0.0)
        """Seconds that the task now on a CPU has run since it got there, which the scheduler counts once it leaves."""
        self.missing: frozenset[str] = frozenset()
        """Files that the kernel doesn't have."""
        self.steal = 0.0
        """Seconds that the hypervisor took from each CPU of the job."""
        self.stolen_alone = 0.0
        """Seconds that the hypervisor took from CPU 3 alone."""
        self.interrupted = 0.0
        """Seconds that interrupts took from each CPU of the job."""
        self.idle_interrupted = dict.fromkeys((2, 3, 6, 7), 0.0)
        """Seconds that interrupts took from each CPU while it was idle."""
        self.irqs = dict.fromkeys((2, 3), 0)
        self.used = 0.0
        self.throttled = 0.0
        self.pods_throttled = 0.0
        """Seconds that a quota of all pods kept them off their CPUs."""
        self.stalled = 0.0
        self.memory = (64 * MIB, 0)
        self.hot = 0
        self.khz = 3_000_000
        self.limit_khz = 3_500_000
        self.slower_khz = 0
        """How much lower the frequency and the limit of CPU 3 are, as on a core of another kind."""
        self.answer: Mapping[str, Any] = {"environment": {}, "configurationHash": "abc"}
        self.others = UNCOUNTED
        for cpu in CPUS:
            self._put(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{cpu},{cpu + 4}\n")
        self._put("sys/devices/system/cpu/vulnerabilities/meltdown", "Not affected\n")
        self._put("proc/cmdline", "quiet secret=x nohz_full=2-3\n")
        self._put("proc/sys/kernel/osrelease", "6.12.0\n")
        self._put("proc/cpuinfo", "processor\t: 2\nmodel name\t: A CPU\nmicrocode\t: 0x1f\n\nprocessor\t: 3\n")
        self.write()

    def run(self, seconds: float = 10.0, *, busy: float = 1.0) -> None:
        """Let the job's command run on both CPUs, for a share of the time."""
        self.seconds += seconds
        self.used += 2 * seconds * busy
        for cpu in CPUS:
            self.ran[cpu] += seconds * busy

    def write(self) -> None:
        cpu = "sys/devices/system/cpu"
        self._put(f"{JOB}/cpu.stat", f"usage_usec {self.used * 1e6:.0f}\nthrottled_usec {self.throttled * 1e6:.0f}\n")
        self._put(f"{PODS}/cpu.stat", f"usage_usec 0\nthrottled_usec {self.pods_throttled * 1e6:.0f}\n")
        self._put(f"{JOB}/memory.numa_stat", f"anon {' '.join(f'N{n}={b}' for n, b in enumerate(self.memory))}\n")
        self._put(f"{JOB}/memory.stat", "pgfault 9\npgmajfault 0\n")
        self._put(f"{JOB}/memory.peak", "99\n")
        for resource in ("cpu", "memory", "io"):
            total = f"total={self.stalled * 1e6:.0f}" if resource == "memory" else "total=0"
            self._put(f"{JOB}/{resource}.pressure", f"some avg10=0.00 {total}\nfull avg10=0.00 {total}\n")
        counted = {c: s - self.running[c] for c, s in self.ran.items()}
        self._put("proc/schedstat", "".join(f"cpu{c} 0 0 0 0 0 0 {s * 1e9:.0f} 1 1\n" for c, s in counted.items()))
        lines = (
            f"cpu{c} {(s - irq - steal) * 100:.0f} 0 0 {(self.seconds - s - self.idle_interrupted[c]) * 100:.0f} 0 "
            f"{(irq + self.idle_interrupted[c]) * 100:.0f} 0 {steal * 100:.0f} 0 0\n"
            for c, s in self.ran.items()
            for alone in (self.stolen_alone if c == 3 else 0,)
            for irq, steal in ((self.interrupted, self.steal + alone) if c in CPUS else (0, 0),)
        )
        self._put("proc/stat", f"cpu 0 0 0\n{''.join(lines)}intr 0\n")
        self._put("proc/interrupts", f"      CPU2 CPU3\n 40: {self.irqs[2]} {self.irqs[3]} PCI-MSI eth0-rx\n")
        self._put("proc/softirqs", f"      CPU2 CPU3\n NET_RX: {self.irqs[2]} 0\n")
        for one in CPUS:
            self._put(f"{cpu}/cpu{one}/thermal_throttle/core_throttle_count", f"{self.hot}\n")
            self._put(f"{cpu}/cpu{one}/thermal_throttle/core_throttle_total_time_ms", f"{self.hot * 9}\n")
            slower_khz = self.slower_khz if one == 3 else 0
            self._put(f"{cpu}/cpu{one}/cpufreq/scaling_cur_freq", f"{self.khz - slower_khz}\n")
            self._put(f"{cpu}/cpu{one}/cpufreq/scaling_max_freq", f"{self.limit_khz - slower_khz}\n")
            self._put(f"{cpu}/cpu{one}/cpufreq/scaling_governor", "performance\n")
            self._put(f"{cpu}/cpu{one}/cpuidle/state1/name", "C1\n")
            self._put(f"{cpu}/cpu{one}/cpuidle/state1/time", f"{self.seconds * 1000:.0f}\n")
            self._put(f"{cpu}/cpu{one}/cpuidle/state1/usage", f"{self.seconds:.0f}\n")

    def report(self, *changes: Callable[[], None], result: Mapping[str, Any] = RESULT) -> dict[str, Any]:
        """Return the report of a run. Each change is made before one sample, and the last one before the end."""
        left = list(changes)

        def await_end(_seconds: float) -> Mapping[str, Any] | None:
            left.pop(0)()
            return None if left else result

        return self.observe(await_end)

    def observe(self, await_end: Callable[[float], Mapping[str, Any] | None]) -> dict[str, Any]:
        """Return the report of a run that changes the tree in the seconds that it is given."""

        def change(seconds: float) -> Mapping[str, Any] | None:
            result = await_end(seconds)
            self.write()
            return result

        runs = ReportedRuns(
            self.answer,
            JobLocation("jobs/one", str(self.root / JOB), CPUS, CpuSet(), NumaSet.of(0)),
            self._observe_others,
            self.root,
            lambda: round(self.seconds * 1e9),
        )
        self.write()
        return runs.observe(begun=lambda: None, await_end=change)

    def _observe_others(self, _counting: ExitStack) -> Callable[[], OtherTasks]:
        return lambda: self.others

    def _put(self, name: str, text: str) -> None:
        path = self.root / name
        if name in self.missing:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
