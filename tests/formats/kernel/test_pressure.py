"""Pressure and throttling as the kernel's files have them, and what is no such file."""

import pytest
from hypothesis import given, strategies

from nodeagent.formats.kernel.pressure import parse_pressure_us, parse_throttled_periods

CPU = """\
some avg10=1.53 avg60=0.87 avg300=0.21 total=4532145
full avg10=0.00 avg60=0.00 avg300=0.00 total=17
"""
IRQ = "full avg10=0.00 avg60=0.00 avg300=0.00 total=99\n"
STAT = "usage_usec 10\nuser_usec 6\nsystem_usec 4\nnr_periods 12\nnr_throttled 3\nthrottled_usec 77\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CPU, {"some": 4_532_145, "full": 17}),
        (IRQ, {"full": 99}),
        ("", {}),
        ("some avg10=0.00\nfull total=-1\nodd total=5\n", {}),
    ],
)
def test_the_total_of_each_share(text: str, expected: dict[str, int]) -> None:
    assert parse_pressure_us(text) == expected


@pytest.mark.parametrize(("text", "expected"), [(STAT, 3), ("usage_usec 10\n", None), ("nr_throttled x\n", None)])
def test_throttled_periods(text: str, expected: int | None) -> None:
    assert parse_throttled_periods(text) == expected


@given(strategies.text())
def test_any_text_is_read(text: str) -> None:
    assert set(parse_pressure_us(text)) <= {"some", "full"}
    assert (parse_throttled_periods(text) or 0) >= 0
