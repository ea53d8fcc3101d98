"""All domains' cgroups read as one, and units written by systemd: over a real directory tree, with a systemd that writes there."""

from collections.abc import Collection
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.core.cgroups.write_order import GiveUnitBack, MakeCgroup, SetAttribute
from nodeagent.core.model.cgroup import Attribute, ObservedCgroup, UnitSettings
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.daemon.domains.all import DomainWriter, make_domains
from nodeagent.daemon.domains.systemd.unit_cgroups import UnitCgroups, read_cgroups, unit_paths
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree
from nodeagent.edge.systemd.units import UnitsError
from nodeagent.formats.kernel.unit_properties import UnitProperties
from tests.support.pods import app, pod, unit

ALL, ALL_NODES = CpuSet.parse("0-7"), NumaSet.parse("0-1")
DB = "units/podp/db.service"
WHERE = "system.slice/db.service"
OWN = CpuSet.parse("2-3")


class Systemd:
    """Knows some units. What it is told is in their cgroups, if they are active."""

    def __init__(self, mount: Path) -> None:
        self._mount = mount
        self.units: dict[str, UnitProperties] = {}
        self.shown: list[set[str]] = []
        self.told: list[tuple[str, str | None, str | None]] = []
        self.problem: UnitsError | None = None
        self.forgets = True
        """It can be told that there is no restriction."""
        self.grants: CpuSet | None = None
        """What a slice around grants of CPUs. None: all."""
        self.writes = True
        """It does what it says."""

    def know(
        self,
        name: str = "db.service",
        settings: UnitSettings = UnitSettings(),  # noqa: B008 - a frozen value
        *,
        is_down: bool = False,
        **more: str,
    ) -> None:
        fields = {"id": name, "load_state": "loaded", "cgroup": f"system.slice/{name}"} | more
        self.units[name] = UnitProperties(**fields, settings=settings, is_down=is_down)

    def show(self, names: Collection[str], /) -> dict[str, UnitProperties]:
        self.shown.append(set(names))
        if self.problem is not None:
            raise self.problem
        nothing = UnitProperties("", "not-found", "", UnitSettings(), is_down=True)
        return {name: self.units.get(name, replace(nothing, id=name)) for name in names}

    def set(self, unit: str, /, *, cpus: CpuSet | None = None, memory_nodes: NumaSet | None = None) -> None:
        if self.problem is not None:
            raise self.problem
        if not self.forgets and cpus == CpuSet():
            raise UnitsError("no", hint="wait")
        self.told.append(
            (unit, None if cpus is None else str(cpus), None if memory_nodes is None else str(memory_nodes))
        )
        known = self.units[unit]
        settings = UnitSettings(
            known.settings.allowed_cpus if cpus is None else cpus,
            known.settings.allowed_memory_nodes if memory_nodes is None else memory_nodes,
        )
        self.units[unit] = replace(known, settings=settings)
        if self.writes and (self._mount / known.cgroup).is_dir() and is_populated(self._mount / known.cgroup):
            granted = ALL if self.grants is None else self.grants
            write(
                self._mount / known.cgroup,
                settings.allowed_cpus,
                settings.allowed_memory_nodes,
                granted=settings.allowed_cpus & granted or granted,
            )


def is_populated(directory: Path) -> bool:
    return "populated 1" in (directory / "cgroup.events").read_text()


def write(
    directory: Path,
    cpus: CpuSet | None = CpuSet(),
    nodes: NumaSet = NumaSet(),
    *,
    granted: CpuSet = ALL,
    populated: bool = True,
) -> None:
    """A cgroup. Without CPUs it has no cpuset."""
    files = {"cgroup.controllers": "cpu", "cgroup.events": f"populated {int(populated)}\nfrozen 0"}
    if cpus is not None:
        files |= {
            "cgroup.controllers": "cpuset cpu",
            "cpuset.cpus": str(cpus),
            "cpuset.mems": str(nodes),
            "cpuset.cpus.effective": str(granted),
            "cpuset.mems.effective": str(nodes or ALL_NODES),
        }
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(f"{text}\n")


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """All cgroups: the host's, the pods' one, and one unit's."""
    root = tmp_path / "cgroup"
    write(root)
    write(root / "pods", populated=False)
    (root / "pods/cgroup.controllers").write_text("cpuset cpu memory\n")
    write(root / "system.slice")
    write(root / WHERE)
    return root


