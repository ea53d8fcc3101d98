"""Switch of this process to another user, for `nodeagent job --user`. Unless `--inherit` is given, the command gets none of root's
environment and open files, except the standard streams and the working directory.
"""

import fcntl
import os
import pwd
import select
import signal
import termios
import tty
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType

from nodeagent.cli.support.becoming import EXIT_NOT_ENTERED
from nodeagent.cli.support.child_command import end_as
from nodeagent.errors import NodeAgentError

INJECTION = Path("/proc/sys/dev/tty/legacy_tiocsti")
"""File that contains 0 if only processes with CAP_SYS_ADMIN can insert input into their terminal (TIOCSTI). It doesn't exist before kernel
6.2, where every process can.
"""
_PATH = "/usr/local/bin:/usr/bin:/bin"
_KEPT = ("TERM", "LANG", "LC_ALL", "TZ")
_CHUNK_BYTES = 65536
_PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


class SwitchUserError(NodeAgentError):
    """The kernel refused to switch this process to the other user."""

    exit_status = EXIT_NOT_ENTERED


def become_user(user: pwd.struct_passwd, placement: Mapping[str, str], *, inherits: bool) -> int | None:
    """Switch this process to the user, as login does. If the command could insert input into root's terminal, a child with a terminal of
    its own becomes the user instead.

    Args:
        user: the user.
        placement: environment variables about the job, which the command gets in any case.
        inherits: whether the command inherits the caller's environment, open descriptors and terminal.

    Returns:
        None in the process that is to run the command. In its parent, the command's exit status.

    Raises:
        SwitchUserError: the kernel refuses the switch.
    """
    status = None
    if not inherits:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        os.environ.clear()
        os.environ.update(kept, PATH=_PATH)
        for number in (int(entry.name) for entry in Path("/proc/self/fd").iterdir()):
            with suppress(OSError):  # the descriptor of the directory listing itself is already closed
                os.set_inheritable(number, number < 3)
        terminals = [number for number in range(3) if os.isatty(number)]
        if terminals and _can_inject():
            status = _run_on_own_terminal(terminals, user.pw_uid)
    if status is not None:
        return status
    try:
        os.initgroups(user.pw_name, user.pw_gid)
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    except OSError as err:
        raise SwitchUserError(
            f"cannot become user '{user.pw_name}': {os.strerror(err.errno or 0)}",
            hint="run the command as root of this host: `sudo nodeagent job …`",
        ) from err
    os.environ.update(placement, HOME=user.pw_dir, SHELL=user.pw_shell, USER=user.pw_name, LOGNAME=user.pw_name)
    return None


def _can_inject() -> bool:
    try:
        return INJECTION.read_text(encoding="ascii") != "0\n"
    except FileNotFoundError:
        return True


def _run_on_own_terminal(terminals: list[int], uid: int) -> int | None:
    """Fork a child that has a new terminal in place of the given streams, and copy input and output between the new and the old terminal.
    Return None in the child, and the child's exit status in the parent.
    """
    try:
        master, slave = os.openpty()
    except OSError as err:
        raise SwitchUserError(
            f"cannot open a terminal for the command: {os.strerror(err.errno or 0)}",
            hint="all terminals may be in use: compare /proc/sys/kernel/pty/nr with pty/max; with `--inherit`, the command uses root's "
            "terminal",
        ) from err
    os.fchown(slave, uid, -1)
    shown = terminals[0]
    before = termios.tcgetattr(shown)
    termios.tcsetattr(slave, termios.TCSANOW, before)
    _copy_size(shown, slave)
    child = os.fork()
    if child == 0:
        os.close(master)
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for number in terminals:
            os.dup2(slave, number)
        os.close(slave)
        return None
    os.close(slave)

    def pass_on(number: int, _: FrameType | None) -> None:
        os.kill(child, number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    signal.signal(signal.SIGWINCH, lambda *_: _copy_size(shown, master))
    is_input = 0 in terminals and _is_in_foreground()
    if is_input:
        tty.setraw(0, termios.TCSADRAIN)
    try:
        _relay(master, os.pidfd_open(child), is_input=is_input, output=terminals[-1])
    finally:
        if is_input:
            termios.tcsetattr(0, termios.TCSADRAIN, before)
    _, status = os.waitpid(child, 0)
    return end_as(status)


def _copy_size(source: int, target: int) -> None:
    fcntl.ioctl(target, termios.TIOCSWINSZ, fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(8)))


def _is_in_foreground() -> bool:
    """Return whether this process may read from the terminal that is its stdin. A background process may not."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # the terminal is not the controlling terminal of this session
        return True


def _relay(master: int, child: int, *, is_input: bool, output: int) -> None:
    """Copy between the two terminals until the child has ended and all its output is written. `child` is the child's pidfd.

    Output is copied even while the child doesn't read its input.
    """
    os.set_blocking(master, False)
    poller, pending = select.poll(), b""
    poller.register(child, select.POLLIN)
    while True:
        poller.register(master, select.POLLIN | (select.POLLOUT if pending else 0))
        poller.register(0, select.POLLIN if is_input and not pending else 0)
        ready = dict(poller.poll())
        if ready.get(master, 0) & select.POLLIN:
            content = os.read(master, _CHUNK_BYTES)
            while content:
                content = content[os.write(output, content) :]
        elif child in ready:
            return
        elif ready.get(master, 0) & select.POLLHUP:  # no process has the child's terminal open any more
            select.select([child], [], [])
        if ready.get(master, 0) & select.POLLOUT:
            pending = pending[os.write(master, pending) :]
        if ready.get(0, 0) & select.POLLIN:
            pending = os.read(0, _CHUNK_BYTES)
            is_input = bool(pending)
