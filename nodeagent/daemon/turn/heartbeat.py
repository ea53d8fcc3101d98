"""Signs of life from the deciding thread during a turn: a thousand pods at once take longer than the watchdog timeout.

Only progress sends one, so a hanging turn is still noticed.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from nodeagent.edge.systemd.service_manager import NotifyError, ServiceManager

_SECONDS = 5.0
_START_SECONDS = 90
"""How long systemd lets a start take if it isn't asked for more (DefaultTimeoutStartSec=)."""


class Heartbeat:
    """Reports progress to the service manager from time to time. Before the agent is ready, asks for more time to start.

    Args:
        manager: gets the notifications.
        clock: in seconds.
    """

    def __init__(self, manager: ServiceManager, clock: Callable[[], float] = time.monotonic) -> None:
        self._manager = manager
        self._clock = clock
        self._due = clock() + _SECONDS
        self.is_ready = False

    def beat(self) -> None:
        """Send one if the last was a while ago. Call after each part of a turn; costs nothing in between."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + _SECONDS
        # If the manager isn't listening, the next call tries again; the turn must not end here.
        with suppress(NotifyError):
            if self.is_ready:
                self._manager.ping_watchdog()
            else:
                self._manager.extend_start(_START_SECONDS)
