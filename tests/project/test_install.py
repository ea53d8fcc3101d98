"""Installing and removing, with the host's commands replaced by ones that only write down what they were asked for."""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.guest.images import NOT_INSTALLED, project_files
from nodeagent.cli.support.completion_scripts import PLACES
from tests.support.installed_command import install_command

ROOT = Path(__file__).parents[2]
PIP = """#!/bin/sh
for source; do :; done
echo "$source" >"$LOG/source"
(cd "$source" && find . -type f) >"$LOG/sources"
mkdir -p "$source/build" && touch "$source/build/stale.py"
"""
PYTHON = f"""#!/bin/sh
mkdir -p "$3/bin" && touch "$3/pyvenv.cfg"
printf '#!/bin/sh\\nshift; cd "$CHECKOUT" && exec "{sys.executable}" -B "$@"\\n' >"$3/bin/python"
cat >"$3/bin/pip" <<'END'
{PIP}END
chmod +x "$3/bin/python" "$3/bin/pip"
"""
STUBS = {
    "id": "echo 0",
    "getent": "exit 2",
    "dpkg-query": "exit 1",
    "groupadd": 'echo "$@" >>"$LOG/groupadd"',
    "systemctl": 'echo "$@" >>"$LOG/systemctl"; [ "$1" != show ]',
}


