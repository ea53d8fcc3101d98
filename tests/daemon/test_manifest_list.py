"""The manifest directory as the agent uses it: a file that stays open for writing is told of, once, with who has it open."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeagent.core.model.config import Config
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.daemon.sources import kept_manifests, manifest_list
from nodeagent.daemon.sources.kept_manifests import PARSED_MANIFESTS, KeptManifests
from nodeagent.daemon.sources.manifest_list import ManifestList, ManifestProblem
from nodeagent.edge.files.manifest_watch import ManifestWatch
from nodeagent.edge.processes.open_files import Writer, find_writers
from nodeagent.formats.manifest.pod_manifest import parse_manifest
from tests.support.wake_ups import Wakes

POD = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: app, command: [run]}]
"""
PATIENCE = 20.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def listed(tmp_path: Path, clock: Clock) -> Iterator[ManifestList]:
    with closing(ManifestList(str(tmp_path), ManifestWatch(str(tmp_path), lambda: None), PATIENCE, clock)) as made:
        yield made


@contextmanager
def held_open(path: Path, mode: str = "a") -> Iterator[int]:
    """Another process has the file open; gives its id."""
    program = f"file = open({str(path)!r}, {mode!r}); print('open', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        yield process.pid
        process.communicate(b"\n")


def test_a_file_that_is_changed_in_place_is_read_when_the_watch_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wakes, file = Wakes(), tmp_path / "web.yaml"
    file.write_text(POD)
    later = time.time_ns() + 10**10
    monkeypatch.setattr(time, "time_ns", lambda: later)  # nothing was changed just now
    with closing(ManifestList(str(tmp_path), ManifestWatch(str(tmp_path), wakes), PATIENCE)) as listed:
        listed.look(rescan=True)
        assert wakes.during(lambda: file.write_text(POD.replace("web", "other")))
        assert [manifest.pod.name for manifest in listed.look(rescan=True, part=0.0).pods] == ["other"]


def test_files_that_are_no_manifests_for_their_names_are_a_problem_when_they_stay(
    listed: ManifestList, tmp_path: Path, clock: Clock
) -> None:
    for name in ("web.yaml.bak", "notes.txt", ".web.yaml.swp", "..data", "web.yaml~", "4913"):
        (tmp_path / name).write_text(POD)
    (tmp_path / "old").mkdir()
    (tmp_path / "link").symlink_to("old")
    assert listed.look(rescan=True).problems == ()
    (tmp_path / "4913").unlink()
    clock.now += PATIENCE
    look = listed.look(rescan=True)
    assert [problem.source for problem in look.problems] == ["notes.txt", "web.yaml.bak"]
    assert "only *.yaml, *.yml and *.json are manifests" in look.problems[0].text
    assert (look.pods, look.unreadable, look.misspelt) == ((), frozenset(), frozenset())
    (tmp_path / "web.yaml.bak").rename(tmp_path / "web.yaml")
    assert [problem.source for problem in listed.look(rescan=True).problems] == ["notes.txt"]


def test_a_way_out_can_be_pasted_into_a_shell(listed: ManifestList, tmp_path: Path, clock: Clock) -> None:
    for name in ("my $(pod).bak", "notes.txt"):
        (tmp_path / name).write_text(POD)
    listed.look(rescan=True)
    clock.now += PATIENCE
    commands = [problem.text.split("`")[1] for problem in listed.look(rescan=True).problems]
    assert [shlex.split(command) for command in commands] == [
        ["mv", "my $(pod).bak", ".my $(pod).bak"],
        ["mv", "notes.txt", ".notes.txt"],
    ]
    assert commands[1] == "mv notes.txt .notes.txt"


