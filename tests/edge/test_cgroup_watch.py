"""Changes below a directory wake, on any file system that has inotify; what the agent only reads does not."""

import errno
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.edge.cgroups.cgroupfs import watch as cgroup_watch
from nodeagent.edge.cgroups.cgroupfs.watch import CgroupWatch, CgroupWatchError
from tests.support.wake_ups import Wakes


@pytest.fixture
def wakes() -> Wakes:
    return Wakes()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pods" / "poda" / "app").mkdir(parents=True)
    (tmp_path / "pods" / "poda" / "app" / "cpuset.cpus").write_text("1\n")
    return tmp_path / "pods"


@pytest.fixture
def watch(root: Path, wakes: Wakes) -> Iterator[CgroupWatch]:
    watch = CgroupWatch(str(root), wakes)
    yield watch
    watch.stop()


def test_writes_and_directories_wake_at_every_depth(root: Path, watch: CgroupWatch, wakes: Wakes) -> None:
    watch.renew()
    watch.renew()
    file = root / "poda" / "app" / "cpuset.cpus"
    assert wakes.during(lambda: file.write_text("2\n"))
    assert wakes.during((root / "podb").mkdir)
    assert wakes.during((root / "podb").rmdir)
    (root / "podc").mkdir()
    assert wakes.during((root / "podc" / "app").mkdir)


def test_other_cpus_for_a_cgroup_above_wake_and_nothing_else_there(
    root: Path, watch: CgroupWatch, wakes: Wakes
) -> None:
    above = root.parent / "cpuset.cpus"
    above.write_text("0-7\n")
    watch.renew()
    (root.parent / "cpu.weight").write_text("100\n")
    (root.parent / "other").mkdir()
    with above.open("r+b", buffering=0) as file:
        assert wakes.during(lambda: file.write(b"0-5\n"))
    assert wakes.count == 1


def test_a_units_cgroup_wakes_when_it_is_made_and_nothing_else_beside_the_pods(
    root: Path, watch: CgroupWatch, wakes: Wakes
) -> None:
    slice_ = root.parent / "system.slice"
    slice_.mkdir()
    units = [str(slice_ / "db.service"), str(root.parent / "a.slice/a-b.slice/web.service")]
    watch.renew(units)
    (slice_ / "other.service").mkdir()
    (slice_ / "cpuset.cpus").write_text("1\n")
    assert watch.take_changes() is None, "anything may have changed before"
    assert wakes.during((slice_ / "db.service").mkdir)
    assert wakes.count == 1
    assert watch.has_changes, "otherwise nobody would look"
    assert watch.take_changes()
    (slice_ / "db.service").rmdir()
    assert wakes.during((root.parent / "a.slice").mkdir), "where it will be"
    watch.renew(units)
    (root.parent / "a.slice/a-b.slice").mkdir()
    watch.renew(units)
    assert wakes.during((root.parent / "a.slice/a-b.slice/web.service").mkdir)
    assert wakes.during((slice_ / "db.service").mkdir)
    watch.renew()
    (slice_ / "db.service").rmdir()
    before = wakes.count
    (slice_ / "db.service").mkdir()
    assert wakes.during((root / "podb").mkdir)
    assert wakes.count == before + 1, "nobody stands for it any more"


def test_directories_that_are_made_while_others_are_taken_in_are_watched_once_and_all(
    root: Path, watch: CgroupWatch, wakes: Wakes
) -> None:
    watch.renew()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for number in range(2000):
            app = root / f"pod{number // 100}" / f"app{number % 100}"
            app.mkdir(parents=True, exist_ok=True)
        (app / "cpuset.cpus").write_text("1\n")
        assert wakes.during((root / "last").mkdir)  # events come in order: all of the others' are through
        assert wakes.during(lambda: (app / "cpuset.cpus").write_text("2\n"))
    assert not [str(warning.message) for warning in said]


def test_a_refused_watch_is_reported_and_tried_again(
    root: Path, watch: CgroupWatch, wakes: Wakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [errno.ENOSPC]
    kernel = cgroup_watch.add_watch

    def refusing(instance: int, path: str) -> int:
        if path.endswith("app") and refusals:
            raise OSError(refusals.pop(), "No space left on device")
        return kernel(instance, path)

    monkeypatch.setattr(cgroup_watch, "add_watch", refusing)
    with pytest.raises(CgroupWatchError, match="No space left on device"):
        watch.renew()
    watch.renew()
    assert wakes.during(lambda: (root / "poda" / "app" / "cpuset.cpus").write_text("2\n"))


def test_files_that_are_not_ours_and_readers_do_not_wake(root: Path, watch: CgroupWatch, wakes: Wakes) -> None:
    watch.renew()
    (root / "poda" / "app" / "cgroup.procs").write_text("1\n")
    (root / "poda" / "app" / "cpuset.cpus").read_text()
    # Events come in order: had these caused one, it would be counted before this one.
    assert wakes.during((root / "podb").mkdir)
    assert wakes.count == 1


def test_a_root_made_anew_is_watched_again(root: Path, watch: CgroupWatch, wakes: Wakes) -> None:
    watch.renew()
    root.rename(root.parent / "gone")
    watch.renew()
    root.mkdir()
    watch.renew()
    assert wakes.during((root / "podb").mkdir)


def test_the_end_of_the_root_wakes(tmp_path: Path, wakes: Wakes) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    watch = CgroupWatch(str(bare), wakes)
    watch.renew()
    assert wakes.during(bare.rmdir)
    watch.stop()


def test_no_root_is_no_error(tmp_path: Path, wakes: Wakes) -> None:
    watch = CgroupWatch(str(tmp_path / "none"), wakes)
    watch.renew()
    watch.stop()
    assert wakes.count == 0


def test_stopping_leaves_no_thread(root: Path, wakes: Wakes) -> None:
    before = threading.active_count()
    watch = CgroupWatch(str(root), wakes)
    watch.renew()
    watch.stop()
    watch.stop()
    assert threading.active_count() == before


def test_it_says_what_has_changed_and_holds_back_the_wakes_of_own_writes(
    root: Path, watch: CgroupWatch, wakes: Wakes
) -> None:
    assert watch.take_changes() is None, "nothing is watched yet"
    watch.renew()
    assert watch.take_changes() is None, "anything may have changed before"
    assert watch.take_changes() == frozenset()
    with watch.held():
        (root / "poda" / "app" / "cpuset.cpus").write_text("2\n")
        (root / "podb").mkdir()
        (root / "poda" / "app" / "memory.current").write_text("1\n")
        assert watch.take_changes() == {("poda/app", "cpuset.cpus"), ("podb", "")}
    assert not watch.has_changes
    (root / "podb" / "cgroup.events").write_text("populated 0\n")
    assert wakes.during(lambda: (root / "podb" / "cgroup.events").write_text("populated 1\n"))
    assert watch.take_changes() == {("podb", "cgroup.events")}


def test_what_a_full_queue_has_lost_may_be_anything(root: Path, watch: CgroupWatch, wakes: Wakes) -> None:
    watch.renew()
    watch.take_changes()
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    with watch.held():
        for number in range(most + 100):
            (root / f"pod{number % 100}").mkdir() if number % 200 < 100 else (root / f"pod{number % 100}").rmdir()
        assert watch.take_changes() is None
    assert wakes.during((root / "last").mkdir)
