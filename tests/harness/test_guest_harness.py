"""The guests' host side, without a guest: what goes to QEMU, cache keys, frames. Guests prove the rest."""

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from integration.demo import print_moved
from integration.guest import apt, cache, initrd, phases, settings
from integration.guest.errors import CommandError, GuestDiedError, GuestTimeoutError
from integration.guest.guest import Guest
from integration.guest.machine import FOUR_CACHES, FOUR_NODES, MACHINES, TWO_SOCKETS, HugePages, Machine, Node
from integration.guest.protocol import SYNC, Frames, FramingError, Kind, frame
from integration.guest.session import Session


def numa(machine: Machine) -> list[str]:
    arguments = machine.qemu_arguments()
    return [value for option, value in itertools.pairwise(arguments) if option == "-numa"]


def test_two_sockets_are_the_arguments_of_the_design() -> None:
    arguments = TWO_SOCKETS.qemu_arguments()
    assert arguments[:4] == (
        "-cpu",
        "max,vendor=GenuineIntel,-cx16,-erms,-fsrm,-avx,-avx2,level=13",
        "-smp",
        "16,sockets=2,dies=1,cores=4,threads=2",
    )
    assert arguments[4:6] == ("-m", "2048M")
    assert numa(TWO_SOCKETS) == [
        "node,nodeid=0,memdev=memory0,cpus=0-7",
        "node,nodeid=1,memdev=memory1,cpus=8-15",
        "dist,src=0,dst=0,val=10",
        "dist,src=0,dst=1,val=21",
        "dist,src=1,dst=0,val=21",
        "dist,src=1,dst=1,val=10",
    ]


def test_one_node_has_no_distances() -> None:
    assert numa(FOUR_CACHES) == ["node,nodeid=0,memdev=memory0,cpus=0-15"]
    assert "16,sockets=1,dies=4,cores=2,threads=2" in FOUR_CACHES.qemu_arguments()


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_presets_have_sixteen_cpus_each_in_one_node_and_symmetric_distances(machine: Machine) -> None:
    assert machine.cpu_count == 16
    ranges = [tuple(map(int, node.cpus.split("-"))) for node in machine.nodes]
    assert [cpu for first, last in ranges for cpu in range(first, last + 1)] == list(range(16))
    assert machine.distances == tuple(zip(*machine.distances, strict=True))


def test_four_nodes_are_not_all_equally_far() -> None:
    assert len({distance for row in FOUR_NODES.distances for distance in row}) == 4


def test_a_node_may_have_only_memory() -> None:
    nodes = (Node("0-15", 512), Node("", 256))
    machine = replace(TWO_SOCKETS, nodes=nodes)
    assert "node,nodeid=1,memdev=memory1" in numa(machine)


def test_huge_pages_are_asked_for_on_each_node() -> None:
    machine = replace(TWO_SOCKETS, huge_pages=(HugePages("2M", (16, 8)), HugePages("1G", (0, 1))))
    assert machine.kernel_arguments() == ("hugepagesz=2M", "hugepages=0:16,1:8", "hugepagesz=1G", "hugepages=0:0,1:1")


@pytest.mark.parametrize(
    "change",
    [
        {"distances": ((10,),)},
        {"distances": ((10, 21), (21,))},
        {"distances": ((10, 21), (21, 11))},
        {"huge_pages": (HugePages("2M", (1,)),)},
    ],
    ids=["a row missing", "a column missing", "not 10 to itself", "huge pages of a node missing"],
)
def test_a_machine_that_contradicts_itself_is_a_bug(change: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        replace(TWO_SOCKETS, **change)


def test_keys_tell_parts_apart() -> None:
    keys = [cache.content_key(parts) for parts in (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], [])]
    assert len(set(keys)) == len(keys)
    assert cache.content_key(["é"]) == cache.content_key(["é".encode()])


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NODEAGENT_CACHE", str(tmp_path))
    return tmp_path


def test_an_entry_appears_when_it_is_complete(directory: Path) -> None:
    entry = directory / "entry"
    with cache.building(entry) as unfinished:
        (unfinished / "file").write_text("x")
        assert not entry.exists()
    assert (entry / "file").read_text() == "x"


