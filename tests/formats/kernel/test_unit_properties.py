"""What systemctl prints of units, and where their cgroups are or will be."""

import pytest

from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.formats.kernel.unit_properties import UnitProperties, parse_units, path_of_slice

ACTIVE = """\
Id=db.service
LoadState=loaded
ControlGroup=/system.slice/db.service
Slice=system.slice
AllowedCPUs=0-3 8 10-11
AllowedMemoryNodes=0-1 3
"""
UNKNOWN = "Id=none.service\nLoadState=not-found\nControlGroup=\nAllowedCPUs=\nAllowedMemoryNodes=\n"


def inactive(name: str, inside: str = "system.slice") -> str:
    """Where the cgroup of a unit will be that isn't active."""
    (unit,) = parse_units(f"Id={name}\nLoadState=loaded\nControlGroup=\nSlice={inside}\n")
    return unit.cgroup


def test_units_are_read_in_their_order() -> None:
    settings = UnitSettings(CpuSet.parse("0-3,8,10-11"), NumaSet.parse("0-1,3"))
    assert parse_units(f"{ACTIVE}\n{UNKNOWN}") == (
        UnitProperties("db.service", "loaded", "system.slice/db.service", settings),
        UnitProperties("none.service", "not-found", "", UnitSettings()),
    )
    assert parse_units("") == ()


@pytest.mark.parametrize(
    ("says", "is_down"),
    [
        ("ActiveState=inactive\n", True),
        ("ActiveState=failed\n", True),
        ("ActiveState=inactive\nJob=123\n", False),
        ("ActiveState=inactive\nJob=\n", True),
        ("ActiveState=activating\n", False),
        ("ActiveState=deactivating\n", False),
        ("ActiveState=active\n", False),
        ("", False),
    ],
)
def test_a_unit_is_down_that_has_ended_and_is_not_being_started(says: str, is_down: bool) -> None:
    (unit,) = parse_units(f"Id=db.service\nLoadState=loaded\n{says}")
    assert unit.is_down is is_down


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("hello\n", "missing properties: Id, LoadState", id="something else"),
        pytest.param("Id=a.service\n", "missing properties: LoadState", id="half of it"),
        pytest.param(ACTIVE.replace("0-3 8", "0-x"), "db.service has AllowedCPUs=0-x 10-11 and ", id="no CPUs"),
        pytest.param(ACTIVE.replace("0-1 3", "-1"), "AllowedMemoryNodes=-1: ", id="no memory nodes"),
        pytest.param(ACTIVE.replace("0-3 8", "0-99999999999"), "99999999999", id="more CPUs than there can be"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_units(text)


@pytest.mark.parametrize(
    ("unit", "inside", "cgroup"),
    [
        ("db.service", "system.slice", "system.slice/db.service"),
        ("db.service", "-.slice", "db.service"),
        ("db.service", "a-b.slice", "a.slice/a-b.slice/db.service"),
        ("db@1.service", "system-db.slice", "system.slice/system-db.slice/db@1.service"),
        ("cpu.service", "system.slice", "system.slice/_cpu.service"),
        ("memory.db.service", "system.slice", "system.slice/_memory.db.service"),
        ("_db.service", "system.slice", "system.slice/__db.service"),
        ("memories.service", "system.slice", "system.slice/memories.service"),
        ("a-b.slice", "a.slice", "a.slice/a-b.slice"),
        ("memory.slice", "-.slice", "_memory.slice"),
        ("db.service", "io.slice", "_io.slice/db.service"),
        ("db.service", "", ""),
    ],
)
def test_where_a_cgroup_will_be(unit: str, inside: str, cgroup: str) -> None:
    assert inactive(unit, inside) == cgroup


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("-.slice", ""),
        ("a.slice", "a.slice"),
        ("a-b-c.slice", "a.slice/a-b.slice/a-b-c.slice"),
        ("a\\x2db.slice", "a\\x2db.slice"),
    ],
)
def test_each_dash_stands_for_a_slice_around(name: str, path: str) -> None:
    assert path_of_slice(name) == path
