import pytest

from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.irqbalance import (
    Irqbalance,
    IrqbalanceSyntaxError,
    format_ban_request,
    format_leave_request,
    parse_setup,
)


@pytest.mark.parametrize(
    ("text", "banned", "left_alone"),
    [
        ("SLEEP 10 BANNED 00000000", "", set()),
        ("SLEEP 2 BANNED 00000f0c", "2-3,8-11", set()),
        ("SLEEP 10 BANNED 00000001,80000000", "31-32", set()),
        ("SLEEP 10 IRQ 5 LOAD 0 DIFF 12 CLASS 1 IRQ 6 LOAD 0 DIFF 0 CLASS 0 BANNED 0000f000", "12-15", {5, 6}),
    ],
)
def test_its_answer_is_read(text: str, banned: str, left_alone: set[int]) -> None:
    assert parse_setup(text) == Irqbalance(CpuSet.parse(banned), frozenset(left_alone))


@pytest.mark.parametrize("text", ["", "SLEEP 10", "SLEEP -1 BANNED 0", "SLEEP 1 BANNED ", "SLEEP 1 BANNED 123456789"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(IrqbalanceSyntaxError):
        parse_setup(text)


def test_what_it_is_asked_fits_into_its_buffer() -> None:
    assert format_ban_request(CpuSet.parse("2-3,8")) == b"settings cpus 2-3,8"
    with pytest.raises(IrqbalanceSyntaxError, match="a request of 1362 characters exceeds irqbalance's limit of 500"):
        format_ban_request(CpuSet.from_ids(range(0, 701, 2)))
    assert (format_leave_request({25, 9}), format_leave_request(set())) == (
        b"settings ban irqs 9 25",
        b"settings ban irqs NONE",
    )
    with pytest.raises(IrqbalanceSyntaxError, match="a list of 65 interrupts exceeds irqbalance's limit of 255"):
        format_leave_request(set(range(100, 165)))
