import pytest

from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.unit_cpus import UnitSyntaxError, parse_unit_cpus, unit_of

SHOWN = """\
AllowedCPUs=
Id=system.slice
LoadState=loaded

AllowedCPUs=0-3 14-15
Id=init.scope
LoadState=loaded

AllowedCPUs=
Id=gone.service
LoadState=not-found
"""
"""As systemd 252 and 257 print it: properties in their own order, ranges separated by blanks."""


def test_units_are_read() -> None:
    assert parse_unit_cpus(SHOWN) == {"system.slice": None, "init.scope": CpuSet.parse("0-3,14-15")}


@pytest.mark.parametrize(
    "text", ["", "Id=a.slice", "AllowedCPUs=x\nId=a.slice\nLoadState=loaded", "Failed\n\nto connect"]
)
def test_what_systemctl_does_not_print_is_refused(text: str) -> None:
    with pytest.raises(UnitSyntaxError, match="is not what systemctl shows of a unit"):
        parse_unit_cpus(text)


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("system.slice", "system.slice"),
        ("dev-disk\\x2done.mount", "dev-disk\\x2done.mount"),
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
