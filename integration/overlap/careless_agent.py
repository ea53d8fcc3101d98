"""The agent without one look: it doesn't wait for a container runtime's containers. Shows that the proof would notice.

A container of the runtime that shares the pool leaves an exclusive CPU when the runtime has written its new cpuset, which takes it a
while. The agent reckons with that in one place, `RuntimeDomain.occupied`: here nobody is ever still to leave. Runs in the guest, as the
program of nodeagent.service.
"""

import sys
from unittest.mock import patch

from nodeagent.core.model.idset import CpuSet
from nodeagent.daemon import service
from nodeagent.daemon.domains.runtime.containers import RuntimeDomain


def main() -> int:
    (config,) = sys.argv[1:]
    with patch.object(RuntimeDomain, "occupied", lambda _self, _state: CpuSet()):
        return service.serve(config)


if __name__ == "__main__":
    sys.exit(main())
