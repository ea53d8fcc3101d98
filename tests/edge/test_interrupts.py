"""What is known of an interrupt, on kernels that show which ones cannot be moved and on others."""

from pathlib import Path

import pytest

from nodeagent.core.model.host_processes import HostInterrupt
from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.kernel.interrupts import describe_interrupts, find_interrupts_on
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
    assert describe_interrupts([25, 27], root) == {
        25: Interrupt("eth0-rx,eth0-tx", is_movable=True),
        27: Interrupt("nvme0q3", is_movable=False),
    }


def test_on_older_kernels_it_is_unknown(root: Path) -> None:
    assert describe_interrupts([27], root) == {27: Interrupt("nvme0q3", None)}


def test_of_one_that_has_gone_only_the_number_is_known(root: Path) -> None:
    assert describe_interrupts([99], root) == {99: Interrupt("", None)}


def test_which_may_come_to_cpus_is_what_the_kernel_says(root: Path) -> None:
    """A bound one has a mask like the others, of which the kernel has chosen: that counts."""
    (root / "proc/irq/27/smp_affinity").chmod(0o444)
    (root / "proc/irq/3").mkdir()
    (root / "proc/irq/3/smp_affinity_list").write_text("0-7\n")
    for number, affinity, effective in ((0, "0", "0"), (25, "0-3", "0"), (27, "2-5", "4")):
        (root / f"proc/irq/{number}/smp_affinity_list").write_text(f"{affinity}\n")
        (root / f"proc/irq/{number}/effective_affinity_list").write_text(f"{effective}\n")
    movable = HostInterrupt(25, "eth0-rx,eth0-tx", CpuSet.of(2, 3), is_bound=False)
    assert find_interrupts_on(CpuSet.of(2, 3), root) == (movable,), "3 is in use by nobody"
    assert find_interrupts_on(CpuSet.of(4), root) == (HostInterrupt(27, "nvme0q3", CpuSet.of(4), is_bound=True),)
    assert find_interrupts_on(CpuSet.of(6), root) == ()
