"""`nodeagent apply`, `diff` and `delete`: which file is written or removed, what is said of it, and when nothing is."""

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from nodeagent.cli.support import manifest_changes, manifest_decisions, pod_files
from nodeagent.core.model.config import Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.state import ContainerStatus, Origin, PodEntry, QosClass, RefusedChange
from nodeagent.core.model.waiting import Waiting
from nodeagent.daemon.start import node_builder
from nodeagent.daemon.start.startup import STATE_FILE
from nodeagent.edge.files import manifests
from nodeagent.edge.files.manifests import SUFFIXES, ManifestScan, lock_manifests, scan_manifests
from nodeagent.edge.files.state_files import temporary_path
from nodeagent.edge.kernel.sysfs import read_machine
from nodeagent.formats.checkpoint.node_state import encode_state, policies_of
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.manifest.pod_manifest import ManifestPod, parse_manifest
from nodeagent.views.wording.refusal_advice import advise_next_step
from tests.cli.test_cli_inspect import Host, failed, host, live, needs_root, run
from tests.cli.test_selected_node import MACHINE, STATIC
from tests.formats.manifest.test_workloads import WORKLOADS
from tests.support import json_schema
from tests.support.described_nodes import RunCommand, container, pod
from tests.support.inspected_nodes import NOW_MS, World

__all__ = ["host", "live", "run"]
OTHER = 65_534


def text(*pods: dict[str, Any]) -> str:
    return "---\n".join(yaml.safe_dump(each) for each in pods)


def document(ran: tuple[int, str, str], schema: str) -> dict[str, Any]:
    _, out, err = ran
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    json_schema.check(found, schema)
    return found


class Node:
    """A machine of 8 CPUs with a manifest directory, and no agent: what is in place is decided on when one is started."""

    def __init__(self, directory: Path, run: RunCommand) -> None:
        self.manifests = directory / "manifests"
        self.manifests.mkdir()
        self.config = directory / "node.yaml"
        places = {"manifestDirectory": "manifests", "stateDirectory": "state", "runtimeDirectory": "run"}
        self.config.write_text(json.dumps({**STATIC, **{key: str(directory / name) for key, name in places.items()}}))
        self._run = run

    def __call__(self, command: str, *words: str) -> tuple[int, str, str]:
        return self._run(command, *words, "--config", str(self.config), "--socket", str(self.config) + ".sock")

    def runs(self, written_pod: dict[str, Any]) -> None:
        """Have a pod run from its own manifest, and its agent stop."""
        path = self.manifests / f"{written_pod['metadata']['name']}.yaml"
        path.write_text(text(written_pod))
        (found,) = parse_manifest(path.read_bytes(), path.name)
        assert isinstance(found, ManifestPod)
        machine = topology_of(read_machine(str(self.config.parent / "root")))
        world = World(machine, Placement("static", reserved_system_cpus=CpuSet.of(0))).add(found.pod)
        state = self.config.parent / "state" / STATE_FILE
        state.parent.mkdir()
        state.write_bytes(encode_state(world.state, policies_of(world.config.placement)))

    def files(self) -> list[str]:
        return sorted(path.name for path in self.manifests.iterdir())


@pytest.fixture
def node(run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    root = MACHINE.grow(tmp_path / "root")
    sample = read_machine(str(root))
    for reader in (manifest_changes, node_builder):
        monkeypatch.setattr(reader, "read_machine", lambda _="/": sample)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return Node(tmp_path, run)


def written(name: str, *pods: dict[str, Any], comment: str = "") -> str:
    Path(name).write_text(comment + text(*pods))
    return name


WEB = pod("web", container("app", "2", "1Gi"))
BIG = pod("big", container("app", "40", "1Gi"))
SMALL = pod("small", container("app", "100m", "64Mi"))
LAUNCHED = pod("small", {**container("app", "100m", "64Mi"), "command": ["sleep", "9"]})
AWAY = "note: the agent is not running; it will act on this once started: systemctl start nodeagent\n"


# apply


def test_a_manifest_is_put_in_place_as_it_is_and_said_with_where_its_pod_lands(node: Node) -> None:
    file = written("web.yaml", WEB, comment="# mine\n")
    path = node.manifests / file
    assert node("apply", file) == (
        0,
        f"pod default/web created ({path}): app exclusive 1,5, NUMA 0\n{AWAY}",
        "",
    )
    assert path.read_text() == Path(file).read_text()
    assert node.files() == [file], "and nothing else is left there"


@pytest.mark.parametrize("count", [1, 200])
@pytest.mark.parametrize("words", [("diff", "many.yaml"), ("apply", "--force", "many.yaml"), ("delete", "many.yaml")])
def test_the_screens_of_manifests_have_the_terminals_width(
    node: Node, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], count: int
) -> None:
    pods = [pod(f"{'a-long-name-of-a-pod-' * 3}{number}", container("app", "4", "1Gi")) for number in range(count)]
    written("many.yaml", *pods)
    if words[0] == "delete":
        node("apply", "--force", "many.yaml")
    piped = node(words[0], *words[1:])[1]
    node("delete", "many.yaml")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    for columns in (80, 200):
        if words[0] == "delete":
            node("apply", "--force", "many.yaml")
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = node(words[0], *words[1:])[1]
        node("delete", "many.yaml")
        assert max(map(len, shown.splitlines())) <= columns
        assert "".join(shown.split()) == "".join(piped.split()), "nothing is left out"


