"""The files of partitions, in directories of ordinary files: what is read where, who writes, and what the kernel's answer is told as."""

from pathlib import Path

import pytest

from nodeagent.core.cgroups.write_failures import WriteFailure
from nodeagent.core.cgroups.write_order import RemoveCgroup, SetAttribute
from nodeagent.core.model.cgroup import MEMBER, Attribute, Partition, PartitionKind
from nodeagent.core.model.cgroup_layout import ABOVE
from nodeagent.core.model.idset import CpuSet
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree
from nodeagent.errors import NodeAgentError

EXCLUSIVE, PARTITION = Attribute.CPUSET_CPUS_EXCLUSIVE, Attribute.CPUSET_CPUS_PARTITION
ROOT = Partition(PartitionKind.ROOT)


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    """The pods' cgroup, two below the root of all, with one pod."""
    root = tmp_path / "cgroup" / "some.slice" / "pods.service"
    pod = root / "pod1"
    pod.mkdir(parents=True)
    for directory in (pod, *list(pod.parents)[:3]):
        (directory / "cgroup.controllers").write_text("cpuset\n")
        if directory.name != "cgroup":
            (directory / EXCLUSIVE.value).write_text("2-3\n" if directory.name == "some.slice" else "\n")
            (directory / PARTITION.value).write_text("member\n")
    return root


def test_none_above_can_be_removed(pods: Path) -> None:
    with pytest.raises(AssertionError, match="is not ours"):
        CgroupTree(str(pods)).apply(RemoveCgroup(ABOVE))


def begin(path: str) -> SetAttribute:
    return SetAttribute(path, PARTITION, ROOT, MEMBER)


def test_of_those_above_only_what_is_handed_down_is_read(pods: Path) -> None:
    tree = CgroupTree(str(pods))
    found, above = tree.read(frozenset()), tree.read_above()
    assert (sorted(found), sorted(above)) == (["", "pod1"], [ABOVE])
    assert above[ABOVE].attributes == ((EXCLUSIVE, CpuSet.of(2, 3)),)
    assert found["pod1"].get(PARTITION) == MEMBER


def test_an_older_kernel_has_nothing_above(pods: Path) -> None:
    (pods.parent / EXCLUSIVE.value).unlink()
    assert CgroupTree(str(pods)).read_above() == {}


def test_cpus_are_handed_down_and_withdrawn(pods: Path) -> None:
    tree = CgroupTree(str(pods))
    tree.apply(SetAttribute(ABOVE, EXCLUSIVE, CpuSet.of(4), CpuSet.of(2, 3)))
    assert (pods.parent / EXCLUSIVE.value).read_text().splitlines()[0].startswith("4")
    tree.apply(SetAttribute("", EXCLUSIVE, CpuSet(), CpuSet.of(2)))
    assert (pods / EXCLUSIVE.value).read_text() == "\n"


def test_a_pod_s_cpus_that_partitions_below_it_have_are_not_missing(pods: Path) -> None:
    tree, pod = CgroupTree(str(pods)), pods / "pod1"
    (pod / "cpuset.cpus").write_text("0,2-3\n")
    (pod / EXCLUSIVE.value).write_text("3\n")
    wider = SetAttribute("pod1", Attribute.CPUSET_CPUS, CpuSet.parse("0,2-4"), CpuSet.parse("0,2-3"))
    (pod / "cpuset.cpus.effective").write_text("0,2,4\n")
    tree.apply(wider)
    (pod / "cpuset.cpus.effective").write_text("0,2\n")
    with pytest.raises(CgroupError, match="should be '0,2-4'"):
        tree.apply(wider)
    (pod / PARTITION.value).write_text("root\n")
    (pod / "cpuset.cpus.effective").write_text("0,2,4\n")
    with pytest.raises(CgroupError, match="is '0,2,4', but should be '3'"):
        tree.apply(wider)


def test_of_a_partition_only_its_own_cpus_are_effective(pods: Path) -> None:
    tree, pod = CgroupTree(str(pods)), pods / "pod1"
    (pod / "cpuset.cpus").write_text("0,2-3\n")
    (pod / EXCLUSIVE.value).write_text("2-3\n")
    (pod / "cpuset.cpus.effective").write_text("2-3\n")
    grown_pool = SetAttribute("pod1", Attribute.CPUSET_CPUS, CpuSet.parse("0-4"), CpuSet.parse("0,2-3"))
    with pytest.raises(CgroupError, match="is '2-3', but should be '0-4'"):
        tree.apply(grown_pool)
    (pod / PARTITION.value).write_text("root\n")
    tree.apply(grown_pool)
    assert (pod / "cpuset.cpus").read_text().startswith("0-4")


def test_a_partition_begins_by_whoever_has_the_right_and_ends_by_us(pods: Path) -> None:
    asked: list[tuple[Path, str]] = []

    def begun(cgroup: Path, kind: str) -> None:
        asked.append((cgroup, kind))
        (cgroup / PARTITION.value).write_text(kind + "\n")

    tree = CgroupTree(str(pods), begun)
    tree.apply(begin("pod1"))
    assert asked == [(pods / "pod1", "root")]
    (pods / "pod1" / PARTITION.value).write_text("")
    tree.apply(SetAttribute("pod1", PARTITION, MEMBER, ROOT))
    assert (pods / "pod1" / PARTITION.value).read_text() == "member"
    assert len(asked) == 1


def test_one_that_the_kernel_does_not_grant_is_an_error_with_its_reason(pods: Path) -> None:
    reason = "root invalid (Enable partition not permitted)"
    tree = CgroupTree(str(pods), lambda cgroup, _kind: (cgroup / PARTITION.value).write_text(reason + "\n") and None)
    with pytest.raises(CgroupError) as caught:
        tree.apply(begin("pod1"))
    assert reason in caught.value.message
    assert caught.value.failure is WriteFailure.REFUSED, "no second attempt within a second"


def test_without_the_launcher_it_is_tried_again(pods: Path) -> None:
    def fail(_cgroup: Path, _kind: str) -> None:
        raise NodeAgentError("cannot talk to the launcher", hint="start it")

    with pytest.raises(CgroupError) as caught:
        CgroupTree(str(pods), fail).apply(begin("pod1"))
    assert (caught.value.message, caught.value.hint) == ("cannot talk to the launcher", "start it")
    assert caught.value.failure is WriteFailure.RETRY
