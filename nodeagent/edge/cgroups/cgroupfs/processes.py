"""Processes and threads in the pods' cgroups: listing, ending and moving them."""

import errno
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path

from nodeagent.core.model.cgroup_layout import payload_path
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError, CgroupFiles, make_error

_MOST_BYTES = 65536
"""Maximum size in bytes of the files of a process."""
HELD_AT_ONCE = 512
"""Maximum number of pidfds open at the same time. It is half of the default limit on open files."""


class CgroupProcesses:
    """Processes in cgroups. The methods raise CgroupError if the kernel refuses an access. In a cgroup that doesn't exist, they find no
    processes.
    """

    def __init__(self, files: CgroupFiles) -> None:
        self._files = files

    def list_pids(self, path: str) -> tuple[int, ...]:
        """Return the PIDs of the processes in a cgroup and its descendants."""
        return tuple(dict.fromkeys(chain.from_iterable(self.list_by_cgroup(path).values())))

    def list_by_cgroup(self, path: str) -> dict[str, tuple[int, ...]]:
        """Return the PIDs of the processes in a cgroup and in each of its descendants, by the cgroup's path."""
        found = {path: tuple(map(int, (self._files.read(path, "cgroup.procs") or "").split()))}
        for child in self._files.list_children(path):
            try:
                found |= self.list_by_cgroup(f"{path}/{child}")
            except CgroupError as err:
                # the processes of a threaded cgroup are listed in its domain's cgroup (cgroup-v2.rst, Threads)
                if err.errno != errno.EOPNOTSUPP:
                    raise
        return found

    def list_threads(self, path: str) -> frozenset[int]:
        """Return the IDs of the threads in a cgroup and its descendants."""
        own = frozenset(int(line) for line in (self._files.read(path, "cgroup.threads") or "").split())
        return own.union(*(self.list_threads(f"{path}/{child}") for child in self._files.list_children(path)))

    def list_cgroup_ids(self, path: str) -> frozenset[int]:
        """Return the IDs of a cgroup and its descendants. The kernel uses these IDs (inode numbers) in trace events."""
        directory = self._files.root / path
        try:
            own = frozenset({directory.stat().st_ino})
        except FileNotFoundError:
            return frozenset()
        except OSError as err:
            raise make_error(f"look at {directory}", directory, err) from err
        return own.union(*(self.list_cgroup_ids(f"{path}/{child}") for child in self._files.list_children(path)))

    def kill(self, path: str) -> None:
        """Kill all processes of a cgroup and its descendants (`cgroup.kill`, kernel 5.14)."""
        try:
            self._files.write(path, "cgroup.kill", "1")
        except CgroupError as err:
            if err.errno not in {errno.ENOENT, errno.ENODEV}:
                raise

    def terminate(self, path: str) -> None:
        """Send SIGTERM to all processes in a cgroup and its descendants. If signals fail, raise the first error after trying all processes.

        The signal is sent through a pidfd, and only if the PID is still in the cgroup after the pidfd was opened. Otherwise it might reach
        a later process with the same PID.
        """
        pids = self.list_pids(path)
        failed: CgroupError | None = None
        for start in range(0, len(pids), HELD_AT_ONCE):
            with ExitStack() as stack:
                pidfds: dict[int, int] = {}
                for pid in pids[start : start + HELD_AT_ONCE]:
                    try:
                        pidfds[pid] = os.pidfd_open(pid)
                        stack.callback(os.close, pidfds[pid])
                    except ProcessLookupError:
                        continue
                    except OSError as err:
                        failed = failed or make_error(f"hold process {pid} to end it", f"/proc/{pid}", err)
                for pid in pidfds.keys() & set(self.list_pids(path)):
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(pidfds[pid], signal.SIGTERM)
        if failed is not None:
            raise failed

    def has_left(self, path: str, pid: int, start_ticks: int) -> bool:
        """Return whether a process is running outside of a cgroup.

        Args:
            path: path of the cgroup.
            pid: PID of the process.
            start_ticks: start time of the process as in /proc/PID/stat, which distinguishes it from a later process with the same PID.
        """
        from nodeagent.formats.kernel.task_stat import parse_task_stat  # noqa: PLC0415 - commands don't ask this

        try:
            lines = read_of_process(pid, "cgroup").splitlines()
            home = self._files.locate(path).removeprefix(str(self._files.mount))
            cgroup = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), home)
            if cgroup == home or cgroup.startswith(f"{home}/"):
                return False  # the process is usually in its cgroup, and one file shows this
            stat = parse_task_stat(read_of_process(pid, "stat"))
        except OSError:
            return False
        return stat.start_ticks == start_ticks and not stat.is_dead

    def bring_back(self, path: str, pid: int, start_ticks: int) -> bool:
        """Move a process that has left its container's cgroup back, into the `payload` child. Return False if the process hasn't left, or
        has exited.
        """
        return self.has_left(path, pid, start_ticks) and self._move_to_payload(path, pid)

    def take_in(self, path: str, pid: int, is_alive: Callable[[], bool]) -> bool:
        """Move a process into a container's cgroup. Return False if the process has exited.

        If the process exits during the call, a later process with the same PID may be moved instead. This is detected, and that process is
        moved back.

        Args:
            path: path of the container's cgroup, which has no other processes.
            pid: PID of the process.
            is_alive: function that returns whether the process to move is still running.
        """
        if not is_alive() or not self._move_to_payload(path, pid):
            return False
        if is_alive():
            return True
        for other in self.list_pids(path):
            self._move_to_parents_cgroup(other)
        return False

    def _move_to_payload(self, path: str, pid: int) -> bool:
        try:
            self._files.write(payload_path(path), "cgroup.procs", str(pid))
        except CgroupError as err:
            if err.errno != errno.ESRCH:
                raise
            return False
        return True

    def _move_to_parents_cgroup(self, pid: int) -> None:
        """Move a process that was just created to the cgroup of its parent, in which Linux creates each process."""
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
            parent = next((line.partition(":")[2].strip() for line in status if line.startswith("PPid:")), "1")
            lines = Path(f"/proc/{parent}/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
            home = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
            Path(f"{self._files.mount}{home}", "cgroup.procs").write_text(str(pid), encoding="ascii")


def read_of_process(pid: int, name: str) -> str:
    """Read a file of a process with a single read call. Called for each pod at a start, so without pathlib."""
    descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fsdecode(os.read(descriptor, _MOST_BYTES))
    finally:
        os.close(descriptor)