@pytest.mark.parametrize(
    ("mode", "kept"), [(0o666, 0o644), (0o664, 0o644), (0o640, 0o640), (0o600, 0o600), (0o755, 0o644)]
)
def test_nobody_but_the_owner_may_write_an_installed_manifest(node: Node, mode: int, kept: int) -> None:
    path = node.manifests / "web.yaml"
    Path(written("web.yaml", WEB)).chmod(mode)
    node("apply", "web.yaml")
    assert path.stat().st_mode & 0o777 == kept
    path.chmod(mode)
    node("apply", written("web.yaml", WEB, comment="# new\n"))
    assert path.stat().st_mode & 0o777 == kept, "replaced"
    path.chmod(mode)
    node("apply", "web.yaml")
    assert path.stat().st_mode & 0o022 == 0, "unchanged"


def test_the_file_that_is_written_first_is_no_manifest() -> None:
    assert not temporary_path("/etc/nodeagent/manifests/web.yaml").endswith(SUFFIXES)


def test_what_is_in_place_is_not_written_again(node: Node) -> None:
    file = written("web.yaml", WEB)
    node("apply", file)

    def version() -> tuple[int, int]:
        there = (node.manifests / file).stat()
        return there.st_ino, there.st_mtime_ns

    before = version()
    assert node("apply", file)[1].startswith("pod default/web unchanged (")
    assert version() == before
    assert node("apply", str(node.manifests / file))[0] == 0, "it may be named itself"
    assert version() == before


def test_a_comment_is_taken_over_and_changes_no_pod(node: Node) -> None:
    node("apply", written("web.yaml", WEB))
    assert node("diff", written("web.yaml", WEB, comment="# new\n")) == (0, "", "")
    assert node("apply", "web.yaml")[1].startswith("pod default/web unchanged (")
    assert (node.manifests / "web.yaml").read_text().startswith("# new\n")


def test_a_pod_is_replaced_in_its_own_file_whatever_that_is_called(node: Node) -> None:
    (node.manifests / "10-first.yml").write_text(text(WEB))
    (node.manifests / "10-first.yml").chmod(0o600)
    said = node("apply", written("web.yaml", pod("web", container("app", "3", "1Gi"))))
    assert said[1].startswith(f"pod default/web changed ({node.manifests}/10-first.yml): app exclusive ")
    assert node.files() == ["10-first.yml"]
    assert (node.manifests / "10-first.yml").read_text() == Path("web.yaml").read_text()
    assert (node.manifests / "10-first.yml").stat().st_mode & 0o777 == 0o600


def test_several_pods_of_a_file_are_each_said(node: Node) -> None:
    node("apply", written("both.yaml", WEB, SMALL))
    changed = pod("small", container("app", "200m", "64Mi"))
    _, out, _ = node("apply", written("both.yaml", WEB, changed, pod("third", container("app", "1", "64Mi"))))
    lines = [line.partition(" (")[0] for line in out.splitlines()[:3]]
    assert lines == ["pod default/web unchanged", "pod default/small changed", "pod default/third created"]


def test_a_file_that_holds_other_pods_too_is_not_replaced(node: Node) -> None:
    (node.manifests / "both.yaml").write_text(text(WEB, SMALL))
    err = failed(node("apply", written("web.yaml", WEB)))
    assert (
        f"web.yaml would replace {node.manifests}/both.yaml, but doesn't contain default/small: these pods would end"
        in err
    )
    assert (node.manifests / "both.yaml").read_text() == text(WEB, SMALL)
    assert node.files() == ["both.yaml"]


def test_pods_that_are_in_several_manifests_are_named_with_them(node: Node) -> None:
    (node.manifests / "a.yaml").write_text(text(WEB))
    (node.manifests / "b.yaml").write_text(text(SMALL))
    err = failed(node("apply", written("both.yaml", WEB, SMALL)))
    assert f"several manifests: default/web in {node.manifests}/a.yaml, default/small in {node.manifests}/b.yaml" in err
    assert node.files() == ["a.yaml", "b.yaml"]


def test_a_pod_that_is_given_twice_is_refused(node: Node) -> None:
    written("a.yaml", WEB)
    assert "pod default/web is in a.yaml and in b.yaml" in failed(node("apply", "a.yaml", written("b.yaml", WEB)))
    assert "pod default/web is twice in c.yaml" in failed(node("apply", written("c.yaml", WEB, WEB)))
    assert node.files() == []


def test_a_uid_that_another_pod_has_is_refused(node: Node) -> None:
    def with_uid(name: str) -> dict[str, Any]:
        return {**pod(name, container("app", "1", "64Mi")), "metadata": {"name": name, "uid": "mine"}}

    node("apply", written("a.yaml", with_uid("a")))
    err = failed(node("apply", written("b.yaml", with_uid("b"))))
    assert f"pod default/b in b.yaml has the UID of default/a in {node.manifests}/a.yaml: mine" in err
    assert node.files() == ["a.yaml"]


def test_what_would_be_refused_is_explained_and_not_put_in_place(node: Node) -> None:
    file = written("big.yaml", BIG)
    status, out, err = node("apply", file)
    assert status == 4
    assert out.startswith("pod default/big would be refused: OutOfcpu: ")
    assert (
        "what would admit it (each of these has been tried):\n  * let container app request cpu 7 instead of 40" in out
    )
    assert err.startswith("nodeagent: nothing was installed: default/big would be refused\nhint: ")
    assert node.files() == []
    found = document((0, node("apply", file, "-o", "json")[1], ""), "apply")
    assert (found["applied"], found["pods"][0]["decision"], node.files()) == (False, "refused", [])