@pytest.fixture
def systemd(mount: Path) -> Systemd:
    made = Systemd(mount)
    made.know()
    return made


@pytest.fixture
def domains(mount: Path, systemd: Systemd) -> UnitCgroups:
    return UnitCgroups(CgroupTree(str(mount / "pods")), systemd, mount)


def read(domains: UnitCgroups, *paths: str, rescan: bool = True) -> dict[str, ObservedCgroup]:
    return {path: seen for path, seen in domains.read({*(paths or (DB,))}, rescan=rescan).items() if "units" in path}


def set_cpus(cpus: CpuSet = OWN) -> SetAttribute:
    return SetAttribute(DB, Attribute.CPUSET_CPUS, cpus, None)


def cpus_in(mount: Path) -> str:
    return (mount / WHERE / "cpuset.cpus").read_text().strip()


# Reading


def test_what_stands_for_the_units_of_pods() -> None:
    pods = (pod("p", unit(), unit("web@1.service"), uid="p"), pod("q", app(), uid="q"))
    assert unit_paths(pods) == {DB, "units/podp/web@1.service"}


def test_pods_own_cgroups_and_units_are_read_as_one(domains: UnitCgroups, mount: Path) -> None:
    tree = CgroupTree(str(mount / "pods"))
    assert read_cgroups(tree, domains, (pod("p", unit(), uid="p"),)).keys() == {"", DB}
    assert domains.unit_cgroups == {"db.service": WHERE}


def test_an_active_unit_is_as_its_cgroup_is(domains: UnitCgroups, systemd: Systemd, mount: Path) -> None:
    systemd.know(settings=UnitSettings(OWN))
    write(mount / WHERE, CpuSet.parse("5"), granted=CpuSet.parse("5"))
    seen = read(domains)[DB]
    assert seen.attributes == ((Attribute.CPUSET_CPUS, CpuSet.parse("5")),), "whatever systemd was told"
    assert (seen.path, seen.cpus_effective, seen.mems_effective) == (DB, CpuSet.parse("5"), ALL_NODES)
    assert (seen.is_populated, seen.unit) == (True, UnitSettings(OWN))


def test_a_unit_whose_cpuset_is_not_managed_runs_where_the_slice_around_it_lets_it(
    domains: UnitCgroups, mount: Path
) -> None:
    write(mount / WHERE, None)
    for name in ("cpuset.cpus", "cpuset.mems", "cpuset.cpus.effective", "cpuset.mems.effective"):
        (mount / WHERE / name).unlink()
    write(mount / "system.slice", granted=CpuSet.parse("0-5"))
    seen = read(domains)[DB]
    assert (seen.attributes, seen.cpus_effective) == ((), CpuSet.parse("0-5"))