def test_an_interrupted_build_leaves_nothing(directory: Path) -> None:
    def build() -> None:
        with cache.building(directory / "entry") as unfinished:
            (unfinished / "file").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build()
    assert list(directory.iterdir()) == []


def test_a_killed_build_is_begun_anew(directory: Path) -> None:
    (directory / "entry.unfinished").mkdir()
    (directory / "entry.unfinished" / "half").write_text("x")
    with cache.building(directory / "entry"):
        pass
    assert list((directory / "entry").iterdir()) == []


def test_what_is_built_is_readable_whatever_the_umask(directory: Path) -> None:
    before = os.umask(0o077)
    try:
        with cache.building(directory / "entry") as unfinished:
            (unfinished / "file").write_text("x")
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    assert (directory / "entry").stat().st_mode & 0o777 == 0o755
    assert (directory / "entry" / "file").stat().st_mode & 0o777 == 0o644


def test_a_lock_excludes_other_processes(directory: Path) -> None:
    program = "from integration.guest.cache import locked\nwith locked('x'): print('in', flush=True)"
    root = Path(__file__).parents[2]
    with cache.locked("x"):
        other = subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.5)
    assert other.communicate(timeout=60)[0] == b"in\n"


def test_the_newest_entries_stay(directory: Path) -> None:
    for age, name in enumerate(["image-12-c", "image-12-b", "image-12-a", "image-13-x"]):
        (directory / name).mkdir()
        os.utime(directory / name, (1000 - age, 1000 - age))
    (directory / "image-12.lock").touch()
    cache.keep_newest("image-12-", 2)
    assert sorted(path.name for path in directory.iterdir()) == [
        "image-12-b",
        "image-12-c",
        "image-12.lock",
        "image-13-x",
    ]


FRAMES = st.lists(st.tuples(st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.binary(max_size=64)), max_size=8)


@given(FRAMES, st.integers(1, 40))
def test_frames_survive_any_cut(sent: list[tuple[Kind, int, bytes]], step: int) -> None:
    stream = SYNC + b"".join(frame(*each) for each in sent)
    frames = Frames(seek=False)
    received = [each for at in range(0, len(stream), step) for each in frames.feed(stream[at : at + step])]
    assert received == sent


@given(st.binary(max_size=100), st.integers(1, 40))
def test_after_a_reset_frames_begin_at_the_next_sync(garbage: bytes, step: int) -> None:
    frames = Frames(seek=False)
    whole = frame(Kind.STDOUT, 7, b"lost in the middle")
    assert list(frames.feed(whole[:-3])) == []
    frames.seek_sync()
    stream = garbage.replace(SYNC, b"") + SYNC + frame(Kind.HELLO, 0, b"{}")
    received = [each for at in range(0, len(stream), step) for each in frames.feed(stream[at : at + step])]
    assert received == [(Kind.HELLO, 0, b"{}")]


def test_what_is_no_frame_is_told() -> None:
    with pytest.raises(FramingError, match="login: "):
        list(Frames(seek=False).feed(b"Debian GNU/Linux 12 guest ttyS0 login: "))


Agent = tuple[Session, socket.socket]


@pytest.fixture
def agent() -> Iterator[Agent]:
    """A session, and the guest's end of its connection."""
    ours, theirs = socket.socketpair()
    session = Session(ours)
    theirs.settimeout(60)
    yield session, theirs
    theirs.close()
    session.close()


def hello(boot_id: str) -> bytes:
    about = {"boot_id": boot_id, "kernel": "6.1", "python": "3.11"}
    return SYNC + frame(Kind.HELLO, 0, json.dumps(about).encode())


def test_requests_run_at_once_and_get_their_own_answers(agent: Agent) -> None:
    session, guest = agent
    first, second = session.start({"op": "a"}), session.start({"op": "b"})
    guest.sendall(
        hello("1")[: len(SYNC)]
        + frame(Kind.STDOUT, 2, b"two")
        + frame(Kind.STDOUT, 1, b"o")
        + frame(Kind.EXIT, 2, b"3")
        + frame(Kind.STDOUT, 1, b"ne")
        + frame(Kind.STDERR, 1, b"!")
        + frame(Kind.EXIT, 1, b"0")
    )
    assert (first.wait(60), bytes(first.stdout), bytes(first.stderr)) == (0, b"one", b"!")
    assert (second.wait(60), bytes(second.stdout)) == (3, b"two")


