"""The claim's exceptions, as the agent itself has recorded them.

One is D14's: a container none of whose CPUs is there.

The kernel lets such a container run wherever its pod's cgroup may, which is on its pod's own CPUs or in the shared pool, until the agent
has seen that and put it into the shared pool. There it stays until its CPUs are back and the agent has seen that, too. What the agent has
seen is what it has logged; what it has promised is what its state file said when the container's process started; when CPUs went and came
back, whoever took them has recorded.

The other is a container runtime's: it creates and starts containers without asking, if its plugin is away. That is so from the moment
when agent or runtime were killed, which whoever did it has recorded, until the runtime says that they are connected. The agent finds what
began meanwhile and is still there, says so, and says when it is where it belongs.

The third is runc's: the process that it makes a container's first one of is in the container's cgroup while it prepares that, and only
then, before the agent is asked whether the container may begin, gets the cgroup its cpuset (libcontainer/process_linux.go, procReady). Till
its exec it is a program of the host's, as runc and containerd are.

All times are of the monotonic clock, which nobody sets.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from integration.overlap.disturbance import CpusChanged

_AGENT = ("nodeagent.service", "nodeagent-kubelet-order.service")
_ALL_OFFLINE = re.compile(r"CPUs (\S+) of \1 are offline")
RESCAN_NS = 10_000_000_000
"""`cpuManagerReconcilePeriod` of the guest: by then the agent looks, if nothing has told it before."""
SLACK_NS = 20_000_000_000
"""For a look that comes late, and an agent that is just being started again, on a busy guest."""
_RUNTIME = "containerd.service"
_CONNECTED = re.compile(r"plugin \W*(\d\d-[a-z-]+)\W* connected")
_PLUGIN = "90-nodeagent"
_RUNC = re.compile(r"runc|exe|\d+")
"""It executes itself anew as /proc/self/exe, and that as a copy that nobody can change, /proc/self/fd/N."""
_FAILED = "failed to synchronize plugin"
_CREATED = re.compile(r"CreateContainer within .* returns container id \W*([0-9a-f]+)")


class Span(NamedTuple):
    start_ns: float
    end_ns: float

    def holds(self, start_ns: int, end_ns: int) -> bool:
        return self.start_ns <= start_ns and end_ns <= self.end_ns


class Resize(NamedTuple):
    """An exclusive container's cpuset became another one while it ran."""

    before_ns: int
    """When it was certainly as before."""
    after_ns: int
    """When it certainly was this one."""
    cpus: frozenset[int]
    left_ns: int
    """When none of the container's tasks was elsewhere any more: the kernel moves them one after the other."""


class Exceptions(Protocol):
    def promised(self, cgroup: str) -> frozenset[int] | None:
        """The CPUs that the agent has promised to an exclusive container; None: nobody has found a promise."""

    def resizes(self, cgroup: str) -> Sequence[Resize]:
        """What that promise became while the container ran, in the order of time."""

    def may_lack(self, cgroup: str, cpus: frozenset[int], at_ns: int) -> bool:
        """Whether some of the container's CPUs are away, or were and the agent has not given them back yet."""

    def may_stray(self, cgroup: str, cpus: frozenset[int], start_ns: int, end_ns: int) -> bool:
        """Whether none of the container's CPUs was there all the time, or the agent had not brought it back to them yet."""

    def may_intrude(self, cgroup: str, cpus: frozenset[int], start_ns: int, end_ns: int) -> bool:
        """Whether all that time the container had lost its last CPU and the agent had not found a place for it yet.

        On CPUs of its own pod, that is: no other container's are excused.
        """

    def is_runtimes_own(self, cgroup: str, program: str) -> bool:
        """Whether a process in a container's cgroup is not the container's yet: the runtime makes it that by an exec.

        Args:
            cgroup: the container's.
            program: the file's name that it executes.
        """

    def unasked_until(self, cgroup: str, began_ns: int) -> float:
        """Until when a container that a runtime has started without asking may be anywhere; -1: it has asked, or is no runtime's.

        Args:
            cgroup: the container's.
            began_ns: when there was a process in it first.
        """


