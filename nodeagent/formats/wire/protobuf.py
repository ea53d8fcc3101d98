"""Encoder and decoder of protocol buffers (proto3). Tables describe the messages, so no generated code is needed. A decoded message is a
mapping of plain values.

https://protobuf.dev/programming-guides/encoding/. A missing field reads as its default: 0, False, "", b"", (), {}; None
for a message.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, TypeAlias

MAX_BYTES = 16 << 20
MAX_DEPTH = 100
MAX_VALUES = 1 << 20
"""Maximum number of decoded values, because two encoded bytes may become a dict of kilobytes."""
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_MAX_FIELD_NUMBER = (1 << 29) - 1
_DOUBLE = struct.Struct("<d")


class ProtobufError(ValueError):
    """A value or encoding doesn't match the message type. The error names the field and, when decoding, the byte."""


class Kind(Enum):
    INT32 = "int32"
    INT64 = "int64"
    UINT32 = "uint32"
    UINT64 = "uint64"
    BOOL = "bool"
    ENUM = "enum"
    """Type of an enum field, whose value is an int. Numbers that the enum doesn't define are kept."""
    DOUBLE = "double"
    STRING = "string"
    BYTES = "bytes"
    STRING_MAP = "map<string, string>"


class Field:
    """One field of a message.

    Args:
        number: the field number in the encoding.
        name: the key in the mappings.
        type: the type of the value, or of each value of a repeated field.
        repeated: whether the value is a list. Never set for STRING_MAP.
    """

    __slots__ = ("name", "number", "put", "repeated", "tag", "type")

    def __init__(self, number: int, name: str, type: "Kind | MessageType", repeated: bool = False) -> None:  # noqa: A002 - protobuf's own word
        assert 1 <= number <= _MAX_FIELD_NUMBER
        assert not (repeated and type is Kind.STRING_MAP)
        self.number = number
        self.name = name
        self.type = type
        self.repeated = repeated
        is_packed = repeated and type in _SCALAR_WIRE
        self.tag = _encode_varint(number << 3 | (_LEN if is_packed else _wire_type(type)))
        self.put = _create_encoder(self)

    def default(self) -> Any:
        """Return the value that stands for a missing field. Each call returns a new list or map."""
        if self.repeated:
            return []
        if isinstance(self.type, MessageType):
            return None
        return {} if self.type is Kind.STRING_MAP else _DEFAULTS[self.type]


class MessageType:
    """The fields of a message, by name and by number."""

    __slots__ = ("by_name", "by_number", "name")

    def __init__(self, name: str, fields: Iterable[Field]) -> None:
        ordered = sorted(fields, key=lambda field: field.number)
        self.name = name
        self.by_name = {field.name: field for field in ordered}
        self.by_number = {field.number: field for field in ordered}
        assert len(self.by_name) == len(self.by_number) == len(ordered)


def fields(kind: "Kind | MessageType", /, **numbers: int) -> tuple[Field, ...]:
    """Create the fields of one type, each given as NAME=NUMBER."""
    return tuple(Field(number, name, kind) for name, number in numbers.items())


Message: TypeAlias = dict[str, Any]
_Out: TypeAlias = list[bytes]
_Put: TypeAlias = Callable[[_Out, Any], None]


def encode(message_type: MessageType, value: Mapping[str, Any]) -> bytes:
    """Encode a message. Equal values have equal bytes, and None and defaults take no bytes.

    Raises:
        ProtobufError: a name is unknown, or a value has the wrong type or is out of range.
    """
    out: _Out = []
    present = 0
    for name, field in message_type.by_name.items():
        if name not in value:
            continue
        present += 1
        item = value[name]
        if item is None:
            continue
        try:
            field.put(out, item)
        except ProtobufError as err:
            raise ProtobufError(f"{message_type.name}.{err}") from None
        except (TypeError, AttributeError, ValueError, struct.error):
            kind = "message" if isinstance(field.type, MessageType) else field.type.value
            shown = f"{item!r:.80}"
            raise ProtobufError(f"{message_type.name}.{name}: {shown} is not of type {kind}") from None
    if present != len(value):
        unknown = sorted(map(str, value.keys() - message_type.by_name.keys()))
        raise ProtobufError(f"{message_type.name}.{unknown[0]}: unknown field")
    return b"".join(out)


def decode(
    message_type: MessageType, data: bytes, *, max_bytes: int = MAX_BYTES, max_values: int = MAX_VALUES
) -> Message:
    """Decode a message with all its fields. Unknown fields are skipped.

    Raises:
        ProtobufError: the data is truncated, too large, nested too deeply or malformed.
    """
    if len(data) > max_bytes:
        raise ProtobufError(
            f"{message_type.name}: the message has {len(data)} bytes, more than the limit of {max_bytes}"
        )
    return _Reader(data, max_values).message(message_type, 0, len(data), {}, depth=0)


