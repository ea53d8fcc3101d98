"""Messages of the local API, one line of JSON each.

Request: `{"op": …, arguments…}`. Reply: `{"ok": true, "result": …}` or
`{"ok": false, "error": {"message": …, "hint": …}}`.

`nodeagent job` loads this module and must start fast. The module therefore imports only the C parts of `json`: the Python parts import
`re`, which loads slowly.
"""

from __future__ import annotations

from _json import encode_basestring_ascii, make_encoder, make_scanner

from nodeagent.errors import NodeAgentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

MAX_REQUEST_BYTES = 64 * 1024
MAX_TURN_SECONDS = 60.0
"""Longest time that a request waits for a turn. systemd's watchdog (WatchdogSec) kills an agent whose turns take longer."""


class ApiSyntaxError(ValueError):
    """A line is not a valid request or reply."""


def parse_request(line: bytes) -> tuple[str, Mapping[str, object]]:
    """Parse a request, and return its operation and arguments.

    Raises:
        ApiSyntaxError: the line is not a JSON object with a string `op`.
    """
    document = _parse_object(line)
    op = document.pop("op", None)
    if not isinstance(op, str) or not op:
        raise ApiSyntaxError('a request needs a field "op" that contains a string')
    return op, document


def format_request(op: str, arguments: Mapping[str, object]) -> bytes:
    assert "op" not in arguments
    return _format_line({"op": op, **arguments})


def parse_reply(line: bytes) -> object:
    """Parse a reply, and return its result.

    Raises:
        NodeAgentError: the reply is an error.
        ApiSyntaxError: the line is not a reply.
    """
    document = _parse_object(line)
    if document.get("ok") is True and "result" in document:
        return document["result"]
    match document:
        case {"ok": False, "error": {"message": str() as message, "hint": str() as hint}}:
            raise NodeAgentError(message, hint=hint)
    raise ApiSyntaxError('a reply needs a field "result" or "error"')


def format_result(value: object) -> bytes:
    return _format_line({"ok": True, "result": value})


def format_error(err: NodeAgentError) -> bytes:
    return _format_line({"ok": False, "error": {"message": err.message, "hint": err.hint}})


def _format_line(document: Mapping[str, object]) -> bytes:
    encode = make_encoder(None, _refuse_value, encode_basestring_ascii, None, ":", ",", True, False, False)
    return "".join(encode(document, 0)).encode() + b"\n"


def _refuse_value(value: object) -> NoReturn:
    raise TypeError(f"JSON has no {type(value).__name__}")


class _Strict:
    """Decoder settings for `make_scanner`. Documents with a repeated key, or with a constant such as NaN, are refused."""

    strict = True
    object_hook = None
    parse_float = float
    parse_int = int

    @staticmethod
    def object_pairs_hook(pairs: list[tuple[str, object]]) -> dict[str, object]:
        document = dict(pairs)
        if len(document) != len(pairs):
            raise ApiSyntaxError("a key occurs twice")
        return document

    @staticmethod
    def parse_constant(name: str) -> NoReturn:
        raise ApiSyntaxError(f"{name} is not JSON")


def _parse_object(line: bytes) -> dict[str, object]:
    decoder: Any = _Strict
    try:
        text = line.decode().strip(" \t\n\r")
        document, end = make_scanner(decoder)(text, 0)
    except RecursionError as err:
        raise ApiSyntaxError("nested too deeply") from err
    except StopIteration as err:
        raise ApiSyntaxError(f"not JSON: no value at character {err.value}") from err
    except (
        ValueError
    ) as err:  # the JSON scanner raises ValueError for invalid UTF-8, or for a number with thousands of digits
        raise ApiSyntaxError(f"not JSON: {err}") from err
    if end != len(text):
        raise ApiSyntaxError(f"not JSON: something follows at character {end}")
    if not isinstance(document, dict):
        raise ApiSyntaxError("not a JSON object")
    return document