@dataclass(frozen=True, slots=True)
class Line:
    """Of the journal."""

    at_ns: int
    """When the journal got it."""
    unit: str
    priority: int
    text: str
    fields: dict[str, Any]
    """Of a line that is a JSON object."""

    @property
    def event(self) -> str:
        return str(self.fields.get("event", ""))

    def is_about(self, cgroup: str) -> bool:
        return cgroup.endswith(f"/pod{self.fields.get('pod_uid')}/{self.fields.get('container')}")


def lines(journal: bytes) -> tuple[Line, ...]:
    return tuple(_line(json.loads(text)) for text in journal.splitlines())


def _line(entry: dict[str, Any]) -> Line:
    text = str(entry.get("MESSAGE", ""))
    fields = {}
    if text.startswith("{"):
        try:
            fields = json.loads(text)
        except ValueError:  # somebody else's
            fields = {}
    unit = str(entry.get("UNIT") or entry.get("_SYSTEMD_UNIT", ""))
    return Line(int(entry["__MONOTONIC_TIMESTAMP"]) * 1000, unit, int(entry.get("PRIORITY", 6)), text, fields)


class AgentsRecord:
    """Exceptions by what the agent logged and promised, and which CPUs were taken from it.

    Args:
        journal: of the time of the record.
        changes: of the CPUs that there are.
        promised: to exclusive containers, by the pod's UID and the container's name.
        names: of containers whose cgroups don't tell: pod's UID, container's name.
        interruptions: when agent or container runtime were killed or told to restart.
        resizes: of containers that ran, by the same as `promised`.

    """

    def __init__(
        self,
        journal: Iterable[Line],
        changes: Iterable[CpusChanged],
        promised: Mapping[tuple[str, str], frozenset[int]],
        names: Mapping[str, tuple[str, str]] | None = None,
        interruptions: Iterable[int] = (),
        resizes: Mapping[tuple[str, str], Sequence[Resize]] | None = None,
    ) -> None:
        journal = tuple(journal)
        self._names = names or {}
        self._log = [line for line in journal if line.unit in _AGENT and line.event]
        self._changes = [(change, frozenset(change.available)) for change in changes]
        self._promised = promised
        self._resizes = resizes or {}
        self._created_ns = {
            found[1]: line.at_ns for line in journal if line.unit == _RUNTIME and (found := _CREATED.search(line.text))
        }
        self._linked = list(_connected(line for line in journal if line.unit == _RUNTIME))
        self._away = [Span(at_ns, self._linked_ns(at_ns)) for at_ns in interruptions]

    def is_runtimes_own(self, cgroup: str, program: str) -> bool:
        return bool(_id_of(cgroup)) and _RUNC.fullmatch(program) is not None

    def unasked_until(self, cgroup: str, began_ns: int) -> float:
        id_ = _id_of(cgroup)
        about = [line for line in self._log if id_ and line.fields.get("container_id") == id_]
        placed = [line.at_ns for line in about if line.event == "container_put_right"]
        found = [line.at_ns for line in about if line.event == "container_began_unasked"]
        if found:
            # one that has died may have placed it without a word: its successor finds it so, or says it
            ends = [at for at in placed if at >= found[0]]
            return min(ends, default=min(self._links(found[0]), default=found[0]))
        asked_ns = (began_ns, self._created_ns.get(id_, began_ns))
        away = [span for span in self._away if id_ and any(span.holds(at_ns, at_ns) for at_ns in asked_ns)]
        if not away:
            return -1
        if any(line.event == "container_denied" for line in about):
            return math.inf  # it was created unasked, and never begins
        end_ns = max(span.end_ns for span in away)
        return min((at for at in placed if at >= end_ns), default=end_ns)

    def _linked_ns(self, since_ns: int) -> float:
        return min(self._links(since_ns), default=math.inf)

    def _links(self, since_ns: int) -> list[int]:
        return [at_ns for at_ns in self._linked if at_ns >= since_ns]

    def promised(self, cgroup: str) -> frozenset[int] | None:
        return self._promised.get(self._name(cgroup))

    def resizes(self, cgroup: str) -> Sequence[Resize]:
        return self._resizes.get(self._name(cgroup), ())

    def _name(self, cgroup: str) -> tuple[str, str]:
        if cgroup in self._names:
            return self._names[cgroup]
        pod, _, container = cgroup.rpartition("/")
        return pod.rpartition("/pod")[2], container

    def may_lack(self, cgroup: str, cpus: frozenset[int], at_ns: int) -> bool:
        return any(span.holds(at_ns, at_ns) for span in self._until_restored(cgroup, lambda there: not cpus <= there))

    def may_stray(self, cgroup: str, cpus: frozenset[int], start_ns: int, end_ns: int) -> bool:
        spans = self._until_restored(cgroup, lambda there: not cpus & there)
        return any(span.holds(start_ns, end_ns) for span in spans)

    def may_intrude(self, cgroup: str, cpus: frozenset[int], start_ns: int, end_ns: int) -> bool:
        return any(span.holds(start_ns, end_ns) for span in self._until_placed(cgroup, cpus))

    def _until_restored(self, cgroup: str, is_lost: Callable[[frozenset[int]], bool]) -> Iterator[Span]:
        """From each loss until the agent, knowing that it is over, has done what follows, or should have."""
        start_ns: int | None = None
        for number, (change, there) in enumerate(self._changes):
            if is_lost(there):
                start_ns = change.before_ns if start_ns is None else start_ns
            elif start_ns is not None:
                end_ns = self._restored_ns(cgroup, start_ns, change)
                again = (later.before_ns for later, left in self._changes[number + 1 :] if is_lost(left))
                if end_ns <= next(again, math.inf):
                    yield Span(start_ns, end_ns)
                    start_ns = None
        if start_ns is not None:
            yield Span(start_ns, math.inf)

    def _restored_ns(self, cgroup: str, lost_ns: int, back: CpusChanged) -> float:
        log = [line for line in self._log if line.at_ns >= lost_ns]
        told = [line for line in log if line.is_about(cgroup)]
        short_ns = [line.at_ns for line in told if line.event == "promise_short"]
        restored = {"promise_kept_again", "processes_gathered"}
        ends = [line.at_ns for line in told if line.event in restored and line.at_ns >= back.before_ns]
        started_ns = [line.at_ns for line in log if line.event == "started"]
        for line in log:
            if line.event == "ready" and line.at_ns >= back.before_ns:
                since_ns = max((at for at in started_ns if at <= line.at_ns), default=None)
                # an agent that starts when it is over has nothing to say of it, but has looked
                if since_ns is not None and not any(since_ns <= at <= line.at_ns for at in short_ns):
                    ends.append(line.at_ns)
        if not ends and not short_ns and not back.is_refusal:
            return back.after_ns
        return min([back.after_ns + RESCAN_NS + SLACK_NS, *ends])

    def _until_placed(self, cgroup: str, cpus: frozenset[int]) -> Iterator[Span]:
        """From each loss of the last CPU until the agent says that it has seen it; or until one is back."""
        placed = [
            line.at_ns
            for line in self._log
            if line.event == "promise_short" and line.is_about(cgroup) and _ALL_OFFLINE.search(line.fields["problem"])
        ]
        start_ns: int | None = None
        for change, there in self._changes:
            if cpus & there:
                if start_ns is not None:
                    yield Span(start_ns, min([change.after_ns, *(at for at in placed if at >= start_ns)]))
                start_ns = None
            elif start_ns is None:
                start_ns = change.before_ns
        if start_ns is not None:
            yield Span(start_ns, min([math.inf, *(at for at in placed if at >= start_ns)]))


def _connected(of_runtime: Iterable[Line]) -> Iterator[int]:
    """Return when the plugin connected: containerd 1.7 says so of one that has gone while it synchronized, too, next to saying that."""
    has_failed = False
    for line in of_runtime:
        has_failed |= _FAILED in line.text
        if found := _CONNECTED.search(line.text):
            if found[1] == _PLUGIN and not has_failed:
                yield line.at_ns
            has_failed = False


def _id_of(cgroup: str) -> str:
    """By its systemd scope; empty: it is no runtime's."""
    _, _, scope = cgroup.rpartition("/cri-containerd-")
    return scope.removesuffix(".scope") if scope != cgroup else ""
