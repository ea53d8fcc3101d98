"""What errors about files and manifests advise, done to the letter: after it, the same succeeds.

tests/project/test_next_steps.py names these tests for the hints that they carry out.
"""

import errno
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cli.support.documents import write_out
from nodeagent.daemon.start.startup import STATE_FILE
from nodeagent.edge.files import state_files
from nodeagent.edge.files.placement_files import PlacementFiles
from nodeagent.edge.transport.listening import listen
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.node_state import decode_state
from nodeagent.formats.syntax.bind_address import UnixAddress
from tests.cli.test_apply import SMALL, WEB, Node, container, failed, node, pod, run, text, written

__all__ = ["node", "run"]

Case = tuple[Callable[[Path], object], Callable[[Path], object], str, Callable[[Path], object]]
"""What somebody has made, what the program does then, part of its hint, and what the hint says, done."""


def read(path: Path) -> bytes | None:
    return state_files.read(str(path), max_bytes=9)


def move_away(path: Path) -> None:
    path.rename(path.with_name("away"))


def put_regular_file(path: Path) -> None:
    path.unlink()
    path.write_text("content")


def serve(path: Path) -> None:
    listen(UnixAddress(f"{path}/s")).close()


OF_FILES: dict[str, Case] = {
    "a directory": (Path.mkdir, read, "see `ls -ld` of it, and move it away", move_away),
    "a link": (lambda path: path.symlink_to("/etc/passwd"), read, "see `ls -l` of it, and move it away", move_away),
    "a FIFO": (os.mkfifo, read, "put a regular file there", put_regular_file),
    "another FIFO": (os.mkfifo, read, "or name another", lambda path: (path.unlink(), path.write_text("another"))),
    "too large a file": (lambda path: path.write_text("0123456789"), read, "check it (`file", move_away),
    "a file for the state's directory": (
        lambda path: path.write_text(""),
        lambda path: state_files.write_atomically(f"{path}/state", b""),
        "a file is where a directory is expected: move it away",
        lambda path: (move_away(path), path.mkdir()),
    ),
    "no runtime directory": (
        lambda _: None,
        lambda path: PlacementFiles(f"{path}/placement").write("uid/app", b""),
        "make runtimeDirectory",
        Path.mkdir,
    ),
    "no directory for a socket": (lambda _: None, serve, "the socket's directory must exist", Path.mkdir),
    "a file for a socket's directory": (
        lambda path: path.write_text(""),
        serve,
        "a file has the name of the socket's directory: move the file away",
        lambda path: (move_away(path), path.mkdir()),
    ),
}


@pytest.mark.parametrize("case", OF_FILES)
def test_what_is_advised_about_a_file_cures(tmp_path: Path, case: str) -> None:
    make, use, hint, advised = OF_FILES[case]
    path = tmp_path / "it"
    make(path)
    with pytest.raises(NodeAgentError) as caught:
        use(path)
    assert hint in (caught.value.hint or "")
    advised(path)
    use(path)


@pytest.mark.parametrize("way", ["stopped", "another directory"])
def test_a_state_in_use_is_free_when_its_agent_is_stopped_and_so_is_another(tmp_path: Path, way: str) -> None:
    with ExitStack() as running:
        running.enter_context(state_files.lock_directory(str(tmp_path)))
        with pytest.raises(NodeAgentError) as caught:
            state_files.lock_directory(str(tmp_path))
        assert "stop it (`systemctl stop nodeagent`), or give this one another stateDirectory" in str(caught.value.hint)
        directory = tmp_path
        if way == "stopped":
            running.close()
        else:
            directory = tmp_path / "another"
            directory.mkdir()
        with state_files.lock_directory(str(directory)):
            pass


