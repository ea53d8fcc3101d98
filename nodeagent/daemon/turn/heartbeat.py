"""Notifications to systemd's watchdog during a turn, because a turn with a thousand new pods takes longer than the watchdog's timeout.

They are sent only when the turn makes progress, so systemd still detects an agent that hangs.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from nodeagent.edge.systemd.service_manager import NotifyError, ServiceManager

_SECONDS = 5.0
_START_SECONDS = 90
"""systemd's default time limit for a start (DefaultTimeoutStartSec=)."""


class Heartbeat:
    """Sender of notifications to systemd while a turn makes progress. Until the agent is ready, they extend the time limit of the start
    instead of pinging the watchdog.
    """

    def __init__(self, manager: ServiceManager, clock: Callable[[], float] = time.monotonic) -> None:
        self._manager = manager
        self._clock = clock
        self._due = clock() + _SECONDS
        self.is_ready = False

    def beat(self) -> None:
        """Notify systemd, unless the last notification was sent a short time ago. Called after each part of a turn."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + _SECONDS
        # If the service manager (systemd) isn't listening, the next call tries again.
        with suppress(NotifyError):
            if self.is_ready:
                self._manager.ping_watchdog()
            else:
                self._manager.extend_start(_START_SECONDS)
