"""What happens to the node while pods come and go, several things at once. Runs in the guest.

The agent is killed, restarted or told to reload, the launcher is killed or replaced, CPUs go offline or are withheld from the pods, be
they all that a container has, the wall clock is set, systemd reloads, containerd is killed or restarted. When CPUs went and came back is
recorded for the judge.
"""

import contextlib
import enum
import errno
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from integration.overlap.events import cpu_list

_CPUS = Path("/sys/devices/system/cpu")
_SLICE = "nodeagent.slice"
_AGENT = "nodeagent.service"
_LAUNCHER = "nodeagent-launcher.service"
_CONTAINERD = "containerd.service"
_AWAY_EVENTS = (1, 8)
_AWAY_SECONDS = 30.0
"""CPUs come back after so many pod events; or then, if nothing happens."""
_EFFECT_SECONDS = 60.0
_DAY_SECONDS = 86_400
_AT_ONCE = (1, 1, 2, 3)
_SYNC_SECONDS = 0.05
MOST_AWAY = 4
"""CPUs at one time."""


class DisturbanceError(Exception):
    """The node did not do what it was asked for."""


class Fault(enum.StrEnum):
    AGENT_KILLED = "agent-killed"
    AGENT_RESTARTED = "agent-restarted"
    AGENT_RELOADED = "agent-reloaded"
    LAUNCHER_KILLED = "launcher-killed"
    LAUNCHER_REPLACED = "launcher-replaced"
    CPU_OFFLINE = "cpu-offline"
    CPUS_WITHHELD = "cpus-withheld"
    CLOCK_SET = "clock-set"
    SYSTEMD_RELOADED = "systemd-reloaded"
    CONTAINERD_KILLED = "containerd-killed"
    CONTAINERD_RESTARTED = "containerd-restarted"


OF_CONTAINERD = (Fault.CONTAINERD_KILLED, Fault.CONTAINERD_RESTARTED)
OF_ANY_NODE = tuple(fault for fault in Fault if fault not in OF_CONTAINERD)


class CpusChanged(NamedTuple):
    """Which CPUs the pods may use, from a moment between the two on."""

    before_ns: int
    after_ns: int
    available: tuple[int, ...]
    is_refusal: bool = False
    """They are back at once, as one could not go; processes that the kernel had driven off it stay away until the agent gathers them."""


@dataclass(slots=True)
class _Absence:
    """CPUs that are away, and when they come back."""

    cpus: frozenset[int]
    until_events: int
    until_seconds: float

    def is_over(self, done: int) -> bool:
        return done >= self.until_events or time.monotonic() >= self.until_seconds