def test_of_several_manifests_all_are_put_in_place_or_none(node: Node) -> None:
    assert node("apply", written("web.yaml", WEB), written("big.yaml", BIG))[0] == 4
    assert node.files() == []
    assert node("apply", "web.yaml", written("bad.yaml", {"kind": "Pod"}))[0] == 1
    assert node.files() == []
    assert node("apply", "web.yaml", written("small.yaml", SMALL))[0] == 0
    assert node.files() == ["small.yaml", "web.yaml"]


def test_force_puts_it_in_place_all_the_same(node: Node) -> None:
    status, out, err = node("apply", "--force", written("big.yaml", BIG))
    assert (status, err, node.files()) == (0, "", ["big.yaml"])
    assert f"pod default/big created ({node.manifests}/big.yaml), and will be refused: OutOfcpu: " in out


def test_stdin_and_a_name_that_is_taken_are_called_as_the_pod_is(
    node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "piped").write_text(text(WEB))
    with (tmp_path / "piped").open() as piped:
        monkeypatch.setattr("sys.stdin", piped)
        assert node("apply", "-")[0] == 0
    assert node.files() == ["web.yaml"]
    node("apply", written("web.yaml", SMALL))
    assert node.files() == ["small.yaml", "web.yaml"]
    Path("here").mkdir()
    other = {**SMALL, "metadata": {"name": "small", "namespace": "test"}}
    node("apply", written("here/web.yaml", other))
    assert node.files() == ["small.yaml", "test.small.yaml", "web.yaml"]
    third = {**SMALL, "metadata": {"name": "web", "namespace": "small"}}
    (node.manifests / "small.web.yaml").mkdir()
    err = failed(node("apply", written("web.yaml", third)))
    assert (
        f"no file name is left for web.yaml in {node.manifests}: web.yaml, web.yaml, small.web.yaml belong to other pods"
        in err
    )


def test_a_name_that_would_not_count_is_not_taken(node: Node) -> None:
    node("apply", written("notes.txt", WEB), written(".hidden.yaml", SMALL))
    assert node.files() == ["small.yaml", "web.yaml"]


def test_a_link_is_not_replaced_by_a_file(node: Node, tmp_path: Path) -> None:
    (tmp_path / "theirs.yaml").write_text(text(WEB))
    (node.manifests / "web.yaml").symlink_to(tmp_path / "theirs.yaml")
    assert node("apply", written("web.yaml", WEB))[0] == 0, "it is in place as it is"
    err = failed(node("apply", written("web.yaml", pod("web", container("app", "3", "1Gi")))))
    assert f"{node.manifests}/web.yaml is a symbolic link, which would be replaced" in err
    assert f"hint: change its target {tmp_path}/theirs.yaml, or first remove the link" in err
    assert (node.manifests / "web.yaml").is_symlink()


def test_where_the_manifests_are_one_file_its_pods_are_replaced_and_no_others_put_there(node: Node) -> None:
    node.manifests.rmdir()
    node.manifests.write_text(text(WEB))
    changed = written("web.yaml", pod("web", container("app", "3", "1Gi")))
    assert node("apply", changed)[1].startswith(f"pod default/web changed ({node.manifests}): ")
    assert node.manifests.read_text() == Path("web.yaml").read_text()
    err = failed(node("apply", written("small.yaml", SMALL)))
    assert f"manifestDirectory is a single file, {node.manifests}, which doesn't contain pod default/small" in err
    assert not list(node.manifests.parent.glob(".*"))


def test_a_missing_directory_is_named(node: Node) -> None:
    node.manifests.rmdir()
    for command in ("apply", "delete"):
        err = failed(node(command, written("web.yaml", WEB)))
        assert f"cannot read manifest directory {node.manifests}: No such file or directory\nhint: create it" in err
    err = failed(node("diff", "web.yaml"))
    assert f"cannot read manifest directory {node.manifests}: " in err


def test_what_is_hardly_meant_is_noted(node: Node) -> None:
    file = written("web.yaml", {**WEB, "spec": {**WEB["spec"], "nodeSelector": {"disk": "ssd"}}})
    note = "  note: spec.nodeSelector: no effect here: there is no scheduler"
    _, out, err = node("diff", file)
    assert (err, "nodeSelector" in out) == ("web.yaml: fields that choose a node are ignored: nodeSelector\n", False)
    assert f"\n{note}" in node("apply", file)[1]


@pytest.mark.parametrize("kind", WORKLOADS)
def test_the_template_of_any_workload_is_compared_with_the_installed_pod_of_its_name(node: Node, kind: str) -> None:
    text_of_workload, workloads = WORKLOADS[kind]
    Path("chart.yaml").write_text(f"{text_of_workload}\n---\nkind: Service\nmetadata: {{name: web}}\n")
    installed = pod("web", container("app", "1", "1Gi"))
    installed["metadata"]["namespace"] = "shop"
    (node.manifests / "own.yaml").write_text(text(installed))
    status, out, err = node("diff", "chart.yaml")
    assert (status, err.partition(": ")[0]) == (2, "chart.yaml")
    assert f"one pod is decided for each of: {', '.join(dict.fromkeys(workloads))}" in err
    assert "documents without pods are ignored: Service" in err
    assert f"pod shop/web changes ({node.manifests / 'own.yaml'})" in out
    assert {"-    - x", "+    - --fast", "-        cpu: '1'", "+        cpu: '2'"} <= {
        line[2:] for line in out.split("\n")
    }
    assert out.count("would get") == len(workloads)
    assert "must be Pod, List" in failed(node("apply", "chart.yaml")), "the agent runs pods only"


