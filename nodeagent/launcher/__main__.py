"""Command line and start of the launcher. It takes the lock, becomes a subreaper (prctl(2)), listens on its socket and serves."""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import resource
import socket
import sys
import time
import traceback
from pathlib import Path

from nodeagent.launcher.clients import MAX_CLIENTS
from nodeagent.launcher.report import log
from nodeagent.launcher.server import Launcher

PR_SET_CHILD_SUBREAPER = 36  # value from linux/prctl.h


def main() -> int:
    parser = argparse.ArgumentParser(prog="nodeagent.launcher", description="Starts containers' processes.")
    parser.add_argument("--socket", type=Path, default=Path("/run/nodeagent-pods/launcher.sock"))
    parser.add_argument("--state-dir", type=Path, default=Path("/var/lib/nodeagent-pods"))
    parser.add_argument("--cgroup", type=Path, help="the delegated cgroup that contains the cgroups of the pods")
    parser.add_argument("--journal", default="/run/systemd/journal/stdout", help="journald's stream socket")
    options = parser.parse_args()
    options.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    # the directory itself is locked, because a lock file could not be created on a full disk
    lock = os.open(options.state_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log("another_launcher_runs", state_dir=str(options.state_dir))
        return 1
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    root = options.cgroup.resolve() if options.cgroup else None
    launcher = Launcher(root, options.state_dir, options.journal, listen(options.socket))
    try:
        launcher.serve()
    except Exception:  # noqa: BLE001 - a bug must not lose exit codes, which the re-executed launcher still gets
        log("crashed", trace=traceback.format_exc()[-1500:])
        time.sleep(1)
        if not launcher.asked.stop:
            launcher.reexec()
        return 1
    return 0


def listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)  # this process holds the lock, so no other launcher listens on the socket
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mask = os.umask(0o177)
    listener.bind(str(path))
    os.umask(mask)
    listener.listen(MAX_CLIENTS)
    return listener


if __name__ == "__main__":
    sys.exit(main())