@pytest.mark.parametrize(
    ("cgroup", "told", "around", "cpus"),
    [
        pytest.param("system.slice/idle.service", OWN, "0-7", "2-3", id="what systemd was told"),
        pytest.param("system.slice/idle.service", OWN, "3-7", "3", id="what the slice grants of it"),
        pytest.param("system.slice/idle.service", OWN, "4-7", "4-7", id="the slice grants nothing of it"),
        pytest.param("system.slice/idle.service", CpuSet(), "0-5", "0-5", id="no restriction: the slice's"),
        pytest.param("a.slice/a-b.slice/idle.service", CpuSet(), "0-5", "0-7", id="no slice is there yet"),
    ],
)
def test_a_unit_that_is_not_active_has_what_it_will_have_once_it_starts(
    domains: UnitCgroups, systemd: Systemd, mount: Path, cgroup: str, told: CpuSet, around: str, cpus: str
) -> None:
    write(mount / "system.slice", granted=CpuSet.parse(around))
    systemd.know("idle.service", UnitSettings(told), cgroup=cgroup)
    seen = read(domains, "units/podp/idle.service")["units/podp/idle.service"]
    assert seen.attributes == (((Attribute.CPUSET_CPUS, told),) if told else ())
    assert (seen.cpus_effective, seen.is_populated) == (CpuSet.parse(cpus), False)
    assert (seen.unit, domains.last_read.unknown) == (UnitSettings(told), ())


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        pytest.param(
            {"load_state": "not-found"},
            "unit db.service is not-found: it gets its CPUs once systemd knows it (`systemctl status db.service`)",
            id="unknown",
        ),
        pytest.param({"load_state": "masked"}, "unit db.service is masked: ", id="masked"),
        pytest.param(
            {"id": "postgres.service"},
            "unit db.service is another name of postgres.service: pin that one",
            id="an alias",
        ),
        pytest.param({"cgroup": ""}, "unit db.service has no cgroup: ", id="a kind without"),
    ],
)
def test_a_unit_that_cannot_be_moved_is_told_of_and_not_there(
    domains: UnitCgroups, systemd: Systemd, more: dict[str, str], problem: str
) -> None:
    systemd.know(**more)
    # while its processes run, it is where they are
    assert read(domains).keys() == ({DB} if "load_state" in more else set())
    systemd.know(**{"cgroup": "system.slice/none.service"} | more)
    assert read(domains) == {}
    (unknown,) = domains.last_read.unknown
    assert unknown.path == DB
    assert unknown.problem.startswith(problem)


def test_systemd_is_asked_again_only_when_all_is_or_about_a_new_unit(domains: UnitCgroups, systemd: Systemd) -> None:
    systemd.know("web.service")
    read(domains)
    read(domains, rescan=False)
    assert systemd.shown == [{"db.service"}]
    read(domains, DB, "units/podq/web.service", rescan=False)
    assert systemd.shown[1:] == [{"db.service", "web.service"}]
    read(domains, rescan=True)
    assert systemd.shown[2:] == [{"db.service"}]


def test_without_units_systemd_is_not_asked(domains: UnitCgroups, systemd: Systemd) -> None:
    domains.read(frozenset())
    assert systemd.shown == []


def hang(systemd: Systemd) -> None:
    systemd.problem = UnitsError("systemd has not answered for 5 s", hint="see `systemctl status`")


def test_while_systemd_does_not_answer_what_it_said_before_counts_and_cgroups_are_read(
    domains: UnitCgroups, systemd: Systemd, mount: Path
) -> None:
    read(domains)
    hang(systemd)
    write(mount / WHERE, OWN, granted=OWN)
    assert read(domains)[DB].cpus_effective == OWN
    assert (domains.last_read.unknown, domains.last_read.unanswered) == (
        (),
        "systemd has not answered for 5 s (see `systemctl status`)",
    )


def test_of_whom_systemd_has_said_nothing_may_be_anywhere_and_is_not_written_to(
    domains: UnitCgroups, systemd: Systemd
) -> None:
    """It is no unit that isn't there: what was pinned before a restart still has its CPUs."""
    hang(systemd)
    seen = read(domains)[DB]
    assert (seen.cpus_effective, seen.is_populated, seen.unit, seen.attributes) == (ALL, True, None, ())
    assert [one.problem for one in domains.last_read.unknown] == [domains.last_read.unanswered]
    systemd.problem = None
    for change in (set_cpus(), GiveUnitBack(DB, UnitSettings())):
        with pytest.raises(CgroupError, match="systemd has not answered"):
            domains.apply(change)
    assert systemd.told == []
    assert read(domains, rescan=False)[DB].unit == UnitSettings(), "it is asked once more at the next look"


IDLE = "units/podp/idle.service"


def test_a_unit_is_down_if_systemd_says_so_and_nothing_of_it_is_there(
    domains: UnitCgroups, systemd: Systemd, mount: Path
) -> None:
    systemd.know("idle.service", is_down=True)
    read(domains, IDLE, "units/podp/later.service")
    assert domains.last_read.down == {IDLE, "units/podp/later.service"}, "also one that systemd doesn't know"
    write(mount / "system.slice/idle.service", populated=False)
    asked = len(systemd.shown)
    read(domains, IDLE, rescan=False)
    assert (domains.last_read.down, len(systemd.shown)) == ({IDLE}, asked + 1), "its cgroup is made before it starts"
    write(mount / "system.slice/idle.service")
    hang(systemd)
    read(domains, IDLE, rescan=False)
    assert domains.last_read.down == frozenset(), "it has been started since"
    systemd.problem = None
    systemd.know("idle.service")
    read(domains, IDLE)
    (mount / "system.slice/idle.service/cgroup.controllers").unlink()
    read(domains, IDLE, rescan=False)
    assert domains.last_read.down == frozenset(), "it has ended, and systemd may be about to start it again"


