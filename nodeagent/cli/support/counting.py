"""Counting of the tasks and interrupts on exclusive CPUs, by the kernel's counters and by observing tasks around the count."""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType, TracebackType
from typing import Self

from nodeagent.cli.support.documents import Document
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.resources.cpu.holdings import exclusive_cpus as all_exclusive_cpus
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree
from nodeagent.edge.kernel.host_settings import HostSettingsFiles
from nodeagent.edge.kernel.interrupts import describe_interrupts
from nodeagent.edge.kernel.tracefs import record
from nodeagent.edge.processes.host_processes import (
    describe_threads,
    find_caller_pids,
    find_runnable_threads,
    leave_cpus,
)
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.cpu_use import CpuHistograms, CpuUse, derive_cpu_use
from nodeagent.formats.kernel.histogram import HistogramSyntaxError
from nodeagent.formats.node_view import NodeView
from nodeagent.views.interference.cpu_owners import ExclusiveCpus, find_exclusive_owners
from nodeagent.views.interference.document import Observations, describe_idle_node, describe_interference

Counted = tuple[CpuUse, Observations]


class InterferenceError(NodeAgentError):
    """The interference on exclusive CPUs can't be determined."""


@contextmanager
def count_interference(view: NodeView, held: Sequence[ExclusiveCpus]) -> Iterator[Callable[[], Counted]]:
    """Count tasks and interrupts on the exclusive CPUs while the `with` block runs. The yielded function ends the count and returns its
    result.

    Raises:
        NodeAgentError: the kernel cannot count, or the pods' processes are unknown. The yielded function can raise this error, too.
    """
    if view.cgroup_root is None:
        raise InterferenceError(
            "the location of the pods' cgroups is unknown, so their processes can't be found",
            hint="start the pods' unit with `systemctl start nodeagent-pods`, or run this command as root",
        )
    tree = CgroupTree(view.cgroup_root)
    cpus = CpuSet.from_ids(cpu for claim in held for cpu in claim.cpus)
    cgroups = {cgroup for claim in held for cgroup in claim.cgroups}
    leave_cpus(all_exclusive_cpus(view.state.promises))
    with record(cpus) as counters:
        # An exiting task has already left its cgroup, but the kernel may still switch to it; `CpuUse.exiting` lists such tasks.
        before = _read_threads(tree, cgroups)
        counters.begin()

        def end() -> Counted:
            use = decode_counts(counters.end(), cpus)
            # the threads are described immediately, because they may end
            return use, _find_witnesses(tree, use, before, {device for claim in held for device in claim.devices})

        yield end


def decode_counts(record: CpuHistograms, cpus: CpuSet) -> CpuUse:
    """Decode the kernel's counts of tasks and interrupts.

    Raises:
        InterferenceError: this kernel writes the counts in an unknown format.
    """
    try:
        return derive_cpu_use(record, cpus)
    except HistogramSyntaxError as err:
        raise InterferenceError(
            str(err), hint="report this error of nodeagent, with the kernel's version (`uname -r`)"
        ) from err


class LiveCount:
    """Count of interference that is restarted at each refresh of a display, while the `with` block runs. If a count fails, the display
    shows the reason, and the next refresh starts a new count.
    """

    def __init__(self) -> None:
        self._undo = ExitStack()
        self._counting = ExitStack()
        self._end: Callable[[], Counted] | None = None
        self._held: tuple[ExclusiveCpus, ...] = ()

    def __enter__(self) -> Self:
        # without a handler, the signal would end this process, and the kernel would continue to count
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._undo.callback(signal.signal, number, signal.signal(number, _exit_by_signal))
        self._undo.callback(self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._undo.close()

    def end(self) -> Counted | str | None:
        """End the count, and return its result or the reason why it failed. None means that no count was running."""
        try:
            return None if self._end is None else self._end()
        except NodeAgentError as err:
            return _format_reason(err)
        finally:
            self._stop()

    def begin(self, view: NodeView, counted: Counted | str | None) -> Document | str | None:
        """Start a new count, and describe the result of the previous one.

        Args:
            view: the node, read after the previous count had ended.
            counted: the previous count's result, as returned by `end`.

        Returns:
            The document of the previous count, or the reason why a count failed. None means that there was no previous count.
        """
        before, self._held = self._held, find_exclusive_owners(view)
        found = describe_interference(view, before, *counted) if isinstance(counted, tuple) else counted
        if not self._held:
            return found or describe_idle_node()
        if view.observed.cgroups is None:
            return "the pods' cgroups cannot be read, so their processes can't be found"
        try:
            self._end = self._counting.enter_context(count_interference(view, self._held))
        except NodeAgentError as err:
            return _format_reason(err)
        return found

    def _stop(self) -> None:
        self._end = None
        self._counting.close()


def _format_reason(err: NodeAgentError) -> str:
    return f"{err.message} ({err.hint})"


def _exit_by_signal(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _read_threads(tree: CgroupTree, cgroups: Iterable[str]) -> dict[str, frozenset[int]]:
    return {cgroup: tree.processes.list_threads(cgroup) for cgroup in cgroups}


def _find_witnesses(
    tree: CgroupTree, use: CpuUse, before: Mapping[str, frozenset[int]], devices: Iterable[str]
) -> Observations:
    files = HostSettingsFiles()
    running = find_runnable_threads(use.unobserved)
    known = describe_threads({run.task for run in use.runs}.union(*running.values()))
    after = _read_threads(tree, before)
    joined = {
        cgroup: frozenset(
            task for number in tree.processes.list_cgroup_ids(cgroup) for task in use.joined.get(number, ())
        )
        for cgroup in before
    }
    return Observations(
        members={cgroup: before[cgroup] | after[cgroup] | joined[cgroup] for cgroup in before},
        threads=known,
        running=running,
        interrupts=describe_interrupts({one.number for one in use.interrupts}),
        callers=find_caller_pids(),
        interrupts_by_device={device: files.find_interrupt_numbers(device) for device in devices},
    )
