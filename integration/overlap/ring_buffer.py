"""Reads pages of the kernel's trace buffer (trace_pipe_raw), with the layouts that the running kernel itself describes.

The page format: include/linux/ring_buffer.h, and events/header_page and header_event in tracefs. Pages are what is cheap to take
out of a slow machine: text is made of them here, where time costs nothing.
"""

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath

from integration.overlap.events import TOLD, Attach, Event, Exec, Exit, Fork, Switch, Told, cpu_list

_FIELD = re.compile(r"^\s*field:(.*?)(\w+)(?:\[\w*\])?;\s*offset:(\d+);\s*size:(\d+);\s*signed:([01]);", re.MULTILINE)
_ID = re.compile(r"^ID: (\d+)$", re.MULTILINE)
_PAGE_HEADER = struct.Struct("<QQ")
_WORD = struct.Struct("<I")
_TYPE = struct.Struct("<H")
_MISSED = 1 << 31
_MISSED_COUNTED = 1 << 30
_PADDING, _TIME_EXTEND, _TIME_STAMP = 29, 30, 31
_TIME_BITS = 27
_STAMP_BITS = 59

Decoder = Callable[[int, int, bytes], Event | None]
"""Time, CPU and the event's bytes in; None: no event of ours."""


class LostEventsError(Exception):
    """The kernel says that it had to drop events: the record proves nothing."""


class Pages:
    """Turns pages into events.

    Args:
        formats: content of each event's `format` file, by `system/event`.

    """

    def __init__(self, formats: Mapping[str, str]) -> None:
        self._decoders = dict(_decoder(PurePath(name).name, text) for name, text in formats.items())

    def events(self, cpu: int, page: bytes) -> Iterator[Event]:
        """Give the page's events in order.

        Raises:
            LostEventsError: events before this page are missing.

        """
        time_ns, commit = _PAGE_HEADER.unpack_from(page)
        if commit & (_MISSED | _MISSED_COUNTED):
            raise LostEventsError(f"CPU {cpu} lost events before {time_ns} ns")
        at, end = _PAGE_HEADER.size, _PAGE_HEADER.size + (commit & 0xFFFFFF)
        while at < end:
            (header,) = _WORD.unpack_from(page, at)
            kind, delta = header & 0x1F, header >> 5
            at += 4
            if kind == _TIME_EXTEND:
                time_ns += delta + (_WORD.unpack_from(page, at)[0] << _TIME_BITS)
                at += 4
            elif kind == _TIME_STAMP:
                # the upper bits do not fit in and are those of the time before
                stamp = delta + (_WORD.unpack_from(page, at)[0] << _TIME_BITS)
                time_ns = (time_ns >> _STAMP_BITS << _STAMP_BITS) | stamp
                at += 4
            elif kind == _PADDING:
                if delta == 0:
                    return  # the rest of the page is empty
                time_ns += delta
                at += _WORD.unpack_from(page, at)[0]
            else:
                time_ns += delta
                length = kind * 4
                if kind == 0:
                    length = (_WORD.unpack_from(page, at)[0] - 4 + 3) & ~3
                    at += 4
                event = self._event(time_ns, cpu, page[at : at + length])
                if event is not None:
                    yield event
                at += length

    def _event(self, time_ns: int, cpu: int, body: bytes) -> Event | None:
        decoder = self._decoders.get(_TYPE.unpack_from(body)[0])
        return None if decoder is None else decoder(time_ns, cpu, body)


def _decoder(name: str, text: str) -> tuple[int, Decoder]:
    found = _ID.search(text)
    fields = {match[2]: match for match in _FIELD.finditer(text)}
    assert found, f"the format of {name} has an ID"

    def number(field: str) -> Callable[[bytes], int]:
        offset, size, signed = (int(fields[field][group]) for group in (3, 4, 5))
        reader = struct.Struct("<" + {4: "i" if signed else "I", 8: "q" if signed else "Q"}[size])
        return lambda body: reader.unpack_from(body, offset)[0]

    def string(field: str) -> Callable[[bytes], str]:
        """A __data_loc: where in the event the text lies, and how long it is."""
        where = number(field)
        return lambda body: _text(body[(where(body) & 0xFFFF) :])

    return int(found[1]), _DECODERS[name](number, string, int(fields["buf"][3]) if "buf" in fields else 0)


def _text(content: bytes) -> str:
    return content.partition(b"\0")[0].decode(errors="replace")


_Number = Callable[[str], Callable[[bytes], int]]
_String = Callable[[str], Callable[[bytes], str]]


def _switch(number: _Number, _string: _String, _buffer: int) -> Decoder:
    prev, following = number("prev_pid"), number("next_pid")
    return lambda at_ns, cpu, body: Switch(at_ns, cpu, prev(body), following(body))


def _fork(number: _Number, _string: _String, _buffer: int) -> Decoder:
    parent, child = number("parent_pid"), number("child_pid")
    return lambda at_ns, cpu, body: Fork(at_ns, cpu, parent(body), child(body))


def _exec(number: _Number, string: _String, _buffer: int) -> Decoder:
    pid, old_pid, program = number("pid"), number("old_pid"), string("filename")
    return lambda at_ns, cpu, body: Exec(at_ns, cpu, pid(body), old_pid(body), program(body))


def _exit(number: _Number, _string: _String, _buffer: int) -> Decoder:
    pid = number("pid")
    return lambda at_ns, cpu, body: Exit(at_ns, cpu, pid(body))


def _attach(number: _Number, string: _String, _buffer: int) -> Decoder:
    pid, cgroup = number("pid"), string("dst_path")
    return lambda at_ns, cpu, body: Attach(at_ns, cpu, pid(body), cgroup(body))


def _marker(number: _Number, _string: _String, buffer: int) -> Decoder:
    pid = number("common_pid")

    def told(at_ns: int, cpu: int, body: bytes) -> Event | None:
        words = _text(body[buffer:]).split()
        if len(words) not in {3, 4} or words[0] != TOLD:
            return None
        return Told(at_ns, cpu, pid(body), int(words[1]), *map(cpu_list, words[2:]))

    return told


_DECODERS: Mapping[str, Callable[[_Number, _String, int], Decoder]] = {
    "sched_switch": _switch,
    "sched_process_fork": _fork,
    "sched_process_exec": _exec,
    "sched_process_exit": _exit,
    "cgroup_attach_task": _attach,
    "print": _marker,
}
