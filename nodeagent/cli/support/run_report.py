"""Document that `nodeagent job --report FILE` writes. A process outside of the job, the observer, observes the runs."""

import json
import os
import select
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from nodeagent.cli.support.counting import Counted, count_interference
from nodeagent.cli.support.documents import format_document, write_out
from nodeagent.cli.support.job_report import LOST, RunPlan
from nodeagent.cli.support.node.this_node import read_this_node
from nodeagent.cli.support.places import DEFAULT_CONFIG, DEFAULT_SOCKET
from nodeagent.cli.support.standard_streams import write_error
from nodeagent.core.certificate.disturbances import change_thresholds
from nodeagent.edge.kernel.host_settings import HostSettingsFiles
from nodeagent.edge.kernel.interrupts import is_bound
from nodeagent.edge.kernel.run_files import RunFiles
from nodeagent.edge.processes.host_processes import LastRun, describe_threads, leave_cpus, read_last_runs
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.run_counters import parse_siblings
from nodeagent.formats.kernel.settings import CGROUPS
from nodeagent.formats.manifest.placement_variables import DEVICES
from nodeagent.formats.node_view import NodeView
from nodeagent.views.certificate.run_report import Document, OtherTasks, RunObservation, describe_run
from nodeagent.views.certificate.samples import BUSY_NS, Samples, add_sample
from nodeagent.views.certificate.words import summarise_run
from nodeagent.views.interference.cpu_owners import ExclusiveCpus, find_exclusive_owners
from nodeagent.views.interference.document import describe_interference, find_origin
from nodeagent.views.job_report import JobLocation

_FIRST_INTERVAL_SECONDS = 0.02
_LAST_INTERVAL_SECONDS = 1.0
_PARTS = 4
"""Number by which the time since the run's start is divided to get the time until the next sample. Memory that is in use for a quarter of
the run is therefore seen by a sample.
"""
_LONGEST = "others.longestMicroseconds"
_NO_LONGEST = (
    "the kernel's histograms contain the sum of a task's times, but not the longest time: see longestAtMostMicroseconds"
)
_LONGEST_BOUND = "others.longestAtMostMicroseconds"
_ONLY_ROOT = "the kernel counts each task only for root's jobs; the listed tasks are those that ran last on these CPUs"
_SHARED = "others share these CPUs, so tasks are not counted; the listed tasks are those that ran last on these CPUs"


def write_reports(plan: RunPlan, answer: Mapping[str, Any], location: JobLocation, pipe: IO[bytes], ready: int) -> None:
    """Observe each run of the command until the pipe ends, and write its report to the planned file.

    After each run, the first letter of the verdict is written to the descriptor `ready`, or LOST if the report can't be written.
    """
    socket = str(Path(answer["socket"]).with_name(Path(DEFAULT_SOCKET).name))
    runs = ReportedRuns(answer, location, partial(begin_others, location, socket))

    def await_end(seconds: float) -> Mapping[str, Any] | None:
        if not select.select([pipe], [], [], seconds)[0]:
            return None
        line = pipe.readline()
        if not line:
            raise EOFError
        return {**json.loads(line), "commandSha256": answer["commandSha256"]}

    with suppress(EOFError, BrokenPipeError):  # the job has ended with its owner
        for number in range(1, plan.repeats + 1):
            document = runs.observe(begun=lambda: os.write(ready, b"b"), await_end=await_end)
            verdict = document["verdict"][:1].encode()
            try:
                write_out(
                    number_path(plan.path or "", number, plan.repeats),
                    format_document(document, "json").encode(),
                    mode=0o644,
                    option="--report",
                )
                write_error(f"nodeagent: {summarise_run(document)}\n")
            except NodeAgentError as err:
                verdict = LOST
                write_error(f"nodeagent: {err.message}\nhint: {err.hint}\n")
            os.write(ready, verdict)


def number_path(path: str, number: int, repeats: int) -> str:
    """Return the path of the report on a run. If there are several runs, the run's number is inserted before the suffix."""
    file = Path(path)
    return path if repeats == 1 else str(file.with_name(f"{file.stem}-{number}{file.suffix}"))


