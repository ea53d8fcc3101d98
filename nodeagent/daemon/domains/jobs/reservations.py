"""Reservations of CPUs and memory on this node. They are saved in a file that survives a power loss, and every turn respects them."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from msgspec.structs import replace

from nodeagent.core.model.reservation import Reservation
from nodeagent.core.model.state import NodeState
from nodeagent.daemon.reports.logs import Log
from nodeagent.daemon.turn.clock import read_clocks
from nodeagent.edge.files import state_files
from nodeagent.formats.checkpoint.reservation_list import format_reservations, parse_reservations

FILE = "reservations"
_MAX_BYTES = 1 << 20


class Reservations:
    """Reservations that have not ended. Any thread may read them, but only one thread at a time may change them.

    A new reservation is *held* while the agent decides whether there is room for it. Turns start no job that conflicts with a held
    reservation.
    """

    def __init__(self, state_directory: str, wake: Callable[[], None], log: Log) -> None:
        self._path = f"{state_directory}/{FILE}"
        self.wake = wake
        """Function that wakes the deciding thread."""
        self._log = log
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        """Lock that a thread holds while it replaces the file."""
        self._held: Reservation | None = None
        self._seen: Future[NodeState] | None = None
        """Future that `hold` has returned, for the state after a turn. None means that no reservation is held, or that the future is
        completed.
        """
        self._is_listed = False
        """Whether the current turn takes the held reservation into account."""
        self._is_unusable = False
        """Whether the file can't be read or parsed. If so, the file is renamed before the next save, so that its content isn't lost."""
        self._kept = self._saved = self._read()
        """Reservations that have not ended (`_kept`), and reservations in the file (`_saved`)."""

    def _read(self) -> tuple[Reservation, ...]:
        found, problem = None, "its format is invalid"
        try:
            content = state_files.read(self._path, max_bytes=_MAX_BYTES)
            found = () if content is None else parse_reservations(content)
        except state_files.StateFileError as err:
            problem = err.message
        if found is None:
            self._is_unusable = True
            hint = "make the reservations again; the next one sets the file aside"
            self._log.error("reservations_unusable", file=self._path, problem=problem, hint=hint)
        return found or ()

    def list_current(self) -> tuple[Reservation, ...]:
        """Return the reservations that have not ended, ordered by start time."""
        with self._lock:
            return self._drop_ended()

    def _drop_ended(self) -> tuple[Reservation, ...]:
        now_ms, _ = read_clocks()
        self._kept = tuple(one for one in self._kept if one.until_ms > now_ms)
        return self._kept

    def find(self, name: str) -> Reservation | None:
        return next((one for one in self.list_current() if one.name == name), None)

    def list_for_turn(self) -> tuple[Reservation, ...]:
        """Return the reservations that a turn must respect: those that have not ended, and the held one."""
        if self._saved != self.list_current() and self._writing.acquire(blocking=False):
            # If ended reservations stayed in the file, they would become active again if the clock were set back and the agent then
            # restarted.
            try:
                if self._saved != (current := self.list_current()):  # another thread may have replaced the file
                    with suppress(state_files.StateFileError):  # the next turn tries to save the file again
                        self._replace(current)
            finally:
                self._writing.release()
        with self._lock:
            self._is_listed = self._held is not None
            return self._drop_ended() + (() if self._held is None else (replace(self._held, is_made=False),))

    def end_turn(self, state: NodeState) -> None:
        """Complete the future of `hold` with the state after this turn, if the turn took the held reservation into account."""
        with self._lock:
            seen, is_listed, self._is_listed = self._seen, self._is_listed, False
            if not is_listed or seen is None:
                return
            self._seen = None
        if seen.set_running_or_notify_cancel():
            seen.set_result(state)

    def hold(self, reservation: Reservation) -> Future[NodeState]:
        """Hold a reservation: turns respect it from now on, although it isn't decided yet. Return a future of the state after the first
        such turn.
        """
        seen: Future[NodeState] = Future()
        with self._lock:
            self._held, self._seen, self._is_listed = reservation, seen, False
        self.wake()
        return seen

    def drop_held(self) -> None:
        """Stop holding the reservation that was last passed to `hold`. A reservation that has been saved meanwhile isn't affected."""
        with self._lock:
            is_dropped, self._held, self._seen = self._held is not None, None, None
        if is_dropped:
            self.wake()

    def keep(self, reservation: Reservation) -> None:
        """Save a reservation after its successful trial. If the save fails, stop holding the reservation.

        Raises:
            StateFileError: the reservation can't be saved.
        """
        try:
            with self._writing:
                self._replace((*self.list_current(), reservation))
        except state_files.StateFileError:
            self.drop_held()
            raise
        self._log.info(
            "reservation_made",
            name=reservation.name,
            user=reservation.user,
            from_ms=reservation.from_ms,
            until_ms=reservation.until_ms,
        )
        self.wake()

    def cancel(self, reservation: Reservation) -> None:
        """Cancel a reservation, and save the change.

        Raises:
            StateFileError: the change can't be saved, so the reservation still exists.
        """
        with self._writing:
            self._replace(tuple(one for one in self.list_current() if one != reservation))
        self._log.info("reservation_cancelled", name=reservation.name, user=reservation.user)
        self.wake()

    def _replace(self, kept: tuple[Reservation, ...]) -> None:
        kept = tuple(sorted(kept, key=lambda one: (one.from_ms, one.name)))
        if self._is_unusable:
            if os.path.lexists(self._path):
                state_files.set_aside(self._path)
            self._is_unusable = False
        state_files.write_atomically(self._path, format_reservations(kept))
        with self._lock:
            self._kept = self._saved = kept
            self._held = None if self._held in kept else self._held
