"""Encoder and decoder of the file from which the agent recovers the reservations after a restart."""

import json
from collections.abc import Iterable, Mapping

from nodeagent.core.model.pod import CPU, MEMORY
from nodeagent.core.model.reservation import Reservation
from nodeagent.formats.manifest.job_pod import PodOptionError, job_pod
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError, parse_json

_VERSION = 1
_LEAST_MEMORY = "1Mi"


def make_reservation(
    name: str, user: int, uid: str, amounts: Mapping[str, str], from_ms: int, until_ms: int
) -> Reservation:
    """Create a reservation.

    Raises:
        PodOptionError: the name or an amount is invalid for a job, or a resource other than CPUs and memory would be reserved.
    """
    if CPU not in amounts or amounts.keys() - {CPU, MEMORY}:
        raise PodOptionError(
            "only CPUs, and memory with them, can be reserved", hint="`nodeagent reserve --help` describes the options"
        )
    pod = job_pod(name, uid, {MEMORY: _LEAST_MEMORY} | dict(amounts))
    return Reservation(name, user, pod, from_ms, until_ms, has_memory=MEMORY in amounts)


def format_reservations(reservations: Iterable[Reservation]) -> bytes:
    listed = [
        {
            "name": one.name,
            "user": one.user,
            "uid": one.pod.uid,
            "amounts": {name: str(amount) for name, amount in one.amounts.items()},
            "fromMs": one.from_ms,
            "untilMs": one.until_ms,
        }
        for one in reservations
    ]
    return json.dumps({"version": _VERSION, "reservations": listed}, sort_keys=True).encode() + b"\n"


def parse_reservations(text: bytes) -> tuple[Reservation, ...] | None:
    """Parse reservations. None means that the text is malformed."""
    try:
        document = parse_json(text)
        document.field("version").whole(_VERSION, _VERSION)
        return document.field("reservations").each(
            lambda one: make_reservation(
                one.field("name").text(),
                one.field("user").whole(),
                one.field("uid").text(),
                dict(one.field("amounts").by_name(JsonValue.text)),
                one.field("fromMs").whole(),
                one.field("untilMs").whole(),
            )
        )
    except (MisfitError, PodOptionError):
        return None
