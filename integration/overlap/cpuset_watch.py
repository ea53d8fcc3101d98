"""Looks at the cpusets of containers that are being resized, all the time, and says between which two looks each one changed."""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from integration.overlap.events import cpu_list

_LOOK_SECONDS = 0.002
"""Between two looks: a sampling interval, as the kernel notifies nobody when a cpuset changes. Nothing waits for it."""
_PROCESSOR = 36
"""Of /proc/PID/stat, after the program's name (proc(5))."""


Change = tuple[int, int, str, int]
"""When the last look at the old CPUs began; when the first at the new ones had ended; these; when no task was elsewhere any more."""


@dataclass(slots=True)
class Watched:
    """A container whose resize is under way."""

    cpus: str
    """As the kernel lists them."""
    seen_ns: int
    """When the last look began that found these."""
    changes: list[Change] = field(default_factory=list)
    lasting: int = 0
    """Of these, the last ones whose old CPUs it may still be on: the kernel shows a cpuset before it has moved the tasks."""


class CpusetWatch:
    """A thread beside the churn, which has other things to do for most of the time."""

    def __init__(self) -> None:
        self._watched: dict[Path, Watched] = {}
        self._lock = threading.Lock()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._is_over = True
        self._thread.join()

    def begin(self, cgroup: Path) -> None:
        """Look at that container from now on; before its manifest is changed."""
        at_ns = time.monotonic_ns()
        with self._lock:
            self._watched[cgroup] = Watched(_cpus(cgroup), at_ns)

    def has(self, cgroup: Path, count: int) -> bool:
        """Whether the container has got that many CPUs, and is on no other."""
        with self._lock:
            watched = self._watched[cgroup]
            return len(cpu_list(watched.cpus)) == count and not watched.lasting

    def end(self, cgroup: Path) -> list[Change]:
        with self._lock:
            return self._watched.pop(cgroup).changes

    def _run(self) -> None:
        while not self._is_over:
            with self._lock:
                for cgroup, watched in self._watched.items():
                    self._look(cgroup, watched)
            time.sleep(_LOOK_SECONDS)

    def _look(self, cgroup: Path, watched: Watched) -> None:
        began_ns = time.monotonic_ns()
        cpus = _cpus(cgroup)
        if cpus != watched.cpus:
            at_ns = time.monotonic_ns()
            watched.changes.append((watched.seen_ns, at_ns, cpus, at_ns))
            watched.cpus = cpus
            watched.lasting += 1
        watched.seen_ns = began_ns
        if watched.lasting and _are_on(cgroup, cpu_list(cpus)):
            left_ns = time.monotonic_ns()
            first = len(watched.changes) - watched.lasting
            watched.changes[first:] = [(*change[:3], left_ns) for change in watched.changes[first:]]
            watched.lasting = 0


def _of_processes(cgroup: Path) -> Path:
    payload = cgroup / "payload"
    return payload if payload.exists() else cgroup


def _cpus(cgroup: Path) -> str:
    return (_of_processes(cgroup) / "cpuset.cpus.effective").read_text().strip()


def _are_on(cgroup: Path, cpus: frozenset[int]) -> bool:
    """Whether all of its tasks may be on these CPUs alone, and are."""
    for tid in (_of_processes(cgroup) / "cgroup.threads").read_text().split():
        try:
            status, stat = (Path(f"/proc/{tid}/{name}").read_text() for name in ("status", "stat"))
        except OSError:  # it has ended
            continue
        allowed = status.partition("Cpus_allowed_list:")[2].split("\n", 1)[0]
        last_on = int(stat.rpartition(")")[2].split()[_PROCESSOR])
        if not cpu_list(allowed) <= cpus or last_on not in cpus:
            return False
    return True
