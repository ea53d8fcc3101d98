"""What can go wrong with a guest, each with the end of its console, since the cause is mostly written there."""

import sys
from collections.abc import Callable


class GuestError(Exception):
    """Something outside the tests failed; `console` holds the guest's last lines, if there was a guest."""

    def __init__(self, message: str, console: str = "") -> None:
        super().__init__(f"{message}\n--- the guest's console ends with ---\n{console}" if console else message)
        self.console = console


class SetupError(GuestError):
    """The host can't build or run guests; the message ends with the next step."""


class GuestDiedError(GuestError):
    """QEMU ended (kernel panic, power-off, killed) while something was asked of the guest."""


class GuestTimeoutError(GuestError):
    """The guest did not answer within its deadline."""


class EmulatorFailedError(GuestError):
    """The emulator ended by a mistake of its own, or one of its processors has come to a stop.

    Whatever is waited for, its not coming says nothing about it.
    """


class CommandError(GuestError):
    """A command in the guest ended with a status other than zero, or could not be started (`returncode` None)."""

    def __init__(self, message: str, returncode: int | None, console: str = "") -> None:
        super().__init__(message, console)
        self.returncode = returncode


def status_of(work: Callable[[], object]) -> int:
    """Do a program's work and give its exit status; of a host that can't the message is told."""
    try:
        work()
    except SetupError as error:
        print(f"guests: {error}", file=sys.stderr)
        return 1
    return 0
