"""Owner processes of jobs. A process is identified by a pidfd, because the kernel may reuse its PID."""

import os
import select
import weakref
from collections.abc import Callable
from pathlib import Path

from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.task_stat import parse_task_stat


class OwnerError(NodeAgentError):
    """A process can't own a job, because it has ended or has the wrong user IDs."""


class Owner:
    """Process that owns a job. Until `close`, an open pidfd identifies it.

    Whether it is running is read from the pidfd, because /proc isn't reliable: it shows a running process as a zombie if its main thread
    has exited before the other threads, or while another thread executes a program.
    """

    def __init__(self, pid: int, pidfd: int, start_ticks: int, session: int) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.start_ticks = start_ticks
        self.session = session
        """PID of the process's session leader."""

    def is_alive(self) -> bool:
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)  # a pidfd is readable once its process has ended (pidfd_open(2))
        return not poll.poll(0)

    def close(self) -> None:
        os.close(self.pidfd)


def reopen_owner(pid: int, start_ticks: int) -> Owner | None:
    """Open the process that a record names. None means that this process has exited."""
    try:
        owner = _open_process(pid)
    except OSError:
        return None
    if owner.start_ticks == start_ticks and owner.is_alive():
        return owner
    owner.close()
    return None


def open_caller(pid: int, uid: int) -> Owner:
    """Open the process that requests a job, after checking that all its user IDs are those of the user.

    The check is needed because the PID comes from the connection, and the caller may have passed the connection on and exited. Another
    process may then have its PID. If all IDs of that process are the user's, this is harmless, because the user may send it signals in any
    case.

    Raises:
        OwnerError: the process has exited, or has another user ID.
    """
    try:
        owner = _open_process(pid)
        try:
            lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
            # the line has the real, effective, saved and file system user ID
            uid_line = next(line for line in lines if line.startswith("Uid:"))
            uids = {int(word) for word in uid_line.split()[1:]}
        except (OSError, ValueError, StopIteration):
            owner.close()
            raise
    except (ProcessLookupError, FileNotFoundError) as err:
        raise _make_ended_error(pid) from err
    except (OSError, ValueError, StopIteration) as err:
        raise OwnerError(f"cannot inspect process {pid}, which asks for a job: {err}", hint=_HINT) from err
    is_alive = owner.is_alive()
    if uids == {uid} and is_alive:
        return owner
    owner.close()
    if not is_alive:
        raise _make_ended_error(pid)
    raise OwnerError(f"process {pid}, which asks for a job, has user IDs other than {uid}", hint=_HINT)


def _make_ended_error(pid: int) -> OwnerError:
    return OwnerError(f"process {pid}, which asks for a job, has ended", hint="run `nodeagent job` again")


_HINT = "run `nodeagent job` from a shell of this host, not from a set-user-ID program"


def _open_process(pid: int) -> Owner:
    pidfd = os.pidfd_open(pid)
    try:
        stat = parse_task_stat(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))
        return Owner(pid, pidfd, stat.start_ticks, stat.session)
    except (OSError, IndexError, ValueError) as err:
        os.close(pidfd)
        raise OSError(*(err.args if isinstance(err, OSError) else (0, str(err)))) from err


class OwnerWatch:
    """Watch of owner processes. It calls the function `on_end` when an owner has exited, and when the time
    from `seconds_left` has passed.
    """

    def __init__(self, on_end: Callable[[], None], seconds_left: Callable[[], float | None] = lambda: None) -> None:
        self._on_end = on_end
        self._seconds_left = seconds_left
        """Function that returns the seconds until `on_end` must be called even if no owner exits. None means that there is no such time."""
        self._epoll = select.epoll()
        self._renewed = os.eventfd(0)
        weakref.finalize(self, os.close, self._renewed)
        self._epoll.register(self._renewed, select.EPOLLIN)

    def add(self, owner: Owner) -> None:
        """Watch an owner until its pidfd is closed."""
        self._epoll.register(owner.pidfd, select.EPOLLIN | select.EPOLLONESHOT)

    def renew_time(self) -> None:
        """Make `follow` call `seconds_left` again, because its result may have changed."""
        os.eventfd_write(self._renewed, 1)

    def follow(self) -> None:
        """Call `on_end` whenever an owner has exited or the time from `seconds_left` has passed. This method never returns, so it needs a
        thread of its own.
        """
        while True:
            seconds = self._seconds_left()
            is_renewed = self._epoll.poll(seconds) == [(self._renewed, select.EPOLLIN)]
            if is_renewed:
                os.eventfd_read(self._renewed)
            if not is_renewed or seconds == 0:
                self._on_end()
