"""Counters of what the kernel handled on exclusive CPUs besides running tasks: interrupts and softirqs, by container.

Read when somebody scrapes, in the thread that serves, at most once a second, and not at all while nobody has exclusive CPUs: the kernel
counts anyway, and on large machines its files are large. So a CPU counts from the first scrape that finds it with a container to the last
one that does. Nothing else is a container's: what a CPU has counted before, or for another container.
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
    CpuCounts,
    Increase,
    increases,
    interrupt_kind,
    parse_cpu_counts,
)
from nodeagent.formats.kernel.cpu_use import SOFTIRQS

_READ_AGAIN_SECONDS = 1.0


class Holder(NamedTuple):
    """A container with exclusive CPUs."""

    uid: str
    namespace: str
    pod: str
    container: str


Held = Mapping[Holder, CpuSet]
Claims = Mapping[Holder, tuple[str, ...]]
"""Devices whose interrupts a container wants there; only of those that want some."""


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
                SOFTIRQS,
                lambda: read_softirq_counters(root),
                lambda row: row.label,
            ),
        )
        self._read_at = -_READ_AGAIN_SECONDS
        self._was_held = False
        """Somebody had exclusive CPUs when the files were read: otherwise they were not."""

    def follow(self, held: Held, claims: Claims) -> None:
        """Replace who has which exclusive CPUs, and wants what there; called by the deciding thread. Neither is changed afterwards."""
        self._held, self._claims = held, claims

    def values(self) -> dict[Series, int]:
        """Return the counters as they are now. Only ever asked for by one thread."""
        held, claims, now = self._held, self._claims, self._clock()
        if now >= self._read_at + _READ_AGAIN_SECONDS or (held and not self._was_held):
            self._read_at, self._was_held = now, bool(held)
            interrupts, softirqs = self._files
            interrupts.look(held, {one: self._rows_of(devices) for one, devices in claims.items()})
            softirqs.look(held, {})
        found = Counter[Series]()
        for file in self._files:
            file.add_to(found, held)
        return dict(found)

    def _rows_of(self, devices: tuple[str, ...]) -> frozenset[str]:
        return frozenset(str(number) for device in devices for number in self._settings.find_interrupt_numbers(device))


class _CountedFile:
    """What one file has counted for each container."""

    def __init__(
        self, name: str, kinds: tuple[str, ...], text: Callable[[], bytes | None], kind: Callable[[Increase], str]
    ) -> None:
        self._name, self._kinds = name, kinds
        self._text, self._kind = text, kind
        self._last: CpuCounts | None = None
        self._held: Held = {}
        """Who had what at that look."""
        self._totals: dict[Holder, Counter[str]] = {}

    def look(self, held: Held, claimed: Mapping[Holder, frozenset[str]]) -> None:
        """Count what has happened since the last look.

        Args:
            held: who has which CPUs.
            claimed: labels of the rows that are what a container wants.
        """
        text = self._text() if held else None
        counts = None if text is None else parse_cpu_counts(text)
        stayed = {one: cpus & self._held[one] for one, cpus in held.items() if one in self._held}
        self._totals = {one: self._totals.get(one, Counter()) for one in held}
        if counts is not None and self._last is not None:
            all_stayed = CpuSet.from_ids(cpu for cpus in stayed.values() for cpu in cpus)
            for row in increases(self._last, counts, all_stayed):
                kind = self._kind(row)
                for one, cpus in stayed.items():
                    own = CLAIMED if row.label in claimed.get(one, ()) else kind
                    self._totals[one][own] += sum(row.by_cpu.get(cpu, 0) for cpu in cpus)
        self._last, self._held = counts, held

    def add_to(self, found: Counter[Series], held: Held) -> None:
        """Add a series for each container and kind; none if the kernel's file is missing or not understood."""
        if self._last is None:
            return
        for one in held:
            totals = self._totals.get(one, Counter())
            for kind in self._kinds:
                labels = {"container": one.container, "kind": kind, "namespace": one.namespace, "pod": one.pod}
                found[Series(self._name, tuple(labels.items()))] += totals[kind]
