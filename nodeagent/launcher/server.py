"""The launcher's event loop: requests, starts, ends of processes, signals. One thread, which no client can block."""

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
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeagent.launcher.order import (
    MAX_CPU,
    MAX_ID,
    FileWrite,
    Order,
    RefusedError,
    ThreadMove,
    cpus_of,
    host_writes,
    our_cgroup,
    parse_order,
    partition_file,
)
from nodeagent.launcher.records import (
    BOOT_ID,
    ProcessRecord,
    RecordStore,
    is_kernel_thread,
    parent_and_start_ticks,
    stat_fields,
)
from nodeagent.launcher.report import log, notify
from nodeagent.launcher.shim import shim

VERSION = "1"
PROTOCOL = 1  # JSON objects, one per packet (SOCK_SEQPACKET): requests and answers, and after `subscribe` also events
MAX_REQUEST_BYTES = 192 * 1024  # a packet must fit the kernel's default send buffer (net.core.wmem_default, 208 KiB)
MAX_LISTED = 100  # runs in one answer to `list`, for the same reason
MAX_CLIENTS = 64
MAX_RUNS = 8192
START_DEADLINE_SECONDS = (
    10.0  # time from fork to exec, so that a frozen cgroup or a dead file system can't block a start forever
)
KILL_SECONDS = 5.0  # time from the last SIGKILL to giving up on processes that can't be killed


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclasses.dataclass(eq=False, slots=True)
class Starting:
    """Fork that has not become the container's process yet."""

    run: ProcessRecord
    link: socket.socket
    clients: list[socket.socket]
    deadline: float
    failure: dict[str, Any] | None = None


