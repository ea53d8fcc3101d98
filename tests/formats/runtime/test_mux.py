"""Frames: bytes written by hand, as they are on the socket."""

import pytest
from hypothesis import given, strategies as st

from nodeagent.formats.runtime.mux import (
    MAX_FRAME_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_PAYLOAD_BYTES,
    MuxError,
    Reassembly,
    encode_frames,
)
from nodeagent.formats.runtime.ttrpc import TtrpcFrame, TtrpcRequest, TtrpcResponse, encode_request, encode_response


def test_a_registration_is_these_bytes():
    message = encode_request(
        1, TtrpcRequest("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin", b"\x0a\x01a\x12\x0200", 0)
    )
    assert encode_frames(2, message) == bytes.fromhex("00000002 00000041 00000037 00000001 01 00 0a1c") + (
        b"nri.pkg.api.v1alpha1.Runtime" + b"\x12\x0eRegisterPlugin" + b"\x1a\x07\x0a\x01a\x12\x0200"
    )


def test_an_empty_answer_is_a_bare_header():
    assert encode_frames(1, encode_response(7, TtrpcResponse())) == bytes.fromhex(
        "00000001 0000000a 00000000 00000007 02 00"
    )


def message(stream: int, size: int) -> bytes:
    return size.to_bytes(4) + stream.to_bytes(4) + b"\x01\x00" + bytes(stream & 255 for _ in range(size))


def frame(connection: int, payload: bytes) -> bytes:
    return connection.to_bytes(4) + len(payload).to_bytes(4) + payload


@given(st.integers(0, MAX_MESSAGE_BYTES - 10), st.sampled_from([1, 2]))
def test_no_frame_is_longer_than_the_runtime_reads(size, connection):
    whole = message(3, size)
    spelt = encode_frames(connection, whole)
    at, found = 0, b""
    while at < len(spelt):
        length = int.from_bytes(spelt[at + 4 : at + 8])
        assert int.from_bytes(spelt[at : at + 4]) == connection
        assert 8 + length <= MAX_FRAME_BYTES
        found += spelt[at + 8 : at + 8 + length]
        at += 8 + length
    assert found == whole
    assert [*Reassembly().feed(spelt)] == [(connection, TtrpcFrame(3, 1, 0, bytes([3] * size)))]


def test_more_than_the_runtime_queues_is_a_bug():
    with pytest.raises(AssertionError):
        encode_frames(1, bytes(MAX_MESSAGE_BYTES + 1))


PIECES = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 60), st.integers(1, 40)), max_size=6)


@given(PIECES, st.lists(st.integers(1, 30), min_size=1))
def test_messages_come_whole_however_they_are_cut(messages, cuts):
    """Cut by the runtime, between two messages of the other connection, and by the socket."""
    streams: dict[int, list[bytes]] = {1: [], 2: []}
    expected: dict[int, list[TtrpcFrame]] = {1: [], 2: []}
    for number, (connection, size, step) in enumerate(messages, 1):
        whole = message(number, size)
        streams[connection] += [whole[at : at + step] for at in range(0, len(whole), step)]
        expected[connection].append(TtrpcFrame(number, 1, 0, bytes([number] * size)))
    sent = b""
    while streams[1] or streams[2]:
        for connection, pieces in streams.items():
            if pieces:
                sent += frame(connection, pieces.pop(0)) + frame(connection, b"") + frame(9, b"skipped")
    reassembly, found, at, turn = Reassembly(), [], 0, 0
    while at < len(sent):
        cut = cuts[turn % len(cuts)]
        found += reassembly.feed(sent[at : at + cut])
        at, turn = at + cut, turn + 1
    assert {c: [one for connection, one in found if connection == c] for c in (1, 2)} == expected


def test_the_runtime_may_send_all_of_a_message_in_one_frame():
    whole = message(5, 4 << 20)
    assert len(whole) == MAX_PAYLOAD_BYTES
    ((connection, found),) = Reassembly().feed(frame(1, whole))
    assert (connection, found.stream, len(found.data)) == (1, 5, 4 << 20)


@pytest.mark.parametrize(
    "hostile",
    [
        frame(1, b"")[:4] + (MAX_PAYLOAD_BYTES + 1).to_bytes(4),
        frame(7, b"")[:4] + b"\xff\xff\xff\xff",
        frame(1, ((4 << 20) + 1).to_bytes(4) + bytes(6)),
        b"HTTP/1.1 400 Bad Request\r\n",
    ],
)
def test_lengths_beyond_the_protocols_end_it(hostile):
    with pytest.raises(MuxError):
        [*Reassembly().feed(hostile)]
