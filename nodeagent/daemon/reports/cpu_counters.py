"""Metrics of the interrupts and softirqs on exclusive CPUs, by container.

The serving thread reads the kernel's files during a scrape, at most once a second. The files are large on large machines, so they are read
only while a container has exclusive CPUs. The interrupts of a CPU count for a container from the first scrape that finds the container on
this CPU to the last one.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from nodeagent.core.metrics import agent_metrics as names
from nodeagent.core.metrics.deltas import Series
from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.kernel.host_settings import HostSettingsFiles
from nodeagent.edge.kernel.interrupts import is_bound, read_interrupt_counters, read_softirq_counters
from nodeagent.formats.kernel.cpu_counts import (
    CLAIMED,
    INTERRUPT_KINDS,
    SOFTIRQ_KINDS,
    CpuCounts,
    Increase,
    count_increases,
    interrupt_kind,
    parse_cpu_counts,
    softirq_kind,
)

_READ_AGAIN_SECONDS = 1.0


class Holder(NamedTuple):
    """Identity of a container with exclusive CPUs, as in the labels of metrics."""

    uid: str
    namespace: str
    pod: str
    container: str


Held = Mapping[Holder, CpuSet]
Claims = Mapping[Holder, tuple[str, ...]]
"""Devices by container, for the containers that request the handling of the devices' interrupts on their own CPUs."""


class CpuCounters:
    def __init__(self, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: Held = {}
        self._claims: Claims = {}
        self._settings = HostSettingsFiles(str(root))
        self._files = (
            _CountedFile(
                names.EXCLUSIVE_CPU_INTERRUPTS,
                INTERRUPT_KINDS,
                lambda: read_interrupt_counters(root),
                lambda row: interrupt_kind(row, is_bound=row.label.isdecimal() and is_bound(int(row.label), root)),
            ),
            _CountedFile(
                names.EXCLUSIVE_CPU_SOFTIRQS,
                SOFTIRQ_KINDS,
                lambda: read_softirq_counters(root),
                softirq_kind,
            ),
        )
        self._read_at = -_READ_AGAIN_SECONDS
        self._was_held = False
        """Whether a container had exclusive CPUs at the last read. If none had, the kernel's files were not read."""

    def follow(self, held: Held, claims: Claims) -> None:
        """Set the containers' exclusive CPUs and the devices whose interrupts they request.

        The deciding thread calls this method and doesn't change the arguments afterwards, so the serving thread may read them without a
        lock.
        """
        self._held, self._claims = held, claims

    def values(self) -> dict[Series, int]:
        """Return the counters. They are read at most once a second, and only the serving thread may call this method."""
        held, claims, now = self._held, self._claims, self._clock()
        if now >= self._read_at + _READ_AGAIN_SECONDS or (held and not self._was_held):
            self._read_at, self._was_held = now, bool(held)
            interrupts, softirqs = self._files
            numbers = self._settings.find_interrupt_numbers
            rows = {
                holder: frozenset(str(number) for device in devices for number in numbers(device))
                for holder, devices in claims.items()
            }
            interrupts.update(held, rows)
            softirqs.update(held, {})
        found = Counter[Series]()
        for file in self._files:
            file.add_to(found, held, claims)
        return dict(found)


class _CountedFile:
    """Counters of one kernel file, added up by container."""

    def __init__(
        self, name: str, kinds: tuple[str, ...], text: Callable[[], bytes | None], kind: Callable[[Increase], str]
    ) -> None:
        self._name, self._kinds = name, kinds
        self._text, self._kind = text, kind
        self._last: CpuCounts | None = None
        self._held: Held = {}
        """Exclusive CPUs by container, at the last read."""
        self._totals: dict[Holder, Counter[str]] = {}

    def update(self, held: Held, claimed: Mapping[Holder, frozenset[str]]) -> None:
        """Read the kernel's file (`/proc/interrupts`, for example), and add the increases since the last read to each container's totals.

        Args:
            held: exclusive CPUs by container.
            claimed: interrupts that each container requests, as row labels of the file.
        """
        text = self._text() if held else None
        counts = None if text is None else parse_cpu_counts(text)
        stayed = {holder: cpus & self._held[holder] for holder, cpus in held.items() if holder in self._held}
        self._totals = {holder: self._totals.get(holder, Counter()) for holder in held}
        if counts is not None and self._last is not None:
            all_stayed = CpuSet.from_ids(cpu for cpus in stayed.values() for cpu in cpus)
            for row in count_increases(self._last, counts, all_stayed):
                kind = self._kind(row)
                for holder, cpus in stayed.items():
                    own_kind = CLAIMED if row.label in claimed.get(holder, ()) else kind
                    self._totals[holder][own_kind] += sum(row.by_cpu.get(cpu, 0) for cpu in cpus)
        self._last, self._held = counts, held

    def add_to(self, found: Counter[Series], held: Held, claims: Claims) -> None:
        """Add one series for each container and kind of interrupt.

        A container that requests interrupts also gets a series of the kind `claimed`. Nothing is added if the kernel's file is missing or
        malformed.
        """
        if self._last is None:
            return
        for holder in held:
            totals = self._totals.get(holder, Counter())
            for kind in self._kinds:
                if kind == CLAIMED and holder not in claims:
                    continue
                labels = {
                    "container": holder.container,
                    "kind": kind,
                    "namespace": holder.namespace,
                    "pod": holder.pod,
                }
                found[Series(self._name, tuple(labels.items()))] += totals[kind]