# Functions that encode messages


def _create_encoder(field: Field) -> _Put:
    tag, kind = field.tag, field.type
    if isinstance(kind, MessageType):
        put_one = _create_message_encoder(tag, kind)

        def put_all(out: _Out, values: Iterable[Mapping[str, Any]]) -> None:
            for value in values:
                put_one(out, value)

        return put_all if field.repeated else put_one
    if kind is Kind.STRING_MAP:

        def put_map(out: _Out, value: Mapping[str, str]) -> None:
            for name, text in sorted(value.items()):
                entry = b"".join((_KEY_TAG, _encode_text(name), _VALUE_TAG, _encode_text(text)))
                out += (tag, _encode_varint(len(entry)), entry)

        return put_map
    encode_value, default = _ENCODERS[kind], _DEFAULTS[kind]
    if not field.repeated:

        def put(out: _Out, value: Any) -> None:
            encoded = encode_value(value)
            # -0.0 equals the default 0.0, but has another encoding
            if value != default or (kind is Kind.DOUBLE and encoded != _ZERO):
                out += (tag, encoded)

    elif kind in _SCALAR_WIRE:

        def put(out: _Out, value: Any) -> None:
            if packed := b"".join(map(encode_value, value)):
                out += (tag, _encode_varint(len(packed)), packed)

    else:

        def put(out: _Out, value: Any) -> None:
            for item in value:
                out += (tag, encode_value(item))

    return put


def _create_message_encoder(tag: bytes, message_type: MessageType) -> _Put:
    def put(out: _Out, value: Mapping[str, Any]) -> None:
        inner = encode(message_type, value)
        out += (tag, _encode_varint(len(inner)), inner)

    return put


_ONE_BYTE = tuple(bytes((number,)) for number in range(128))


def _encode_varint(number: int) -> bytes:
    if number < 128:
        return _ONE_BYTE[number]
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _create_number_encoder(low: int, high: int) -> Callable[[Any], bytes]:
    def encode_value(value: int) -> bytes:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError
        return _encode_varint(value & _MASK_64)

    return encode_value


def _encode_bool(value: bool) -> bytes:
    if not isinstance(value, bool):
        raise TypeError
    return _ONE_BYTE[value]


def _encode_text(value: str) -> bytes:
    return _encode_bytes(value.encode())


def _encode_bytes(value: bytes) -> bytes:
    return _encode_varint(len(value)) + value


_MASK_64 = (1 << 64) - 1
_SCALAR_WIRE = {
    Kind.INT32: _VARINT,
    Kind.INT64: _VARINT,
    Kind.UINT32: _VARINT,
    Kind.UINT64: _VARINT,
    Kind.BOOL: _VARINT,
    Kind.ENUM: _VARINT,
    Kind.DOUBLE: _I64,
}
_DEFAULTS: dict[Kind, Any] = {
    Kind.INT32: 0,
    Kind.INT64: 0,
    Kind.UINT32: 0,
    Kind.UINT64: 0,
    Kind.BOOL: False,
    Kind.ENUM: 0,
    Kind.DOUBLE: 0.0,
    Kind.STRING: "",
    Kind.BYTES: b"",
}
_ENCODERS: dict[Kind, Callable[[Any], bytes]] = {
    Kind.INT32: _create_number_encoder(-(1 << 31), (1 << 31) - 1),
    Kind.INT64: _create_number_encoder(-(1 << 63), (1 << 63) - 1),
    Kind.UINT32: _create_number_encoder(0, (1 << 32) - 1),
    Kind.UINT64: _create_number_encoder(0, _MASK_64),
    Kind.BOOL: _encode_bool,
    Kind.ENUM: _create_number_encoder(-(1 << 31), (1 << 31) - 1),
    Kind.DOUBLE: _DOUBLE.pack,
    Kind.STRING: _encode_text,
    Kind.BYTES: _encode_bytes,
}
_ZERO = _DOUBLE.pack(0.0)


def _wire_type(kind: Kind | MessageType) -> int:
    return _LEN if isinstance(kind, MessageType) else _SCALAR_WIRE.get(kind, _LEN)


_KEY_TAG, _VALUE_TAG = (_encode_varint(number << 3 | _LEN) for number in (1, 2))
_ENTRY = MessageType("entry", (Field(1, "key", Kind.STRING), Field(2, "value", Kind.STRING)))