@pytest.mark.parametrize("way", ["moved", "another name"])
def test_a_file_that_is_not_replaced_can_be_moved_by_the_command_that_is_told(tmp_path: Path, way: str) -> None:
    out = tmp_path / "node's.json"
    out.write_text("precious")
    with pytest.raises(NodeAgentError) as caught:
        write_out(str(out), b"", replaces=False)
    told = re.search(r"`(mv [^`]*)`\), or name another file with --out", caught.value.hint or "")
    assert told is not None
    if way == "moved":
        subprocess.run(told[1], shell=True, check=True)
        assert out.with_name("node's.json.old").read_text() == "precious"
    else:
        out = out.with_name("another.json")
    write_out(str(out), b"", replaces=False)
    assert out.read_bytes() == b""


def test_a_full_file_system_is_named_where_a_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / "node's.json"
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", is_full)
        with pytest.raises(NodeAgentError, match="No space left") as caught:
            write_out(str(out), b"content", option="--report")
    told = re.fullmatch(
        r"make room: `(df .*)` shows the file system; or name another file with --report", caught.value.hint or ""
    )
    assert told is not None
    subprocess.run(told[1], shell=True, check=True)
    write_out(str(out), b"content")
    assert out.read_bytes() == b"content"


# Manifests

THIRD = pod("third", container("app", "1", "64Mi"))


def with_uid(name: str, **metadata: str) -> dict[str, Any]:
    return {**pod(name, container("app", "1", "64Mi")), "metadata": {"name": name, **metadata}}


def done(node: Node, hint: str) -> None:
    """Carry out the only command of `nodeagent` in a hint."""
    (command,) = re.findall(r"`nodeagent ([^`]*)`", hint)
    words = shlex.split(command)
    assert node(words[0], *words[1:])[0] == 0


def test_a_file_with_other_pods_is_replaced_by_one_with_all_of_them_or_edited(node: Node) -> None:
    path = node.manifests / "both.yaml"
    for way in ("one file", "edited"):
        path.write_text(text(WEB, SMALL))
        changed = pod("web", container("app", "3", "1Gi"))
        err = failed(node("apply", written("web.yaml", changed)))
        assert f"put all pods of {path} into one file, and run `nodeagent apply` on that file; or edit {path}" in err
        if way == "one file":
            assert node("apply", written("all.yaml", changed, SMALL))[0] == 0
        else:
            path.write_text(text(changed, SMALL))
        assert path.read_text() == text(changed, SMALL)


def test_pods_of_several_manifests_are_applied_one_by_one_or_when_the_extra_ones_are_removed(node: Node) -> None:
    for way in ("one by one", "removed"):
        (node.manifests / "a.yaml").write_text(text(WEB))
        (node.manifests / "b.yaml").write_text(text(SMALL))
        err = failed(node("apply", written("both.yaml", WEB, SMALL)))
        assert "apply each of them from a file of its own, or first remove the extra manifests" in err
        if way == "one by one":
            assert node("apply", written("web.yaml", WEB), written("small.yaml", SMALL))[0] == 0
        else:
            assert node("delete", str(node.manifests / "b.yaml"))[0] == 0
            assert node("apply", "both.yaml")[0] == 0
            assert (node.manifests / "a.yaml").read_text() == text(WEB, SMALL)


@pytest.mark.parametrize("way", ["its target", "the link removed"])
def test_a_links_target_is_changed_or_the_link_removed_first(node: Node, tmp_path: Path, way: str) -> None:
    target, link = tmp_path / "theirs.yaml", node.manifests / "web.yaml"
    target.write_text(text(WEB))
    link.symlink_to(target)
    changed = pod("web", container("app", "3", "1Gi"))
    err = failed(node("apply", written("web.yaml", changed)))
    if way == "its target":
        assert f"change its target {target}" in err
        target.write_text(text(changed))
    else:
        done(node, err.partition("first remove the link")[2])
        assert node("apply", "web.yaml")[0] == 0
        assert target.read_text() == text(WEB)
    assert (link.read_text(), link.is_symlink()) == (text(changed), way == "its target")


