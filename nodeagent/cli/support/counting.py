"""Counting who runs on exclusive CPUs, for as long as a command wants: the kernel's counts, and what is seen of tasks meanwhile."""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType, TracebackType
from typing import Self

from nodeagent.cli.support.documents import Document
from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.cgroups.cgroupfs import CgroupTree
from nodeagent.edge.kernel.host_settings import HostSettingsFiles
from nodeagent.edge.kernel.interrupts import interrupts
from nodeagent.edge.kernel.tracefs import recording
from nodeagent.edge.processes.host_processes import of_caller, running_on, stay_off, threads
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.cpu_use import CpuHistograms, CpuUse, use_of
from nodeagent.formats.kernel.histogram import HistogramSyntaxError
from nodeagent.formats.node_view import NodeView
from nodeagent.views.interference.cpu_owners import ExclusiveCpus, exclusive_cpus
from nodeagent.views.interference.document import Witnesses, interference, nothing

Counted = tuple[CpuUse, Witnesses]


class InterferenceError(NodeAgentError):
    """It cannot be known who ran on whose CPUs."""


@contextmanager
def count_interference(view: NodeView, held: Sequence[ExclusiveCpus]) -> Iterator[Callable[[], Counted]]:
    """Count while the `with` block runs, until the given function is called, which returns what was counted.

    Raises:
        NodeAgentError: the kernel cannot count, or it is unknown whose processes are whose. The function raises it, too.
    """
    if view.cgroup_root is None:
        raise InterferenceError(
            "the location of the pods' cgroups is unknown, and so is which processes are theirs",
            hint="start them with `systemctl start nodeagent-pods`, or run this as root",
        )
    tree = CgroupTree(view.cgroup_root)
    cpus = CpuSet.from_ids(cpu for claim in held for cpu in claim.cpus)
    cgroups = {cgroup for claim in held for cgroup in claim.cgroups}
    stay_off(view.state.promises.exclusive())
    # Twice: one that is just ending is in no cgroup any more, and its last switch is counted all the same.
    ending = _members(tree, cgroups)
    with recording(cpus) as counters:
        before = {cgroup: tasks | ending[cgroup] for cgroup, tasks in _members(tree, cgroups).items()}
        counters.begin()

        def end() -> Counted:
            use = decode_counts(counters.end(), cpus)
            # at once: what is to be looked at may end
            return use, _witnesses(tree, use, before, {device for claim in held for device in claim.devices})

        yield end


def decode_counts(record: CpuHistograms, cpus: CpuSet) -> CpuUse:
    """Read what the kernel counted.

    Raises:
        InterferenceError: this kernel writes it in another way.
    """
    try:
        return use_of(record, cpus)
    except HistogramSyntaxError as err:
        raise InterferenceError(str(err), hint="report it, with the kernel's version (`uname -r`)") from err


class LiveCount:
    """Counts from one look to the next, while the `with` block runs. What is wrong is said, and tried again."""

    def __init__(self) -> None:
        self._undo = ExitStack()
        self._counting = ExitStack()
        self._end: Callable[[], Counted] | None = None
        self._held: tuple[ExclusiveCpus, ...] = ()

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGHUP):  # the kernel would go on counting
            self._undo.callback(signal.signal, number, signal.signal(number, _leave))
        self._undo.callback(self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._undo.close()

    def end(self) -> Counted | str | None:
        """Stop. Returns what was counted, or why nothing was; None: it didn't count."""
        try:
            return None if self._end is None else self._end()
        except NodeAgentError as err:
            return _reason(err)
        finally:
            self._stop()

    def begin(self, view: NodeView, counted: Counted | str | None) -> Document | str | None:
        """Count again.

        Args:
            view: the node now; it was read after what was counted had ended.
            counted: what `end` returned.

        Returns:
            What was counted, or why nothing is; None: it has only begun.
        """
        before, self._held = self._held, exclusive_cpus(view)
        found = interference(view, before, *counted) if isinstance(counted, tuple) else counted
        if not self._held:
            return found or nothing()
        if view.observed.cgroups is None:
            return "the pods' cgroups cannot be read, and so it is unknown which processes are theirs"
        try:
            self._end = self._counting.enter_context(count_interference(view, self._held))
        except NodeAgentError as err:
            return _reason(err)
        return found

    def _stop(self) -> None:
        self._end = None
        self._counting.close()


def _reason(err: NodeAgentError) -> str:
    return f"{err.message} ({err.hint})"


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _members(tree: CgroupTree, cgroups: Iterable[str]) -> dict[str, frozenset[int]]:
    return {cgroup: tree.threads(cgroup) for cgroup in cgroups}


def _witnesses(
    tree: CgroupTree, use: CpuUse, before: Mapping[str, frozenset[int]], devices: Iterable[str]
) -> Witnesses:
    files = HostSettingsFiles()
    running = running_on(use.unobserved)
    known = threads({run.task for run in use.runs}.union(*running.values()))
    after = _members(tree, before)
    joined = {
        cgroup: frozenset(task for number in tree.numbers(cgroup) for task in use.joined.get(number, ()))
        for cgroup in before
    }
    return Witnesses(
        members={cgroup: before[cgroup] | after[cgroup] | joined[cgroup] for cgroup in before},
        threads=known,
        running=running,
        interrupts=interrupts({one.number for one in use.interrupts}),
        callers=of_caller(),
        interrupts_of={device: files.interrupt_numbers_of(device) for device in devices},
    )
