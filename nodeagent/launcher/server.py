"""Event loop of the launcher, in one thread. It handles requests, starts, exits of processes, and signals."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeagent.launcher.clients import Clients
from nodeagent.launcher.fork import fork_into
from nodeagent.launcher.order import (
    MAX_CPU,
    MAX_ID,
    FileWrite,
    Order,
    RefusedError,
    ThreadMove,
    parse_cgroup,
    parse_cpus,
    parse_host_writes,
    parse_order,
    parse_partition,
    parse_terminal_line,
)
from nodeagent.launcher.records import (
    BOOT_ID,
    ProcessRecord,
    RecordStore,
    Runs,
    is_kernel_thread,
    read_parent_and_start_ticks,
    read_stat_fields,
)
from nodeagent.launcher.report import log, notify
from nodeagent.launcher.shim import become_process, list_handled_signals

VERSION = "1"
PROTOCOL = 1
MAX_LISTED = 100  # limit on the runs in one answer to `list`, which must fit into a packet
MAX_RUNS = 8192
# limit on the time from fork to exec, because a frozen cgroup or a hanging file system can block forever
START_DEADLINE_SECONDS = 10.0
PSEUDOTERMINAL = 136  # major device number of /dev/pts/N (UNIX98_PTY_SLAVE_MAJOR)
KILL_SECONDS = 5.0  # time after the last SIGKILL until the launcher gives up on processes that can't be killed


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclasses.dataclass(eq=False, slots=True)
class Starting:
    """Child process that has not executed the container's command yet."""

    run: ProcessRecord
    link: socket.socket
    clients: list[socket.socket]
    deadline: float
    failure: dict[str, Any] | None = None


@dataclasses.dataclass(slots=True)
class Stop:
    """State of an ongoing stop of all processes. Times are in seconds of the monotonic clock."""

    began: float
    ends: float  # time at which the launcher gives up on processes that are still alive
    killed: set[str] = dataclasses.field(default_factory=set)  # IDs of processes whose grace period is over


@dataclasses.dataclass(slots=True)
class SignalFlags:
    """Signals received so far. SIGTERM requests a stop, and SIGHUP a re-execution of the launcher."""

    stop: bool = False
    reexec: bool = False