def test_nothing_is_down_of_which_systemd_has_said_nothing(domains: UnitCgroups, systemd: Systemd) -> None:
    systemd.know("idle.service", is_down=True)
    hang(systemd)
    read(domains, IDLE)
    assert domains.last_read.down == frozenset()
    systemd.problem = None
    read(domains, IDLE)
    hang(systemd)
    read(domains, IDLE)
    assert domains.last_read.down == {IDLE}


# Writing


def test_each_cgroup_is_written_by_the_one_domain_that_owns_it(mount: Path, systemd: Systemd) -> None:
    of_node = make_domains(Config(), CgroupTree(str(mount / "pods")), systemd=systemd)
    owners = [[domain.name for domain in of_node if domain.owns(path)] for path in ("pod1", "pod1/app", DB)]
    assert owners == [["own"], ["own"], ["systemd"]]
    DomainWriter(of_node).apply(MakeCgroup("pod1"))
    assert (mount / "pods/pod1").is_dir()
    assert systemd.told == []


def test_cpus_and_memory_nodes_are_set_one_by_one(domains: UnitCgroups, systemd: Systemd, mount: Path) -> None:
    read(domains)
    domains.apply(set_cpus())
    domains.apply(SetAttribute(DB, Attribute.CPUSET_MEMS, NumaSet.of(1), None))
    assert systemd.told == [("db.service", "2-3", None), ("db.service", None, "1")]
    seen = read(domains, rescan=False)[DB]
    assert (cpus_in(mount), seen.unit) == ("2-3", UnitSettings(OWN, NumaSet.of(1)))


def test_a_unit_that_is_not_active_is_told_too(domains: UnitCgroups, systemd: Systemd) -> None:
    systemd.know("idle.service")
    idle = "units/podp/idle.service"
    read(domains, idle)
    domains.apply(SetAttribute(idle, Attribute.CPUSET_CPUS, OWN, None))
    assert read(domains, idle, rescan=False)[idle].get(Attribute.CPUSET_CPUS) == OWN


def test_in_a_cgroup_without_processes_what_systemd_was_told_counts(
    domains: UnitCgroups, systemd: Systemd, mount: Path
) -> None:
    """It may be there before or after the unit is active, with the controller cpuset or without."""
    write(mount / WHERE, None, populated=False)
    for name in ("cpuset.cpus", "cpuset.mems", "cpuset.cpus.effective", "cpuset.mems.effective"):
        (mount / WHERE / name).unlink()
    read(domains)
    domains.apply(set_cpus())
    assert not (mount / WHERE / "cpuset.cpus").exists()
    seen = read(domains, rescan=False)[DB]
    assert (seen.get(Attribute.CPUSET_CPUS), seen.cpus_effective, seen.is_populated) == (OWN, OWN, False)


def test_what_a_slice_around_it_does_not_grant_is_an_error(domains: UnitCgroups, systemd: Systemd, mount: Path) -> None:
    domains.patience_seconds = 0.0
    read(domains)
    systemd.grants = CpuSet.parse("0-2")
    with pytest.raises(CgroupError) as caught:
        domains.apply(set_cpus())
    assert caught.value.message == f"{mount / WHERE}/cpuset.cpus.effective is '2', but should be '2-3'"
    assert "a slice that contains the unit grants less" in caught.value.hint


