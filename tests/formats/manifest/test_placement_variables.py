"""What containers' processes are told: names that stay, sets as the kernel prints them, lines that a shell can read."""

import subprocess

from hypothesis import given, strategies as st

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.formats.manifest.placement_variables import PLACEMENT_FILE, placement_text, placement_variables
from nodeagent.formats.manifest.variables import RESERVED_PREFIX

PLACEMENT = ContainerPlacement(CpuSet.parse("2-3,10-11"), CpuSet(), NumaSet.of(0, 1))


def test_names_and_values() -> None:
    assert placement_variables(PLACEMENT) == (
        ("NODEAGENT_EXCLUSIVE_CPUS", "2-3,10-11"),
        ("NODEAGENT_SHARED_CPUS", ""),
        ("NODEAGENT_MEMORY_NODES", "0-1"),
    )
    names = {name for name, _ in placement_variables(PLACEMENT)} | {PLACEMENT_FILE}
    assert {name for name in names if not name.startswith(RESERVED_PREFIX)} == set()


def test_a_shell_reads_the_file() -> None:
    script = (
        '. /dev/stdin; printf "%s|%s|%s" "$NODEAGENT_EXCLUSIVE_CPUS" "$NODEAGENT_SHARED_CPUS" "$NODEAGENT_MEMORY_NODES"'
    )
    read = subprocess.run(
        ["sh", "-euc", script], input=placement_text(PLACEMENT), capture_output=True, check=True
    ).stdout
    assert read == b"2-3,10-11||0-1"


@given(
    st.builds(
        ContainerPlacement,
        st.sets(st.integers(0, 8191)).map(CpuSet.from_ids),
        st.sets(st.integers(0, 8191)).map(CpuSet.from_ids),
        st.sets(st.integers(0, 1023)).map(NumaSet.from_ids),
    )
)
def test_nothing_is_lost(placement: ContainerPlacement) -> None:
    values = [line.partition("=")[2] for line in placement_text(placement).decode().splitlines()]
    exclusive, shared, nodes = values
    assert (CpuSet.parse(exclusive), CpuSet.parse(shared)) == (placement.exclusive_cpus, placement.shared_cpus)
    assert NumaSet.parse(nodes) == placement.memory_nodes