class Launcher:
    def __init__(self, root: Path | None, state: Path, journal: str, listener: socket.socket) -> None:
        self.root, self.journal, self.records = root, journal, RecordStore(state)
        self.selector = selectors.DefaultSelector()
        self.clients = Clients(listener, self.selector, self.answer)
        self.runs = Runs()
        self.starting: dict[str, Starting] = {}
        self.children: dict[int, str] = {}  # ID of each child by pid; no pid is reused before reap()
        self.pidfds: dict[str, int] = {}  # pidfd by ID, for each process that an earlier launcher has started
        self.started_at_ms = now_ms()
        self.asked = SignalFlags()
        self.stop: Stop | None = None

    def serve(self) -> None:
        """Serve until SIGTERM arrives and all processes have been stopped."""
        wake_in, wake_out = socket.socketpair()
        for end in (wake_in, wake_out):
            end.setblocking(False)
        signal.set_wakeup_fd(wake_out.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self.asked, "stop", True))
        signal.signal(signal.SIGHUP, lambda *_: setattr(self.asked, "reexec", True))
        # before the launcher replaced itself, reexec() has blocked these signals
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self.recover_runs()
        self.selector.register(wake_in, selectors.EVENT_READ, lambda: wake_in.recv(4096))
        self.clients.listen()
        notify("READY=1")
        log("serving", version=VERSION, pid=os.getpid(), cgroup=self.root and str(self.root), runs=len(self.runs))
        while True:
            self.reap()
            self.end_overdue_starts()
            if self.asked.stop and self.continue_stop():
                self.kill_leftovers()
                # the socket is closed when this function returns, so signals must no longer write to it
                signal.set_wakeup_fd(-1)
                return
            if self.asked.reexec and not self.starting:
                self.reexec()
            for key, _ in self.selector.select(self.next_deadline()):
                key.data()

    def recover_runs(self) -> None:
        """Find the processes that earlier launcher processes started.

        After a re-execution, they are still children of the launcher, so their exit codes can be read.
        """
        for run in self.records.load():
            self.runs[run.id] = run
            if run.finished_at_ms is not None:
                continue
            if run.boot_id != BOOT_ID:
                self.record_unknown_end(run, "host_rebooted")
                continue
            pidfd = open_pidfd(run)
            if pidfd is None:
                self.record_unknown_end(run)
            elif read_parent_and_start_ticks(run.pid)[0] == os.getpid():
                os.close(pidfd)
                self.children[run.pid] = run.id
            else:
                self.pidfds[run.id] = pidfd
                self.selector.register(pidfd, selectors.EVENT_READ, lambda run=run: self.record_unknown_end(run))

    def record_unknown_end(self, run: ProcessRecord, reason: str = "launcher_restarted") -> None:
        """Record that a process has exited and that its exit code is unknown."""
        self.record_ends([dataclasses.replace(run, finished_at_ms=now_ms(), unknown=reason)])

    def reap(self) -> None:
        """Reap children and, as subreaper, orphaned processes of containers."""
        ended = []
        with contextlib.suppress(ChildProcessError):
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = child
                for starting in [s for s in self.starting.values() if s.run.pid == pid]:
                    # the process has exited, but the result of its start hasn't been read yet
                    self.finish_start(starting)
                if run := self.runs.get(self.children.pop(pid, "")):
                    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
                    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
                    core = os.WCOREDUMP(status)
                    end = dataclasses.replace(run, exit_code=code, signal=number, core_dumped=core)
                    ended.append(dataclasses.replace(end, finished_at_ms=now_ms()))
        self.record_ends(ended)

    def record_ends(self, ended: list[ProcessRecord]) -> None:
        """Write the exits to disk, and then notify the clients. Clients are notified even if the disk is full."""
        if not ended:
            return
        try:
            self.records.write(ended, durable=True)
        except OSError as err:
            log("record_not_written", ids=[run.id for run in ended], error=str(err))
        for run in ended:
            self.runs[run.id] = run
            if (pidfd := self.pidfds.pop(run.id, None)) is not None:
                self.selector.unregister(pidfd)
                os.close(pidfd)
            log("exited", id=run.id, pid=run.pid, exit_code=run.exit_code, signal=run.signal, unknown=run.unknown)
            self.clients.wake(run.id)

    # Methods for requests

    def answer(self, client: socket.socket, message: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Answer a request. None means that the answer is sent later."""
        match message.get("op"):
            case "hello" if message.get("protocol") == PROTOCOL:
                root = self.root and str(self.root)
                hello = {"version": VERSION, "protocol": PROTOCOL, "pid": os.getpid(), "boot_id": BOOT_ID}
                return {"hello": {**hello, "cgroup": root, "started_at_ms": self.started_at_ms}}
            case "hello":
                raise RefusedError(
                    "unsupported_protocol",
                    f"this launcher speaks protocol {PROTOCOL}, not {message.get('protocol')!r:.40}",
                )
            case "start":
                return self.start(client, parse_order(message, self.root))
            case "list" if "since" in message:
                return self.runs.list_changes(str(message["since"]), MAX_LISTED)
            case "list":  # the first request of an agent, which has no `since` yet, asks for all runs
                rest = sorted(run_id for run_id in self.runs if run_id > str(message.get("after", "")))
                page = [self.runs[run_id].as_document() for run_id in rest[:MAX_LISTED]]
                return {"statuses": page, "more": len(rest) > MAX_LISTED}
            case "signal":
                return {"delivered": self.signal(str(message.get("id")), message.get("signal"))}
            case "ack" if isinstance(message.get("ids"), list):
                return {"acked": self.acknowledge(message["ids"])}
            case "subscribe":
                self.clients.subscribed[client] = True
                return {"subscribed": True}
            case "partition":
                return begin_partition(*parse_partition(message, self.root))
            case "gather":
                return {"gathered": gather(parse_cgroup(message, self.root, "gather"))}
            case "host":
                return {"results": [write_host(write) for write in parse_host_writes(message)]}
            case "tell":
                return {"told": write_to_terminal(*parse_terminal_line(message))}
        name = str(message.get("op"))[:40]
        raise RefusedError(
            "bad_request", f"operation {name!r} is unknown in protocol {PROTOCOL}, or required fields are missing"
        )

    def signal(self, run_id: str, number: object) -> bool:
        """Send a signal by pidfd, or to a child by its PID, which can't be reused before `reap`. Return False if the process has exited."""
        if type(number) is not int or number not in signal.valid_signals():
            raise RefusedError("bad_request", f"signal: {number!r:.40} is not the number of a signal")
        starting = self.starting.get(run_id)
        run = starting.run if starting else self.runs.get(run_id)
        if run is None:
            raise RefusedError("unknown_id", f"signal: unknown process {run_id[:MAX_ID]!r}")
        if run.finished_at_ms is not None:
            return False
        try:
            if run.id in self.pidfds:
                signal.pidfd_send_signal(self.pidfds[run.id], number)
            else:
                os.kill(run.pid, number)
        except ProcessLookupError:
            return False
        return True

    def acknowledge(self, ids: list[Any]) -> list[str]:
        """Delete the records of those given runs that have exited, and return their IDs.

        A deletion may be lost in a power failure. The agent then repeats the request.
        """
        acked = [i for i in dict.fromkeys(map(str, ids)) if i in self.runs and self.runs[i].finished_at_ms is not None]
        for run_id in acked:
            self.records.forget(run_id)
            del self.runs[run_id]
        return acked

    # Methods that start processes

    def start(self, client: socket.socket, order: Order) -> Mapping[str, Any] | None:
        """Start a process. If the request is repeated with the same ID, return the status of the first start."""
        if order.id in self.runs:
            return {"status": self.runs[order.id].as_document()}
        if order.id in self.starting:
            self.starting[order.id].clients.append(client)
            return None
        if self.asked.stop or len(self.runs) + len(self.starting) >= MAX_RUNS:
            raise RefusedError(
                "unavailable",
                f"the launcher is stopping, or has recorded {MAX_RUNS} processes (acknowledge the processes that have ended)",
            )
        ours, theirs = socket.socketpair()
        try:
            pid = self.fork(order, theirs.fileno())
            ticks = read_parent_and_start_ticks(pid)[1]
            run = ProcessRecord(order.id, pid, ticks, BOOT_ID, order.cgroup, order.grace_seconds, now_ms())
            # the record isn't synced, because neither the container nor the record must survive a reboot
            self.records.write([run], durable=False)
            ours.send(b"!")
        except OSError as err:
            ours.close()  # closing this end makes the shim exit, because the shim then reads an end of file
            self.records.forget(order.id)
            return {"failed": {"id": order.id, "stage": "fork", "errno": err.errno, "message": str(err)}}
        finally:
            theirs.close()
        ours.setblocking(False)
        starting = Starting(run, ours, [client], time.monotonic() + START_DEADLINE_SECONDS)
        self.starting[order.id] = starting
        self.selector.register(ours, selectors.EVENT_READ, lambda: self.finish_start(starting))
        log("starting", id=order.id, pid=pid, cgroup=order.cgroup)
        return None

    def fork(self, order: Order, link: int) -> int:
        # signals are blocked, because the child must not run the launcher's signal handlers
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, list_handled_signals())
        try:
            pid = None if order.cgroup is None else fork_into(order.cgroup)
            is_inside = pid is not None
            if pid is None:
                pid = os.fork()
            if pid == 0:
                become_process(order, self.root, self.journal, link, is_inside=is_inside)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid

    def finish_start(self, starting: Starting) -> None:
        """Finish a start if its outcome is known. The child's end of `link` is closed when the child executes the command. Before that, the
        child reports a failure through `link`.
        """
        run, failure = starting.run, starting.failure
        if self.starting.get(run.id) is not starting:
            return
        try:
            failure = failure or json.loads(starting.link.recv(65536) or b"null")
        except BlockingIOError:
            return
        except OSError:
            failure = None
        del self.starting[run.id]
        self.selector.unregister(starting.link)
        starting.link.close()
        if failure is None:
            self.runs[run.id] = run
            self.children[run.pid] = run.id
        else:
            self.records.forget(run.id)
            log("start_failed", id=run.id, pid=run.pid, **failure)
        status = run.as_document()
        for client in starting.clients:
            self.clients.send(client, {"status": status} if failure is None else {"failed": {"id": run.id, **failure}})

    # Methods for deadlines, for the stop, and for the launcher's replacement by a new version

    def next_deadline(self) -> float | None:
        """Return the seconds until the next deadline. None means that there is no deadline."""
        deadlines = [starting.deadline for starting in self.starting.values() if starting.failure is None]
        if (stop := self.stop) is not None:
            alive = [run for run in self.list_alive() if run.id not in stop.killed]
            deadlines += [stop.ends, *(stop.began + run.grace_seconds for run in alive)]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def end_overdue_starts(self) -> None:
        now = time.monotonic()
        for starting in self.starting.values():
            if starting.failure is None and starting.deadline <= now:
                text = os.strerror(errno.ETIMEDOUT)
                starting.failure = {"stage": "deadline", "errno": errno.ETIMEDOUT, "message": text}
                os.kill(starting.run.pid, signal.SIGKILL)  # SIGKILL ends even a frozen process, which closes its link

    def list_alive(self) -> list[ProcessRecord]:
        running = [run for run in self.runs.values() if run.finished_at_ms is None]
        return running + [starting.run for starting in self.starting.values()]

    def continue_stop(self) -> bool:
        """Send SIGTERM to every process. Send SIGKILL to each process whose grace period is over.

        Return True once all processes have exited, or once the remaining ones can't be killed.
        """
        alive, now = self.list_alive(), time.monotonic()
        if self.stop is None:
            patience = max([run.grace_seconds for run in alive], default=0)
            self.stop = Stop(began=now, ends=now + patience + KILL_SECONDS)
            notify(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={(patience + 30) * 1_000_000}")
            log("stopping", runs=len(alive), grace_seconds=patience)
            for run in alive:
                self.signal(run.id, signal.SIGTERM.value)
        for run in alive:
            if run.id not in self.stop.killed and now >= self.stop.began + run.grace_seconds:
                self.stop.killed.add(run.id)
                self.signal(run.id, signal.SIGKILL.value)
        return not alive or now >= self.stop.ends

    def kill_leftovers(self) -> None:
        """Kill all remaining processes in the pods' cgroups."""
        for kill in sorted(self.root.glob("*/cgroup.kill")) if self.root else ():
            if kill.parent.name != "holder":  # `holder` is the cgroup of the unit's main process, which isn't killed
                with contextlib.suppress(OSError), kill.open("r+b", buffering=0) as file:
                    file.write(b"1")
        log("stopped", left=[run.id for run in self.list_alive()])

    def reexec(self) -> None:
        """Replace this process's program with the installed launcher (exec), for instance after an upgrade. Child processes are kept."""
        self.asked.reexec = False
        log("reexec", pid=os.getpid())
        # the new program has no handlers for these signals yet, so a signal would end it
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGTERM})
        try:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same program again
        except OSError as err:
            log("reexec_failed", program=sys.executable, error=str(err))
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def write_file(file: Path, value: str) -> None:
    # the values are written at once, so that the kernel accepts or refuses them as a whole
    opened = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(opened, value.encode())
    finally:
        os.close(opened)


