"""Names of cgroups, as systemd makes them."""

import pytest

from nodeagent.formats.kernel.unit_names import unit_of


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("system.slice", "system.slice"),
        ("system-systemd\\x2dfsck.slice", "system-systemd\\x2dfsck.slice"),
        ("dev-hugepages.mount", None),
        ("web@1.service", "web@1.service"),
        ("_memory.slice", "memory.slice"),
        ("kubepods", None),
        ("docker-0123", None),
        ("my.target", None),
        ("--now.slice\n", None),
        ("a b.slice", None),
    ],
)
def test_units_are_known_by_the_names_of_their_cgroups(cgroup: str, unit: str | None) -> None:
    assert unit_of(cgroup) == unit
