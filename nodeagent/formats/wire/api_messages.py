"""The local API's lines: one JSON object each. Request `{"op": …, arguments…}`; reply `{"ok": true, "result": …}` or
`{"ok": false, "error": {"message": …, "hint": …}}`.

Knows neither the operations nor who may ask.
"""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from msgspec import Struct

MAX_REQUEST_BYTES = 64 * 1024
MAX_TURN_SECONDS = 60.0
"""How long a request may wait for a turn: an agent without one for longer is ended by its unit's watchdog (WatchdogSec)."""


class ApiSyntaxError(ValueError):
    """A line is not a request, or not a reply."""


class ApiRequest(Struct, frozen=True):
    op: str
    arguments: Mapping[str, Any]


class Result(Struct, frozen=True):
    value: Any


class Failure(Struct, frozen=True):
    message: str
    hint: str


def parse_request(line: bytes) -> ApiRequest:
    """Read a request.

    Raises:
        ApiSyntaxError: it is not a JSON object with a text `op`.
    """
    document = _object(line)
    op = document.pop("op", None)
    if not isinstance(op, str) or not op:
        raise ApiSyntaxError('a request needs an "op", a text')
    return ApiRequest(op, document)


def print_request(op: str, arguments: Mapping[str, Any]) -> bytes:
    assert "op" not in arguments
    return _line({"op": op, **arguments})


def parse_reply(line: bytes) -> Result | Failure:
    """Read a reply.

    Raises:
        ApiSyntaxError: it isn't one.
    """
    document = _object(line)
    if document.get("ok") is True and "result" in document:
        return Result(document["result"])
    match document:
        case {"ok": False, "error": {"message": str() as message, "hint": str() as hint}}:
            return Failure(message, hint)
    raise ApiSyntaxError("a reply needs a result or an error")


def print_result(value: object) -> bytes:
    return _line({"ok": True, "result": value})


def print_failure(failure: Failure) -> bytes:
    return _line({"ok": False, "error": {"message": failure.message, "hint": failure.hint}})


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _object(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line.decode(), object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
    except RecursionError as err:
        raise ApiSyntaxError("nested too deeply") from err
    except ValueError as err:  # of the decoder, of UTF-8, of a number with thousands of digits
        raise ApiSyntaxError(f"no JSON: {err}") from err
    if not isinstance(document, dict):
        raise ApiSyntaxError("no JSON object")
    return document


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ApiSyntaxError("a key occurs twice")
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise ApiSyntaxError(f"{name} is no JSON")
