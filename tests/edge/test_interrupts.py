"""What is known of an interrupt, on kernels that show which ones cannot be moved and on others."""

from pathlib import Path

import pytest

from nodeagent.edge.interrupts import interrupts
from nodeagent.formats.kernel.cpu_use import Interrupt


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number, name in ((0, "timer"), (25, "eth0-rx,eth0-tx"), (27, "nvme0q3")):
        (tmp_path / f"proc/irq/{number}").mkdir(parents=True)
        (tmp_path / f"proc/irq/{number}/smp_affinity").touch(0o644)
        (tmp_path / f"sys/kernel/irq/{number}").mkdir(parents=True)
        (tmp_path / f"sys/kernel/irq/{number}/actions").write_text(f"{name}\n")
    return tmp_path


def test_newer_kernels_show_what_cannot_be_moved(root: Path) -> None:
    for number in (0, 27):
        (root / f"proc/irq/{number}/smp_affinity").chmod(0o444)
    assert interrupts([25, 27], root) == {
        25: Interrupt("eth0-rx,eth0-tx", is_movable=True),
        27: Interrupt("nvme0q3", is_movable=False),
    }


def test_on_older_kernels_it_is_unknown(root: Path) -> None:
    assert interrupts([27], root) == {27: Interrupt("nvme0q3", None)}


def test_of_one_that_has_gone_only_the_number_is_known(root: Path) -> None:
    assert interrupts([99], root) == {99: Interrupt("", None)}
