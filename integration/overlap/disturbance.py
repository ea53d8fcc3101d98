"""What happens to the node while pods come and go: the agent is killed, a CPU goes offline and comes back. Runs in the guest.

What is promised stays checkable from outside: a CPU goes only when no container is being started, and never a container's last one
(where it then runs is no promise about its own CPUs); until it is back, no pod arrives.
"""

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_AGENT = "nodeagent.service"
_AWAY_SECONDS = 10.0
"""A CPU comes back after two pod events; or then, if nobody departs."""


class Disturbance:
    """Does one thing after so many pod events, turn by turn a kill and a hotplug.

    Args:
        chance: says which CPU.
        cgroup: the pods'.
        every: so many pod events; 0: never.

    """

    def __init__(self, chance: random.Random, cgroup: Path, every: int) -> None:
        self._chance, self._cgroup, self._every = chance, cgroup, every
        self._offline: int | None = None
        self._back_after, self._back_at = 0, 0.0
        self.kills = 0
        self.hotplugs = 0

    def is_due(self, done: int) -> bool:
        return bool(self._every) and done >= self._every * (self.kills + self.hotplugs + 1)

    def holds_arrivals(self, done: int) -> bool:
        """Whether arrivals have to wait: for a CPU that is to go, or that is away."""
        return self._offline is not None or (self.is_due(done) and self._is_hotplug_next())

    def act(self, done: int, *, is_quiet: bool) -> None:
        """Do what is due.

        Args:
            done: pod events so far.
            is_quiet: no container is being started.

        """
        if self._offline is not None and (done >= self._back_after or time.monotonic() >= self._back_at):
            self._switch(self._offline, 1)
            self._offline = None
        elif self.is_due(done) and not self._is_hotplug_next():
            subprocess.run(("systemctl", "kill", "--signal=KILL", _AGENT), check=True)
            self.kills += 1
        elif self.is_due(done) and is_quiet:
            self._offline = self._chance.choice(self._spare())
            self._back_after, self._back_at = done + 2, time.monotonic() + _AWAY_SECONDS
            self._switch(self._offline, 0)
            self.hotplugs += 1

    def end(self) -> None:
        """Leave the machine as it was found."""
        if self._offline is not None:
            self._switch(self._offline, 1)

    def _is_hotplug_next(self) -> bool:
        return self.hotplugs < self.kills

    def _spare(self) -> list[int]:
        """CPUs that can go, and are not all that a container has."""
        there = sorted(int(path.parent.name.removeprefix("cpu")) for path in _CPUS.glob("cpu*/online"))
        alone = set(self._sets())
        return [cpu for cpu in there if str(cpu) not in alone]

    def _sets(self) -> Iterable[str]:
        """Those of the containers, some of which may go in this moment."""
        for directory, _, _ in os.walk(self._cgroup):
            if Path(directory).parent.name.startswith("pod"):
                with contextlib.suppress(OSError):
                    yield Path(directory, "cpuset.cpus.effective").read_text().strip()

    def _switch(self, cpu: int, value: int) -> None:
        (_CPUS / f"cpu{cpu}" / "online").write_text(str(value))
