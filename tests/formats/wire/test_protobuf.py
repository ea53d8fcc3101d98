"""The table-driven codec against protobuf's own, and what it does with bytes that are no message."""

import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.formats.wire import protobuf
from nodeagent.formats.wire.protobuf import Field, Kind, MessageType, ProtobufError, decode, encode
from tests.support.protos import generated

DEEPER = MessageType("Inner2", [Field(1, "numbers", Kind.INT64, repeated=True)])
INNER = MessageType(
    "Inner",
    [Field(1, "number", Kind.INT32), Field(2, "text", Kind.STRING), Field(3, "deeper", DEEPER, repeated=True)],
)
KINDS = (Kind.INT32, Kind.INT64, Kind.UINT32, Kind.UINT64, Kind.BOOL, Kind.ENUM, Kind.DOUBLE, Kind.STRING, Kind.BYTES)
ALL = MessageType(
    "All",
    [
        *(Field(number, kind.value, kind) for number, kind in enumerate(KINDS, 1)),
        Field(10, "message", INNER),
        Field(11, "map", Kind.STRING_MAP),
        *(Field(number, f"{kind.value}s", kind, repeated=True) for number, kind in enumerate(KINDS, 17)),
        Field(26, "messages", INNER, repeated=True),
        Field(1000, "unpacked", Kind.INT64, repeated=True),
    ],
)

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.INT32: INT32,
    Kind.INT64: INT64,
    Kind.UINT32: st.integers(0, 2**32 - 1),
    Kind.UINT64: st.integers(0, 2**64 - 1),
    Kind.BOOL: st.booleans(),
    Kind.ENUM: INT32,
    Kind.DOUBLE: st.floats(allow_nan=False),
    Kind.STRING: st.text(max_size=200),
    Kind.BYTES: st.binary(max_size=200),
}
INNERS = st.fixed_dictionaries(
    {},
    optional={
        "number": INT32,
        "text": VALUES[Kind.STRING],
        "deeper": st.lists(st.fixed_dictionaries({}, optional={"numbers": st.lists(INT64)}), max_size=3),
    },
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        **{kind.value: VALUES[kind] for kind in KINDS},
        "message": INNERS,
        "map": st.dictionaries(VALUES[Kind.STRING], VALUES[Kind.STRING], max_size=4),
        **{f"{kind.value}s": st.lists(VALUES[kind], max_size=4) for kind in KINDS},
        "messages": st.lists(INNERS, max_size=3),
        "unpacked": st.lists(INT64, max_size=4),
    },
)


def theirs(value: dict[str, Any]) -> Any:
    return generated("codec")[0].All(**value)


def read_if_possible(content: bytes) -> dict[str, Any] | None:
    try:
        return decode(ALL, content)
    except ProtobufError:
        return None


def plain(message: Any, of: MessageType) -> dict[str, Any]:
    """Return what protobuf has read, as `decode` gives it."""
    found: dict[str, Any] = {}
    for name, field in of.by_name.items():
        value = getattr(message, name)
        if isinstance(field.type, MessageType):
            if field.repeated:
                found[name] = [plain(one, field.type) for one in value]
            else:
                found[name] = plain(value, field.type) if message.HasField(name) else None
        elif field.repeated:
            found[name] = list(value)
        else:
            found[name] = dict(value) if field.type is Kind.STRING_MAP else value
    return found


@given(MESSAGES)
def test_both_codecs_write_the_same_bytes(value: dict[str, Any]) -> None:
    """Those of a map may be in any order, and protobuf packs unless it is told otherwise."""
    alike = {name: one for name, one in value.items() if name not in {"unpacked", "bytess"}}
    if len(alike.get("map", ())) > 1:
        del alike["map"]
    alike.update({"bytess": value["bytess"]} if "bytess" in value else {})
    assert encode(ALL, alike) == theirs(alike).SerializeToString(deterministic=True)


@given(MESSAGES)
def test_each_codec_reads_what_the_other_wrote(value: dict[str, Any]) -> None:
    message = theirs(value)
    expected = plain(message, ALL)
    assert decode(ALL, message.SerializeToString()) == expected
    back = type(message)()
    back.ParseFromString(encode(ALL, value))
    assert plain(back, ALL) == expected


@given(MESSAGES, MESSAGES)
def test_a_message_in_two_pieces_is_merged_as_protobuf_does(first: dict[str, Any], second: dict[str, Any]) -> None:
    together = encode(ALL, first) + encode(ALL, second)
    message = generated("codec")[0].All()
    message.ParseFromString(together)
    assert decode(ALL, together) == plain(message, ALL)


