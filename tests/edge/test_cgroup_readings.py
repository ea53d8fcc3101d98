"""What is kept of earlier readings is what a reading of everything finds, whatever has changed in between and is told."""

from collections.abc import Set as AbstractSet

from hypothesis import given
from hypothesis.strategies import DataObject, data, integers, sampled_from, sets

from nodeagent.core.model.cgroup import MEMBER, Attribute, ObservedCgroup, Partition, PartitionKind
from nodeagent.core.model.cgroup_layout import OWN_DIRECTORIES, PAYLOAD, POOL, POOL_PAYLOAD, SHARED
from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.cgroups.cgroupfs.readings import SUBTREE_CONTROL, CgroupReadings

CPUS = CpuSet.of(*range(8))
PATHS = (
    "podA",
    "podA/app",
    "podA/side",
    "burstable/podB",
    "burstable/podB/app",
    "besteffort/podC",
    "foreign",
    "podA/app/deep",
)
"""Two of them aren't managed."""
ISOLATED = Partition(PartitionKind.ISOLATED)


class Kernel:
    """Cgroups that list CPUs, and partitions that take theirs from all others. Only what is done to a cgroup is told."""

    def __init__(self) -> None:
        self.listed = {"": CpuSet(), "burstable": CpuSet(), "besteffort": CpuSet()}
        self.partitions: set[str] = set()
        self.without_cpuset = "nowhere"
        """Cgroup below which no cgroup has a cpuset."""
        self.lists_read: dict[str, CpuSet] = {}
        """CPUs of each cgroup's `cpuset.cpus` as of its last reading."""
        self.reads: list[str] = []
        self.lists: list[str] = []
        self.readings = CgroupReadings(self.read, self.list_children)

    def list_children(self, path: str) -> list[str]:
        self.lists.append(path)
        start = f"{path}/" if path else ""
        return [name for p in self.listed if p.startswith(start) and (name := p[len(start) :]) and "/" not in name]

    def effective(self, path: str) -> CpuSet:
        if path in self.partitions:
            return self.listed[path]
        above = self.effective(path.rpartition("/")[0]) if path else CPUS
        for other in self.partitions:
            if other != path and not path.startswith(f"{other}/"):
                above -= self.listed[other]
        return self.listed[path] & above or above

    def read(self, path: str, changed: AbstractSet[str] | None = None) -> ObservedCgroup | None:
        self.reads.append(path)
        if path not in self.listed:
            return None
        if changed is None or Attribute.CPUSET_CPUS.value in changed:
            self.lists_read[path] = self.listed[path]
        kind = ISOLATED if path in self.partitions else MEMBER
        attributes = ((Attribute.CPUSET_CPUS, self.lists_read[path]), (Attribute.CPUSET_CPUS_PARTITION, kind))
        cpus = None if path.startswith(f"{self.without_cpuset}/") else self.effective(path)
        return ObservedCgroup(
            path, frozenset(), frozenset(), attributes if cpus else (), cpus, None, is_populated=False, is_frozen=False
        )

    def do(self, draw: DataObject) -> None:
        path = draw.draw(sampled_from(PATHS))
        above = path.rpartition("/")[0]
        if path not in self.listed:
            if above in self.listed:
                self.listed[path] = CpuSet()
                self.readings.doubt(path)
            return
        match draw.draw(sampled_from(("list", "begin", "end", "remove"))):
            case "list":
                cpus = draw.draw(sets(integers(0, 7)))
                if path not in self.partitions or cpus:
                    self.listed[path] = CpuSet.of(*cpus)
                    self.readings.doubt(path, Attribute.CPUSET_CPUS.value)
            case "begin" if self.listed[path]:
                self.partitions.add(path)
                self.readings.doubt(path, Attribute.CPUSET_CPUS_PARTITION.value)
            case "end" if path in self.partitions:
                self.partitions.remove(path)
                self.readings.doubt(path, Attribute.CPUSET_CPUS_PARTITION.value)
            case "remove":
                for other in [p for p in self.listed if p == path or p.startswith(f"{path}/")]:
                    if other in self.partitions:
                        self.partitions.remove(other)
                        self.readings.doubt(other, Attribute.CPUSET_CPUS_PARTITION.value)
                    del self.listed[other]
                    self.readings.doubt(other)

    def find_managed(self) -> dict[str, ObservedCgroup]:
        found = {path: self.read(path) for path in self.listed if path not in {"foreign", "podA/app/deep"}}
        return {path: cgroup for path, cgroup in found.items() if cgroup is not None}


@given(data())
def test_what_is_told_is_enough(draw: DataObject) -> None:
    kernel = Kernel()
    for _ in range(draw.draw(integers(1, 12))):
        for _ in range(draw.draw(integers(0, 4))):
            kernel.do(draw)
        assert dict(kernel.readings.refresh(OWN_DIRECTORIES, 0.0)) == kernel.find_managed()


def test_a_partition_that_is_not_managed_takes_its_cpus_from_all_when_they_change() -> None:
    kernel = Kernel()
    kernel.listed["foreign"], kernel.partitions = CpuSet.of(0), {"foreign"}
    kernel.readings.refresh(OWN_DIRECTORIES, 0.0)
    kernel.listed["foreign"] = CpuSet.of(1)
    kernel.readings.doubt("foreign", Attribute.CPUSET_CPUS.value)
    assert dict(kernel.readings.refresh(OWN_DIRECTORIES, 0.0)) == kernel.find_managed()