def test_a_request_that_could_not_start_says_why(agent: Agent) -> None:
    session, guest = agent
    request = session.start({"op": "a"})
    guest.sendall(SYNC + frame(Kind.FAILED, 1, b'"No such file"'))
    with pytest.raises(CommandError, match="No such file"):
        request.wait(60)


def test_a_request_without_answer_is_no_end(agent: Agent) -> None:
    session, _ = agent
    assert session.start({"op": "a"}).wait(0) is None
    with pytest.raises(GuestTimeoutError):
        session.wait_hello(0)


def test_the_end_of_the_guest_ends_all_waiting(agent: Agent) -> None:
    session, guest = agent
    ended = threading.Event()
    request = session.start({"op": "a"}, on_end=ended.set)
    guest.close()
    with pytest.raises(GuestDiedError):
        request.wait(60)
    assert ended.wait(60)
    with pytest.raises(GuestDiedError):
        session.wait_hello(60)


def test_a_reset_ends_requests_and_a_new_boot_is_awaited(agent: Agent) -> None:
    session, guest = agent
    guest.sendall(hello("1"))
    assert session.wait_hello(60).boot_id == "1"
    request = session.start({"op": "a"})
    session.expect_reset()
    with pytest.raises(GuestDiedError, match="reset"):
        request.wait(60)
    guest.sendall(frame(Kind.STDOUT, 1, b"cut")[:-1] + hello("2"))
    assert session.wait_hello(60).boot_id == "2"


def test_only_options_about_fetching_reach_the_guests_apt() -> None:
    dump = """\
APT::Sandbox::User "_apt";
Acquire "";
Acquire::http "";
Acquire::http::Proxy "http://proxy:3142";
Acquire::https::CAInfo "/etc/ssl/ca.crt";
Acquire::Languages:: "none";
Acquire::Check-Date "false";
Acquire::IndexTargets::deb::DEP-11 "";
"""
    assert apt.fetching_options(dump) == (
        'Acquire::http::Proxy "http://proxy:3142";',
        'Acquire::https::CAInfo "/etc/ssl/ca.crt";',
        'Acquire::Check-Date "false";',
    )


@pytest.mark.parametrize(
    ("indexes", "mirrors"),
    [
        ("", ("http://deb.debian.org/debian/", "http://deb.debian.org/debian-security/")),
        (
            "http://m/debian/ bookworm\nhttp://m/debian/ bookworm-updates\nhttp://s/debian-security/ bookworm-security",
            ("http://m/debian/", "http://s/debian-security/"),
        ),
        (
            "https://deb.nodesource.com/node_20.x nodistro\nhttp://archive.ubuntu.com/ubuntu/ noble",
            ("http://deb.debian.org/debian/", "http://deb.debian.org/debian-security/"),
        ),
    ],
    ids=["none", "the host's mirrors", "another distribution"],
)
def test_mirrors_are_the_hosts_own(indexes: str, mirrors: tuple[str, str]) -> None:
    assert apt._mirrors(indexes) == mirrors


def test_modules_are_loaded_after_those_they_need(tmp_path: Path) -> None:
    modules = tmp_path / "usr/lib/modules/6.1"
    modules.mkdir(parents=True)
    lines = {
        "virtio_pci": "virtio_pci_modern_dev virtio_ring",
        "virtio_pci_modern_dev": "",
        "virtio_ring": "virtio",
        "virtio_blk": "virtio_ring",
        "virtio_console": "virtio_ring",
        "overlay": "",
        "unneeded": "virtio",
    }
    text = "".join(
        f"kernel/{name.replace('_', '-')}.ko.xz: {' '.join(f'kernel/{other}.ko.xz' for other in needed.split())}\n"
        for name, needed in lines.items()
    )
    (modules / "modules.dep").write_text(text)
    (modules / "modules.builtin").write_text("kernel/fs/ext4/ext4.ko\nkernel/drivers/virtio/virtio.ko\n")
    assert [path.name for path in initrd._in_load_order(tmp_path)] == [
        "virtio-pci-modern-dev.ko.xz",
        "virtio-ring.ko.xz",
        "virtio-pci.ko.xz",
        "virtio-blk.ko.xz",
        "virtio-console.ko.xz",
        "overlay.ko.xz",
    ]


