"""Runs the churn in a guest, and judges what comes back when all of it is known."""

import json
import queue
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from integration.guest.guest import Guest
from integration.overlap import workload
from integration.overlap.disturbance import CpusChanged, Fault
from integration.overlap.events import Event, cpu_list
from integration.overlap.exceptions import AgentsRecord, Line, Resize, lines
from integration.overlap.intervals import Findings, Merge, Witness
from integration.overlap.ring_buffer import LostEventsError, Pages
from integration.overlap.wire import Kind, Records, nanoseconds
from integration.overlap.workload import Means

PYTHON = "/opt/nodeagent/bin/python"
_GUEST_DIRECTORY = "/run/overlap-tools"
_PACKAGE = Path(__file__).parent
_QUIET_SECONDS = 20
"""So long, on a real machine, the guest may say nothing: it tells how far it has looked all the time."""


_UNIT = re.compile(r"/system\.slice/overlap-\d+\.service")
_AGENT, _CONTAINERD = "nodeagent.service", "containerd.service"


class Beside(Protocol):
    """Pods of a container runtime that come and go at the same time, driven from outside."""

    cpus: int
    """That its exclusive containers have at most."""

    def begin(self) -> None:
        """The scheduler is being recorded."""

    def is_over(self) -> bool:
        """Whether everything that was to happen has happened, and nothing happens any more."""

    @property
    def waits_seconds(self) -> Sequence[float]:
        """Of each arrival and departure."""

    @property
    def names(self) -> Mapping[str, tuple[str, str]]:
        """Pod's UID and container's name, by cgroup, of all containers that may have begun."""

    @property
    def promised(self) -> Mapping[tuple[str, str], frozenset[int]]:
        """Exclusive CPUs, by these."""


class ProofError(Exception):
    """The churn did not come to its end."""


@dataclass(frozen=True, slots=True)
class Evidence:
    findings: Findings
    pod_events: int
    seconds: float
    """In the guest, from the first arrival to the last event."""
    losses: dict[str, int]
    faults: dict[Fault, int]
    """How often each was done."""
    journal: tuple[Line, ...]
    waits_seconds: tuple[float, ...]
    """From each manifest's change to its effect."""

    @property
    def gaps(self) -> tuple[str, ...]:
        """Reasons why the record may be incomplete."""
        losses = tuple(f"{count} {kind}" for kind, count in self.losses.items() if count)
        return (*self.findings.gaps, *losses)

    def lines(self) -> tuple[str, ...]:
        """The figures, for people."""
        found = self.findings
        closest = "never" if found.closest_ns is None else f"{found.closest_ns / 1e6:.1f} ms"
        slowest = f"{max(self.waits_seconds, default=0):.1f} s"
        lost = sum(self.losses.values())
        record = f"{found.switches} sched_switch events, {lost} lost, {found.gap_count} gaps"
        owners = f"{found.owners} exclusive containers with {found.owned_cpus} CPUs, {found.untold} silent ones"
        stays = f"{found.stays} times on a CPU by tasks of {len(found.containers)} containers"
        changed = f"{found.granted} CPUs granted while their container ran, {found.given_up} given up"
        taken = f"{found.handovers} CPUs taken over within 10 s of another container's task"
        return (
            f"{self.pod_events} pod events in {self.seconds:.0f} s (slowest {slowest}); {record}",
            "done meanwhile: "
            + (", ".join(f"{count} {fault}" for fault, count in sorted(self.faults.items())) or "nothing"),
            f"{owners}; {stays}",
            f"{taken}, the closest after {closest}",
            f"{changed}; between looks at most {found.longest_unknown_ns / 1e6:.1f} ms, then {found.longest_leaving_ns / 1e6:.1f} ms",
            f"overlaps: {found.overlap_count}, of these on CPUs granted while their container ran: {found.granted_overlap_count}",
            f"strays: {found.stray_count}, broken promises: {len(found.promises)}",
            f"containers whose last CPU was away: {found.excused_overlap_count} overlaps, {found.excused_stray_count} strays",
            f"the longest of these overlaps: {found.longest_excused_overlap_ns / 1e6:.1f} ms; {found.excused_starts} started short of CPUs",
            f"begun unasked: {found.unasked_starts} exclusive containers; until placed {found.unasked_overlap_count} overlaps",
            f"runc's own processes: {found.runtimes_own_count} overlaps, the longest {found.longest_runtimes_own_ns / 1e6:.1f} ms",
        )