class Disturbance:
    """Does one or several things at random after so many pod events.

    Args:
        chance: says what, and which CPUs.
        cgroup: the pods'.
        every: so many pod events; 0: never.
        faults: what may happen.

    """

    def __init__(self, chance: random.Random, cgroup: Path, every: int, faults: Sequence[Fault]) -> None:
        self._chance, self._cgroup, self._every, self._faults = chance, cgroup, every, faults
        self._next = every
        self._deck: list[Fault] = []
        self._offline: list[_Absence] = []
        self._withheld: _Absence | None = None
        self._clock_is_ahead_seconds = 0.0
        self._all = cpu_list((_CPUS / "online").read_text())
        self.counts: Counter[Fault] = Counter()
        self.interruptions: list[int] = []
        """When agent or container runtime were to go: the runtime asks nobody until they are linked again. Monotonic, ns."""
        self.changes = [CpusChanged(0, time.monotonic_ns(), tuple(sorted(self._all)))]

    def most_away(self) -> int:
        takes = {Fault.CPU_OFFLINE, Fault.CPUS_WITHHELD}
        return MOST_AWAY if self._every and takes.intersection(self._faults) else 0

    def act(self, done: int) -> None:
        """Do what is due.

        Args:
            done: pod events so far.

        """
        for absence in [absence for absence in self._offline if absence.is_over(done)]:
            self._offline.remove(absence)
            self._switch(absence.cpus, 1)
        if self._withheld is not None and self._withheld.is_over(done):
            self._withhold(None)
        if self._every and done >= self._next:
            self._next = done + self._every
            for fault in self._dealt(min(len(self._faults), self._chance.choice(_AT_ONCE))):
                self._do(fault, done)

    def _dealt(self, count: int) -> list[Fault]:
        """Draw different faults, each of all before any comes again: every run has every fault, whatever the chance."""
        dealt: list[Fault] = []
        while len(dealt) < count:
            self._deck = self._deck or self._chance.sample(self._faults, len(self._faults))
            fault = self._deck.pop()
            if fault not in dealt:
                dealt.append(fault)
        return dealt

    def end(self) -> None:
        """Leave the machine as it was found."""
        while self._offline:
            self._switch(self._offline.pop().cpus, 1)
        if self._withheld is not None:
            self._withhold(None)
        self._set_clock(-self._clock_is_ahead_seconds)

    def _do(self, fault: Fault, done: int) -> None:
        if fault in {Fault.AGENT_KILLED, Fault.AGENT_RESTARTED, *OF_CONTAINERD}:
            self.interruptions.append(time.monotonic_ns())
        match fault:
            case Fault.AGENT_KILLED:
                _systemctl("kill", "--signal=KILL", _AGENT)
            case Fault.AGENT_RESTARTED:
                _systemctl("restart", "--no-block", _AGENT)
            case Fault.AGENT_RELOADED:
                _systemctl("reload", "--no-block", _AGENT)
            case Fault.LAUNCHER_KILLED:
                # not what it is just starting: a pod that is never restarted would have failed by that
                _systemctl("kill", "--signal=KILL", "--kill-whom=main", _LAUNCHER)
            case Fault.LAUNCHER_REPLACED:
                _systemctl("reload", "--no-block", _LAUNCHER)
            case Fault.SYSTEMD_RELOADED:
                _systemctl("daemon-reload")
            case Fault.CONTAINERD_KILLED:
                _systemctl("kill", "--signal=KILL", "--kill-whom=main", _CONTAINERD)
            case Fault.CONTAINERD_RESTARTED:
                _systemctl("restart", "--no-block", _CONTAINERD)
            case Fault.CLOCK_SET:
                self._set_clock(self._chance.choice((-1, 1)) * self._chance.choice((2, 90, 7_200, _DAY_SECONDS)))
            case Fault.CPU_OFFLINE:
                victims = self._victims(most=1)
                if not victims:
                    return
                self._offline.append(self._absence(victims, done))
                before_ns = time.monotonic_ns()
                try:
                    self._switch(victims, 0)
                except OSError as err:
                    if err.errno != errno.EBUSY:
                        raise
                    self._offline.pop()  # the last one of a partition, which kernel 6.12 doesn't take offline
                    self._note_refusal(before_ns, victims)
                    return
            case Fault.CPUS_WITHHELD:
                # those that were withheld before are given back in the same write
                before = frozenset() if self._withheld is None else self._withheld.cpus
                victims = self._victims(most=3, spared=before)
                if not victims:
                    return
                self._withhold(self._absence(victims, done))
        self.counts[fault] += 1

    def _note_refusal(self, before_ns: int, cpus: frozenset[int]) -> None:
        there, now_ns = self._all - self._away(), time.monotonic_ns()
        self.changes += (
            CpusChanged(before_ns, now_ns, tuple(sorted(there - cpus))),
            CpusChanged(now_ns, now_ns, tuple(sorted(there)), is_refusal=True),
        )

    def _absence(self, cpus: frozenset[int], done: int) -> _Absence:
        return _Absence(cpus, done + self._chance.randint(*_AWAY_EVENTS), time.monotonic() + _AWAY_SECONDS)

    def _away(self) -> frozenset[int]:
        withheld = frozenset() if self._withheld is None else self._withheld.cpus
        return withheld.union(*(absence.cpus for absence in self._offline))

    def _victims(self, *, most: int, spared: frozenset[int] = frozenset()) -> frozenset[int]:
        """CPUs that can go: often all that a container has; never the first, which no kernel takes offline."""
        most = min(most, MOST_AWAY - len(self._away() - spared))
        there = self._all - self._away() - {0}
        if most <= 0:
            return frozenset()
        whole = [cpus for cpus in self._sets() if cpus <= there and len(cpus) <= most]
        if whole and self._chance.random() < 0.6:
            return self._chance.choice(whole)
        return frozenset(self._chance.sample(sorted(there), self._chance.randint(1, most)))

    def _sets(self) -> list[frozenset[int]]:
        """Those of the exclusive containers, some of which may go in this moment."""
        found = []
        for file in sorted(self._cgroup.glob("pod*/*/cpuset.cpus")):
            with contextlib.suppress(OSError, ValueError):
                found.append(cpu_list(file.read_text()))
        return found

    def _switch(self, cpus: Iterable[int], value: int) -> None:
        with self._change():
            for cpu in cpus:
                (_CPUS / f"cpu{cpu}" / "online").write_text(str(value))

    def _withhold(self, absence: _Absence | None) -> None:
        self._withheld = absence
        allowed = self._all - (frozenset() if absence is None else absence.cpus)
        with self._change():
            _systemctl("set-property", "--runtime", _SLICE, "AllowedCPUs=" + ",".join(map(str, sorted(allowed))))

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        """Record when the pods' CPUs changed: systemd and kernel have it in effect at some time after they were asked."""
        before_ns = time.monotonic_ns()
        yield
        wanted = self._all - self._away()
        limit = time.monotonic() + _EFFECT_SECONDS
        # those that are handed down to partitions are in effect for the slice until these begin
        while (
            not wanted - _slice_cpus("cpuset.cpus.exclusive")
            <= (found := _slice_cpus("cpuset.cpus.effective"))
            <= wanted
        ):
            if time.monotonic() > limit:
                raise DisturbanceError(f"the pods may use {sorted(found)}, and were to use {sorted(wanted)}")
            time.sleep(_SYNC_SECONDS)
        self.changes.append(CpusChanged(before_ns, time.monotonic_ns(), tuple(sorted(wanted))))

    def _set_clock(self, by_seconds: float) -> None:
        if by_seconds:
            time.clock_settime(time.CLOCK_REALTIME, time.time() + by_seconds)
            self._clock_is_ahead_seconds += by_seconds


def _slice_cpus(file: str) -> frozenset[int]:
    """CPUs in a file of the slice; none where the kernel has no such file."""
    try:
        return cpu_list(Path(f"/sys/fs/cgroup/{_SLICE}/{file}").read_text())
    except FileNotFoundError:
        return frozenset()


def _systemctl(*words: str) -> None:
    """Ask systemd. What is just dead or being started is not there to be killed or reloaded: no error."""
    subprocess.run(("systemctl", *words), check=False, stderr=subprocess.DEVNULL)
