"""Files that commands are given: by path, from stdin, or through a pipe, which can be read only once."""

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.daemon.start.startup import MAX_CONFIG_BYTES
from tests.support.described_nodes import CONFIG, MACHINE, ROOT, RunCommand, container, golden, manifest, pod, run

__all__ = ["golden", "run"]
Piped = Callable[[bytes], None]


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Piped:
    """Give the command something to read on stdin."""
    return lambda content: monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def described(run: RunCommand) -> bytes:
    status, out, _ = run("topology", "--topology", MACHINE, "-o", "json")
    assert status == 0
    return out.encode()


@contextmanager
def through_fifos(*contents: bytes) -> Iterator[None]:
    """Write each content once to `fifo-0`, `fifo-1` and so on; each write waits for its reader, but at the end for none any more."""
    writers = []
    for number, content in enumerate(contents):
        os.mkfifo(f"fifo-{number}")
        writers.append(threading.Thread(target=Path(f"fifo-{number}").write_bytes, args=(content,)))
        writers[-1].start()
    try:
        yield
    finally:
        for number, writer in enumerate(writers):
            os.close(os.open(f"fifo-{number}", os.O_RDONLY | os.O_NONBLOCK))
            writer.join()


def test_a_machine_a_configuration_and_pods_come_through_pipes(run: RunCommand) -> None:
    manifest("pod.yaml", pod("web", container("app", "2", "1Gi")))
    machine = described(run)
    named = run("explain", "-f", "pod.yaml", "--topology", MACHINE, "--config", "config.yaml")
    with through_fifos(Path("pod.yaml").read_bytes(), machine, Path("config.yaml").read_bytes()):
        status, out, err = run("explain", "-f", "fifo-0", "--machine", "fifo-1", "--config", "fifo-2")
    assert (status, err) == (0, "")
    assert out[out.index("rules") :] == named[1][named[1].index("rules") :]
    assert out.splitlines()[0].endswith(": fifo-1")


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "--config", "config.yaml", "--machine", "-", "-o", "json"),
        ("check", "--config", "config.yaml", "--machine", "-", "-o", "json"),
        ("topology", "--config", "config.yaml", "--machine", "-"),
        ("config", "validate", "config.yaml", "--machine", "-"),
        ("simulate", "-f", "pod.yaml", "--config", "config.yaml", "--machine", "-"),
        ("simulate", "--capacity", "-f", "pod.yaml", "--config", "config.yaml", "--machine", "-"),
        ("simulate", "--compare", "config.yaml", "other.yaml", "-f", "pod.yaml", "--machine", "-"),
    ],
    ids=" ".join,
)
def test_every_command_takes_a_machine_from_stdin(words: tuple[str, ...], run: RunCommand, piped: Piped) -> None:
    manifest("pod.yaml", pod("web", container("app", "2", "1Gi")))
    Path("other.yaml").write_text(CONFIG.replace("Static", "None").split("reservedMemory")[0])
    machine = described(run)
    Path("machine.json").write_bytes(machine)
    piped(machine)
    status, out, _ = run(*words)
    assert (status, out.replace("/dev/stdin", "machine.json")) == run(
        *[word if word != "-" else "machine.json" for word in words]
    )[:2]
    assert out


@pytest.mark.parametrize("action", ["validate", "show"])
def test_a_configuration_comes_from_stdin(action: str, run: RunCommand, piped: Piped) -> None:
    more = ("--alone",) if action == "validate" else ()
    named = run("config", action, "config.yaml", *more)
    piped(Path("config.yaml").read_bytes())
    status, out, err = run("config", action, "-", *more)
    assert (status, out.replace("/dev/stdin", "config.yaml"), err) == named
    assert status == 0


@pytest.mark.parametrize("word", ["/dev/stdin", "/dev//stdin", "/dev/./fd/0"])
def test_stdin_is_known_by_every_spelling_of_its_path(word: str, run: RunCommand, piped: Piped) -> None:
    piped(Path("config.yaml").read_bytes())
    assert run("config", "show", word)[1].count("single-numa-node") == 1


