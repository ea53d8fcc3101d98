"""The agent, with one message of the container runtime's at which it is killed, or the runtime is. Runs in the guest, as the program of
nodeagent.service.

A file says when: `MESSAGE WHO WHEN`. The message is an event's name, or SYNCHRONIZE; who is `agent` or `containerd`; when is `before` the
message is looked at, or `after` it, when the decision is saved and not yet sent. The file is removed before anybody is killed.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from nodeagent.daemon import service
from nodeagent.daemon.domains.runtime.exchange import RuntimeExchange

WHEN = Path("/run/nodeagent/die-at")
SYNCHRONIZE = "SYNCHRONIZE"
AGENT, CONTAINERD = "agent", "containerd"
BEFORE, AFTER = "before", "after"
_CONTAINERDS = Path("/sys/fs/cgroup/system.slice/containerd.service/cgroup.procs")
T = TypeVar("T")
_handle, _synchronize = RuntimeExchange.handle, RuntimeExchange.synchronize


def _runtime() -> int:
    pids = map(int, _CONTAINERDS.read_text().split())
    return next(pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == CONTAINERD)


def _die(message: str, when: str) -> None:
    """Kill whoever is to be killed now; a caller that is killed doesn't come back."""
    try:
        text = WHEN.read_text()
    except FileNotFoundError:
        return
    for who in (AGENT, CONTAINERD):
        if text.split() == [message, who, when]:
            WHEN.unlink()
            os.kill(os.getpid() if who == AGENT else _runtime(), signal.SIGKILL)
            if who == AGENT:
                threading.Event().wait()


def _dying(answer: Callable[..., T], name: Callable[[Any], str]) -> Callable[..., T]:
    def asked(self: RuntimeExchange, what: Any, until: float) -> T:
        _die(name(what), BEFORE)
        found = answer(self, what, until)
        _die(name(what), AFTER)
        return found

    return asked


def main() -> int:
    (config,) = sys.argv[1:]
    with (
        patch.object(RuntimeExchange, "handle", _dying(_handle, lambda call: call.event.name)),
        patch.object(RuntimeExchange, "synchronize", _dying(_synchronize, lambda _: SYNCHRONIZE)),
    ):
        return service.serve(config)


if __name__ == "__main__":
    sys.exit(main())
