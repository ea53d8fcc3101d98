from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.errors import NodeAgentError
from nodeagent.formats.wire.api_messages import (
    ApiSyntaxError,
    format_error,
    format_request,
    format_result,
    parse_reply,
    parse_request,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(min_size=1), st.dictionaries(st.text().filter(lambda key: key != "op"), JSON, max_size=4))
def test_a_request_is_one_line_and_comes_back(op: str, arguments: dict[str, Any]) -> None:
    line = format_request(op, arguments)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert parse_request(line) == (op, arguments)


@given(JSON)
def test_a_result_comes_back(value: object) -> None:
    assert parse_reply(format_result(value)) == value


@given(st.text(), st.text())
def test_a_failure_comes_back(message: str, hint: str) -> None:
    sent = NodeAgentError(message, hint=hint)
    with pytest.raises(NodeAgentError) as caught:
        parse_reply(format_error(sent))
    assert (caught.value.message, caught.value.hint) == (sent.message, sent.hint)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parsers(line: bytes) -> None:
    for parse in (parse_request, parse_reply):
        try:
            parse(line)
        except (ApiSyntaxError, NodeAgentError):
            continue


HOSTILE = {
    "empty": b"\n",
    "array": b"[]\n",
    "text": b'"inspect"\n',
    "no op": b"{}\n",
    "op is a number": b'{"op": 1}\n',
    "op is empty": b'{"op": ""}\n',
    "op twice": b'{"op": "a", "op": "b"}\n',
    "key twice below": b'{"op": "a", "x": {"y": 1, "y": 2}}\n',
    "NaN": b'{"op": "a", "x": NaN}\n',
    "Infinity": b'{"op": "a", "x": -Infinity}\n',
    "not UTF-8": b'{"op": "\xff"}\n',
    "deep": b"[" * 60_000 + b"\n",
    "a number of 60,000 digits": b'{"op": "a", "x": ' + b"1" * 60_000 + b"}\n",
    "two documents": b'{"op": "a"} {"op": "b"}\n',
    "truncated": b'{"op": "a"\n',
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_no_request_is_refused(line: bytes) -> None:
    with pytest.raises(ApiSyntaxError):
        parse_request(line)


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b'{"ok": true}',
        b'{"ok": 1, "result": 1}',
        b'{"ok": false}',
        b'{"ok": false, "error": "x"}',
        b'{"ok": false, "error": {"hint": "x"}}',
        b'{"ok": "no", "error": {"message": "x"}}',
    ],
)
def test_what_is_no_reply_is_refused(line: bytes) -> None:
    with pytest.raises(ApiSyntaxError):
        parse_reply(line)