def test_a_file_of_the_name_of_stdin_is_a_file(run: RunCommand, piped: Piped) -> None:
    Path("-").write_text("maxPods: 77\n")
    piped(b"maxPods: 11\n")
    status, out, err = run("config", "show", "./-")
    assert (status, err) == (0, "")
    assert "maxPods: 77" in out


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("topology", "--root", ""), "--root"),
        (("inspect", "--machine", ""), "--machine"),
        (("inspect", "--config="), "--config"),
        (("inspect", "--socket", ""), "--socket"),
        (("release", "--all", "--dry-run", "--root", ""), "--root"),
        (("explain", "web", "--root="), "--root"),
        (("explain", "-f", ""), "-f/--file"),
        (("explain", "web", "--socket", ""), "--socket"),
        (("simulate", ""), "FILE|-"),
        (("simulate", "-f", "pod.yaml", "--compare", "config.yaml", ""), "--compare"),
        (("config", "validate", ""), "FILE|-"),
        (("config", "migrate-from-kubelet", "config.yaml", "--out", ""), "--out"),
        (("checkpoint", "verify", ""), "FILE|-"),
        (("retry", "web", "--socket", ""), "--socket"),
        (("run", "--config", ""), "--config"),
    ],
    ids=repr,
)
def test_an_empty_word_is_no_path(words: tuple[str, ...], name: str, run: RunCommand) -> None:
    status, out, err = run(*words)
    assert (status, out) == (64, "")
    assert f"argument {name}: '' is not a path: is a shell variable empty or not set?\n" in err


def test_an_empty_word_describes_no_machine_of_scenarios(run: RunCommand) -> None:
    Path("scenarios.jsonl").write_text("{}\n")
    status, out, err = run("simulate", "scenarios.jsonl", "--topology", "")
    assert (status, out) == (64, "")
    assert err.startswith('nodeagent: --topology "": ')


def test_a_wrong_configuration_on_stdin_is_reported_with_its_line(run: RunCommand, piped: Piped) -> None:
    piped(b"maxPods: many\n")
    status, out, err = run("config", "validate", "-", "--alone", "-o", "json")
    assert (status, err) == (2, "")
    [finding] = json.loads(out)["findings"]
    assert (json.loads(out)["file"], finding["line"], finding["field"]) == ("/dev/stdin", 1, "maxPods")


def test_kubelets_configuration_and_a_state_file_come_from_stdin(run: RunCommand, piped: Piped) -> None:
    piped(b"kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nmaxPods: 7\n")
    status, out, _ = run("config", "migrate-from-kubelet", "-")
    assert (status, "maxPods: 7" in out) == (0, True)
    state = b'{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
    piped(state)
    status, out, _ = run("checkpoint", "show", "-", "-o", "json")
    Path("state").write_bytes(state)
    assert (status, out) == run("checkpoint", "show", "state", "-o", "json")[:2]
    assert status == 0


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "-f", "-", "--topology", "4c", "--config", "-"),
        ("explain", "-f", "-", "-f", "/dev/stdin", "--topology", "4c", "--config", "config.yaml"),
        ("simulate", "--compare", "-", "-", "--topology", "4c"),
        ("simulate", "-", "--machine", "-"),
        ("config", "validate", "-", "--machine", "-"),
        ("explain", "-f", "/proc/self/fd/0", "--config", "-", "--topology", "4c"),
        ("explain", "-f", "/dev/stdin", "--config", "/dev/fd/0", "--topology", "4c"),
        ("simulate", "/proc/thread-self/fd/0", "--machine", "/dev//fd/0"),
    ],
    ids=" ".join,
)
def test_only_one_argument_reads_stdin(words: tuple[str, ...], run: RunCommand, piped: Piped) -> None:
    piped(b"")
    status, out, err = run(*words)
    assert (status, out) == (64, "")
    assert "nodeagent: only one argument can be - or /dev/stdin\nhint: " in err


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero", "."])
@pytest.mark.parametrize("words", [("config", "show"), ("topology", "--machine"), ("checkpoint", "show")], ids=" ".join)
def test_devices_and_directories_are_none(device: str, words: tuple[str, ...], run: RunCommand) -> None:
    status, out, err = run(*words, device)
    assert (status, out) == (1, "")
    assert err.startswith(
        (f"nodeagent: cannot read {device}: it is not a regular file", "nodeagent: cannot read .: Is a dir")
    )


@pytest.mark.parametrize(
    "words",
    [("explain", "-f", "pod.yaml", "--topology", MACHINE, "--config"), ("config", "show"), ("topology", "--machine")],
    ids=" ".join,
)
@pytest.mark.parametrize("name", [".", "large", "config.yaml/x"])
def test_of_what_was_named_nothing_is_to_be_moved_away(name: str, words: tuple[str, ...], run: RunCommand) -> None:
    manifest("pod.yaml", pod("web", container("app", "2", "1Gi")))
    with Path("large").open("wb") as file:
        file.truncate(1 << 40)
    status, out, err = run(*words, name)
    assert (status, out) == (1, "")
    assert err.startswith(f"nodeagent: cannot read {name}: ")
    assert f"\nhint: name a file, or - for stdin; `ls -lLd {name}` shows what is there, `namei" in err