class ReportedRuns:
    """Observer that makes the reports on a job's runs."""

    def __init__(
        self,
        answer: Mapping[str, Any],
        location: JobLocation,
        begin_others: Callable[[ExitStack], Callable[[], OtherTasks]],
        root: Path = Path("/"),
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Prepare the observation of a job's runs.

        Args:
            answer: the agent's answer to the request for the job.
            location: CPUs, memory nodes and cgroup of the job, decoded from `answer`.
            begin_others: function that starts to observe other tasks, and returns a function that ends the observation.
            root: directory that contains proc/ and sys/.
            clock: function that returns the nanoseconds of a monotonic clock.
        """
        self._answer, self._location, self._begin_others, self._root = answer, location, begin_others, root
        self._cpus = location.exclusive_cpus or location.shared_cpus
        self._files = RunFiles(location.cgroup, self._cpus, root, clock)
        self._environment = self._files.read_environment()
        self._runs = 0

    def observe(
        self, *, begun: Callable[[], object], await_end: Callable[[float], Mapping[str, Any] | None]
    ) -> Document:
        """Observe one run of the command, and return its report.

        Args:
            begun: function that is called once all counters are running.
            await_end: function that waits for at most the given number of seconds. It returns the result of the command once the command
                has ended, and None before.
        """
        with ExitStack() as counting:
            find_others = self._begin_others(counting)
            before = first = since = self._files.read_counters()
            begun()
            siblings = parse_siblings(self._environment, self._cpus)
            samples, interval, result = Samples(), _FIRST_INTERVAL_SECONDS, None
            while result is None:
                result = await_end(interval)
                now = self._files.read_sample() if result is None else self._files.read_counters()
                samples = add_sample(samples, (since, before, now), self._cpus, siblings, self._location.nodes)
                before = now
                if now.at_ns - since.at_ns >= BUSY_NS:
                    since = now
                part = (now.at_ns - first.at_ns) / 1e9 / _PARTS
                interval = min(_LAST_INTERVAL_SECONDS, max(_FIRST_INTERVAL_SECONDS, part))
            others = find_others()
        self._runs += 1
        return describe_run(
            RunObservation(
                self._location,
                first,
                before,
                samples,
                self._environment,
                result,
                others,
                self._find_bound_interrupts(),
                self._find_own_interrupts(),
                self._answer.get("configurationHash"),
                self._answer.get("quiet"),
                change_thresholds(self._answer.get("runThresholds", {})),
                is_first_run=self._runs == 1,
            )
        )

    def _find_bound_interrupts(self) -> frozenset[str]:
        irqs = self._root / "proc/irq"
        numbers = (path.name for path in irqs.iterdir()) if irqs.is_dir() else ()
        return frozenset(number for number in numbers if number.isdecimal() and is_bound(int(number), self._root))

    def _find_own_interrupts(self) -> frozenset[str]:
        devices = self._answer["environment"].get(DEVICES, "").split(",")
        files = HostSettingsFiles(str(self._root))
        return frozenset(str(number) for device in devices if device for number in files.find_interrupt_numbers(device))


def begin_others(location: JobLocation, socket: str, counting: ExitStack) -> Callable[[], OtherTasks]:
    """Start to observe other tasks on the job's CPUs. For root's jobs with exclusive CPUs, the kernel counts them; otherwise, the tasks'
    run times are compared.

    The returned function ends the observation.
    """
    reason = _ONLY_ROOT if location.exclusive_cpus else _SHARED
    if location.exclusive_cpus and os.geteuid() == 0:
        try:
            view = read_this_node(DEFAULT_CONFIG, socket)
            held = tuple(one for one in find_exclusive_owners(view) if one.pod == location.pod)
            return partial(_describe_counted, view, held, counting.enter_context(count_interference(view, held)))
        except NodeAgentError as err:
            reason = err.message
    leave_cpus(location.exclusive_cpus or location.shared_cpus)
    return partial(_find_last_runners, location, read_last_runs(), reason)


def _find_last_runners(location: JobLocation, before: Mapping[int, LastRun], reason: str) -> OtherTasks:
    """Find the tasks outside of the job that ran last on the job's CPUs. How long such a task ran there is unknown, but it is at most the
    increase of its total run time.
    """
    cpus = location.exclusive_cpus or location.shared_cpus
    after = read_last_runs()
    ran_ns = {
        tid: run.run_ns - (before[tid].run_ns if tid in before else 0) for tid, run in after.items() if run.cpu in cpus
    }
    found: list[Document] = [
        {
            "name": thread.name,
            "kind": kind,
            "of": origin,
            "movable": kind != "bound-kernel-thread",
            "tasks": 1,
            "cpus": str(after[tid].cpu),
            "times": None,
            "microseconds": None,
            "atMostMicroseconds": ran_ns[tid] // 1000,
        }
        for tid, thread in describe_threads(tid for tid, ns in ran_ns.items() if ns > 0).items()
        for kind, origin in (find_origin(thread, {}),)
        if not f"/{CGROUPS}{thread.cgroup}/".startswith(f"{location.cgroup}/")
    ]
    found.sort(key=lambda one: (not one["movable"], -one["atMostMicroseconds"], one["name"]))
    return OtherTasks(
        found, is_complete=False, reasons={"others.tasks": reason, _LONGEST: reason, _LONGEST_BOUND: reason}
    )


def _describe_counted(view: NodeView, held: tuple[ExclusiveCpus, ...], end: Callable[[], Counted]) -> OtherTasks:
    """End the count, and describe the tasks that the kernel has counted."""
    try:
        document = describe_interference(view, held, *end())
    except NodeAgentError as err:
        return OtherTasks(
            None, is_complete=False, reasons=dict.fromkeys(("others.tasks", _LONGEST, _LONGEST_BOUND), err.message)
        )
    reasons = {_LONGEST: _NO_LONGEST}
    if document["dropped"]:
        reason = f"{document['dropped']} events did not fit into the kernel's tables"
        reasons |= {"others.tasks": reason, _LONGEST_BOUND: reason}
    tasks = [
        {name: value for name, value in task.items() if name != "millicores"}
        | {"atMostMicroseconds": task["microseconds"]}
        for one in document["cpus"]
        for task in one["tasks"]
    ]
    return OtherTasks(tasks, is_complete=not document["dropped"], reasons=reasons, counted_us=document["microseconds"])
