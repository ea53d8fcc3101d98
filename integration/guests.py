"""The guests of one process of tests: each kind is booted when a test needs it, and reused for all later tests until one fails."""

from contextlib import ExitStack

from integration.examination import complaints, examined
from integration.guest.errors import EmulatorFailedError, GuestTimeoutError
from integration.guest.guest import Guest
from integration.guest.images import guest_image
from integration.guest.machine import FOUR_CACHES, FOUR_NODES, TWO_CARDS, TWO_SOCKETS, Machine
from integration.guest.releases import release_of
from integration.node import CONFIG, Node

KINDS: dict[str, tuple[int, Machine, tuple[str, ...]]] = {
    "two_sockets": (12, TWO_SOCKETS, ()),
    "four_caches": (12, FOUR_CACHES, ("isolcpus=12-15", "nohz_full=12-15")),
    # the second half of each node is for what the kernel can move: it may be taken offline
    "four_nodes": (13, FOUR_NODES, ("movablecore=1G",)),
    "two_cards": (13, TWO_CARDS, ()),
}
"""Debian release, machine, and what is added to the kernel's command line."""
_MOST_FAILURES, _MOST_WAITS_IN_VAIN = 10, 4
"""Failed tests in one process before the others are skipped: each takes a new guest, and minutes of waiting in vain. The limit allows more
waits than the flaky tests of a green run have (integration/repeats.py), and those of a test that fails twice.
"""
_MOST_BOOTS = 2
"""Failed boots in a row, of one kind."""


class GivenUpError(Exception):
    """Not a test's own failure: there is no guest for it."""


class Guests:
    """At most one guest at a time in this process. After a failure the next test gets a new one, so that one cause fails one test."""

    def __init__(self) -> None:
        self._kind = ""
        self._running = ExitStack()
        self._not_up: dict[str, list[Exception]] = {}
        self._failures = 0
        self._waits_in_vain = 0
        self._is_spoilt = False
        """A test has failed on the guest."""
        self._seen = ""
        """What the guest looked like when a wait was in vain."""

    def of(self, kind: str, *, configured: bool) -> Guest:
        """The running guest of that kind, or a new one. A kind that can't be booted, even when repeated, isn't tried again.

        `configured`: without pods and on the usual configuration; otherwise the test takes care of both.
        """
        if self._failures >= _MOST_FAILURES or self._waits_in_vain >= _MOST_WAITS_IN_VAIN:
            raise GivenUpError(
                f"not tried, after {self._failures} failures, {self._waits_in_vain} of them waits in vain"
            )
        not_up = self._not_up.setdefault(kind, [])
        if len(not_up) >= _MOST_BOOTS:
            raise GivenUpError(f"not tried: {not_up[-1]}") from not_up[-1]
        if kind != self._kind or self._is_spoilt:
            self.close()
            try:
                self._boot(kind)
            except Exception as err:
                not_up.append(err)
                raise
            not_up.clear()
        if configured:
            node = Node(self._guest)
            if self._guest.get(CONFIG) == self._usual:
                node.clear()
            else:
                node.configure(self._usual.decode())
        return self._guest

    def _boot(self, kind: str) -> None:
        debian, machine, cmdline = KINDS[kind]
        guest = Guest.boot(guest_image(release_of(debian)), machine, cmdline=cmdline)
        self._guest, self._kind, self._seen = self._running.enter_context(guest), kind, ""
        guest.when_in_vain(self._see)
        guest.run("systemctl start nodeagent")
        self._usual = guest.get(CONFIG)

    def failed(self, error: BaseException | None) -> list[tuple[str, str]]:
        """Note that a test has failed, with its own or its teardown's error; adds what is known about its guest, under a title."""
        if self._is_spoilt or isinstance(error, GivenUpError):
            return []
        self._failures += 1
        self._waits_in_vain += isinstance(error, GuestTimeoutError)
        if not self._kind:
            return []
        self._is_spoilt = True
        if isinstance(error, EmulatorFailedError):
            return [("the kernel's complaints", complaints(self._guest.console_text()))]
        return [("the guest after the failure", self._seen or examined(self._guest))]

    def _see(self) -> None:
        self._seen = examined(self._guest)

    def close(self) -> None:
        self._kind = ""
        self._is_spoilt = False
        self._running.close()