@pytest.mark.parametrize("name", ["-", "fifo-0"])
def test_what_to_correct_of_a_pipe_is_what_is_piped_in(name: str, run: RunCommand, piped: Piped) -> None:
    for words, content, what in (
        (("config", "validate", "--alone", name), b"maxPods: many\n", "fix these lines of the input; "),
        (
            ("config", "migrate-from-kubelet", name),
            b"maxPods: many\n",
            "fix these fields of the input, then migrate it ",
        ),
        (("explain", "--topology", MACHINE, "--config", "config.yaml", "-f", name), b"\n", "fix these lines; "),
    ):
        piped(content)
        with through_fifos(*[content] if name != "-" else []):
            status, out, err = run(*words)
        Path(name).unlink(missing_ok=True)
        assert (status, out) == (2 if "validate" in words else 1, "")
        assert what in err.partition("\nhint: ")[2]
        assert "/dev/stdin" not in err.partition("\nhint: ")[2]
        assert "remove the file" not in err


@pytest.mark.parametrize("name", ["-", "fifo-0"])
def test_a_pipe_without_end_is_an_error(name: str, run: RunCommand, piped: Piped) -> None:
    content = b"#" * (MAX_CONFIG_BYTES + 1)
    piped(content)
    with through_fifos(*[content] if name != "-" else []):
        status, out, err = run("config", "show", name)
    assert (status, out) == (1, "")
    assert f": got more than {MAX_CONFIG_BYTES} bytes\nhint: check the input" in err


def test_a_pipe_may_hold_as_much_as_a_file(run: RunCommand, piped: Piped) -> None:
    field = b"maxPods: 7\n"
    piped(field + b"#" * (MAX_CONFIG_BYTES - len(field)))
    assert run("config", "show", "-")[::2] == (0, "")