@given(st.binary(max_size=300))
def test_bytes_are_read_or_refused_and_never_more_tolerantly_than_by_protobuf(content: bytes) -> None:
    found = read_if_possible(content)
    if found is None:
        return
    message = generated("codec")[0].All()
    message.ParseFromString(content)
    assert not math.isnan(found["double"]) or math.isnan(message.double)
    assert repr(found) == repr(plain(message, ALL))


@given(MESSAGES, st.data())
def test_no_cut_and_no_flipped_bit_raises_anything_else(value: dict[str, Any], data: st.DataObject) -> None:
    content = bytearray(encode(ALL, value))
    if content:
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        del content[data.draw(st.integers(0, len(content))) :]
    read_if_possible(bytes(content))


def test_absent_is_the_default_and_a_missing_message_is_none() -> None:
    assert decode(ALL, b"")["message"] is None
    assert decode(ALL, b"") == {name: field.default() for name, field in ALL.by_name.items()}
    assert encode(ALL, {"int32": 0, "string": "", "message": None, "messages": [], "map": {}, "bool": False}) == b""
    assert encode(ALL, {"message": {}}) == b"\x52\x00"
    assert encode(ALL, {"double": -0.0}) != b""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"sting": "a"}, "All.sting: unknown field"),
        ({"string": 3}, "All.string: 3 is not of type string"),
        ({"string": "\ud800"}, "All.string: '\\ud800' is not of type string"),
        ({"int32": 2**31}, "All.int32: 2147483648 is not of type int32"),
        ({"uint64": -1}, "All.uint64: -1 is not of type uint64"),
        ({"int64": True}, "All.int64: True is not of type int64"),
        ({"bool": 1}, "All.bool: 1 is not of type bool"),
        ({"double": "1"}, "All.double: '1' is not of type double"),
        ({"message": 3}, "All.message: 3 is not of type message"),
        ({"messages": [{"deeper": [{"numbers": ["1"]}]}]}, "All.Inner.Inner2.numbers: ['1'] is not of type int64"),
        ({"map": {"a": None}}, "All.map: {'a': None} is not of type map<string, string>"),
    ],
)
def test_what_is_no_such_message_is_refused_with_its_field(value: dict[str, Any], text: str) -> None:
    with pytest.raises(ProtobufError) as caught:
        encode(ALL, value)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\x08", "at byte 1: the message ends in the middle of a number"),
        (b"\x08" + b"\xff" * 9 + b"\x02", "at byte 1: a number has more than 64 bits"),
        (b"\x08" + b"\x80" * 11, "at byte 1: a number has more than 64 bits"),
        (b"\x42\x05abc", "All: at byte 0: field 8 ends 2 bytes beyond the message"),
        (b"\x39\x00", "All: at byte 0: field 7 ends 7 bytes beyond the message"),
        (b"\x42\x01\xff", "at byte 2: a string is not UTF-8"),
        (b"\x00\x00", "All: at byte 0: 0 is not a field number"),
        (b"\x0b", "All: at byte 0: proto3 has no wire type 3"),
        (b"\xba\x01\x04abcd", "at byte 3: a double ends 4 bytes beyond the message"),
    ],
)
def test_what_is_no_message_is_refused_with_its_byte(content: bytes, text: str) -> None:
    with pytest.raises(ProtobufError) as caught:
        decode(ALL, content)
    assert str(caught.value) == text


def test_unknown_fields_and_known_ones_of_another_type_are_skipped() -> None:
    unknown = b"\xf8\x3f\x07" + b"\xfa\x3f\x02ab" + b"\xf9\x3f" + bytes(8) + b"\xfd\x3f" + bytes(4)
    assert decode(ALL, unknown + b"\x0a\x01a" + b"\x10\x07")["int64"] == 7


def test_there_is_a_bound_on_bytes_depth_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProtobufError, match="All: the message has 11 bytes, more than the limit of 10"):
        decode(ALL, bytes(11), max_bytes=10)
    monkeypatch.setattr(protobuf, "MAX_DEPTH", 1)
    assert decode(ALL, encode(ALL, {"message": {"number": 1}}))["message"]["number"] == 1
    with pytest.raises(ProtobufError, match=r"Inner2: at byte 4: messages are nested more than 1 deep"):
        decode(ALL, encode(ALL, {"message": {"deeper": [{}]}}))
    assert decode(ALL, encode(ALL, {"int64s": [1] * 7}), max_values=8)["int64s"] == [1] * 7
    for many in ({"int64s": [1] * 8}, {"strings": ["a"] * 9}):
        with pytest.raises(ProtobufError, match="more than 8 values"):
            decode(ALL, encode(ALL, many), max_values=8)
