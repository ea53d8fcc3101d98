"""How long a test waits for a guest, by a clock and a guest that the test moves."""

import pytest

from integration.guest.pace import LONGEST_SECONDS, MEASURED_EVERY_SECONDS, SHORTEST_SECONDS, Pace

REAL = 0.025
"""What the job takes on a real machine."""


class Slow:
    """A clock, and a guest that is as slow as a test says."""

    def __init__(self, slowness: float) -> None:
        self.now = 0.0
        self.slowness = slowness
        self.measured = 0

    def pace(self) -> Pace:
        return Pace(self.measure, lambda: self.now)

    def measure(self) -> float:
        self.measured += 1
        return self.slowness * REAL

    def lasts(self, pace: Pace, seconds: float) -> float:
        """How many of our seconds a wait in vain lasts."""
        began, wait = self.now, pace.wait(seconds)
        while not wait.is_over():
            self.now += 1
        return self.now - began


@pytest.mark.parametrize(
    ("slowness", "seconds", "expected"),
    [
        (0.5, 10, SHORTEST_SECONDS),
        (1, 10, SHORTEST_SECONDS),
        (1, 45, 45),
        (8, 10, 80),
        (12, 10, 120),
        (40, 10, LONGEST_SECONDS),
        (1, 1_000, 1_000),
        (12, 1_000, 1_000),
    ],
)
def test_a_wait_in_vain_is_as_long_as_the_guest_is_slow_and_above_three_minutes_only_as_long_as_asked(
    slowness: float, seconds: float, expected: float
) -> None:
    guest = Slow(slowness)
    assert guest.lasts(guest.pace(), seconds) == pytest.approx(expected, abs=1)
    assert LONGEST_SECONDS <= 180


def test_who_is_slower_meanwhile_is_waited_for_longer() -> None:
    guest = Slow(5)
    pace = guest.pace()
    assert guest.lasts(pace, 10) == pytest.approx(50, abs=1)
    guest.slowness = 15
    guest.now += MEASURED_EVERY_SECONDS
    assert guest.lasts(pace, 10) == pytest.approx(150, abs=1)


def test_only_what_the_guest_has_had_counts() -> None:
    """Half of its time while it was fast, the other half while it was slow."""
    guest = Slow(6)
    wait = guest.pace().wait(10)
    guest.now = 9
    assert not wait.is_over()
    guest.slowness = 17
    while not wait.is_over():
        guest.now += 1
    assert guest.now == pytest.approx(9 + 8.5 * 17, abs=1)


def test_the_slowest_of_the_last_samples_counts_and_is_forgotten_in_time() -> None:
    guest = Slow(5)
    pace = guest.pace()
    at_boot = guest.measured
    assert at_boot > 1, "one sample may have met a lucky moment"
    seen = []
    for slowness in (30, *[5] * at_boot):
        guest.slowness = slowness
        guest.now += MEASURED_EVERY_SECONDS
        seen.append(pace.slowness())
    assert seen == [pytest.approx(30)] * at_boot + [pytest.approx(5)]
    pace.slowness()
    assert guest.measured == 2 * at_boot + 1, "not more often than is due"