@pytest.mark.parametrize("is_active", [True, False])
def test_where_a_slice_around_it_grants_nothing_of_it_systemd_is_not_told(
    domains: UnitCgroups, systemd: Systemd, mount: Path, *, is_active: bool
) -> None:
    """The kernel would give it what the slice has: others' CPUs."""
    domains.patience_seconds = 0.0
    write(mount / WHERE, populated=is_active)
    write(mount / "system.slice", granted=CpuSet.parse("0-1"))
    read(domains)
    for patience in (0.0, 3600.0):
        domains.patience_seconds = patience
        with pytest.raises(CgroupError) as caught:
            domains.apply(set_cpus())
        assert caught.value.message == f"{mount}/system.slice/cpuset.cpus.effective is '0-1', but should be '2-3'"
        assert systemd.told == []
    write(mount / "system.slice")
    domains.apply(set_cpus())
    assert systemd.told == [("db.service", "2-3", None)]


def test_a_refusal_of_systemds_fails_the_change(domains: UnitCgroups, systemd: Systemd) -> None:
    read(domains)
    systemd.problem = UnitsError("cannot set AllowedCPUs=2-3 of db.service: no", hint="systemctl status")
    with pytest.raises(CgroupError, match="cannot set AllowedCPUs=2-3") as caught:
        domains.apply(set_cpus())
    assert (caught.value.path, caught.value.hint) == (DB, "systemctl status")


@pytest.mark.parametrize(
    ("before", "told"),
    [
        pytest.param(UnitSettings(CpuSet.parse("0-3"), NumaSet.of(0)), [("0-3", "0")], id="restrictions come back"),
        pytest.param(UnitSettings(CpuSet.parse("0-3")), [("0-3", "0-1"), (None, "")], id="CPUs alone"),
        pytest.param(UnitSettings(OWN, NumaSet.of(0)), [(None, "0")], id="only what differs"),
    ],
)
def test_it_is_given_back_with_what_it_had(
    domains: UnitCgroups, systemd: Systemd, before: UnitSettings, told: list[tuple[str | None, str | None]]
) -> None:
    systemd.know(settings=UnitSettings(OWN, NumaSet.of(1)))
    read(domains)
    domains.apply(GiveUnitBack(DB, before))
    assert [(cpus, nodes) for _, cpus, nodes in systemd.told] == told
    assert read(domains, rescan=False)[DB].unit == systemd.units["db.service"].settings == before


def test_without_a_restriction_before_it_has_everything_and_then_none(
    domains: UnitCgroups, systemd: Systemd, mount: Path
) -> None:
    """systemd leaves a running unit what it has when it forgets that (#43846)."""
    systemd.know(settings=UnitSettings(OWN))
    read(domains)
    domains.apply(GiveUnitBack(DB, UnitSettings()))
    possible = Path("/sys/devices/system/cpu/possible").read_text(encoding="ascii").strip()
    assert systemd.told == [("db.service", possible, None), ("db.service", "", None)]
    assert read(domains)[DB].unit == UnitSettings()
    assert cpus_in(mount) == ""


def test_it_is_given_back_once_the_kernel_has_it_whatever_systemd_says(
    domains: UnitCgroups, systemd: Systemd, mount: Path
) -> None:
    domains.patience_seconds = 0.0
    systemd.know(settings=UnitSettings(OWN))
    write(mount / WHERE, OWN, granted=OWN)
    read(domains)
    systemd.writes = False
    with pytest.raises(CgroupError) as caught:
        domains.apply(GiveUnitBack(DB, UnitSettings()))
    assert caught.value.message.startswith(f"{mount / WHERE}/cpuset.cpus is '2-3', but should be '")
    assert "AllowedCPUs,AllowedMemoryNodes db.service" in caught.value.hint
    assert read(domains)[DB].unit not in {UnitSettings(), UnitSettings(OWN)}, "so that it is tried again"
    systemd.writes = True
    domains.apply(GiveUnitBack(DB, UnitSettings()))
    assert read(domains)[DB].unit == UnitSettings()


def test_half_given_back_is_not_given_back(domains: UnitCgroups, systemd: Systemd) -> None:
    systemd.know(settings=UnitSettings(OWN))
    read(domains)
    systemd.forgets = False
    with pytest.raises(CgroupError):
        domains.apply(GiveUnitBack(DB, UnitSettings()))
    assert read(domains, rescan=False)[DB].unit not in {UnitSettings(), UnitSettings(OWN)}
    systemd.forgets = True
    domains.apply(GiveUnitBack(DB, UnitSettings()))
    assert read(domains)[DB].unit == UnitSettings()
