"""The child process between fork and exec. It executes a container's command, or reports the stage that failed."""

from __future__ import annotations

import errno
import fcntl
import functools
import json
import os
import resource
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from nodeagent.launcher.order import Order

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# the launcher itself reports the stages `fork` and `deadline`
STAGES = ("fork", "deadline", "cgroup", "session", "output", "settings", "user", "cwd", "exec")
POLICIES = {"batch": os.SCHED_BATCH, "fifo": os.SCHED_FIFO, "rr": os.SCHED_RR}


@functools.cache
def list_handled_signals() -> tuple[int, ...]:
    """Return the signals that the launcher handles or ignores. This function must not be called before the launcher has set its
    handlers.
    """
    usual = (signal.SIG_DFL, None)
    return tuple(int(number) for number in signal.valid_signals() if signal.getsignal(number) not in usual)


def become_process(order: Order, root: Path | None, journal: str, link: int, *, is_inside: bool) -> NoReturn:
    """Execute the container's command. If a stage fails, send the stage's name through the socket `link`. `is_inside` tells whether this
    process was created in the container's cgroup.

    When this function is called, the signals that the launcher handles are blocked.
    """
    stage = "cgroup"
    try:
        link = fcntl.fcntl(link, fcntl.F_DUPFD_CLOEXEC, 3)
        os.closerange(3, link)
        os.closerange(link + 1, 2**31 - 1)
        if not os.read(link, 1):
            os._exit(127)  # the launcher ended before it wrote the record, so this process would be unknown
        if order.cgroup is not None and not is_inside:
            procs = os.open(f"{order.cgroup}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
            os.write(procs, b"%d" % os.getpid())
            os.close(procs)
        stage = "session"
        reset_process()
        stage = "output"
        connect_output(order, root, journal)
        stage = "settings"
        if order.settings:
            apply_settings(order.settings)
        stage = "user"
        if order.uid is not None or order.gid is not None or order.groups:
            os.setgroups(order.groups)
        if order.gid is not None:
            os.setresgid(order.gid, order.gid, order.gid)
        if order.uid is not None:
            os.setresuid(order.uid, order.uid, order.uid)
        stage = "cwd"
        os.chdir(order.cwd)
        stage = "exec"
        execute(order)
    except BaseException as err:  # noqa: BLE001 - the child must not return into the launcher's code
        number = err.errno if isinstance(err, OSError) and err.errno else errno.EINVAL
        text = os.strerror(number) if isinstance(err, OSError) else f"{type(err).__name__}: {err}"
        os.write(link, json.dumps({"stage": stage, "errno": number, "message": text}).encode())
    finally:
        os._exit(127)


def reset_process() -> None:
    os.setsid()
    for number in list_handled_signals():
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # the launcher has raised its own limit; programs get the usual soft limit, because select() doesn't support higher descriptors
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    if int(os.read(score, 16)) < 0:
        os.write(score, b"0")
    os.close(score)


def connect_output(order: Order, root: Path | None, journal: str) -> None:
    """Connect stdin to /dev/null, and stdout and stderr to the journal. If there is no journal, use the log file instead."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.connect(journal)
        stream.shutdown(socket.SHUT_RD)
        # Header of a journald stream: identifier, unit, priority (info), whether lines may have their own priority ("<3>"), and three
        # switches for forwarding. The unit is named because a short-lived process may end before journald looks up its cgroup.
        unit = root.name if root is not None and root.suffix == ".service" else ""
        stream.sendall(f"{order.identifier}\n{unit}\n6\n1\n0\n0\n0\n".encode())
        output = stream.detach()
    except (FileNotFoundError, ConnectionRefusedError):
        if order.log_file is None:
            raise
        Path(order.log_file).parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        output = os.open(order.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY | os.O_NOFOLLOW, 0o640)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


def apply_settings(settings: Mapping[str, Any]) -> None:
    """Apply settings to this process. The executed command inherits them.

    The settings have the same names as in a profile of the configuration.
    """
    import ctypes  # noqa: PLC0415 - few containers have settings, and the launcher itself has none

    def call(function: str, *values: int) -> int:
        result = int(getattr(libc, function)(*map(ctypes.c_ulong, values)))
        if result == -1:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    libc = ctypes.CDLL(None, use_errno=True)
    if settings.get("aslr") is False:
        # the inner call returns the present personality; 0x0040000 is ADDR_NO_RANDOMIZE
        call("personality", call("personality", 0xFFFFFFFF) | 0x0040000)
    if settings.get("transparentHugePages") is False:
        call("prctl", 41, 1, 0, 0, 0)  # 41 is PR_SET_THP_DISABLE
    if "nice" in settings:
        os.setpriority(os.PRIO_PROCESS, 0, settings["nice"])
    if "scheduler" in settings:
        policy, _, priority = settings["scheduler"].partition(":")
        os.sched_setscheduler(0, POLICIES[policy], os.sched_param(int(priority or 0)))


def execute(order: Order) -> None:
    """Execute the command as execvpe does, but with DEFAULT_PATH if the environment has no PATH."""
    name = order.argv[0]
    directories = order.env.get("PATH", DEFAULT_PATH).split(":") if "/" not in name else [""]
    failure: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for directory in directories:
        try:
            os.execve(f"{directory}/{name}" if directory else name, order.argv, order.env)  # noqa: S606 - a command without a shell
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as err:  # the search continues, because a later directory may have an executable file
            failure = err
    raise failure