@pytest.mark.parametrize(
    ("text", "said"), [("", "is empty"), ("# to be written\n", "contains no pod"), ("null\n", "contains no pod")]
)
def test_a_file_without_a_document_keeps_its_pods_and_is_a_problem(
    listed: ManifestList, tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(POD)
    assert listed.look(rescan=True).unreadable == frozenset()
    path.write_text(text)

    look = listed.look(rescan=True)

    assert (look.pods, look.unreadable) == ((), {"web.yaml"}), "its pod stays as it is"
    [problem] = look.problems
    assert said in problem.text
    path.write_text("apiVersion: v1\nkind: List\nitems: []\n")
    look = listed.look(rescan=True)
    assert (look.pods, look.unreadable, look.problems) == ((), frozenset(), ())


def test_a_file_that_stays_open_for_writing_is_a_problem_after_a_while(
    listed: ManifestList, tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(POD)
    assert [m.pod.name for m in listed.look(rescan=True).pods] == ["web"]
    with held_open(path) as pid:
        look = listed.look(rescan=True)
        assert (look.pods, look.unreadable, look.problems) == ((), {"web.yaml"}, ()), "it may be closed at once"
        clock.now += PATIENCE - 1
        assert listed.look(rescan=True).problems == ()
        clock.now += 1

        look = listed.look(rescan=True)

        [problem] = look.problems
        assert problem == ManifestProblem(
            "web.yaml",
            f"still open for writing after 20 s, by process {pid} ({comm(pid)}), so it is not read: "
            "let it close the file, or write elsewhere and rename it into place",
        )
        assert look.unreadable == {"web.yaml"}, "its pod stays as it is"
        clock.now += 500
        assert listed.look(rescan=True).problems == (problem,), "the same text, so that it is told once"
    look = listed.look(rescan=True)
    assert ([m.pod.name for m in look.pods], look.problems) == (["web"], ())


def test_a_writer_that_the_agent_may_not_see_can_be_found_by_others(
    listed: ManifestList, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service's sandbox hides the files of processes with more rights than it has itself."""
    monkeypatch.setattr("nodeagent.daemon.sources.manifest_list.find_writers", lambda _: ())
    path = tmp_path / "web.yaml"
    with path.open("w"):
        listed.look(rescan=True)
        clock.now += PATIENCE
        [problem] = listed.look(rescan=True).problems
    assert problem.text.startswith(
        f"still open for writing after 20 s, by a process that `fuser -v {path}` shows, so it is not read"
    )


def test_each_writer_has_its_own_time(listed: ManifestList, tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(POD)
    with held_open(path):
        listed.look(rescan=True)
    clock.now += PATIENCE
    listed.look(rescan=True)
    with held_open(path):
        assert listed.look(rescan=True).problems == ()


def test_a_directory_that_is_one_file_says_so_too(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(POD)
    listed = ManifestList(str(path), ManifestWatch(str(path), lambda: None), PATIENCE, clock)
    with closing(listed), held_open(path) as pid:
        listed.look(rescan=True)
        clock.now += PATIENCE
        [problem] = listed.look(rescan=True).problems
    assert (problem.source, f"process {pid} (" in problem.text) == (str(path), True)


def test_a_directory_that_keeps_changing_is_known_in_part_and_is_a_problem_after_a_while(
    listed: ManifestList, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = tmp_path / "0.yaml"
    (tmp_path / "kept.yaml").write_text(POD)
    moved.write_text(POD.replace("web", "moved"))
    assert not listed.look(rescan=True).is_partial
    real = os.scandir

    def scanned(directory: int) -> Any:
        """A file is renamed before each list of the directory."""
        nonlocal moved
        moved = moved.rename(tmp_path / f"{int(moved.stem) + 1}.yaml")
        return real(directory)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", scanned)
        for past, problems in ((0.0, 0), (PATIENCE - 1, 0), (1.0, 1), (500.0, 1)):
            clock.now += past
            look = listed.look(rescan=True)
            assert look.is_partial
            assert [problem.source for problem in look.problems] == [str(tmp_path)] * problems
    assert look.problems[0].text == (
        "the directory has changed during each read for over 20 s; pods without manifests are not ended until one read sees no change "
        f"(`inotifywait -m {tmp_path}` shows the changes)"
    )
    look = listed.look(rescan=True)
    assert (look.is_partial, look.problems) == (False, ())
    assert {manifest.pod.name for manifest in look.pods} == {"web", "moved"}


@pytest.mark.parametrize(("mode", "writes"), [("a", True), ("r+", True), ("r", False)])
def test_only_writers_are_named(tmp_path: Path, mode: str, writes: bool) -> None:
    path = tmp_path / "file"
    path.touch()
    with held_open(path, mode) as pid:
        assert find_writers(str(path)) == ((Writer(pid, comm(pid)),) if writes else ())
    assert find_writers(str(path)) == find_writers(str(tmp_path / "none")) == ()


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_we_see_ourselves(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w"):
        assert [w.pid for w in find_writers(str(tmp_path / "file"))] == [os.getpid()]


def test_what_is_wrong_with_one_file_is_nothing_to_another(listed: ManifestList, tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(POD)
    (tmp_path / "wrong.yaml").write_text(POD.replace("web", "Web"))
    look = listed.look(rescan=True)
    assert [m.pod.name for m in look.pods] == ["web"]
    assert {problem.source for problem in look.problems} == {"wrong.yaml"}
    assert listed.look(rescan=False) is look


def test_what_a_pod_hardly_means_comes_with_it(listed: ManifestList, tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(POD.replace("command: [run]", "image: nginx"))
    (manifest,) = listed.look(rescan=True).pods
    (note,) = manifest.notes
    assert note.startswith("spec.containers[0].image: no effect here: ")


def test_each_of_many_doubled_documents_is_a_problem_at_once(listed: ManifestList, tmp_path: Path) -> None:
    each = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "x"}, "spec": {}}
    for number in range(5):
        document = {"apiVersion": "v1", "kind": "List", "items": [each] * 3000}
        (tmp_path / f"{number}.json").write_text(json.dumps(document))
    assert len(listed.look(rescan=True).problems) == 5 * 3000 - 1
    began = time.process_time()
    listed.look(rescan=True)
    assert time.process_time() - began < 2, "nothing is read again, and none is compared with all others"


class Restarts:
    """One agent after the other, with a runtime directory; counts the files that each one parses."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.manifests, runtime = base / "manifests", base / "run"
        self.manifests.mkdir()
        runtime.mkdir()
        self.kept = runtime / PARSED_MANIFESTS
        self.config = Config(runtime_directory=str(runtime))
        self.parsed: list[str] = []

        def parse(content: bytes, source: str) -> Any:
            self.parsed.append(source)
            return parse_manifest(content, source)

        monkeypatch.setattr(manifest_list, "parse_manifest", parse)

    def look(self) -> PodSource:
        self.parsed.clear()
        watch = ManifestWatch(str(self.manifests), lambda: None)
        with closing(ManifestList(str(self.manifests), watch, PATIENCE, kept=KeptManifests(self.config))) as made:
            return made.look(rescan=True)


@pytest.fixture
def restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Restarts:
    made = Restarts(tmp_path, monkeypatch)
    for name in ("one", "two"):
        (made.manifests / f"{name}.yaml").write_text(POD.replace("web", name))
    (made.manifests / "wrong.yaml").write_text(POD.replace("web", "WRONG"))
    return made


def test_the_next_agent_parses_only_what_has_changed(restarts: Restarts) -> None:
    first = restarts.look()
    assert sorted(restarts.parsed) == ["one.yaml", "two.yaml", "wrong.yaml"]
    assert restarts.kept.stat().st_mode & 0o777 == 0o600, "it has the values of variables"
    assert restarts.look() == first
    assert restarts.parsed == ["wrong.yaml"], "its findings are made anew"
    (restarts.manifests / "two.yaml").write_text(POD.replace("web", "other"))
    (restarts.manifests / "one.yaml").rename(restarts.manifests / "moved.yaml")
    changed = restarts.look()
    assert sorted(restarts.parsed) == ["moved.yaml", "two.yaml", "wrong.yaml"]
    assert [manifest.pod.name for manifest in changed.pods] == ["one", "other"]


def test_what_another_program_has_parsed_is_parsed_again(restarts: Restarts, monkeypatch: pytest.MonkeyPatch) -> None:
    first = restarts.look()
    monkeypatch.setattr(kept_manifests, "__version__", "another")
    assert restarts.look() == first
    assert len(restarts.parsed) == 3


def test_an_agent_that_was_killed_leaves_no_old_file(restarts: Restarts) -> None:
    restarts.look()
    watch = ManifestWatch(str(restarts.manifests), lambda: None)
    ManifestList(str(restarts.manifests), watch, PATIENCE, kept=KeptManifests(restarts.config))
    assert not restarts.kept.exists()


@pytest.mark.parametrize("meddle", [Path.mkdir, lambda path: path.symlink_to("/etc/passwd")], ids=["directory", "link"])
def test_what_is_in_the_place_of_the_file_is_no_problem(restarts: Restarts, meddle: Callable[[Path], None]) -> None:
    meddle(restarts.kept)
    look = restarts.look()
    assert [manifest.pod.name for manifest in look.pods] == ["one", "two"]
    assert [problem.source for problem in look.problems] == ["wrong.yaml"]
