"""The processes that own jobs: held by pidfds, so that none is taken for another one with its number, and waited for together."""

import os
import select
from collections.abc import Callable
from pathlib import Path

from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.task_stat import parse_task_stat


class OwnerError(NodeAgentError):
    """A process cannot own a job."""


class Owner:
    """One process, as long as this object is not closed."""

    def __init__(self, pid: int, descriptor: int, start_ticks: int) -> None:
        self.pid = pid
        self.descriptor = descriptor
        """A pidfd."""
        self.start_ticks = start_ticks

    def is_alive(self) -> bool:
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)  # readable once it has ended (pidfd_open(2))
        return not poll.poll(0)

    def close(self) -> None:
        os.close(self.descriptor)


def owner_again(pid: int, start_ticks: int) -> Owner | None:
    """Find a process that was known before; None: it has ended."""
    try:
        owner = _held(pid)
    except OSError:
        return None
    if owner.start_ticks == start_ticks and owner.is_alive():
        return owner
    owner.close()
    return None


def owner_asking(pid: int, uid: int) -> Owner:
    """Hold the process that asks.

    Whoever asks may have given its connection away and ended; its number may then be anybody's. So the process has to be the user's as a
    whole, with no identity that the user couldn't send signals to: such a process it may do with as it likes anyway.

    Raises:
        OwnerError: it has ended, or it isn't.
    """
    try:
        owner = _held(pid)
        try:
            uids = _uids(pid)
        except (OSError, ValueError, StopIteration):
            owner.close()
            raise
    except (OSError, ValueError, StopIteration) as err:
        raise OwnerError(f"cannot look at process {pid}, which asks for a job: {err}", hint=_ALONE) from err
    if uids == {uid} and owner.is_alive():
        return owner
    owner.close()
    raise OwnerError(f"process {pid}, which asks for a job, has not the identity of user {uid} alone", hint=_ALONE)


_ALONE = "run `nodeagent job` by itself, from a shell of this host, not by a program that is set-user-ID"


def _held(pid: int) -> Owner:
    descriptor = os.pidfd_open(pid)
    try:
        stat = parse_task_stat(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))
        if stat.is_dead:
            raise ProcessLookupError(pid)
        return Owner(pid, descriptor, stat.start_ticks)
    except (OSError, IndexError, ValueError) as err:
        os.close(descriptor)
        raise OSError(*(err.args if isinstance(err, OSError) else (0, str(err)))) from err


def _uids(pid: int) -> set[int]:
    """Real, effective, saved and file system user id."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    return {int(word) for word in next(line for line in lines if line.startswith("Uid:")).split()[1:]}


class OwnerWatch:
    """Calls back, in a thread of its own, when one of the processes has ended."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._epoll = select.epoll()

    def add(self, owner: Owner) -> None:
        """Wait for it, too; closing it ends that."""
        self._epoll.register(owner.descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def follow(self) -> None:
        """Wait for ever."""
        while True:
            self._epoll.poll()
            self._ended()