def make_pods(count: int) -> Kernel:
    kernel = Kernel()
    for number in range(count):
        kernel.listed |= {f"pod{number}": CPUS, f"pod{number}/app": CPUS}
    kernel.readings.refresh(OWN_DIRECTORIES, 0.0)
    kernel.reads.clear()
    return kernel


def test_nothing_is_read_and_the_same_comes_back_if_nothing_has_changed() -> None:
    kernel = make_pods(3)
    before = kernel.readings.refresh(OWN_DIRECTORIES, 0.0)
    kernel.readings.doubt("pod1/app", Attribute.CPU_WEIGHT.value)
    assert kernel.readings.refresh(OWN_DIRECTORIES, 0.0) is before
    assert kernel.reads == ["pod1/app"]


def test_a_change_costs_the_same_beside_any_number_of_pods() -> None:
    costs = []
    for count in (4, 40):
        kernel = make_pods(count)
        kernel.listed["pod1"] = CpuSet.of(1)
        kernel.readings.doubt("pod1", Attribute.CPUSET_CPUS.value)
        kernel.readings.doubt(f"pod2/app/{PAYLOAD}", "cgroup.events")
        kernel.readings.refresh(OWN_DIRECTORIES, 0.0)
        costs.append(sorted(set(kernel.reads)))
    assert costs == [["pod1", "pod1/app", "pod2/app"]] * 2


def test_each_cgroup_of_a_new_pod_is_read_once() -> None:
    for told in (("podN", "podN/a", "podN/b"), ("podN/b", "podN/a", "podN")):
        kernel = make_pods(2)
        kernel.listed |= dict.fromkeys(("podN", "podN/a", "podN/b"), CPUS)
        for path in told:
            kernel.readings.doubt(path)
        kernel.readings.refresh(OWN_DIRECTORIES, 0.0)
        assert sorted(kernel.reads) == ["podN", "podN/a", "podN/b"]


def test_a_change_of_the_pool_is_read_at_the_pool_alone() -> None:
    """The cgroups below its payload have no cpuset."""
    below = f"{POOL_PAYLOAD}/burstable/podS"
    kernel = make_pods(2)
    kernel.listed |= dict.fromkeys(
        (SHARED, POOL, POOL_PAYLOAD, f"{POOL_PAYLOAD}/burstable", below, f"{below}/app"), CPUS
    )
    kernel.without_cpuset = POOL_PAYLOAD
    kernel.readings.doubt(SHARED)
    assert f"{below}/app" in kernel.readings.refresh(OWN_DIRECTORIES, 0.0)
    kernel.reads.clear()
    kernel.listed[POOL] = CpuSet.of(1)
    kernel.readings.doubt(POOL, Attribute.CPUSET_CPUS.value)
    kernel.readings.doubt(POOL_PAYLOAD, Attribute.CPUSET_CPUS.value)
    assert kernel.readings.refresh(OWN_DIRECTORIES, 0.0)[POOL].cpus_effective == CpuSet.of(1)
    assert set(kernel.reads) == {POOL, POOL_PAYLOAD}
    kernel.reads.clear()
    kernel.readings.doubt(POOL_PAYLOAD, SUBTREE_CONTROL)
    kernel.readings.refresh(OWN_DIRECTORIES, 0.0)
    assert f"{below}/app" in kernel.reads


def test_a_new_controller_changes_the_files_below() -> None:
    kernel = make_pods(2)
    kernel.readings.doubt("pod1", SUBTREE_CONTROL)
    kernel.readings.refresh(OWN_DIRECTORIES, 0.0)
    assert set(kernel.reads) == {"pod1", "pod1/app"}


def test_each_cgroup_has_its_look_in_time() -> None:
    kernel = make_pods(10)
    everything = {"", "burstable", "besteffort", *(f"pod{n}" for n in range(10)), *(f"pod{n}/app" for n in range(10))}
    for _ in range(2):
        for _ in range(10):
            kernel.readings.refresh(OWN_DIRECTORIES, 0.1)
        assert set(kernel.reads) == everything
        assert len(kernel.reads) <= 10 * 3
        kernel.reads.clear()


def test_no_cgroup_is_listed_twice_in_one_refresh() -> None:
    kernel = make_pods(3)
    assert sorted(kernel.lists) == ["", "besteffort", "burstable", "pod0", "pod1", "pod2"]


def test_doubts_of_single_cgroups_add_nothing_to_a_reading_of_all() -> None:
    kernel = Kernel()
    kernel.listed |= {"pod0": CPUS, "pod0/app": CPUS}
    kernel.readings.doubt("pod0/app", "memory.events")
    assert dict(kernel.readings.refresh(OWN_DIRECTORIES, 0.0)).keys() == kernel.listed.keys()
    assert sorted(kernel.lists) == ["", "besteffort", "burstable", "pod0"]
    assert sorted(kernel.reads) == sorted(kernel.listed)


def test_everything_is_read_after_a_doubt_of_all() -> None:
    kernel = make_pods(2)
    kernel.listed["pod7"] = CPUS
    kernel.readings.doubt_all()
    assert "pod7" in kernel.readings.refresh(OWN_DIRECTORIES, 0.0)
