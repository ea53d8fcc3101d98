"""A running virtual machine with a real kernel and systemd, as a context manager.

All timeouts are what would be generous on a real machine, in the guest's own seconds: see pace.py. Requests may run at once from several
threads.
"""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from integration.guest.errors import (
    CommandError,
    EmulatorFailedError,
    GuestDiedError,
    GuestError,
    GuestTimeoutError,
)
from integration.guest.images import Image
from integration.guest.machine import Machine
from integration.guest.pace import JOB, LONGEST_SECONDS, LOOK_SECONDS, Pace, Wait
from integration.guest.protocol import PORT_NAME
from integration.guest.qemu import KVM, TCG, TCG_AT_ONCE, Accelerator, find_accelerator, start_qemu
from integration.guest.qmp import Qmp
from integration.guest.session import Hello, Request, Session

_CONSOLE_LINES = 30
RUN_SECONDS = 12
_MOST_MEASURED_SECONDS = 20
"""A guest that takes longer for the job is as slow as that: it may have stopped for good."""
_AFTER_A_WAIT_IN_VAIN_SECONDS = 10
"""Of ours, for each further wait: what a test clears up then, nobody uses."""
_MOST_BOOTS = 3
_EMULATOR_FAILED = "Assertion `"
"""QEMU's own mistake, while PCI devices get their addresses and other processors run: seen once in some hundred boots of 10.0."""
_STALL = re.compile(r"rcu: INFO: \w+ (?:self-)?detected stall")
_STALLED = "the kernel reports a processor that has come to a stop"
_CMDLINE = (
    "console=ttyS0",
    "root=/dev/vda",
    "cgroup_no_v1=all",
    "systemd.unified_cgroup_hierarchy=1",
    "panic=-1",  # a panic is a reboot, and that the end of QEMU
    "nowatchdog",  # an emulated CPU that waits for a real one is no soft lockup
    "mitigations=off",
    "apparmor=0",
    "audit=0",
    "TERM=dumb",  # for init: no colours on the console
)


@dataclass(frozen=True, slots=True)
class Completed:
    returncode: int
    stdout: str
    stderr: str