@pytest.mark.parametrize("metadata", [{}, {"uid": "other"}], ids=["removed", "changed"])
def test_a_uid_of_another_pod_is_removed_or_changed(node: Node, metadata: dict[str, str]) -> None:
    node("apply", written("a.yaml", with_uid("a", uid="mine")))
    err = failed(node("apply", written("b.yaml", with_uid("b", uid="mine"))))
    assert (
        "remove metadata.uid (the UID is then a hash of the pod) or change it, then run `nodeagent apply` again" in err
    )
    assert node("apply", written("b.yaml", with_uid("b", **metadata)))[0] == 0


@pytest.mark.parametrize("way", ["renamed", "one removed"])
def test_where_all_names_are_taken_the_file_is_renamed_or_a_manifest_removed(node: Node, way: str) -> None:
    node("apply", written("web.yaml", SMALL))
    for name in ("small.web.yaml", "web.yaml"):
        if name not in node.files():
            (node.manifests / name).write_text(text(with_uid(name.partition(".")[0] + "-other")))
    third = {**SMALL, "metadata": {"name": "web", "namespace": "small"}}
    err = failed(node("apply", written("web.yaml", third)))
    assert "rename web.yaml, or remove a manifest there: `nodeagent delete FILE`" in err
    if way == "renamed":
        Path("web.yaml").rename("mine.yaml")
        assert node("apply", "mine.yaml")[0] == 0
    else:
        assert node("delete", str(node.manifests / "web.yaml"))[0] == 0
        assert node("apply", "web.yaml")[0] == 0


@pytest.mark.parametrize("way", ["all named", "edited"])
def test_all_pods_of_a_file_are_named_or_it_is_edited(node: Node, way: str) -> None:
    path = node.manifests / "all.yaml"
    path.write_text(text(WEB, SMALL, THIRD))
    err = failed(node("delete", "web"))
    if way == "all named":
        done(node, err)
        assert node.files() == []
    else:
        assert f"to keep some, edit {path}" in err
        path.write_text(text(SMALL, THIRD))
        assert "web" not in path.read_text()


def test_of_a_pod_that_is_given_twice_one_is_removed(node: Node) -> None:
    failed(node("apply", written("a.yaml", WEB), written("b.yaml", WEB)))
    Path("b.yaml").unlink()
    assert node("apply", "a.yaml")[0] == 0


# Checkpoints


def test_a_file_of_version_1_is_converted_and_then_compared(node: Node, run: Any, tmp_path: Path) -> None:
    node.runs(WEB)
    state, ids, first = tmp_path / "state" / STATE_FILE, tmp_path / "ids", tmp_path / "cpu-v1"
    uid = decode_state(state.read_bytes()).state.entries[0].pod.uid
    ids.write_text(json.dumps({"0815": [uid, "app"]}))
    words = ("checkpoint", "convert", str(state), "--to", "cpu-v1", "--containers", str(ids), "--out", str(first))
    assert run(*words)[0] == 0
    err = failed(run("checkpoint", "verify", str(first), "--state", str(state)))
    (told,) = re.findall(r"`nodeagent (checkpoint convert [^`]*)`", err)
    again = tmp_path / "again"
    words = told.replace("FILE", str(first)).replace("IDS", str(ids)).split()
    assert run(*words, "--out", str(again))[0] == 0
    assert run("checkpoint", "verify", str(again), "--state", str(state))[0] == 0
    assert "compare another file with the state" in failed(
        run("checkpoint", "verify", str(state), "--state", str(state))
    )


def test_what_has_no_content_for_a_version_is_taken_from_the_state(node: Node, run: Any, tmp_path: Path) -> None:
    node.runs(WEB)
    state, cpus = tmp_path / "state" / STATE_FILE, tmp_path / "cpu_manager_state"
    assert run("checkpoint", "convert", str(state), "--to", "cpu-v2", "--out", str(cpus))[0] == 0
    err = failed(run("checkpoint", "convert", str(cpus), "--to", "memory-v1"))
    (told,) = re.findall(r"`nodeagent (checkpoint convert [^`]*)`", err)
    assert run(*told.replace("nodeagent_state", str(state)).split(), "--out", str(tmp_path / "memory"))[0] == 0