class Launcher:
    def __init__(self, root: Path | None, state: Path, journal: str, listener: socket.socket) -> None:
        self.root, self.journal, self.records, self.listener = root, journal, RecordStore(state), listener
        self.selector = selectors.DefaultSelector()
        self.clients: dict[socket.socket, bool] = {}  # → whether it is subscribed
        self.runs: dict[str, ProcessRecord] = {}
        self.starting: dict[str, Starting] = {}
        self.children: dict[int, str] = {}  # pid → id; only reap() frees these pids
        self.pidfds: dict[str, int] = {}  # id → pidfd of processes that an earlier launcher started
        self.started_at_ms = now_ms()
        self.stop_asked = self.reexec_asked = False
        self.stop_began: float | None = None  # None while it serves
        self.stop_ends = 0.0  # time after which processes that are still alive are left
        self.killed: set[str] = set()  # ids whose grace period is over

    def serve(self) -> None:
        """Serve until everything has been stopped on SIGTERM."""
        wake_in, wake_out = socket.socketpair()
        for end in (wake_in, wake_out, self.listener):
            end.setblocking(False)
        signal.set_wakeup_fd(wake_out.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stop_asked", True))
        signal.signal(signal.SIGHUP, lambda *_: setattr(self, "reexec_asked", True))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # signals that reexec() has blocked
        self.find_again()
        self.selector.register(wake_in, selectors.EVENT_READ, lambda: wake_in.recv(4096))
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        notify("READY=1")
        log("serving", version=VERSION, pid=os.getpid(), cgroup=self.root and str(self.root), runs=len(self.runs))
        while True:
            self.reap()
            self.end_overdue_starts()
            if self.stop_asked:
                self.begin_stop()
                self.kill_overdue()
                if self.is_over():
                    self.kill_leftovers()
                    signal.set_wakeup_fd(-1)  # the socket closes with this function
                    return
            if self.reexec_asked and not self.starting:
                self.reexec()
            for key, _ in self.selector.select(self.next_deadline()):
                key.data()

    def find_again(self) -> None:
        """Find the processes that earlier launchers started. Children of this very process (it was re-executed) keep their exit codes."""
        for run in self.records.load():
            self.runs[run.id] = run
            if run.finished_at_ms is not None:
                continue
            if run.boot_id != BOOT_ID:
                self.lost_sight(run, "host_rebooted")
                continue
            pidfd = pidfd_of(run)
            if pidfd is None:
                self.lost_sight(run)
            elif parent_and_start_ticks(run.pid)[0] == os.getpid():
                os.close(pidfd)
                self.children[run.pid] = run.id
            else:
                self.pidfds[run.id] = pidfd
                self.selector.register(pidfd, selectors.EVENT_READ, lambda run=run: self.lost_sight(run))

    def lost_sight(self, run: ProcessRecord, reason: str = "launcher_restarted") -> None:
        """Record the end of a process that wasn't our child. Its exit code went to its parent."""
        self.settle([dataclasses.replace(run, finished_at_ms=now_ms(), unknown=reason)])

    def reap(self) -> None:
        """Reap children and, as subreaper, processes that the containers leave behind."""
        ended = []
        with contextlib.suppress(ChildProcessError):
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = child
                for starting in [s for s in self.starting.values() if s.run.pid == pid]:
                    self.finish_start(starting)  # it ended before its link was read
                if run := self.runs.get(self.children.pop(pid, "")):
                    ended.append(ended_with(run, status))
        self.settle(ended)

    def settle(self, ended: list[ProcessRecord]) -> None:
        """Write ends to disk before any client learns of them. A full disk costs only that."""
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
            for client in [client for client, subscribed in self.clients.items() if subscribed]:
                self.send(client, {"event": "exit", "id": run.id}, is_wakeup=True)

    # requests

    def accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            client = self.listener.accept()[0]
            uid = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
            if uid not in {0, os.getuid()} or len(self.clients) >= MAX_CLIENTS:
                log("client_refused", uid=uid, clients=len(self.clients))
                client.close()
                return
            client.setblocking(False)
            self.clients[client] = False
            self.selector.register(client, selectors.EVENT_READ, lambda: self.receive(client))

    def drop(self, client: socket.socket) -> None:
        if self.clients.pop(client, None) is not None:
            self.selector.unregister(client)
            client.close()

    def send(self, client: socket.socket, message: Mapping[str, Any], *, is_wakeup: bool = False) -> None:
        """Send a message, and drop a client that doesn't read. A client with unread wake-ups needs no other."""
        if client not in self.clients:
            return
        try:
            client.send(json.dumps(message).encode())
        except OSError as err:
            if not (is_wakeup and isinstance(err, BlockingIOError)):
                self.drop(client)

    def receive(self, client: socket.socket) -> None:
        if client not in self.clients:  # the client was dropped since the select()
            return
        try:
            packet, _, flags, _ = client.recvmsg(MAX_REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet, flags = b"", 0
        if not packet:
            self.drop(client)
            return
        try:
            if flags & socket.MSG_TRUNC:
                raise RefusedError("too_large", f"more than {MAX_REQUEST_BYTES} bytes")  # noqa: TRY301 - refused like all
            message = json.loads(packet)
            answer = self.answer(client, message if isinstance(message, dict) else {})
        except RefusedError as err:
            answer = {"refused": {"code": err.code, "message": str(err)}}
        except (ValueError, RecursionError):
            answer = {"refused": {"code": "bad_request", "message": "a request is a JSON object in UTF-8"}}
        if answer is not None:
            self.send(client, answer)

    def answer(self, client: socket.socket, message: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Answer a request. None means that the answer comes later."""
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
            case "list":
                rest = sorted(run_id for run_id in self.runs if run_id > str(message.get("after", "")))
                page = [dataclasses.asdict(self.runs[run_id]) for run_id in rest[:MAX_LISTED]]
                return {"statuses": page, "more": len(rest) > MAX_LISTED}
            case "signal":
                return {"delivered": self.signal(str(message.get("id")), message.get("signal"))}
            case "ack" if isinstance(message.get("ids"), list):
                return {"acked": self.acknowledge(message["ids"])}
            case "subscribe":
                self.clients[client] = True
                return {"subscribed": True}
            case "partition":
                return self.begin_partition(*partition_file(message, self.root))
            case "gather":
                return {"gathered": gather(our_cgroup(message, self.root, "gather"))}
            case "host":
                return {"results": [write_host(one) for one in host_writes(message)]}
        name = str(message.get("op"))[:40]
        raise RefusedError("bad_request", f"no operation of protocol {PROTOCOL}, or without its fields: {name!r}")

    def signal(self, run_id: str, number: object) -> bool:
        """Send a signal. Returns False if the process has ended. Before reap() a child's pid can't be reused; for others the pidfd is
        used.
        """
        if type(number) is not int or number not in signal.valid_signals():
            raise RefusedError("bad_request", f"signal: {number!r:.40} is no signal's number")
        starting = self.starting.get(run_id)
        run = starting.run if starting else self.runs.get(run_id)
        if run is None:
            raise RefusedError("unknown_id", f"signal: no run {run_id[:MAX_ID]!r}")
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

    def begin_partition(self, file: Path, kind: str) -> Mapping[str, Any]:
        """Start a partition. The kernel requires CAP_SYS_ADMIN, which the agent's sandbox lacks. The agent itself reads what the kernel
        grants.
        """
        try:
            write(file, kind)
        except OSError as err:
            raise RefusedError("not_written", f"partition: cannot write {kind!r} to {file}: {err.strerror}") from err
        log("partition_begun", cgroup=str(file.parent), kind=kind)
        return {"partition": kind}

    def acknowledge(self, ids: list[Any]) -> list[str]:
        """Forget the ended runs among the ids. A loss of power may bring one back, which is then acknowledged again."""
        acked = [i for i in dict.fromkeys(map(str, ids)) if i in self.runs and self.runs[i].finished_at_ms is not None]
        for run_id in acked:
            self.records.forget(run_id)
            del self.runs[run_id]
        return acked

    # starts

    def start(self, client: socket.socket, order: Order) -> Mapping[str, Any] | None:
        """Start a process. An id starts once: a repeated request, for instance after a crash, returns the first one's status."""
        if order.id in self.runs:
            return {"status": dataclasses.asdict(self.runs[order.id])}
        if order.id in self.starting:
            self.starting[order.id].clients.append(client)
            return None
        if self.stop_asked or len(self.runs) + len(self.starting) >= MAX_RUNS:
            raise RefusedError("unavailable", f"stopping, or {MAX_RUNS} runs are kept (acknowledge the ended ones)")
        ours, theirs = socket.socketpair()
        try:
            pid = self.fork(order, theirs.fileno())
            ticks = parent_and_start_ticks(pid)[1]
            run = ProcessRecord(order.id, pid, ticks, BOOT_ID, order.cgroup, order.grace_seconds, now_ms())
            self.records.write(
                [run], durable=False
            )  # it need not outlive this boot, because the container doesn't either
            ours.send(b"!")
        except OSError as err:
            ours.close()  # the shim reads the end of file and exits
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
        mask = signal.pthread_sigmask(
            signal.SIG_BLOCK, signal.valid_signals()
        )  # the child must not run the launcher's handlers
        try:
            pid = os.fork()
            if pid == 0:
                shim(order, self.root, self.journal, link)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid

    def finish_start(self, starting: Starting) -> None:
        """Finish a start. The link closes on exec; a failure is reported before it closes."""
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
        status = dataclasses.asdict(run)
        for client in starting.clients:
            self.send(client, {"status": status} if failure is None else {"failed": {"id": run.id, **failure}})

    # deadlines, the end, and the next image

    def next_deadline(self) -> float | None:
        """Return the seconds until time alone requires an action, or None if it never does."""
        deadlines = [starting.deadline for starting in self.starting.values() if starting.failure is None]
        if self.stop_began is not None:
            waited_for = [run.grace_seconds for run in self.left() if run.id not in self.killed]
            deadlines += [self.stop_ends, *(self.stop_began + seconds for seconds in waited_for)]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def end_overdue_starts(self) -> None:
        now = time.monotonic()
        for starting in self.starting.values():
            if starting.failure is None and starting.deadline <= now:
                text = os.strerror(errno.ETIMEDOUT)
                starting.failure = {"stage": "deadline", "errno": errno.ETIMEDOUT, "message": text}
                os.kill(starting.run.pid, signal.SIGKILL)  # ends a frozen process as well; its link closes then

    def left(self) -> list[ProcessRecord]:
        running = [run for run in self.runs.values() if run.finished_at_ms is None]
        return running + [starting.run for starting in self.starting.values()]

    def begin_stop(self) -> None:
        """Ask every process to end, once."""
        if self.stop_began is not None:
            return
        left = self.left()
        patience = max([run.grace_seconds for run in left], default=0)
        self.stop_began = time.monotonic()
        self.stop_ends = self.stop_began + patience + KILL_SECONDS
        notify(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={(patience + 30) * 1_000_000}")
        log("stopping", runs=len(left), grace_seconds=patience)
        for run in left:
            self.signal(run.id, signal.SIGTERM.value)

    def kill_overdue(self) -> None:
        """Kill each process whose grace period is over, once."""
        assert self.stop_began is not None
        now = time.monotonic()
        for run in self.left():
            if run.id not in self.killed and now >= self.stop_began + run.grace_seconds:
                self.killed.add(run.id)
                self.signal(run.id, signal.SIGKILL.value)

    def is_over(self) -> bool:
        """Whether all processes have ended, or those still alive can't be killed."""
        return not self.left() or time.monotonic() >= self.stop_ends

    def kill_leftovers(self) -> None:
        """Kill all other processes in the sub-cgroups."""
        for kill in sorted(self.root.glob("*/cgroup.kill")) if self.root else ():
            if kill.parent.name != "holder":  # the leaf of the unit's own main process
                with contextlib.suppress(OSError), kill.open("r+b", buffering=0) as file:
                    file.write(b"1")
        log("stopped", left=[run.id for run in self.left()])

    def reexec(self) -> None:
        """Execute the next image of this process. Its children stay its children, and the records identify them."""
        self.reexec_asked = False
        log("reexec", pid=os.getpid())
        # until the next image has its handlers, the default action would end it
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGTERM})
        try:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same program again
        except OSError as err:
            log("reexec_failed", program=sys.executable, error=str(err))
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def write(file: Path, value: str) -> None:
    """Write to a file of the kernel in one system call."""
    with file.open("r+b", buffering=0) as opened:
        opened.write(value.encode())


def gather(cgroup: Path) -> int:
    """Move threads of a cgroup, and of those below it, that may run on other CPUs back to all of its CPUs. Returns how many.

    The kernel gives a thread no CPU that its cgroup lacks. A thread that has ended is skipped, even if its id is reused.
    """
    count = 0
    try:
        text = (cgroup / "cpuset.cpus.effective").read_text(encoding="ascii").strip()
        own = {cpu for part in cpus_of(text) for cpu in part}
        for file in cgroup.rglob("cgroup.threads"):
            for tid in map(int, file.read_text(encoding="ascii").split()):
                with contextlib.suppress(ProcessLookupError):
                    if not os.sched_getaffinity(tid) <= own:
                        os.sched_setaffinity(tid, range(MAX_CPU + 1))
                        count += 1
    except OSError as err:
        raise RefusedError("not_written", f"gather: {cgroup}: {err.strerror}") from err
    log("gathered", cgroup=str(cgroup), threads=count)
    return count


def write_host(one: FileWrite | ThreadMove) -> str | None:
    """Write a host setting, which the agent's sandbox may not do. Returns why it failed, or None."""
    try:
        match one:
            case FileWrite():
                write(one.path, one.value)
            case ThreadMove():
                move_kernel_thread(one)
    except OSError as err:
        return os.strerror(err.errno or 0)
    return None


def move_kernel_thread(move: ThreadMove) -> None:
    """Move a kernel thread, but never another process that has its id now."""
    if not is_kernel_thread(stat_fields(move.pid), move.start_ticks):
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    os.sched_setaffinity(move.pid, itertools.chain(*move.cpus))


def ended_with(run: ProcessRecord, wait_status: int) -> ProcessRecord:
    return dataclasses.replace(
        run,
        finished_at_ms=now_ms(),
        exit_code=os.WEXITSTATUS(wait_status) if os.WIFEXITED(wait_status) else None,
        signal=os.WTERMSIG(wait_status) if os.WIFSIGNALED(wait_status) else None,
        core_dumped=os.WCOREDUMP(wait_status),
    )


def pidfd_of(run: ProcessRecord) -> int | None:
    """Return a pidfd of the run's process, or None if it is gone. The pidfd comes first, so that its process is the one compared."""
    try:
        pidfd = os.pidfd_open(run.pid)
    except OSError as err:
        if err.errno in {errno.ESRCH, errno.EINVAL}:  # EINVAL: the number is now a thread's
            return None
        raise
    try:
        if parent_and_start_ticks(run.pid)[1] == run.start_ticks:
            return pidfd
    except (OSError, IndexError):
        pass
    os.close(pidfd)
    return None