@contextmanager
def somebody_else() -> Iterator[None]:
    os.seteuid(OTHER)
    try:
        yield
    finally:
        os.seteuid(0)


@needs_root
def test_who_may_not_write_there_is_told_how(node: Node, run: RunCommand) -> None:
    file = written("web.yaml", WEB)
    content = Path(file).read_bytes()
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        theirs = Node(Path(directory), run)
        here = Path(directory, file)
        here.write_bytes(content)
        with somebody_else():
            err = failed(theirs("apply", str(here)))
        assert f"cannot lock {theirs.manifests}/.lock: Permission denied" in err
        assert f"hint: run it as root: `sudo nodeagent apply {here}`; `namei -l {theirs.manifests}` shows who" in err
        assert theirs("apply", str(here))[0] == 0
        with somebody_else():
            err = failed(theirs("delete", "web"))
        assert f"cannot lock {theirs.manifests}/.lock: Permission denied" in err
        assert "hint: run it as root: `sudo nodeagent delete web`; " in err
        assert theirs.files() == [file]


def test_a_next_step_names_files_so_that_a_shell_understands_it(node: Node) -> None:
    name = "my $(pod).yaml"
    assert "`namei -l 'my $(pod).yaml'` shows" in failed(node("apply", name))
    (node.manifests / name).symlink_to(Path(written("web.yaml", WEB)).resolve())
    err = failed(node("apply", written("changed.yaml", cpus("web", 1))))
    assert f"or first remove the link: `nodeagent delete '{node.manifests}/{name}'`" in err


@needs_root
def test_a_command_that_is_to_be_repeated_as_root_can_be_pasted(node: Node, run: RunCommand) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        theirs = Node(Path(directory), run)
        here = Path(directory, "my pod.yaml")
        here.write_text(text(WEB))
        with somebody_else():
            assert f"`sudo nodeagent apply '{here}'`; " in failed(theirs("apply", str(here)))
            assert f"`sudo nodeagent delete '{here}'`; " in failed(theirs("delete", str(here)))