def begin_partition(file: Path, kind: str) -> Mapping[str, Any]:
    """Write `cpuset.cpus.partition`, which requires CAP_SYS_ADMIN.

    The agent lacks this capability, and only reads the result from the file.
    """
    try:
        write_file(file, kind)
    except OSError as err:
        raise RefusedError("not_written", f"partition: cannot write {kind!r} to {file}: {err.strerror}") from err
    log("partition_begun", cgroup=str(file.parent), kind=kind)
    return {"partition": kind}


def gather(cgroup: Path) -> int:
    """Let every thread of a cgroup and of its descendants run on all CPUs of the cgroup. Return the number of threads whose affinity was
    changed.

    The kernel reduces each requested affinity to the CPUs of the cgroup.
    """
    count = 0
    try:
        text = (cgroup / "cpuset.cpus.effective").read_text(encoding="ascii").strip()
        own = {cpu for part in parse_cpus(text) for cpu in part}
        for file in cgroup.rglob("cgroup.threads"):
            for tid in map(int, file.read_text(encoding="ascii").split()):
                with contextlib.suppress(ProcessLookupError):
                    if not os.sched_getaffinity(tid) <= own:
                        os.sched_setaffinity(tid, range(MAX_CPU + 1))
                        count += 1
    except OSError as err:
        raise RefusedError(
            "not_written", f"gather: cannot let the threads of {cgroup} use all its CPUs: {err.strerror}"
        ) from err
    log("gathered", cgroup=str(cgroup), threads=count)
    return count


