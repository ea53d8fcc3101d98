"""`python -m integration.guest.shell`: a root shell on this terminal, in a guest with the agent running; ends with either of them."""

import argparse
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from integration.guest.errors import GuestDiedError, GuestError
from integration.guest.guest import Guest
from integration.guest.images import guest_image
from integration.guest.machine import MACHINES, TWO_SOCKETS
from integration.guest.phases import phase
from integration.guest.releases import DEBIAN_12, RELEASES, release_of
from integration.guest.session import Request

_READ_BYTES = 4096
_START_SECONDS = 60


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.guest.shell", description="A root shell in a guest.")
    parser.add_argument(
        "--debian", type=int, choices=[release.number for release in RELEASES], default=DEBIAN_12.number
    )
    parser.add_argument("--machine", choices=sorted(MACHINES), default=TWO_SOCKETS.name)
    arguments = parser.parse_args()
    machine = MACHINES[arguments.machine]
    try:
        image = guest_image(release_of(arguments.debian))
        with phase(f"booting {image.release} on {machine.name}"):
            guest = Guest.boot(image, machine)
        with guest:
            with phase("waiting for nodeagent.service"):
                # Of a unit that is being started already it waits for the end of that.
                started = guest.run("systemctl start nodeagent", check=False, timeout_seconds=_START_SECONDS)
            if started.returncode:
                print("nodeagent.service does not run: see `systemctl status nodeagent` in the guest", file=sys.stderr)
            print("A root shell in the guest; Ctrl-D ends it, and nothing of it is kept.", file=sys.stderr)
            return interact(guest)
    except GuestError as error:
        print(f"guest: {error}", file=sys.stderr)
        return 1


def interact(guest: Guest) -> int:
    """A login shell in the guest on our standard input and output; its status, or 0 if the guest was powered off."""
    ended_read, ended_write = os.pipe()

    def show(content: bytes) -> None:
        os.write(sys.stdout.fileno(), content)

    size = os.get_terminal_size() if sys.stdout.isatty() else os.terminal_size((80, 24))
    terminal = (size.lines, size.columns, os.environ.get("TERM", "dumb"))
    request = guest.start(("bash", "--login"), terminal=terminal, on_output=show, on_end=lambda: os.close(ended_write))
    with _raw(sys.stdin.fileno()), _resizing(request), suppress(GuestDiedError):
        _forward_input(request, ended_read)
        return request.wait(None) or 0
    return 0


def _forward_input(request: Request, ended: int) -> None:
    stdin = sys.stdin.fileno()
    sources = [stdin, ended]
    while True:
        ready, _, _ = select.select(sources, (), ())
        if ended in ready:
            return
        content = os.read(stdin, _READ_BYTES)
        if not content:
            sources.remove(stdin)
        request.send(content or b"\x04")  # a terminal's end of file


@contextmanager
def _raw(fd: int) -> Iterator[None]:
    """Every key goes to the guest, Ctrl-C too."""
    if not os.isatty(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    tty.setraw(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def _resizing(request: Request) -> Iterator[None]:
    def resize(*_: object) -> None:
        size = os.get_terminal_size()
        request.resize(size.lines, size.columns)

    before = signal.signal(signal.SIGWINCH, resize)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


if __name__ == "__main__":
    sys.exit(main())
