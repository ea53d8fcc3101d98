"""What can go wrong with a guest, each with the end of its console, since the cause is mostly written there."""


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


class CommandError(GuestError):
    """A command in the guest ended with a status other than zero, or could not be started (`returncode` None)."""

    def __init__(self, message: str, returncode: int | None, console: str = "") -> None:
        super().__init__(message, console)
        self.returncode = returncode
