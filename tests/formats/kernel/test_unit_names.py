"""Names of cgroups, as systemd makes them."""

import pytest

from nodeagent.formats.kernel.unit_names import slices_around, unit_in, unit_of


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


@pytest.mark.parametrize(
    ("path", "unit", "around"),
    [
        ("system.slice", "system.slice", ()),
        ("system.slice/db.service", "db.service", ("system.slice",)),
        ("a.slice/a-b.slice/_cpu.service", "cpu.service", ("a.slice", "a.slice/a-b.slice")),
        ("kubepods/pod1", "pod1", ("kubepods",)),
    ],
)
def test_a_path_has_a_unit_at_its_end_and_slices_around_it(path: str, unit: str, around: tuple[str, ...]) -> None:
    assert (unit_in(path), slices_around(path)) == (unit, around)