class Guest:
    """Made by `Guest.boot`. At the end of the `with` block QEMU is killed, and with it all that the guest wrote."""

    def __init__(self, image: Image, machine: Machine, cmdline: Sequence[str]) -> None:
        self.image = image
        self.machine = machine
        self.accelerator: Accelerator = find_accelerator(image)
        if machine.at_once and self.accelerator == TCG:
            self.accelerator = TCG_AT_ONCE
        self._directory = Path(tempfile.mkdtemp(prefix="nodeagent-guest-"))
        self._console_left = ""
        ours, theirs = zip(socket.socketpair(), socket.socketpair(), strict=True)
        try:
            self._process = start_qemu(
                self.accelerator,
                self._qemu_arguments(cmdline, *(end.fileno() for end in theirs)),
                self._directory / "qemu.log",
                tuple(end.fileno() for end in theirs),
            )
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        finally:
            for end in theirs:
                end.close()
        self._session = Session(ours[0])
        self._qmp = Qmp(ours[1])
        self._measured: Pace | None = None
        """None: it isn't there yet."""
        self._when_in_vain: Callable[[], None] | None = None
        self._was_in_vain = False

    @classmethod
    def boot(cls, image: Image, machine: Machine, *, cmdline: Sequence[str] = ()) -> Self:
        """A guest whose agent answers (systemd may still be starting units: `wait_multi_user`).

        A boot that the emulator spoils is repeated; the last one gets all its time, as a stop may be a slow machine's.
        """
        for boots_left in reversed(range(_MOST_BOOTS)):
            guest = cls(image, machine, cmdline)
            try:
                with guest._explained():
                    guest._qmp.execute("qmp_capabilities")
                    guest._wait_agent(ends_at_stall=boots_left > 0)
                    guest._measured = Pace(guest._job_seconds)
            except EmulatorFailedError as err:
                guest.close()
                if not boots_left:
                    raise
                print(f"the emulator failed, and the guest boots again: {err}", file=sys.stderr, flush=True)
            except BaseException:
                guest.close()
                raise
            else:
                return guest
        raise AssertionError("the last boot has raised or given a guest")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def hello(self) -> Hello:
        """Kernel and Python versions, and the id of this boot."""
        with self._explained():
            return self._session.wait_hello(0)

    def wait(self, seconds: float) -> Wait:
        """Begin to wait for what takes no longer than that on a real machine; whoever waits in vain raises what `in_vain` gives."""
        assert self._measured, "boot has measured it"
        return self._measured.wait(seconds)

    def is_over(self, wait: Wait) -> bool:
        """Whether a wait for this guest is in vain."""
        return wait.is_over() or (self._was_in_vain and wait.lasted_seconds >= _AFTER_A_WAIT_IN_VAIN_SECONDS)

    def when_in_vain(self, look: Callable[[], None]) -> None:
        """Have this done, once, when a wait is in vain: what the guest looks like is to be seen then, not after a test has cleared up."""
        self._when_in_vain = look

    def in_vain(self, problem: str) -> GuestError:
        """Give the error that a wait in vain is."""
        look, self._when_in_vain = self._when_in_vain, None
        if look is not None:
            look()
        self._was_in_vain = True
        if self._has_stalled():
            return EmulatorFailedError(f"{_STALLED}\n{problem}", self.console_tail())
        return GuestTimeoutError(problem)

    def run(
        self,
        command: str | Sequence[str],
        *,
        check: bool = True,
        timeout_seconds: float = RUN_SECONDS,
        input: bytes | None = None,  # noqa: A002 - named as in subprocess.run
        cwd: str = "/root",
    ) -> Completed:
        """Run a command as root and wait for its end; a string is a bash script (`-e`, `pipefail`).

        What it leaves running stays, but its output is lost: use systemd-run for that. CommandError if `check` and the
        status isn't zero; GuestTimeoutError after killing all that it started.
        """
        argv = ["bash", "-eo", "pipefail", "-c", command] if isinstance(command, str) else list(command)
        shown = command if isinstance(command, str) else shlex.join(command)
        with self._explained():
            request = self.start(argv, cwd=cwd)
            request.send(input or b"")
            request.end_input()
            wait = self.wait(timeout_seconds)
            while (status := request.wait(LOOK_SECONDS)) is None and not self.is_over(wait):
                pass
            stdout, stderr = (part.decode(errors="replace") for part in (bytes(request.stdout), bytes(request.stderr)))
            if status is None:
                error = self.in_vain(f"still running after {wait}: {shown}\n{stdout}{stderr}")
                request.signal(signal.SIGKILL)
                raise error
            if check and status != 0:
                raise CommandError(f"status {status} of: {shown}\n{stdout}{stderr}", status)
        return Completed(status, stdout, stderr)

    def _wait_agent(self, *, ends_at_stall: bool = False) -> None:
        """Wait until the agent reports that the guest is there; `ends_at_stall`: don't wait for a kernel that reports a stall."""
        deadline = time.monotonic() + LONGEST_SECONDS
        while True:
            try:
                self._session.wait_hello(LOOK_SECONDS)
            except GuestTimeoutError:
                is_over = time.monotonic() >= deadline
                if self._has_stalled() and (is_over or ends_at_stall):
                    raise EmulatorFailedError(f"{_STALLED}, while it boots") from None
                if is_over:
                    raise GuestTimeoutError(
                        f"the guest's agent did not report within {LONGEST_SECONDS:.0f} s"
                    ) from None
            else:
                return

    def _has_stalled(self) -> bool:
        """Whether an emulated processor has stopped; to be asked when something doesn't come.

        Seen of TCG (10.0): a kernel that was booting had all its processors idle, as if an interrupt had been lost. With a thread for each
        processor, one ran for ever a breakpoint that the kernel had put into its own code and taken out again, as it does for tracepoints.
        The kernel reports a stall in both cases. The second is why processors run in turns now (`TCG`).
        """
        return self.accelerator != KVM and _STALL.search(self.console_text()) is not None

    def _job_seconds(self) -> float:
        """Have the guest do the job by which its pace is measured."""
        began = time.monotonic()
        request = self.start(JOB)
        request.end_input()
        request.wait(_MOST_MEASURED_SECONDS)
        return time.monotonic() - began

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "/root",
        terminal: tuple[int, int, str] | None = None,
        on_output: Callable[[bytes], None] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> Request:
        """Start a command and return; `terminal` (rows, columns, TERM) gives it a terminal of its own."""
        spec = {"op": "run", "argv": list(argv), "cwd": cwd, "tty": terminal}
        return self._session.start(spec, on_output, on_end)

    def put(self, path: str, content: bytes | str, mode: int = 0o644) -> None:
        """Write a file: complete under its name, or not at all (renamed into place). Missing directories are made."""
        with self._explained():
            request = self._session.start({"op": "put", "path": path, "mode": mode})
            request.send(content.encode() if isinstance(content, str) else content)
            request.end_input()
            self._finish(request, f"writing {path}")

    def get(self, path: str) -> bytes:
        with self._explained():
            request = self._session.start({"op": "get", "path": path})
            self._finish(request, f"reading {path}")
            return bytes(request.stdout)

    def wait_multi_user(self, timeout_seconds: float = 15) -> None:
        """Wait until systemd has started everything; CommandError with the failed units if some could not."""
        state = self.run("systemctl is-system-running --wait", check=False, timeout_seconds=timeout_seconds)
        if state.stdout.strip() != "running":
            units = self.run("systemctl --failed --no-legend --plain; systemctl list-jobs", check=False)
            text = f"the system is {state.stdout.strip()}:\n{units.stdout}"
            raise CommandError(text, state.returncode, self.console_tail())

    def console_text(self) -> str:
        """All that the kernel and systemd wrote to the serial console; also when the guest is gone."""
        path = self._directory / "console"
        return path.read_text(errors="replace").replace("\r", "") if path.exists() else self._console_left

    def console_tail(self) -> str:
        return "\n".join(self.console_text().splitlines()[-_CONSOLE_LINES:])

    def power_cut(self) -> None:
        """Reset the machine as if its power failed, and wait for the agent: what was flushed to the disk is there."""
        with self._explained(), self._resets_allowed():
            self._qmp.execute("stop")
            self._session.expect_reset()
            self._qmp.execute("system_reset")
            self._qmp.execute("cont")
            self._wait_agent()

    def reboot(self) -> None:
        """`systemctl reboot`, and wait for the agent."""
        with self._explained(), self._resets_allowed():
            self.start(("systemctl", "reboot"))
            self._qmp.wait_event("RESET", LONGEST_SECONDS)
            self._session.expect_reset()
            self._wait_agent()

    def shutdown(self) -> None:
        """`systemctl poweroff`; GuestTimeoutError (and a killed QEMU) if the guest doesn't."""
        with self._explained():
            self.start(("systemctl", "poweroff"))
            try:
                self._process.wait(LONGEST_SECONDS)
            except subprocess.TimeoutExpired as error:
                raise GuestTimeoutError("the guest did not power off") from error
            finally:
                self.close()

    def kill_hard(self) -> None:
        """End QEMU at once; nothing of the guest is left but its console's text."""
        self.close()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._qmp.close()
        self._session.close()
        if self._directory.exists():
            self._console_left = self.console_text() + (self._directory / "qemu.log").read_text(errors="replace")
            shutil.rmtree(self._directory)

    def _finish(self, request: Request, what: str) -> None:
        wait = self.wait(RUN_SECONDS)
        while request.wait(LOOK_SECONDS) is None:
            if self.is_over(wait):
                raise self.in_vain(f"{what} is not done after {wait}")

    @contextmanager
    def _resets_allowed(self) -> Iterator[None]:
        """Otherwise a reset, a kernel panic's among them, is the end of QEMU."""
        self._qmp.forget_events()
        self._qmp.execute("set-action", reboot="reset")
        yield
        self._qmp.execute("set-action", reboot="shutdown")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Add the console's end to an error from below; wait for QEMU's own end first, if that was the reason."""
        try:
            yield
        except GuestError as error:
            if error.console:
                raise
            if isinstance(error, GuestDiedError):
                self._await_end()
            text = f"{error}{self._own_messages()}"
            console = self.console_tail()
            if isinstance(error, GuestDiedError) and _EMULATOR_FAILED in text:
                raise EmulatorFailedError(text, console) from error
            if isinstance(error, CommandError):
                raise CommandError(text, error.returncode, console) from error.__cause__
            raise type(error)(text, console) from error.__cause__

    def _await_end(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)

    def _own_messages(self) -> str:
        log = self._directory / "qemu.log"
        text = log.read_text(errors="replace").strip() if log.exists() else ""
        return f"\nQEMU says: {text}" if text else ""

    def _qemu_arguments(self, cmdline: Sequence[str], agent_fd: int, qmp_fd: int) -> tuple[str, ...]:
        kernel_arguments = " ".join((*_CMDLINE, *self.machine.kernel_arguments(), *cmdline))
        return (
            *self.machine.qemu_arguments(),
            *("-action", "reboot=shutdown"),
            *("-kernel", os.fspath(self.image.kernel), "-initrd", os.fspath(self.image.initrd)),
            *("-append", kernel_arguments),
            # cache=unsafe: a flush in the guest need not reach the host's disk, which isn't what is cut off
            *("-drive", f"file={self.image.disk},if=none,id=disk,format=raw,snapshot=on,cache=unsafe"),
            *("-device", "virtio-blk-pci,drive=disk"),
            *("-serial", f"file:{self._directory / 'console'}"),
            *("-chardev", f"socket,id=qmp,fd={qmp_fd}", "-mon", "chardev=qmp,mode=control"),
            # a network card for its interrupts and queues: it leads nowhere
            *("-netdev", "hubport,id=nowhere,hubid=0", "-device", "virtio-net-pci,netdev=nowhere"),
            *("-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,fd={agent_fd}"),
            *("-device", f"virtserialport,chardev=agent,name={PORT_NAME}"),
            *self.machine.card_arguments(),
        )
