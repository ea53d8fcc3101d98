"""The kernel's histograms, read to the letter: a task's name may contain anything."""

import pytest

from nodeagent.formats.kernel.histogram import HistogramSyntaxError, Row, parse_histogram

HEAD = b"""\
# event histogram
#
# trigger info: hist:keys=common_cpu,common_pid.execname,next_pid:vals=hitcount,common_timestamp:size=8192:clock=mono if CPU==3 [active]
#

"""
KEYS = ("common_cpu", "common_pid", "next_pid")


def total(entries: int, dropped: int = 0) -> bytes:
    return b"\nTotals:\n    Hits: 9\n    Entries: %d\n    Dropped: %d\n" % (entries, dropped)


def row(name: bytes, task: int = 51) -> bytes:
    return (
        b"{ common_cpu:          7, common_pid: %-16s[%10d], next_pid:        487 } hitcount:          2"
        b"  common_timestamp: 609592744051\n" % (name, task)
    )


def test_rows_are_read_with_their_names_and_sums() -> None:
    read = parse_histogram(
        HEAD + row(b"ksoftirqd/7") + row(b"<idle>", 0) + total(2, 3), KEYS, value="common_timestamp", task="common_pid"
    )
    assert read.rows == (
        Row((7, 51, 487), "ksoftirqd/7", 2, 609592744051),
        Row((7, 0, 487), "<idle>", 2, 609592744051),
    )
    assert read.dropped == 3


def test_without_a_value_only_hits_are_counted() -> None:
    text = HEAD + b"{ parent_pid:        379, child_pid:        381 } hitcount:          1\n" + total(1)
    assert parse_histogram(text, ("parent_pid", "child_pid")).rows == (Row((379, 381), "", 1, 0),)


def test_an_empty_histogram_has_no_rows() -> None:
    assert parse_histogram(HEAD + b"\n" + total(0), KEYS, value="common_timestamp", task="common_pid").rows == ()


@pytest.mark.parametrize(
    "name",
    [b"a b", b"[    1], next", b"} hitcount: 9", b"\nTotals:\n", b"x\n\n{ common", b"\xff\xfe", b"\x1b[31m", b""],
)
def test_a_name_is_never_more_than_a_name(name: bytes) -> None:
    read = parse_histogram(HEAD + row(name) + total(1), KEYS, value="common_timestamp", task="common_pid")
    assert [(found.keys, found.hits) for found in read.rows] == [((7, 51, 487), 2)]
    assert read.rows[0].name == name.decode(errors="backslashreplace").rstrip(" ")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "no totals"),
        (b"\xff" * 100, "no totals"),
        (HEAD + row(b"sh"), "no totals"),
        (HEAD + row(b"sh") + total(2), "1 rows, but its totals count 2"),
        (HEAD + row(b"sh").replace(b"hitcount", b"hits") + total(1), "where a row is expected"),
        (HEAD + row(b"sh").replace(b"487", b"9" * 30) + total(1), "where a row is expected"),
        (HEAD + row(b"sh")[:60] + total(1), "where a row is expected"),
        (HEAD + row(b"a name of many bytes, more than there are") + total(1), "where a row is expected"),
    ],
)
def test_anything_else_is_an_error(text: bytes, why: str) -> None:
    with pytest.raises(HistogramSyntaxError, match=why):
        parse_histogram(text, KEYS, value="common_timestamp", task="common_pid")