# Functions that decode messages


class _Reader:
    """Decoder of a message and its nested messages, which may contain at most `max_values` values in total."""

    def __init__(self, data: bytes, max_values: int) -> None:
        self._data = data
        self._max_values = self._left = max_values

    def message(self, message_type: MessageType, at: int, end: int, into: Message, depth: int) -> Message:
        """Decode the bytes from `at` to `end`. If the message is split into several pieces, the values are merged into
        `into`, the result of the earlier pieces.
        """
        if depth > MAX_DEPTH:
            raise ProtobufError(f"{message_type.name}: at byte {at}: messages are nested more than {MAX_DEPTH} deep")
        if not into:
            into |= {name: field.default() for name, field in message_type.by_name.items()}
        while at < end:
            self._count(at)
            start = at
            key, at = self._decode_varint(at, end)
            number, wire = key >> 3, key & 7
            if not 1 <= number <= _MAX_FIELD_NUMBER:
                raise ProtobufError(f"{message_type.name}: at byte {start}: {number} is not a field number")
            raw = 0
            if wire == _VARINT:
                raw, at = self._decode_varint(at, end)
                begin = at
            elif wire == _LEN:
                size, begin = self._decode_varint(at, end)
                at = begin + size
            elif wire in (_I64, _I32):
                begin, at = at, at + (8 if wire == _I64 else 4)
            else:
                raise ProtobufError(f"{message_type.name}: at byte {start}: proto3 has no wire type {wire}")
            if at > end:
                raise ProtobufError(
                    f"{message_type.name}: at byte {start}: field {number} ends {at - end} bytes beyond the message"
                )
            if (field := message_type.by_number.get(number)) is not None:
                self._decode_field(field, wire, raw, begin, at, into, depth)
        return into

    def _decode_field(self, field: Field, wire: int, raw: int, begin: int, end: int, into: Message, depth: int) -> None:
        """Decode a field into the mapping `into`. A field with another wire type is skipped, as an unknown field is."""
        kind, name = field.type, field.name
        if isinstance(kind, MessageType):
            if wire != _LEN:
                return
            if field.repeated:
                into[name].append(self.message(kind, begin, end, {}, depth + 1))
            else:
                into[name] = self.message(kind, begin, end, into[name] or {}, depth + 1)
        elif kind is Kind.STRING_MAP:
            if wire == _LEN:
                entry = self.message(_ENTRY, begin, end, {}, depth + 1)
                into[name][entry["key"]] = entry["value"]
        elif wire == _wire_type(kind):
            value = self._decode_value(kind, raw, begin, end)
            if field.repeated:
                into[name].append(value)
            else:
                into[name] = value
        elif wire == _LEN and field.repeated:
            self._decode_packed(kind, begin, end, into[name])

    def _decode_packed(self, kind: Kind, at: int, end: int, into: list[Any]) -> None:
        raw = 0
        while at < end:
            self._count(at)
            begin = at
            if kind is Kind.DOUBLE:
                at += 8
            else:
                raw, at = self._decode_varint(at, end)
            if at > end:
                raise ProtobufError(f"at byte {begin}: a {kind.value} ends {at - end} bytes beyond the message")
            into.append(self._decode_value(kind, raw, begin, at))

    def _decode_value(self, kind: Kind, raw: int, begin: int, end: int) -> Any:
        match kind:
            case Kind.STRING:
                try:
                    return str(self._data[begin:end], "utf-8")
                except UnicodeDecodeError:
                    raise ProtobufError(f"at byte {begin}: a string is not UTF-8") from None
            case Kind.BYTES:
                return bytes(self._data[begin:end])
            case Kind.DOUBLE:
                return _DOUBLE.unpack_from(self._data, begin)[0]
            case Kind.BOOL:
                return raw != 0
            case Kind.UINT64:
                return raw
            case Kind.UINT32:
                return raw & 0xFFFF_FFFF
            case Kind.INT64:
                return raw - (raw >> 63 << 64)
            case _:
                raw &= 0xFFFF_FFFF
                return raw - (raw >> 31 << 32)

    def _decode_varint(self, at: int, end: int) -> tuple[int, int]:
        number = shift = 0
        start = at
        while at < end:
            byte = self._data[at]
            at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                if number > _MASK_64:
                    break
                return number, at
            shift += 7
            if shift > 63:
                break
        else:
            raise ProtobufError(f"at byte {start}: the message ends in the middle of a number")
        raise ProtobufError(f"at byte {start}: a number has more than 64 bits")

    def _count(self, at: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise ProtobufError(f"at byte {at}: the message has more than {self._max_values} values")
