"""Handling of requests for reservations, in the serving thread. A new reservation is checked against the user's limits, tried in a turn,
and saved if the turn finds room for it.
"""

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

from nodeagent.core.admission.job_bounds import find_exceeded_reservation_bound
from nodeagent.core.model.config import JobBounds
from nodeagent.core.model.reservation import Reservation
from nodeagent.daemon.domains.jobs.job_queue import JobQueue
from nodeagent.daemon.domains.jobs.job_requests import JobRequests
from nodeagent.daemon.domains.jobs.reservations import Reservations
from nodeagent.daemon.turn.clock import read_clocks
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.reservation_list import make_reservation
from nodeagent.formats.manifest.job_pod import PodOptionError
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError
from nodeagent.formats.wire.api_messages import MAX_TURN_SECONDS
from nodeagent.formats.wire.exchange import Peer
from nodeagent.views.job_queue import describe_reservation

MOST = 40
"""Maximum number of reservations of all users. The number is limited because each start of a job is checked against every reservation."""
_MAX_USER = 2**32 - 2
_MAX_AHEAD_MS = 31 * 24 * 3_600_000
_MIN_LENGTH_MS, _MAX_LENGTH_MS = 60_000, 7 * 24 * 3_600_000
_HINT = "`nodeagent reserve --help` describes the options"


class ReservationError(NodeAgentError):
    """A reservation could not be made or cancelled."""


class ReservationRequests:
    """Handlers of the operations `reserve` and `cancel-reservation` of the local API. All users can connect to its socket."""

    def __init__(self, reservations: Reservations, requests: JobRequests, queue: JobQueue) -> None:
        self._reservations = reservations
        self._requests = requests
        self._queue = queue
        self._changing = asyncio.Lock()

    async def answer(self, arguments: Mapping[str, Any], peer: Peer) -> dict[str, object]:
        """Make the requested reservation. Return its description, or the reason why there is no room for it.

        Raises:
            NodeAgentError: the request is invalid or exceeds a limit, or the reservation can't be saved.
        """
        asked = JsonValue(dict(arguments))
        try:
            name, amounts = asked.field("name").text(), dict(asked.field("amounts").by_name(JsonValue.text))
            from_ms, for_ms = asked.field("fromMs").whole(), asked.field("forMs").whole()
            user = asked.read_optional("user", lambda value: value.whole(0, _MAX_USER), peer.uid)
        except MisfitError as err:
            raise ReservationError(f"malformed request for a reservation: {err}", hint=_HINT) from err
        with self._requests.take_place(peer):
            bounds = await self._requests.find_bounds(peer.uid)
            if user != peer.uid and bounds is not None:
                raise ReservationError("only root may reserve for another user", hint="leave out --user")
            new = _make(name, user, amounts, from_ms, for_ms, read_clocks()[0])
            async with self._changing:
                self._check_bounds(new, bounds)
                obstacle = await self._decide(new)
        return {"reservation": describe_reservation(new)} if obstacle is None else {"refused": obstacle}

    def _check_bounds(self, new: Reservation, bounds: JobBounds | None) -> None:
        """Check that one more reservation is within the user's limits and the limit of all users, and that its name is free.

        Raises:
            ReservationError: a limit would be exceeded, or the name is taken.
        """
        known = self._reservations.list_current()
        if any(one.name == new.name for one in known):
            raise ReservationError(
                f"there is a reservation {new.name} already",
                hint="choose another --name, or cancel the existing reservation",
            )
        if self._requests.has_jobs_in(new.name):
            raise ReservationError(
                f"a job of an earlier reservation {new.name} has not ended",
                hint="choose another --name, or wait for its end",
            )
        of_user = [one.pod for one in known if one.user == new.user]
        passed = None if bounds is None else find_exceeded_reservation_bound(bounds, of_user, new.pod)
        if passed is not None or len(known) >= MOST:
            raise ReservationError(
                passed or f"there are already {MOST} reservations, which is the limit",
                hint="wait until one has ended, or cancel one: `nodeagent reserve --list` lists them",
            )

    async def _decide(self, new: Reservation) -> str | None:
        """Try the reservation in a turn, and save it. Return the reason why it can't be made, or None after success.

        Raises:
            NodeAgentError: the agent has made no decision in time, or the reservation could not be saved.
        """
        has_room = False
        try:
            async with asyncio.timeout(MAX_TURN_SECONDS):
                obstacle = await self._queue.find_obstacle(new)
                # a request with an obstacle is answered at once, and no reservation is held for it
                if obstacle is not None:
                    return obstacle
                state = await asyncio.wrap_future(self._reservations.hold(new))
            obstacle = await self._queue.find_obstacle(new, state)
            has_room = obstacle is None
        except TimeoutError as err:
            raise ReservationError(
                f"the agent has not decided within {MAX_TURN_SECONDS:.0f} s, and nothing is reserved",
                hint="`journalctl -u nodeagent` says what delays it",
            ) from err
        finally:
            if not has_room:
                self._reservations.drop_held()
        # even if this request is cancelled, the next request is decided only after this reservation was saved
        if has_room:
            saving = asyncio.get_running_loop().run_in_executor(None, self._reservations.keep, new)
            try:
                await asyncio.shield(saving)
            finally:
                await asyncio.wait((saving,))
        return obstacle

    async def answer_cancel(self, arguments: Mapping[str, Any], peer: Peer) -> dict[str, object]:
        """Cancel a reservation. The jobs that run in it keep their time limits; the jobs that wait for it are refused.

        Raises:
            NodeAgentError: the user has no such reservation, or the change can't be saved.
        """
        try:
            name = JsonValue(dict(arguments)).field("name").text()
        except MisfitError as err:
            raise ReservationError(f"malformed request to cancel a reservation: {err}", hint=_HINT) from err
        with self._requests.take_place(peer):
            async with self._changing:
                found = self._requests.find_reservation(name, peer.uid)
                await asyncio.to_thread(self._reservations.cancel, found)
        return {"reservation": describe_reservation(found)}


def _make(name: str, user: int, amounts: Mapping[str, str], from_ms: int, for_ms: int, now_ms: int) -> Reservation:
    """Create a reservation, after checking its start and length against the limits for all users.

    Raises:
        ReservationError: a value is invalid. The message names the command-line option.
    """
    if not now_ms - _MIN_LENGTH_MS <= from_ms <= now_ms + _MAX_AHEAD_MS:
        raise ReservationError("--from must be a time from now to 31 days ahead", hint=_HINT)
    if not _MIN_LENGTH_MS <= for_ms <= _MAX_LENGTH_MS:
        raise ReservationError("--for must be a time from 1m to 168h", hint=_HINT)
    try:
        return make_reservation(name, user, str(uuid.uuid4()), amounts, from_ms, from_ms + for_ms)
    except PodOptionError as err:
        raise ReservationError(err.message, hint=_HINT) from err
