"""What is read from /proc/interrupts and /proc/softirqs: how much more each CPU has counted, and of which kind."""

import pytest

from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.cpu_counts import CpuCounts, Increase, count_increases, interrupt_kind, parse_cpu_counts

PC = """\
            CPU0       CPU2       CPU3
   0:         30          0          0  IR-IO-APIC    2-edge      timer
  24:          1          5          7  PCI-MSIX-0000:04:00.0    1-edge      eth0-rx
 NMI:          0          0          0   Non-maskable interrupts
 LOC:        100        200        300   Local timer interrupts
 RES:          4          4          4   Rescheduling interrupts
 ERR:          0
"""


def read(text: str) -> CpuCounts:
    counts = parse_cpu_counts(text.encode())
    assert counts is not None
    return counts


def between(before: str, after: str, cpus: str = "0-7") -> dict[str, dict[int, int]]:
    found = count_increases(read(before), read(after), CpuSet.parse(cpus))
    return {one.label: dict(one.by_cpu) for one in found}


def test_only_these_cpus_count_and_only_what_has_changed() -> None:
    later = PC.replace(" 5          7", "15          8").replace("100        200", "101        250")
    assert between(PC, later, "2-3") == {"24": {2: 10, 3: 1}, "LOC": {2: 50}}
    assert between(PC, PC) == {}


def test_a_cpu_that_comes_begins_anew_and_one_that_goes_is_left_out() -> None:
    without = "            CPU0       CPU3\n LOC:        90        250\n"
    assert between(without, PC) == {"0": {0: 30}, "24": {0: 1, 3: 7}, "LOC": {0: 10, 3: 50}, "RES": {0: 4, 3: 4}}
    assert between(PC, without.replace("90 ", "150").replace("250", "310")) == {"LOC": {0: 50, 3: 10}}


@pytest.mark.parametrize(
    ("before", "after", "more"),
    [(4_294_967_290, 4, 10), (1000, 7, 7)],
    ids=["the counter has come to its end", "the number is another device's now"],
)
def test_a_count_that_became_smaller(before: int, after: int, more: int) -> None:
    assert between(f" CPU0\n 24: {before} x\n", f" CPU0\n 24: {after} x\n") == {"24": {0: more}}


@pytest.mark.parametrize("text", ["", "\n", "no such file", "CPU0 CPUx\n", "24: 1 2\n"])
def test_what_is_not_such_a_file(text: str) -> None:
    assert parse_cpu_counts(text.encode()) is None


@pytest.mark.parametrize("row", ["ERR: 1", "24: 1", "24: 1 x eth0", "24:", "24", "24: 1 -2 eth0"])
def test_a_row_that_does_not_count_by_cpu_is_left_out(row: str) -> None:
    assert between(" CPU0 CPU1\n 24: 0 0 eth0\n", f" CPU0 CPU1\n {row}\n") == {}


@pytest.mark.parametrize(
    ("label", "source", "is_bound", "kind"),
    [
        ("24", "eth0-rx", False, "device"),
        ("24", "nvme0q3", True, "bound_device"),
        ("24", "", False, "device"),
        ("0", "timer", False, "timer"),
        ("11", "arch_timer", False, "timer"),
        ("LOC", "interrupts", False, "timer"),
        ("RES", "interrupts", False, "ipi"),
        ("IPI0", "interrupts", False, "ipi"),
        ("NMI", "interrupts", False, "other"),
    ],
)
def test_kinds(label: str, source: str, is_bound: bool, kind: str) -> None:
    assert interrupt_kind(Increase(label, source, {0: 1}), is_bound=is_bound) == kind


def test_the_device_is_the_last_word() -> None:
    (one,) = count_increases(
        read(" CPU0\n 24: 0 MSI 1-edge eth0\n"), read(" CPU0\n 24: 2 MSI 1-edge eth0\n"), CpuSet.of(0)
    )
    assert one == Increase("24", "eth0", {0: 2})
