"""Messages of the local API, one line of JSON each.

Request: `{"op": …, arguments…}`. Reply: `{"ok": true, "result": …}` or
`{"ok": false, "error": {"message": …, "hint": …}}`.
"""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from msgspec import Struct

MAX_REQUEST_BYTES = 64 * 1024
MAX_TURN_SECONDS = 60.0
"""Longest time that a request waits for a turn. The unit's watchdog (WatchdogSec) ends an agent without a turn for
longer.
"""


class ApiSyntaxError(ValueError):
    """A line is neither a request nor a reply."""


class ApiRequest(Struct, frozen=True):
    op: str
    arguments: Mapping[str, Any]


class Result(Struct, frozen=True):
    value: Any


class Failure(Struct, frozen=True):
    message: str
    hint: str


def parse_request(line: bytes) -> ApiRequest:
    """Parse a request.

    Raises:
        ApiSyntaxError: the line is not a JSON object with a string `op`.
    """
    document = _parse_object(line)
    op = document.pop("op", None)
    if not isinstance(op, str) or not op:
        raise ApiSyntaxError('a request needs an "op" with a string')
    return ApiRequest(op, document)


def format_request(op: str, arguments: Mapping[str, Any]) -> bytes:
    assert "op" not in arguments
    return _format_line({"op": op, **arguments})


def parse_reply(line: bytes) -> Result | Failure:
    """Parse a reply.

    Raises:
        ApiSyntaxError: the line is not a reply.
    """
    document = _parse_object(line)
    if document.get("ok") is True and "result" in document:
        return Result(document["result"])
    match document:
        case {"ok": False, "error": {"message": str() as message, "hint": str() as hint}}:
            return Failure(message, hint)
    raise ApiSyntaxError("a reply needs a result or an error")


def format_result(value: object) -> bytes:
    return _format_line({"ok": True, "result": value})


def format_failure(failure: Failure) -> bytes:
    return _format_line({"ok": False, "error": {"message": failure.message, "hint": failure.hint}})


def _format_line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _parse_object(line: bytes) -> dict[str, Any]:
    def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document = dict(pairs)
        if len(document) != len(pairs):
            raise ApiSyntaxError("a key occurs twice")
        return document

    def refuse_constant(name: str) -> NoReturn:
        raise ApiSyntaxError(f"{name} is not JSON")

    try:
        document = json.loads(line.decode(), object_pairs_hook=build_object, parse_constant=refuse_constant)
    except RecursionError as err:
        raise ApiSyntaxError("nested too deeply") from err
    except ValueError as err:  # raised by the decoder, for invalid UTF-8, or for a number with thousands of digits
        raise ApiSyntaxError(f"not JSON: {err}") from err
    if not isinstance(document, dict):
        raise ApiSyntaxError("not a JSON object")
    return document
