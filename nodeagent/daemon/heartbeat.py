"""Signs of life from the deciding thread during a turn: a thousand pods at once take longer than the watchdog timeout.

Only progress gives one, so a hanging turn is still noticed.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from nodeagent.edge.systemd import NotifyError, ServiceManager

_SECONDS = 5.0
_START_SECONDS = 90
"""What systemd gives a start without being asked for more (DefaultTimeoutStartSec=)."""


class Heartbeat:
    """Tells the service manager, now and then, that the work gets on. Before the agent is ready, that it needs more time to start.

    Args:
        manager: that is told.
        clock: in seconds.

    """

    def __init__(self, manager: ServiceManager, clock: Callable[[], float] = time.monotonic) -> None:
        self._manager = manager
        self._clock = clock
        self._due = clock() + _SECONDS
        self.is_ready = False

    def beat(self) -> None:
        """Say it if that was not said for a while. To be called after each part of a turn; costs nothing in between."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + _SECONDS
        # Who does not listen is told again; the turn must not end here.
        with suppress(NotifyError):
            if self.is_ready:
                self._manager.ping_watchdog()
            else:
                self._manager.extend_start(_START_SECONDS)