def unpacked(archive: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Name, mode and content of each member: six bytes of magic, thirteen numbers of eight digits, all padded to four."""
    at = 0
    while True:
        assert archive[at : at + 6] == b"070701"
        numbers = [int(archive[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        name_end = at + 110 + numbers[11]
        name = archive[at + 110 : name_end].rstrip(b"\0").decode()
        content = -(-name_end // 4) * 4
        if name == "TRAILER!!!":
            return
        yield name, numbers[1], archive[content : content + numbers[6]]
        at = -(-(content + numbers[6]) // 4) * 4


def test_an_initrd_archive_is_in_the_kernels_format() -> None:
    members = [("bin", 0o40755, b""), ("bin/odd", 0o100755, b"12345"), ("init", 0o100644, b"1")]
    archive = initrd._Cpio()
    for member in members:
        archive.add(*member)
    assert list(unpacked(archive.finish())) == members


def test_the_guests_agent_is_complete_and_compiles() -> None:
    files = settings.guest_files()
    programs = {path: content for path, content in files.items() if path.endswith(".py")}
    assert len(programs) == 4
    for path, content in programs.items():
        compile(content, path, "exec")
    assert set(settings.guest_links().values()) >= {"/dev/null"}
    assert not any(path.startswith("/") for path in (*files, *settings.guest_links()))


def test_phases_within_each_other_get_their_own_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with phases.phase("outer"), phases.phase("inner"):
        pass
    with pytest.raises(ZeroDivisionError), phases.phase("wrong"):
        _ = 1 // 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == ["outer ... ", "inner ... 0.0 s", "outer ... 0.0 s"]
    assert lines[3].startswith("wrong ... failed after ")


@pytest.mark.parametrize(
    ("failures", "said", "boots", "is_given"),
    [(2, "x.c:1: Assertion `a' failed.", 3, True), (9, "x.c:1: Assertion `a' failed.", 3, False), (1, "", 1, False)],
)
def test_an_emulator_that_fails_by_itself_is_started_again(
    failures: int, said: str, boots: int, *, is_given: bool
) -> None:
    made: list[Guest] = []

    class Failing(Guest):
        def __init__(self, *_: object) -> None:
            made.append(self)
            self._qmp: Any = SimpleNamespace(execute=lambda _: None)
            self._session: Any = SimpleNamespace(wait_hello=lambda _: None)

        def _job_seconds(self) -> float:
            return 0.1

        def close(self) -> None:
            pass

        def _own_messages(self) -> str:
            return said

        @contextmanager
        def _explained(self) -> Iterator[None]:
            if len(made) <= failures:
                raise GuestDiedError(f"the guest ended\n{said}")
            yield

    nothing: Any = None
    with nullcontext() if is_given else pytest.raises(GuestDiedError):
        assert Failing.boot(nothing, nothing) is made[-1]
    assert len(made) == boots


def test_the_demo_tells_which_of_the_agents_own_metrics_moved(capsys: pytest.CaptureFixture[str]) -> None:
    before = {"nodeagent_drift_corrected_total": 1.0, "kubelet_running_pods": 0.0, "nodeagent_healthy": 1.0}
    after = {
        "kubelet_running_pods": 3.0,
        "nodeagent_cgroup_writes_total": 40.0,
        "nodeagent_drift_corrected_total": 1.0,
        'nodeagent_event_duration_seconds_bucket{le="1"}': 3.0,
        "nodeagent_event_duration_seconds_count": 3.0,
        "nodeagent_event_duration_seconds_created": 1e9,
        "nodeagent_healthy": 1.0,
        "process_cpu_seconds_total": 2.0,
        'python_gc_objects_collected_total{generation="0"}': 7.0,
    }
    print_moved(before, after)
    told = [line for line in capsys.readouterr().out.splitlines() if " -> " in line]
    assert told == [
        "kubelet_running_pods 0 -> 3",
        "nodeagent_cgroup_writes_total 0 -> 40",
        "nodeagent_event_duration_seconds_count 0 -> 3",
    ]