@dataclass
class _Judge:
    pods: str
    """Their cgroup."""
    merge: Merge = field(default_factory=Merge)
    records: Records = field(default_factory=Records)
    pages: Pages | None = None
    waits_seconds: list[float] = field(default_factory=list)
    promised: dict[tuple[str, str], frozenset[int]] = field(default_factory=dict)
    """By pod and container."""
    resizes: dict[tuple[str, str], list[Resize]] = field(default_factory=dict)
    """Likewise: what that became."""
    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Pod and container, by cgroup."""
    beside: Beside | None = None
    events: list[Event] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    journal: tuple[Line, ...] = ()
    summary: dict[str, Any] | None = None

    def take(self, received: bytes) -> None:
        for kind, cpu, content in self.records.feed(received):
            match kind:
                case Kind.FORMATS:
                    self.pages = Pages(json.loads(content))
                case Kind.PAGE:
                    self._page(cpu, content)
                case Kind.UNTIL:
                    self.events += self.merge.until(nanoseconds(content))
                case Kind.POD_EVENT:
                    self._pod_event(json.loads(content))
                case Kind.JOURNAL:
                    self.journal = lines(content)
                case Kind.SUMMARY:
                    self.summary = json.loads(content)

    def evidence(self) -> Evidence | None:
        if self.summary is None:
            return None
        self.events += self.merge.until(None)
        changes = [CpusChanged(*change) for change in self.summary.pop("changes")]
        if self.beside is not None:
            self.waits_seconds += self.beside.waits_seconds
            self.names |= self.beside.names
            self.promised |= self.beside.promised
        interruptions = self.summary.pop("interruptions")
        record = AgentsRecord(self.journal, changes, self.promised, self.names, interruptions, self.resizes)
        witness = Witness(self._is_container, {workload.EXCLUSIVE, workload.IN_IMAGE}, record)
        for event in self.events:
            witness.see(event)
        findings = witness.finish()
        for text in (*self.merge.gaps, *self.losses):
            findings.gap(text)
        return Evidence(findings, waits_seconds=tuple(self.waits_seconds), journal=self.journal, **self.summary)

    def _is_container(self, cgroup: str) -> bool:
        if cgroup.startswith(f"{self.pods}/"):
            return "/pod" in cgroup
        return cgroup in self.names or _UNIT.fullmatch(cgroup) is not None

    def _pod_event(self, event: dict[str, Any]) -> None:
        self.waits_seconds.append(event["seconds"])
        for container, cpus in event.get("promised", {}).items():
            self.promised[event["pod"], container] = cpu_list(cpus)
        for container, changes in event.get("resizes", {}).items():
            told = self.resizes.setdefault((event["pod"], container), [])
            told += [
                Resize(before_ns, after_ns, cpu_list(cpus), left_ns) for before_ns, after_ns, cpus, left_ns in changes
            ]
        for container, cgroup in event.get("cgroups", {}).items():
            self.names[cgroup] = (event["pod"], container)

    def _page(self, cpu: int, content: bytes) -> None:
        assert self.pages, "the formats come before the first page"
        try:
            self.merge.add(self.pages.events(cpu, content))
        except LostEventsError as error:
            self.losses.append(str(error))


def put_tools(guest: Guest) -> None:
    """Bring what runs in the guest up to date there."""
    guest.put(f"{_GUEST_DIRECTORY}/integration/__init__.py", "")
    for path in sorted(_PACKAGE.glob("*.py")):
        guest.put(f"{_GUEST_DIRECTORY}/integration/overlap/{path.name}", path.read_bytes())


def guest_module(name: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a module of this package in the guest."""
    return ("env", f"PYTHONPATH={_GUEST_DIRECTORY}", PYTHON, "-m", f"integration.overlap.{name}", *arguments)


def churn(
    guest: Guest,
    *,
    events: int,
    seed: int,
    at_once: int = 8,
    disturbed_every: int = 0,
    faults: Sequence[Fault] = (),
    with_resizes: bool = False,
    means: Sequence[Means] = (),
    beside: Beside | None = None,
) -> Evidence:
    """Let that many pods arrive and depart on a node without pods; after so many of them, do one or several of the faults.

    Args:
        guest: of the node.
        events: arrivals and departures, `beside`'s not counted.
        seed: of all that is left to chance.
        at_once: so many are under way at one time.
        disturbed_every: see `events`; 0: never.
        faults: that may be done.
        with_resizes: whether running pods get other numbers of CPUs, which count as events.
        means: by which pods come beside manifests.
        beside: what comes and goes at the same time; the record ends when both have ended.

    Raises:
        ProofError: it did not come to its end; with what the churn and the agent said last.

    """
    put_tools(guest)
    pods = guest.run("systemctl show --property ControlGroup --value nodeagent-pods.service").stdout.strip()
    judge = _Judge(pods, beside=beside)
    output: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    options = [f"--events={events}", f"--seed={seed}", f"--at-once={at_once}", f"--disturbed-every={disturbed_every}"]
    options += [f"--fault={fault}" for fault in faults]
    options += [f"--means={one.value}" for one in means]
    options += ["--resizes"] * with_resizes
    if means:  # a job's process is moved by the agent itself
        options.append(f"--unit={_AGENT}")
    if beside is not None:
        options += [f"--spared-cpus={beside.cpus}", f"--unit={_CONTAINERD}", "--until-told"]
    request = guest.start(guest_module("churn", *options), on_output=output.put)
    print(f"churn of {events} pod events, seed {seed}", file=sys.stderr, flush=True)
    status, wait = None, guest.wait(_QUIET_SECONDS)
    has_begun = is_told = False
    while status is None or not output.empty():
        if beside is not None and judge.pages is not None and not has_begun:
            has_begun = True
            beside.begin()
        if beside is not None and has_begun and not is_told and beside.is_over():
            is_told = True
            request.end_input()
        try:
            judge.take(output.get(timeout=0.5 if status is None else 0))
            wait = guest.wait(_QUIET_SECONDS)
        except queue.Empty:
            status = request.wait(0)
            if status is None and guest.is_over(wait):
                raise guest.in_vain(f"the churn has said nothing for {wait}") from None
    evidence = judge.evidence()
    if status != 0 or evidence is None:
        journal = guest.run("journalctl --unit 'nodeagent*' --lines 40 --no-pager --output cat", check=False).stdout
        raise ProofError(f"the churn ended with {status}:\n{request.stderr.decode(errors='replace')}\n{journal}")
    return evidence