class Host:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.prefix = directory / "prefix"
        commands = directory / "commands"
        commands.mkdir()
        for name, text in {**{n: f"#!/bin/sh\n{t}\n" for n, t in STUBS.items()}, "python3": PYTHON}.items():
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        places = {name.upper(): str(directory / name) for name in ("units", "etc", "bin", "log", "fish")}
        for place in ("units", "log"):
            (directory / place).mkdir()
        self.checkout = directory / "checkout"
        for part in ("nodeagent", "systemd", "scripts", "examples", "docs", "contrib"):
            shutil.copytree(ROOT / part, self.checkout / part, ignore=shutil.ignore_patterns("__pycache__"))
        for part in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / part, self.checkout)
        places["CHECKOUT"] = str(self.checkout)
        self.environment = {**os.environ, **places, "PATH": f"{commands}:{os.environ['PATH']}"}

    def run(self, script: str, *, umask: int = 0o077, **variables: str) -> tuple[int, str, str]:
        done = subprocess.run(
            ["sh", self.checkout / "scripts" / script],
            env={"PREFIX": str(self.prefix), **self.environment, **variables},
            umask=umask,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def unit(self, name: str) -> str:
        return (self.directory / "units" / name).read_text()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    return Host(tmp_path)


def files_of(directory: Path) -> set[Path]:
    return {path.relative_to(directory) for path in directory.rglob("*")}


def test_the_units_start_what_was_installed(host: Host) -> None:
    status, out, err = host.run("install.sh")
    assert (status, err) == (0, "")
    assert f"ExecStart={host.prefix}/bin/nodeagent run " in host.unit("nodeagent.service")
    assert f"ExecReload={host.prefix}/bin/nodeagent config reload " in host.unit("nodeagent.service")
    assert f"ExecStart={host.prefix}/bin/python -I -m nodeagent.launcher " in host.unit("nodeagent-launcher.service")
    for unit in ROOT.glob("systemd/*.service"):
        assert host.unit(unit.name).replace(str(host.prefix), "/opt/nodeagent") == unit.read_text()
    assert (host.directory / "bin/nodeagent").readlink() == host.prefix / "bin/nodeagent"
    assert out.splitlines()[-1] == "start it with: systemctl enable --now nodeagent"


def test_the_command_is_isolated_from_its_caller(tmp_path: Path, host: Host) -> None:
    host.run("install.sh")
    script = (host.prefix / "bin/nodeagent").read_text()
    assert script.startswith(f"#!{host.prefix}/bin/python -IS\n")
    assert f'"{host.prefix}/lib/python' in script
    command = install_command(tmp_path / "real")
    evil = tmp_path / "nodeagent"
    evil.mkdir()
    (evil / "__init__.py").write_text("raise SystemExit('not this one')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": "/nowhere"}
    for words in (
        ("--version",),
        ("check", "--help"),
        ("job", "--cpus", "1", "--socket", "s", "--memory", "1Gi", "--", "a"),
    ):
        done = subprocess.run(
            [command, *words], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.returncode, "not this one" in done.stderr) == (125 if words[0] == "job" else 0, False), words


def test_a_checkout_stays_as_it_was(host: Host) -> None:
    before = files_of(host.checkout)
    host.run("install.sh")
    sources = (host.directory / "log/sources").read_text().split()
    assert files_of(host.checkout) == before
    assert {"./pyproject.toml", "./README.md", "./nodeagent/cli/main.py"} <= set(sources)
    assert not Path((host.directory / "log/source").read_text().strip()).exists(), "nothing of the build is left"


def test_all_may_read_what_root_installs_whatever_its_umask(host: Host) -> None:
    for path in (host.checkout / "docs").iterdir():
        path.chmod(0o600)
    host.run("install.sh", umask=0o077)
    installed = [
        path
        for part in ("prefix", "etc", "share", "fish")
        for path in (host.directory / part, *(host.directory / part).rglob("*"))
    ]
    for path in installed:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o044 == 0o044, path
        assert not mode & 0o022, path
        assert not path.is_dir() or mode & 0o011 == 0o011, path


def test_documents_and_examples_are_installed_and_only_those_there_are(host: Host) -> None:
    host.run("install.sh")
    left = host.prefix / "share/nodeagent/docs/gone.md"
    left.write_text("of an older version")
    host.run("install.sh")
    shared = host.prefix / "share/nodeagent"
    for part in ("docs", "examples", "contrib"):
        assert files_of(shared / part) == files_of(ROOT / part)
    for unit in ROOT.glob("systemd/*.service"):
        documents = re.findall(r"file:(\S+)", host.unit(unit.name))
        assert documents == [str(shared / "README.md")]
        assert Path(documents[0]).is_file()


def test_an_upgrade_keeps_the_configuration_and_says_how_to_change_over(host: Host) -> None:
    host.run("install.sh")
    config = host.directory / "etc/config.yaml"
    config.write_text("mine")
    status, out, _ = host.run("install.sh")
    assert (status, config.read_text()) == (0, "mine")
    assert out.splitlines()[-1].startswith(
        "switch to it with: systemctl restart nodeagent && systemctl reload nodeagent-launcher"
    )


@pytest.mark.parametrize(
    ("prefix", "problem"),
    [
        ("relative", "PREFIX must be an absolute path, not 'relative'"),
        ("/opt/a b", "PREFIX may have letters, digits and / . _ + - only, not '/opt/a b'"),
        ("/usr", "PREFIX /usr has other things in it"),
    ],
)
def test_a_place_that_cannot_be_is_refused(host: Host, prefix: str, problem: str) -> None:
    status, _, err = host.run("install.sh", PREFIX=prefix)
    assert (status, err.splitlines()[0]) == (1, f"install: {problem}")
    assert err.splitlines()[1].startswith("hint: ")


def test_removal_finds_the_place_by_the_unit_and_removes_what_was_installed(host: Host) -> None:
    host.run("install.sh")
    status, out, err = host.run("uninstall.sh", PREFIX="")
    assert (status, err) == (0, "")
    assert "nodeagent is gone" in out
    assert not host.prefix.exists()
    assert list((host.directory / "units").iterdir()) == list((host.directory / "bin").iterdir()) == []


def test_a_removal_that_is_killed_at_any_step_is_finished_by_the_next(host: Host) -> None:
    """As a power cut does; the place of the program is known by a unit alone, which therefore goes last."""
    countdown = 'left=$(($(cat "$LOG/left") - 1)); echo $left >"$LOG/left"; [ $left != 0 ] || kill -KILL $PPID'
    for name, text in (("systemctl", STUBS["systemctl"]), ("rm", f'{shutil.which("rm")} "$@"')):
        command = host.directory / f"commands/{name}"
        command.write_text(f"#!/bin/sh\n{text}\nstatus=$?\n{countdown}\nexit $status\n")
        command.chmod(0o755)
    left = host.directory / "log/left"
    steps = 0
    while True:
        steps += 1
        left.write_text("-1")
        assert host.run("install.sh")[0] == 0
        left.write_text(str(steps))
        killed, _, _ = host.run("uninstall.sh", PREFIX="")
        left.write_text("-1")
        status, out, _ = host.run("uninstall.sh", PREFIX="")
        assert (status, "nodeagent is gone" in out) == (0, True), steps
        installed = {host.prefix, host.directory / "bin/nodeagent", *(host.directory / "units").iterdir()}
        assert [path for path in installed if path.exists() or path.is_symlink()] == [], steps
        if killed == 0:
            break
        assert killed in {-signal.SIGKILL, 128 + signal.SIGKILL}, "itself, or `find` that it waited for"
    assert steps > 8


def test_man_and_the_shells_find_what_is_theirs_until_removal(host: Host) -> None:
    host.run("install.sh")
    share = host.directory / "share"
    installed = {str(path.relative_to(share)) for path in share.rglob("*") if path.is_file()}
    assert installed >= {"man/man8/nodeagent.8", "man/man8/nodeagent-inspect.8", *PLACES.values()}
    assert (host.directory / "fish/nodeagent.fish").is_file()
    others = [share / "man/man8/other.8", share / "bash-completion/completions/other"]
    for path in others:
        path.touch()
    host.run("uninstall.sh")
    assert sorted(path for path in share.rglob("*") if path.is_file()) == sorted(others)
    assert list((host.directory / "fish").iterdir()) == []


@pytest.mark.parametrize(("answer", "said"), [(0, ""), (1, "uninstall: systemd ends what is left\n")])
def test_removal_has_the_agent_give_back_what_it_holds_before_anything_is_stopped(
    host: Host, answer: int, said: str
) -> None:
    host.run("install.sh")
    agent = host.prefix / "bin/nodeagent"
    agent.write_text(f'#!/bin/sh\necho "$@" >>"$LOG/systemctl"\nexit {answer}\n')
    agent.chmod(0o755)
    (host.directory / "commands/systemctl").write_text(
        '#!/bin/sh\necho "$@" >>"$LOG/systemctl"; [ "$1" != show ] || echo /\n'
    )
    script = host.checkout / "scripts/node.sh"
    script.write_text(script.read_text().replace("/sys/fs/cgroup$group", str(host.directory)))
    (host.directory / "pod1").mkdir()
    (host.directory / "pod1/cgroup.events").write_text("populated 1\nfrozen 0\n")
    asked = host.directory / "log/systemctl"
    asked.unlink(missing_ok=True)
    assert host.run("uninstall.sh")[0] == 1
    assert "release" not in asked.read_text()
    asked.unlink()
    status, _, err = host.run("uninstall.sh", STOP_PODS="1")
    assert (status, err) == (0, said)
    lines = [line for line in asked.read_text().splitlines() if not line.startswith("show")]
    assert lines[0] == f"release --all --config {host.directory}/etc/config.yaml"
    assert lines[1] == "disable --now nodeagent.service"
    assert "disable --now nodeagent-pods.service" in lines


@pytest.mark.parametrize("script", ["install.sh", "uninstall.sh"])
def test_what_the_debian_package_has_installed_is_left_to_dpkg(host: Host, script: str) -> None:
    (host.directory / "commands/dpkg-query").write_text("#!/bin/sh\nprintf installed\n")
    host.prefix.mkdir()
    (host.prefix / "pyvenv.cfg").touch()
    before = files_of(host.directory)
    status, _, err = host.run(script)
    assert (status, err.splitlines()[0]) == (
        1,
        f"{script.removesuffix('.sh')}: nodeagent is here as a Debian package",
    )
    assert "hint: sudo apt-get remove nodeagent" in err
    assert files_of(host.directory) == before


def test_for_a_package_all_goes_below_one_directory_and_speaks_of_where_it_will_be(host: Host) -> None:
    staged = host.directory / "staged"
    script = host.prefix.relative_to("/") / "bin/script"
    pip = host.directory / "commands/python3"
    pip.write_text(PYTHON + f'printf "#!%s/bin/python\\n" "$3" >"$3/bin/{script.name}"\n')
    before = files_of(host.directory)
    status, out, err = host.run("install.sh", DESTDIR=str(staged), BIN="/usr/bin")
    assert (status, out, err) == (0, "", "")
    made = {path for path in files_of(host.directory) - before if path.parts[0] not in {"staged", "log"}}
    assert made == set()
    assert not (host.directory / "log/groupadd").exists()
    assert not (host.directory / "log/systemctl").exists()
    assert not (staged / (host.directory / "etc").relative_to("/")).exists(), "made on the host, not packed"
    assert (staged / "usr/bin/nodeagent").readlink() == host.prefix / "bin/nodeagent"
    assert (staged / script).read_text() == f"#!{host.prefix}/bin/python\n"
    units = staged / (host.directory / "units").relative_to("/")
    assert f"ExecStart={host.prefix}/bin/nodeagent run " in (units / "nodeagent.service").read_text()
    assert (staged / "usr/share/man/man8/nodeagent.8").is_file()
    assert (staged / host.prefix.relative_to("/") / "share/nodeagent/README.md").is_file()


def test_removal_touches_no_directory_that_the_installation_did_not_make(host: Host) -> None:
    host.run("install.sh")
    other = host.directory / "other"
    other.mkdir()
    (other / "precious").touch()
    host.run("uninstall.sh", PREFIX=str(other))
    assert (other / "precious").exists()


def test_guests_have_all_that_is_installed() -> None:
    parts = set(re.findall(r'"\$here/([\w.]+)"', (ROOT / "scripts/install.sh").read_text()))
    assert parts >= {"nodeagent", "docs", "examples", "contrib", "README.md"}
    assert parts <= {path.parts[0] for path in project_files(NOT_INSTALLED)}