NOTHING = "got no input\nhint: the command before the pipe may have failed: "


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "-f", "pod.yaml", "--topology", MACHINE, "--config", "-"),
        ("explain", "-f", "-", "--topology", MACHINE, "--config", "config.yaml"),
        ("simulate", "--compare", "config.yaml", "-", "-f", "pod.yaml", "--topology", MACHINE),
        ("config", "validate", "-", "--alone"),
        ("config", "show", "-"),
        ("config", "migrate-from-kubelet", "-"),
        ("topology", "--machine", "-"),
        ("checkpoint", "show", "-"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("name", ["-", "/dev/fd/0", "fifo-0"])
def test_a_pipe_through_which_nothing_comes_is_an_error(
    name: str, words: tuple[str, ...], run: RunCommand, piped: Piped
) -> None:
    manifest("pod.yaml", pod("web", container("app", "2", "1Gi")))
    piped(b"")
    with through_fifos(*[b""] if name == "fifo-0" else []):
        status, out, err = run(*[name if word == "-" else word for word in words])
    assert (status, out) == (1, "")
    assert err.startswith(f"nodeagent: cannot read {'fifo-0' if name == 'fifo-0' else '/dev/stdin'}: {NOTHING}")
    assert err.count("\n") == 2, "it is said once"


def test_scenarios_that_do_not_come_are_reported_in_their_own_words(run: RunCommand, piped: Piped) -> None:
    piped(b"")
    status, out, err = run("simulate", "/dev/fd/0")
    assert (status, out) == (1, "")
    assert err.startswith("nodeagent: cannot read scenarios from /dev/stdin: it contains no scenario\nhint: ")


@pytest.mark.parametrize("came", ["<&-", "</dev/null", "< <(cat none)"])
def test_a_command_that_failed_in_a_pipe_leaves_no_configuration(came: str) -> None:
    script = f'"$0" -m nodeagent config show - {came}'
    done = subprocess.run(["bash", "-c", script, sys.executable], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"nodeagent: cannot read /dev/stdin: {NOTHING}" in done.stderr


@pytest.mark.parametrize("content", ["", "\n", "# cpuManagerPolicy: static\n---\n"])
def test_an_empty_file_is_no_configuration_as_a_full_disk_may_leave_one(content: str, run: RunCommand) -> None:
    Path("empty.yaml").write_text(content)
    status, _, err = run("config", "validate", "empty.yaml", "--alone")
    assert (status, err.startswith("nodeagent: empty.yaml is empty\nhint: kubelet refuses an empty")) == (1, True)
    Path("empty.yaml").write_text(f"{content}cpuManagerPolicy: none\n")
    assert run("config", "validate", "empty.yaml", "--alone")[::2] == (0, "")


@pytest.mark.parametrize("descriptors", ["/dev/fd", "/proc/self/fd"])
@pytest.mark.parametrize(
    "words", [("config", "show"), ("simulate",), ("explain", "--topology", "4c", "--config", "config.yaml", "-f")]
)
def test_a_pipe_that_is_not_open_is_an_error_that_names_sudo(
    words: tuple[str, ...], descriptors: str, run: RunCommand
) -> None:
    closed = max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 100
    status, out, err = run(*words, f"{descriptors}/{closed}")
    assert (status, out) == (1, "")
    assert err.startswith(
        f"nodeagent: cannot read {descriptors}/{closed}: the descriptor is not open\nhint: sudo closes the pipe of <(...)"
    )


def test_how_to_read_one_scenario_again_is_shown_for_files_only(run: RunCommand) -> None:
    content = b'{"topology": {"cpus": []}}\n' * 11
    Path("scenarios.jsonl").write_bytes(content)
    assert "sed -n 11p scenarios.jsonl" in run("simulate", "scenarios.jsonl")[1]
    with through_fifos(content):
        status, out, _ = run("simulate", "fifo-0")
    assert (status, "sed -n" in out) == (0, False)


def test_shells_can_pass_what_commands_print(run: RunCommand) -> None:
    manifest("pod.yaml", pod("web", container("app", "2", "1Gi")))
    script = (
        'a="$0 -m nodeagent"; $a explain -f <(cat pod.yaml) --config <(cat config.yaml) '
        f"--machine <($a topology --topology {MACHINE} -o json)"
    )
    done = subprocess.run(
        ["bash", "-c", script, sys.executable],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "pod default/web (Guaranteed): admitted" in done.stdout


@pytest.mark.parametrize("place", ["--root", "completion"])
def test_a_pipe_at_a_place_of_nodeagents_own_is_never_waited_for(place: str, run: RunCommand) -> None:
    Path("copy/etc/nodeagent").mkdir(parents=True)
    os.mkfifo("copy/etc/nodeagent/config.yaml")
    if place == "--root":
        status, _, err = run("config", "validate", "--root", "copy", "--alone")
        assert (status, "it is not a regular file" in err) == (1, True)
    else:
        os.mkfifo("machine")
        assert run("completion", "words", "--", "nodeagent", "explain", "--machine", "machine", "")[::2] == (0, "")


NOBODY = 65_534
LATE = (
    "difflib",
    "encodings.utf_8_sig",
    "shutil",
    "nodeagent.edge.kernel.sysfs",
    "nodeagent.formats.topology.topology_spec",
)
"""What commands import once they run: the interpreter may be root's own, and another user can't read it then."""


@pytest.mark.parametrize(
    "words",
    [
        ["checkpoint", "verify", "{}"],
        ["config", "validate", "{}"],
        ["explain", "-f", "{}", "--topology", MACHINE],
        ["simulate", "{}"],
        ["inspect", "--machine", "{}"],
        ["topology", "--root", "{}"],
        ["checkpoint", "convert", "{}", "--to", "cpu-v3"],
    ],
    ids=" ".join,
)
def test_a_file_that_others_keep_to_themselves_is_an_error_of_one_line(words: list[str], tmp_path: Path) -> None:
    secret = tmp_path / "theirs"
    secret.mkdir()
    (secret / "file").write_text("{}")
    secret.chmod(0)  # root needs no right to enter it: it becomes somebody else
    become = f"os.setgroups([]); os.setresuid({NOBODY}, {NOBODY}, {NOBODY})" if os.geteuid() == 0 else ""
    modules = [f"nodeagent.cli.commands.{path.stem}" for path in (ROOT / "nodeagent/cli/commands").glob("[a-z]*.py")]
    program = (
        f"import os, sys, {', '.join([*LATE, *modules])}\n"
        f"os.chdir('/'); {become}\n"
        "from nodeagent.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    given = [word.format(secret / "file") for word in words]
    done = subprocess.run(
        [sys.executable, "-c", program, *given], cwd=ROOT, capture_output=True, text=True, check=False
    )
    secret.chmod(0o700)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    problem, hint = done.stderr.splitlines()
    assert f"{secret}/file" in problem
    assert "Permission denied" in problem
    assert hint.startswith("hint: ")
