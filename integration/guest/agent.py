"""Runs in the guest: carries out what the host asks for, any number of requests at once, in one thread.

Standard library and protocol.py only. Children get a session of their own, so that a signal reaches all they started.
"""

import contextlib
import errno
import fcntl
import json
import os
import platform
import pty
import selectors
import signal
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from integration.guest.protocol import CHUNK_BYTES, PORT_NAME, SYNC, Frames, Kind, chunks, frame

_PORTS = Path("/sys/class/virtio-ports")
_ENVIRONMENT = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "LOGNAME": "root",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "SHELL": "/bin/bash",
    "USER": "root",
}


class Port:
    """The virtio serial port to the host."""

    def __init__(self) -> None:
        (directory,) = (port.parent for port in _PORTS.glob("*/name") if port.read_text().strip() == PORT_NAME)
        self.fd = os.open(f"/dev/{directory.name}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def write(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            try:
                view = view[os.write(self.fd, view) :]
            except BlockingIOError:
                poll = selectors.PollSelector()
                poll.register(self.fd, selectors.EVENT_WRITE)
                poll.select()

    def send(self, kind: Kind, request: int, payload: bytes = b"") -> None:
        self.write(frame(kind, request, payload))

    def read(self) -> bytes:
        with contextlib.suppress(BlockingIOError):
            received = os.read(self.fd, CHUNK_BYTES)
            if received:
                return received
            time.sleep(0.05)  # no host at the other end; a port tells nothing when one comes
        return b""


class Command:
    """A running process, with what the host still has to send to it and get from it."""

    def __init__(self, agent: "Agent", request: int, spec: dict[str, Any]) -> None:
        self._agent = agent
        self._request = request
        self._input = bytearray()
        self._input_ended = False
        self._terminal = spec["tty"] is not None
        if self._terminal:
            self._process, self._stdin, outputs = self._start_on_terminal(spec)
        else:
            self._process, self._stdin, outputs = self._start_with_pipes(spec)
        self._outputs = dict(outputs)
        for fd in (self._stdin, *self._outputs):
            os.set_blocking(fd, False)
        for fd in self._outputs:
            agent.watch(fd, selectors.EVENT_READ, partial(self._forward, fd))
        self._pidfd = os.pidfd_open(self._process.pid)
        agent.watch(self._pidfd, selectors.EVENT_READ, self._finish)

    def stdin(self, content: bytes) -> None:
        self._input += content
        self._input_ended = self._input_ended or not content
        if self._stdin >= 0:
            self._feed()

    def resize(self, rows: int, columns: int) -> None:
        if self._terminal:
            fcntl.ioctl(self._stdin, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    @staticmethod
    def _start_with_pipes(spec: dict[str, Any]) -> tuple[subprocess.Popen[bytes], int, list[tuple[int, Kind]]]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            spec["argv"],
            bufsize=0,
            cwd=spec["cwd"],
            env=_ENVIRONMENT,
            start_new_session=True,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
        )
        assert process.stdin
        assert process.stdout
        assert process.stderr
        stdin, stdout, stderr = (os.dup(file.fileno()) for file in (process.stdin, process.stdout, process.stderr))
        for file in (process.stdin, process.stdout, process.stderr):
            file.close()
        return process, stdin, [(stdout, Kind.STDOUT), (stderr, Kind.STDERR)]

    @staticmethod
    def _start_on_terminal(spec: dict[str, Any]) -> tuple[subprocess.Popen[bytes], int, list[tuple[int, Kind]]]:
        rows, columns, kind = spec["tty"]
        ours, theirs = pty.openpty()
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        process = subprocess.Popen(
            spec["argv"],
            cwd=spec["cwd"],
            env=_ENVIRONMENT | {"TERM": kind},
            start_new_session=True,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - the agent has one thread
        )
        os.close(theirs)
        return process, os.dup(ours), [(ours, Kind.STDOUT)]

    def _feed(self) -> None:
        try:
            while self._input:
                del self._input[: os.write(self._stdin, self._input[:CHUNK_BYTES])]
        except BlockingIOError:
            self._agent.watch(self._stdin, selectors.EVENT_WRITE, self._feed)
            return
        except OSError:  # the command doesn't read any more
            self._input_ended = True
        self._agent.unwatch(self._stdin)
        if self._input_ended:
            self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            self._agent.unwatch(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    def _forward(self, fd: int) -> bool:
        """Send on what is there now; False at the end of the output."""
        try:
            content = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:  # a terminal's way to say that nobody has it open
                raise
            content = b""
        if content:
            self._agent.port.send(self._outputs[fd], self._request, content)
            return True
        self._close_output(fd)
        return False

    def _close_output(self, fd: int) -> None:
        if self._outputs.pop(fd, None) is not None:
            self._agent.unwatch(fd)
            os.close(fd)

    def _finish(self) -> None:
        """The process has ended: send the rest of its output. What it left running may keep the pipe, but not us."""
        status = self._process.wait()
        self._agent.unwatch(self._pidfd)
        os.close(self._pidfd)
        for fd in tuple(self._outputs):
            while self._forward(fd):
                pass
            self._close_output(fd)
        self._close_stdin()
        self._agent.finish(self._request, status)


class Upload:
    """A file on its way in; it appears under its name when it is complete."""

    def __init__(self, agent: "Agent", request: int, spec: dict[str, Any]) -> None:
        self._agent = agent
        self._request = request
        self._path = Path(spec["path"])
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._fd, self._unfinished = tempfile.mkstemp(dir=self._path.parent, prefix=".put-")
        os.fchmod(self._fd, spec["mode"])

    def stdin(self, content: bytes) -> None:
        if content:
            os.write(self._fd, content)
            return
        os.close(self._fd)
        Path(self._unfinished).rename(self._path)
        self._agent.finish(self._request, 0)


class Agent:
    def __init__(self) -> None:
        self.port = Port()
        self._requests: dict[int, Command | Upload] = {}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        frames = Frames(seek=False)
        self.port.write(SYNC)
        self.port.send(Kind.HELLO, 0, json.dumps(_about()).encode())
        self.watch(self.port.fd, selectors.EVENT_READ, lambda: self._receive(frames))
        while True:
            for key, _ in self._selector.select():
                if self._selector.get_map().get(key.fd) is key:  # an earlier one of this round may have closed it
                    key.data()

    def watch(self, fd: int, events: int, react: Callable[[], object]) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)
        self._selector.register(fd, events, react)

    def unwatch(self, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def finish(self, request: int, status: int) -> None:
        del self._requests[request]
        self.port.send(Kind.EXIT, request, json.dumps(status).encode())

    def _receive(self, frames: Frames) -> None:
        for kind, request, payload in frames.feed(self.port.read()):
            try:
                self._obey(kind, request, payload)
            except OSError as error:
                self._requests.pop(request, None)
                self.port.send(Kind.FAILED, request, json.dumps(str(error)).encode())

    def _obey(self, kind: Kind, request: int, payload: bytes) -> None:
        running = self._requests.get(request)
        match kind:
            case Kind.START:
                self._start(request, json.loads(payload))
            case Kind.STDIN if running:
                running.stdin(payload)
            case Kind.RESIZE if isinstance(running, Command):
                running.resize(*json.loads(payload))
            case Kind.SIGNAL if isinstance(running, Command):
                running.signal(json.loads(payload))
            case _:
                pass  # to a command that has ended meanwhile

    def _start(self, request: int, spec: dict[str, Any]) -> None:
        match spec["op"]:
            case "run":
                self._requests[request] = Command(self, request, spec)
            case "put":
                self._requests[request] = Upload(self, request, spec)
            case "get":
                for chunk in chunks(Path(spec["path"]).read_bytes()):
                    self.port.send(Kind.STDOUT, request, chunk)
                self.port.send(Kind.EXIT, request, b"0")


def _about() -> dict[str, str]:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"boot_id": boot_id, "kernel": platform.release(), "python": platform.python_version()}


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    Agent().serve()