def write_host(write: FileWrite | ThreadMove) -> str | None:
    """Write a host setting, which the agent itself may only read. Return the error as a text. None means success."""
    try:
        match write:
            case FileWrite():
                write_file(write.path, write.value)
            case ThreadMove():
                if not is_kernel_thread(read_stat_fields(write.pid), write.start_ticks):
                    raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
                os.sched_setaffinity(write.pid, itertools.chain(*write.cpus))
    except OSError as err:
        return os.strerror(err.errno or 0)
    return None


def write_to_terminal(session: int, ticks: int, line: str) -> bool:
    """Write a line to the pseudoterminal of a session without blocking. Return False if that is impossible, if the leader started after
    `ticks`, if the terminal is another user's, or if the leader sees another device there. A container has pseudoterminals of its own with
    the same numbers, and so has each user who mounts a devpts in a namespace.
    """
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = read_stat_fields(session)
        device = int(fields[4])
        # the bits are split as in new_encode_dev (include/linux/kdev_t.h)
        major, minor = device >> 8 & 0xFFF, device & 0xFF | device >> 12 & 0xFFF00
        path = f"/dev/pts/{minor}"
        terminal = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            ours, theirs = os.fstat(terminal), Path(f"/proc/{session}/root{path}").stat()
            is_theirs = (ours.st_dev, ours.st_rdev) == (theirs.st_dev, os.makedev(PSEUDOTERMINAL, minor))
            if (
                major == PSEUDOTERMINAL
                and is_theirs
                and ours.st_uid in list_users(session)
                and int(fields[19]) <= ticks
            ):
                text = f"\r\n{line}\r\n".encode("ascii")
                return os.write(terminal, text) == len(text)
        finally:
            os.close(terminal)
    return False


def list_users(pid: int) -> set[int]:
    """Return the IDs of the users who may own a process's terminal: the process's real user, and the login user, who still owns the
    terminal under sudo.
    """
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    users = {int(status.partition("\nUid:")[2].split()[0])}
    with contextlib.suppress(FileNotFoundError):  # the kernel may lack the audit subsystem
        users.add(int(Path(f"/proc/{pid}/loginuid").read_text(encoding="ascii")))
    return users


def open_pidfd(run: ProcessRecord) -> int | None:
    """Return a pidfd of the run's process. None means that the process has exited."""
    try:
        # the pidfd is opened before the start times are compared, so that both belong to the same process
        pidfd = os.pidfd_open(run.pid)
    except OSError as err:
        if err.errno in {errno.ESRCH, errno.EINVAL}:  # EINVAL means that the pid is now the ID of a thread
            return None
        raise
    try:
        if read_parent_and_start_ticks(run.pid)[1] == run.start_ticks:
            return pidfd
    except (OSError, IndexError):
        pass
    os.close(pidfd)
    return None