def test_commands_that_write_there_wait_for_each_other(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for command, *words in (("apply", written("web.yaml", WEB)), ("delete", "web")):
        other = ExitStack()
        other.enter_context(lock_manifests(str(node.manifests), "none"))
        (lock,) = node.manifests.glob(".*")
        assert lock.stat().st_mode & 0o777 == 0o600, "nobody else can lock it"
        monkeypatch.setattr(manifests.time, "sleep", lambda _, other=other: other.close())
        assert node(command, *words)[0] == 0
        assert lock not in node.manifests.iterdir(), "nothing is left there"


def test_a_command_that_is_still_at_work_is_named(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "LOCK_SECONDS", 0)
    with lock_manifests(str(node.manifests), "none"):
        err = failed(node("apply", written("web.yaml", WEB)))
    assert err == (
        f"nodeagent: another `nodeagent apply` or `delete` (pid {os.getpid()}) is still at work in {node.manifests}\n"
        f"hint: try again when it has ended; `fuser -v {node.manifests}/.lock` shows the process\n"
    )
    assert node.files() == []


def test_what_a_killed_command_has_left_is_locked_again(node: Node) -> None:
    (node.manifests / ".lock").write_text("a pid that was longer\n")
    (node.manifests / ".lock").chmod(0o600)
    with lock_manifests(str(node.manifests), "none"):
        assert (node.manifests / ".lock").read_text() == f"{os.getpid()}\n"
    assert node.files() == []


def test_whoever_may_only_read_the_directory_cannot_keep_others_from_writing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "LOCK_SECONDS", 0)
    handle = os.open(node.manifests, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert node("apply", written("web.yaml", WEB))[0] == 0
        assert node("delete", "web")[0] == 0
    finally:
        os.close(handle)


def cpus(name: str, count: int) -> dict[str, Any]:
    return pod(name, container("app", str(count), "64Mi"))


def test_a_cpu_is_not_promised_to_two_pods_that_wait_for_their_decisions(node: Node) -> None:
    assert node("apply", written("z.yaml", cpus("z", 4)))[0] == 0
    status, out, _ = node("apply", written("b.yaml", cpus("b", 4)))
    assert (status, node.files()) == (4, ["z.yaml"])
    note = "note: this takes installed manifests without a decision into account: default/z"
    assert out.startswith("pod default/b would be refused: ")
    assert note in " ".join(out.split())
    assert note in " ".join(node("diff", "b.yaml")[1].split())
    found = [document(node("apply", written(f"{n}.yaml", cpus(n, 1)), "-o", "json"), "apply") for n in "cde"]
    assert [one["undecided"] for one in found] == [
        ["default/z"],
        ["default/c", "default/z"],
        ["default/c", "default/d", "default/z"],
    ]
    assert len({one["pods"][0]["containers"][0]["cpus"] for one in found}) == 3
    assert node("apply", "e.yaml")[1].endswith(f"{note.removesuffix('z')}c; default/d; default/z\n{AWAY}")


def test_nothing_is_said_of_undecided_pods_where_nothing_is_tried_after_them(node: Node) -> None:
    node.runs(WEB)
    assert node("apply", written("z.yaml", cpus("z", 4)))[0] == 0
    assert document(node("apply", written("web.yaml", WEB), "-o", "json"), "apply")["undecided"] == []
    assert node("diff", "web.yaml") == (0, "", "")


def test_a_change_that_will_be_refused_leaves_the_running_pods_cpus_to_it(node: Node) -> None:
    node.runs(WEB)
    six = written("six.yaml", cpus("six", 6))
    _, out, _ = node("apply", "--force", written("web.yaml", cpus("web", 40)), six)
    assert "pod default/six created" in out
    assert out.count("and will be refused: ") == 2
    (node.manifests / six).unlink()
    assert node("apply", six)[0] == 4
    assert node("apply", written("five.yaml", cpus("five", 5)))[0] == 0


def test_a_change_that_will_be_followed_is_tried_before_what_is_new(node: Node) -> None:
    node.runs(WEB)
    for one in (cpus("a", 3), cpus("web", 4)):
        (node.manifests / f"{one['metadata']['name']}.yaml").write_text(text(one))
    found = document((0, node("diff", written("one.yaml", cpus("one", 1)), "-o", "json")[1], ""), "diff")
    assert (found["undecided"], found["pods"][0]["decision"]) == (["default/web", "default/a"], "refused")


# diff


def test_what_differs_is_shown_with_what_comes_of_it(node: Node) -> None:
    file = written("web.yaml", WEB)
    status, out, err = node("diff", file)
    assert (status, err) == (2, "")
    assert out == (
        f"pod default/web does not exist yet ({node.manifests}/web.yaml)\n  would get\n    app  exclusive 1,5  NUMA 0\n"
    )
    assert node.files() == []
    node("apply", file)
    assert node("diff", file) == (0, "", "")
    written(file, pod("web", container("app", "3", "1Gi")))
    status, out, _ = node("diff", file)
    assert status == 2
    assert out.startswith(f"pod default/web changes ({node.manifests}/web.yaml)\n  @@ ")
    assert "\n  -        cpu: '2'\n  +        cpu: '3'\n" in out
    assert "uid" not in out, "it is a hash of all else"
    found = document(node("diff", file, "-o", "json"), "diff")["pods"][0]
    assert (found["change"], found["decided"], found["restarts"]) == ("changed", False, False)
    assert (node.manifests / file).read_text() == text(WEB)


def test_another_number_of_exclusive_cpus_is_a_difference(node: Node) -> None:
    mixed = pod("web", container("app", "3500m", "1Gi"))
    mixed["metadata"]["annotations"] = {"exclusive-cpus.nodeagent.io/app": "2"}
    file = written("web.yaml", mixed)
    assert "app exclusive 1,5 + shared pool" in node("apply", file)[1]
    mixed["metadata"]["annotations"] = {"exclusive-cpus.nodeagent.io/app": "3"}
    _, out, _ = node("diff", written(file, mixed))
    assert "\n  -    exclusive-cpus.nodeagent.io/app: '2'\n  +    exclusive-cpus.nodeagent.io/app: '3'\n" in out
    assert "app  exclusive 1,4-5 + shared pool" in out


def test_a_refusal_is_a_difference_with_what_is_missing(node: Node) -> None:
    status, out, err = node("diff", written("big.yaml", BIG), written("web.yaml", WEB))
    assert (status, err) == (2, "")
    assert "\n  would be refused: OutOfcpu: " in out
    assert "\n\npod default/web does not exist yet" in out


def test_values_of_variables_are_not_shown(node: Node) -> None:
    def with_secret(value: str, **more: str) -> dict[str, Any]:
        env = [{"name": "KEY", "value": value}, *({"name": name, "value": text} for name, text in more.items())]
        return pod("web", {**container("app", "1", "64Mi"), "env": env})

    file = written("web.yaml", with_secret("s3cret", SAME="hidden0"))
    for words in (("diff", file), ("apply", file, "-o", "json")):
        assert "s3cret" not in node(*words)[1]
    out = node("diff", written("web.yaml", with_secret("oth3r", SAME="hidden0")))[1]
    assert [line for line in out.splitlines() if "hidden" in line] == [
        "  -      value: (hidden)",
        "  +      value: (hidden, another one)",
        "         value: (hidden)",
    ]
    assert "cret" not in out
    assert "oth3r" not in out


def test_what_cannot_be_found_out_is_no_difference(node: Node) -> None:
    assert "cannot read" in failed(node("diff", "none.yaml"))
    assert "metadata: is required" in failed(node("diff", written("bad.yaml", {"kind": "Pod"})))
    status, out, err = node("diff", written("job.yaml", {"kind": "Job"}))
    assert (status, out) == (1, "")
    assert err.startswith("job.yaml: documents without pods are ignored: Job\nnodeagent: no pod in job.yaml\nhint: ")


# delete


def test_a_pods_manifest_is_removed_whatever_it_is_called(node: Node) -> None:
    for name, word in (("web.yaml", "web"), ("10-first.yml", "default/web"), ("x.json", "web.yaml")):
        (node.manifests / name).write_text(text(WEB))
        written("web.yaml", WEB)
        assert node("delete", word) == (
            0,
            f"pod default/web deleted, {node.manifests}/{name} removed\n{AWAY}",
            "",
        )
        assert node.files() == []


def test_a_pod_that_is_in_several_files_goes_with_all_of_them(node: Node) -> None:
    for name in ("a.yaml", "b.yaml"):
        (node.manifests / name).write_text(text(WEB))
    found = document((0, node("delete", "web", "-o", "json")[1], ""), "delete")
    assert [file["file"] for file in found["files"]] == [f"{node.manifests}/a.yaml", f"{node.manifests}/b.yaml"]
    assert node.files() == []


def test_a_file_in_place_is_removed_itself_right_or_wrong(node: Node) -> None:
    for name in ("a.yaml", "b.yaml"):
        (node.manifests / name).write_text(text(WEB))
    (node.manifests / "wrong.yaml").write_text("kind: [")
    a, wrong = node.manifests / "a.yaml", node.manifests / "wrong.yaml"
    out = node("delete", str(a), str(wrong))[1]
    assert out == (
        f"{a} removed, pod default/web stays: {node.manifests}/b.yaml has it, too\n"
        f"{wrong} removed, it had no pod\n{AWAY}"
    )
    assert node.files() == ["b.yaml"]


def test_a_file_that_holds_other_pods_is_left_until_all_are_named(node: Node) -> None:
    third = pod("third", container("app", "1", "64Mi"))
    (node.manifests / "all.yaml").write_text(text(WEB, SMALL, third))
    err = failed(node("delete", "web"))
    assert (
        f"removing {node.manifests}/all.yaml, which contains default/web, would also end default/small, default/third"
        in err
    )
    assert node.files() == ["all.yaml"]
    assert node("delete", "web", "small", written("third.yaml", third))[0] == 0
    assert node.files() == []


def test_what_is_not_there_is_said_and_nothing_is_removed(node: Node) -> None:
    (node.manifests / "web.yaml").write_text(text(WEB))
    assert f"no manifest in {node.manifests} contains a pod 'wbe'\nhint: did you mean web? " in failed(
        node("delete", "web", "wbe")
    )
    assert "contains a pod 'default/small'" in failed(node("delete", "web", written("small.yaml", SMALL)))
    other = {**SMALL, "metadata": {"name": "web", "namespace": "test"}}
    (node.manifests / "other.yaml").write_text(text(other))
    assert (
        "2 pods are named 'web'\nhint: give the full name of one of them, as `nodeagent inspect` shows it: default/web, test/web\n"
        in failed(node("delete", "web"))
    )
    assert node.files() == ["other.yaml", "web.yaml"]


# A directory that others change


@pytest.mark.parametrize(
    ("command", "status"),
    [(("apply", "web.yaml"), 1), (("diff", "web.yaml"), 1), (("delete", "web"), 1)],
    ids=["apply", "diff", "delete"],
)
def test_manifests_that_change_while_they_are_read_are_not_judged(
    node: Node, monkeypatch: pytest.MonkeyPatch, command: tuple[str, str], status: int
) -> None:
    """A file that is renamed at that time may be missing under both names."""
    (node.manifests / "installed.yaml").write_text(text(WEB))
    written("web.yaml", WEB, comment="# another\n")
    changing(monkeypatch)
    told = failed(node(*command), status=status)
    assert f"{node.manifests} changed while it was read" in told
    assert "hint: run the same command again" in told
    assert (node.files(), (node.manifests / "installed.yaml").read_text()) == (["installed.yaml"], text(WEB))


def test_nor_are_those_of_a_named_directory(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    written("web.yaml", WEB)
    changing(monkeypatch)
    assert f"{Path.cwd()} changed while it was read" in failed(node("apply", str(Path.cwd())))
    assert node.files() == []


def changing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each directory change during each reading."""

    def scan(path: str) -> ManifestScan:
        return replace(scan_manifests(path), is_partial=Path(path).is_dir())

    for reader in (manifest_changes, pod_files):
        monkeypatch.setattr(reader, "scan_manifests", scan)


# With an agent


class Live:
    """A node with an agent that answers; `act` is what it makes of its manifests when it is asked for its state."""

    def __init__(self, host: Host, run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = host
        self.manifests = host.directory / "manifests"
        self.manifests.mkdir()
        config = replace(host.world.config, static_pod_path=str(self.manifests))
        host.world.config = config
        host.world.node = replace(host.world.node, config=config)
        self._run = run
        self._view = host.view
        self.asked = 0
        self.act: Callable[[], None] = lambda: None
        monkeypatch.setattr(host, "view", self._acted)
        monkeypatch.setattr(manifest_decisions.time, "sleep", lambda _: None)

    def __call__(self, command: str, *words: str) -> tuple[int, str, str]:
        return self._run(command, *words, *self.host.options)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.manifests.iterdir())

    def _acted(self) -> Any:
        self.asked += 1
        self.act()
        return self._view()

    def runs(self, written_pod: dict[str, Any]) -> Pod:
        """Have a pod run from its own manifest."""
        path = self.manifests / f"{written_pod['metadata']['name']}.yaml"
        path.write_text(text(written_pod))
        (found,) = parse_manifest(path.read_bytes(), path.name)
        assert isinstance(found, ManifestPod)
        self.host.world.add(found.pod)
        return found.pod

    @property
    def entries(self) -> tuple[PodEntry, ...]:
        return self.host.world.state.entries

    @entries.setter
    def entries(self, entries: tuple[PodEntry, ...]) -> None:
        self.host.world.state = replace(self.host.world.state, entries=entries)


@pytest.fixture
def agent(live: Host, run: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Live:
    monkeypatch.chdir(tmp_path)
    return Live(live, run, monkeypatch)


SLOW = {**SMALL, "spec": {**SMALL["spec"], "terminationGracePeriodSeconds": 7}}


def test_a_running_pod_that_changes_restarts(agent: Live) -> None:
    agent.runs(SMALL)
    file = written("changed.yaml", SLOW)
    assert f"pod default/small changes, and restarts ({agent.manifests}/small.yaml)\n" in agent("diff", file)[1]
    assert agent("apply", file)[1].startswith(
        f"pod default/small changed, restarts ({agent.manifests}/small.yaml): app shared "
    )
    assert agent("apply", "-o", "json", file)[0] == 0


def test_a_running_pod_of_which_only_amounts_change_is_resized(agent: Live) -> None:
    agent.runs(pod("one", container("app", "1", "64Mi")))
    larger = written("one.yaml", pod("one", container("app", "2", "64Mi")))
    told = agent("diff", larger)[1]
    assert f"pod default/one changes, and is resized while it runs ({agent.manifests}/one.yaml)\n" in told
    found = document(agent("diff", "-o", "json", larger), "diff")["pods"][0]
    assert (found["resizes"], found["restarts"], found["decision"]) == (True, False, "admitted")
    assert [one["name"] for one in found["containers"]] == ["app"]
    assert "changed, is resized while it runs (" in agent("apply", larger)[1]


def test_one_that_only_another_variable_is_given_to_restarts_too(agent: Live) -> None:
    def with_variable(value: str) -> dict[str, Any]:
        one = pod("small", {**container("app", "100m", "64Mi"), "env": [{"name": "A", "value": value}]})
        return {**one, "metadata": {"name": "small", "uid": "mine"}}

    agent.runs(with_variable("1"))
    assert "changes, and restarts" in agent("diff", written("small.yaml", with_variable("2")))[1]
    assert agent("diff", written("small.yaml", with_variable("1"))) == (0, "", "")


def test_a_running_pod_that_would_be_refused_is_left_as_it_is(agent: Live) -> None:
    agent.runs(SMALL)
    huge = pod("small", container("app", "999", "64Mi"))
    assert "the running pod stays unchanged" in " ".join(agent("diff", written("small.yaml", huge))[1].split())
    assert agent("apply", "small.yaml")[0] == 4
    status, out, _ = agent("apply", "small.yaml", "--force", "--wait")
    assert status == 0
    assert "and will be refused: ResizeInfeasible: " in out
    assert out.endswith("; the running pod stays unchanged\n")


def test_a_pod_that_is_ending_comes_back_when_it_has_ended(agent: Live) -> None:
    agent.runs(SMALL)
    agent.entries = (*agent.entries[:-1], replace(agent.entries[-1], deleting_since_ms=NOW_MS))
    (agent.manifests / "small.yaml").unlink()
    found = document(agent("apply", written("small.yaml", SMALL), "-o", "json"), "apply")["pods"][0]
    assert (found["change"], found["decided"], found["restarts"]) == ("created", False, False)


def test_a_refused_pod_that_is_applied_again_stays_refused_and_that_is_said(agent: Live) -> None:
    refused = agent.runs(SMALL)
    entry = PodEntry(
        refused, QosClass.BURSTABLE, Origin("small.yaml"), NOW_MS, Waiting("OutOfpods", "too many", NOW_MS)
    )
    agent.entries = (*agent.entries[:-1], entry)
    status, out, err = agent("apply", written("small.yaml", SMALL))
    assert (status, err) == (4, "")
    assert out == (
        f"pod default/small unchanged ({agent.manifests}/small.yaml), and is refused: OutOfpods: too many\n"
        f"  next: {advise_next_step('OutOfpods', 'default/small')}\n"
    )


def test_the_file_of_a_running_pod_that_cannot_be_understood_is_replaced(agent: Live) -> None:
    agent.runs(SMALL)
    path = agent.manifests / "small.yaml"
    path.write_text("kind: [")
    assert agent("apply", written("mended.yaml", SMALL))[1] == f"pod default/small changed ({path})\n"
    assert agent.files() == ["small.yaml"]
    assert path.read_text() == text(SMALL)


def test_a_file_that_may_not_be_read_is_not_replaced(agent: Live) -> None:
    agent.runs(SMALL)
    path = agent.manifests / "small.yaml"
    path.unlink()
    os.mkfifo(path)
    for command, status in (("apply", 1), ("diff", 1)):
        err = failed(agent(command, written("small.yaml", SLOW)), status=status)
        assert (
            f"cannot read {path}, which contains default/small and perhaps other pods: {path} is a FIFO, not a regular file"
            in err
        )
    assert path.is_fifo()


def test_the_node_is_looked_at_when_others_have_written(agent: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.runs(SMALL)
    other = ExitStack()
    other.enter_context(lock_manifests(str(agent.manifests), "none"))

    def deleted(_: float) -> None:
        (agent.manifests / "small.yaml").unlink()
        agent.entries = agent.entries[:-1]
        other.close()

    monkeypatch.setattr(manifests.time, "sleep", deleted)
    found = document(agent("apply", written("small.yaml", SMALL), "-o", "json"), "apply")["pods"][0]
    assert (found["change"], found["decided"]) == ("created", False)


def test_a_wait_ends_with_the_decision(agent: Live) -> None:
    def decide() -> None:
        if agent.asked > 3:
            agent.act = lambda: None
            agent.runs(SMALL)

    agent.act = decide
    status, out, err = agent("apply", written("small.yaml", SMALL), "--wait")
    assert (status, err) == (0, "")
    assert out.endswith("pod default/small admitted: app shared\n")
    found = document(agent("apply", "small.yaml", "--wait", "-o", "json"), "apply")["pods"][0]
    assert (found["change"], found["decided"], found["admitted"]) == ("unchanged", True, None)


def test_a_wait_lasts_until_the_first_process_is_on_its_cpus(agent: Live) -> None:
    """An admitted pod may wait until others have left its CPUs."""

    def start() -> None:
        if agent.asked == 4:
            agent.runs(LAUNCHED)
            not_begun = tuple(ContainerStatus(one.name) for one in agent.entries[-1].containers)
            agent.entries = (*agent.entries[:-1], replace(agent.entries[-1], containers=not_begun))
        if agent.asked == 6:
            begun = tuple(replace(one, attempt=1) for one in agent.entries[-1].containers)
            agent.entries = (*agent.entries[:-1], replace(agent.entries[-1], containers=begun))

    agent.act = start
    status, _, err = agent("apply", written("small.yaml", LAUNCHED), "--wait")
    assert (status, err) == (0, "")
    assert agent.asked >= 6


def test_a_wait_for_a_decision_that_is_a_refusal(agent: Live) -> None:
    def refuse() -> None:
        if agent.asked > 2 and len(agent.entries) == 1:
            refused = agent.runs(SMALL)
            why = Waiting("OutOfpods", "too many", NOW_MS)
            agent.entries = (
                *agent.entries[:-1],
                PodEntry(refused, QosClass.BURSTABLE, Origin("small.yaml"), NOW_MS, why),
            )

    agent.act = refuse
    status, out, err = agent("apply", written("small.yaml", SMALL), "--wait")
    assert (status, err) == (4, "")
    assert out.endswith("pod default/small refused: OutOfpods: too many\n")


def test_a_wait_for_a_change_that_is_refused(agent: Live) -> None:
    def refuse() -> None:
        if agent.asked > 2:
            (changed,) = parse_manifest((agent.manifests / "small.yaml").read_bytes(), "small.yaml")
            assert isinstance(changed, ManifestPod)
            why = Waiting("OutOfpods", "too many", NOW_MS)
            agent.entries = (
                *agent.entries[:-1],
                replace(agent.entries[-1], refused_change=RefusedChange(changed.pod, why)),
            )

    agent.runs(SMALL)
    agent.act = refuse
    status, out, err = agent("apply", written("small.yaml", SLOW), "--wait")
    assert (status, err) == (4, "")
    assert out.endswith("pod default/small refused: OutOfpods: too many; the running pod stays unchanged\n")
    status, out, err = agent("apply", "small.yaml", "--wait")
    assert (status, err) == (4, "")
    assert out == (
        f"pod default/small unchanged ({agent.manifests}/small.yaml), and is refused: OutOfpods: too many"
        "; the running pod stays unchanged\n"
        f"  next: {advise_next_step('OutOfpods', 'default/small')}\n"
    )


def test_a_wait_in_vain_says_what_is_in_place(agent: Live) -> None:
    status, out, err = agent("apply", written("small.yaml", SMALL), "--wait", "--timeout", "0")
    assert status == 1
    assert out.startswith("pod default/small created (")
    assert err.startswith("nodeagent: installed, but not started yet: default/small\nhint: ")
    assert agent.files() == ["small.yaml"]


def test_nobody_is_waited_for_where_no_agent_runs(node: Node) -> None:
    for command in ("apply", "delete"):
        assert "the agent is not running" in failed(node(command, written("web.yaml", WEB), "--wait"), status=3)
    assert node.files() == []
    for command in ("apply", "delete"):
        assert "--timeout 3 is the longest wait: add --wait" in node(command, "web.yaml", "--timeout", "3")[2]


def test_a_deleted_pod_is_waited_for_until_it_has_gone(agent: Live) -> None:
    agent.runs(SLOW)

    def end() -> None:
        if agent.asked > 4:
            agent.entries = agent.entries[:1]

    agent.act = end
    path = agent.manifests / "small.yaml"
    assert agent("delete", "small", "--wait") == (
        0,
        f"pod default/small deleted, {path} removed, it has ended\n",
        "",
    )
    assert agent.asked > 4


def test_a_deleted_pod_that_stays_is_named(agent: Live) -> None:
    agent.runs(SLOW)
    status, out, err = agent("delete", "small", "--wait", "--timeout", "0")
    assert (status, out.endswith("it ends within 7 s\n")) == (1, True)
    assert err.startswith(
        "nodeagent: the manifests are removed, but some pods have not ended yet: default/small\nhint: "
    )
    agent.runs(SLOW)
    agent.entries = agent.entries[:-1]
    found = document((0, agent("delete", "small", "--wait", "--timeout", "0", "-o", "json")[1], ""), "delete")
    assert found["left"] == ["default/small"]


def test_a_pod_without_a_manifest_is_told_from_one_that_nobody_knows(agent: Live) -> None:
    assert f"pod default/web has no manifest in {agent.manifests}" in failed(agent("delete", "web"))


def test_what_the_agent_makes_of_a_manifest_is_what_was_said(agent: Live) -> None:
    found = document(agent("apply", written("small.yaml", SMALL), "-o", "json"), "apply")["pods"][0]
    assert (found["change"], found["decision"], found["admitted"]) == ("created", "admitted", None)
    assert [one["isolation"] for one in found["containers"]] == ["host"]
