"""What the Debian package is made of agrees with the rest of the project."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from integration.guest.images import project_files
from nodeagent import __version__

ROOT = Path(__file__).parents[2]
DEBIAN = ROOT / "debian"


def test_the_version_is_the_programs() -> None:
    first = (DEBIAN / "changelog").read_text().splitlines()[0]
    assert re.fullmatch(rf"nodeagent \({re.escape(__version__)}-\d+\) unstable; urgency=medium", first)
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == __version__


def test_what_is_built_from_is_there() -> None:
    """The rest of the checkout is for working on it."""
    (listed,) = re.findall(r"^for part in (.*); do$", (ROOT / "scripts/deb.sh").read_text(), re.MULTILINE)
    assert set(listed.split()) <= {path.parts[0] for path in project_files()}
    for script in ("install.sh", "deb.sh"):
        for part in re.findall(r'"\$here/([\w.]+)"', (ROOT / "scripts" / script).read_text()):
            assert part in {*listed.split(), "dist"}


def test_scripts_that_use_the_nodes_functions_get_them() -> None:
    functions = re.findall(r"^(\w+)\(\)", (ROOT / "scripts/node.sh").read_text(), re.MULTILINE)
    assert functions
    (given,) = re.findall(r"for script in ([\w ]+); do sed .* scripts/node\.sh", (DEBIAN / "rules").read_text())
    users = {
        name
        for name in ("preinst", "postinst", "prerm", "postrm")
        if any(re.search(rf"\b{function}\b", (DEBIAN / name).read_text()) for function in functions)
    }
    assert set(given.split()) == users
    assert all("\n#NODE#\n" in (DEBIAN / name).read_text() for name in users)


class Host:
    """Runs the package's scripts, with commands that only write down what they were asked for."""

    def __init__(self, directory: Path, *, active: bool, populated: bool) -> None:
        self.directory = directory
        self.asked = directory / "asked"
        commands = directory / "commands"
        commands.mkdir()
        stubs = {name: f'echo "{name} $*" >>"{self.asked}"' for name in ("deb-systemd-invoke", "groupadd", "groupdel")}
        stubs["getent"] = "exit 2"
        stubs["systemctl"] = (
            'case "$*" in\nshow*) echo /pods;;\n*is-active*) '
            f'exit {0 if active else 3};;\n*) echo "systemctl $*" >>"{self.asked}";;\nesac'
        )
        for name, text in stubs.items():
            (commands / name).write_text(f"#!/bin/sh\n{text}\n")
            (commands / name).chmod(0o755)
        for place in ("run/systemd/system", "etc/nodeagent", "var/lib/nodeagent", "sys/fs/cgroup/pods/pod1"):
            (directory / place).mkdir(parents=True)
        self.sample = directory / "opt/nodeagent/share/nodeagent/examples/config.yaml"
        self.sample.parent.mkdir(parents=True)
        self.sample.write_text("sample\n")
        (directory / "sys/fs/cgroup/pods/pod1/cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")

    def run(self, script: str, *arguments: str, debhelper: str = "") -> tuple[int, str]:
        text = (DEBIAN / script).read_text().replace("#NODE#", (ROOT / "scripts/node.sh").read_text())
        text = text.replace("#DEBHELPER#", debhelper)
        text = re.sub(r"(?<=[\s\"])/(?=(run|etc|var|sys|opt)/)", f"{self.directory}/", text)
        done = subprocess.run(
            ["sh", "-c", text, script, *arguments],
            env={**os.environ, "PATH": f"{self.directory}/commands:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    def orders(self) -> list[str]:
        return self.asked.read_text().splitlines() if self.asked.exists() else []


def test_it_is_started_when_it_comes_and_changed_over_under_pods(tmp_path: Path) -> None:
    for active in (False, True):
        (tmp_path / str(active)).mkdir()
    fresh = Host(tmp_path / "False", active=False, populated=False)
    assert fresh.run("postinst", "configure", "") == (0, "")
    assert fresh.orders() == [
        "groupadd --system nodeagent",
        "systemctl daemon-reload",
        "deb-systemd-invoke start nodeagent.service",
    ]
    assert fresh.run("prerm", "remove") == (0, "")
    assert fresh.run("postrm", "remove") == (0, "")
    assert fresh.run("preinst", "install", "1") == (0, "")
    assert fresh.run("postinst", "configure", "1") == (0, "")
    assert fresh.orders()[-1] == "deb-systemd-invoke start nodeagent.service", "removed, and here again"
    old = Host(tmp_path / "True", active=True, populated=True)
    assert old.run("prerm", "upgrade", "2") == (0, "")
    assert old.orders() == []
    assert old.run("postinst", "configure", "1") == (0, "")
    assert old.orders()[1:] == [
        "systemctl daemon-reload",
        "systemctl try-restart nodeagent.service",
        "systemctl reload nodeagent-launcher.service",
    ]


def test_what_was_stopped_stays_stopped_when_it_is_upgraded(tmp_path: Path) -> None:
    """The agent and its pods' unit. Also after a reinstallation, and when dpkg-reconfigure asks."""
    host = Host(tmp_path, active=False, populated=False)
    assert host.run("preinst", "install") == (0, "")
    assert host.run("postinst", "configure", "") == (0, "")
    started = host.orders()
    assert started[-1] == "deb-systemd-invoke start nodeagent.service"
    assert host.run("preinst", "upgrade", "1") == (0, "")
    assert host.run("postinst", "configure", "1") == (0, "")
    assert host.orders()[len(started) + 1 :] == ["systemctl daemon-reload", "systemctl try-restart nodeagent.service"]


@pytest.mark.parametrize("populated", [True, False])
def test_it_does_not_go_under_pods(tmp_path: Path, populated: bool) -> None:
    host = Host(tmp_path, active=True, populated=populated)
    status, said = host.run("prerm", "remove")
    if populated:
        assert (status, host.orders()) == (1, [])
        assert said.startswith("nodeagent: pods are running")
        assert "hint: end them with nodeagent release --all" in said
    else:
        assert (status, said) == (0, "")
        assert host.orders() == [
            "systemctl stop nodeagent.service",
            "systemctl stop nodeagent-pods.service",
            "systemctl clean --what=runtime nodeagent.service",
        ]


def test_only_a_purge_takes_configuration_and_state(tmp_path: Path) -> None:
    host = Host(tmp_path, active=False, populated=False)
    kept = [tmp_path / "etc/nodeagent", tmp_path / "var/lib/nodeagent"]
    assert host.run("postrm", "remove") == (0, "")
    assert all(path.exists() for path in kept)
    assert host.run("postrm", "purge") == (0, "")
    assert not any(path.exists() for path in kept)


KILL = "kill -9 $PPID; exit 1"


@pytest.mark.parametrize(
    ("script", "arguments", "killed_at"),
    [
        *(("prerm", ("remove",), order) for order in ("stop nodeagent.service", "stop nodeagent-pods", "clean ")),
        *(("postinst", ("configure", ""), order) for order in ("daemon-reload", "is-active", "start nodeagent")),
        ("postrm", ("purge",), "groupdel"),
    ],
)
def test_a_script_that_was_killed_finishes_when_dpkg_runs_it_again(
    tmp_path: Path, script: str, arguments: tuple[str, ...], killed_at: str
) -> None:
    hosts = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        hosts.append(used(tmp_path / name, populated=False))
    whole, killed = hosts
    assert whole.run(script, *arguments) == (0, "")
    commands = tmp_path / "killed/commands"
    for command in ("systemctl", "deb-systemd-invoke", "groupdel", "getent"):
        stub, kept = commands / command, (commands / command).read_text()
        if command == "getent" and killed_at == "groupdel":
            stub.write_text("#!/bin/sh\n")  # the group is there
        elif command != "getent":
            stub.write_text(f'#!/bin/sh\ncase "{command} $*" in *"{killed_at}"*) {KILL};; esac\n{kept}')
    assert killed.run(script, *arguments)[0] == -9
    for command in ("systemctl", "deb-systemd-invoke", "groupdel"):
        stub = commands / command
        stub.write_text(stub.read_text().replace(KILL, ":"))
    assert killed.run(script, *arguments) == (0, "")
    last = len(whole.orders())
    assert [order for order in killed.orders()[-last:] if "group" not in order] == [
        order for order in whole.orders() if "group" not in order
    ]


def test_a_copy_that_was_cut_off_is_not_taken_for_the_configuration(tmp_path: Path) -> None:
    host = Host(tmp_path, active=False, populated=False)
    stub = tmp_path / "commands/install"
    stub.write_text(f'#!/bin/sh\nif [ "$1" = -d ]; then mkdir -p "$4" "$5"; else printf sam >"$4"; {KILL}; fi\n')
    stub.chmod(0o755)
    assert host.run("postinst", "configure", "")[0] == -9
    stub.unlink()
    assert host.run("postinst", "configure", "") == (0, "")
    assert {path.name: path.read_text() for path in (tmp_path / "etc/nodeagent").iterdir() if path.is_file()} == {
        "config.yaml": "sample\n"
    }


def files_of(host: Host) -> dict[str, str]:
    found = (path for path in host.directory.rglob("*") if path.is_file() and path.parent.name != "commands")
    return {str(path.relative_to(host.directory)): path.read_text() for path in found}


def used(directory: Path, *, populated: bool) -> Host:
    """A host with all that a purge takes."""
    host = Host(directory, active=populated, populated=populated)
    for name in ("etc/nodeagent/config.yaml", "etc/nodeagent/manifests/a.yaml", "var/lib/nodeagent/nodeagent_state"):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("kept")
    return host


@pytest.mark.parametrize("populated", [True, False])
def test_a_purge_leaves_everything_to_who_came_after_the_package(tmp_path: Path, populated: bool) -> None:
    """What debhelper adds would disable a unit of that name."""
    host = used(tmp_path, populated=populated)
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system/nodeagent.service").touch()
    before = files_of(host)
    status, said = host.run("postrm", "purge", debhelper="echo disabled >&2")
    assert (status, host.orders(), files_of(host)) == (0, [], before)
    assert said.startswith("nodeagent: configuration and state are kept: make install was used since")
    assert "hint: sudo make uninstall PURGE=1" in said
    assert "disabled" not in said


def test_a_purge_is_refused_while_pods_run(tmp_path: Path) -> None:
    host = used(tmp_path, populated=True)
    before = files_of(host)
    status, said = host.run("postrm", "purge", debhelper="echo disabled >&2")
    assert (status, host.orders(), files_of(host)) == (1, [], before)
    assert said.startswith("nodeagent: pods are running")
    assert "hint: end them with systemctl stop nodeagent-pods" in said
    assert "disabled" not in said


def test_the_configuration_is_not_dpkgs(tmp_path: Path) -> None:
    """It would purge it by itself, before any script is asked. What an operator has changed stays."""
    host = Host(tmp_path, active=False, populated=False)
    config = tmp_path / "etc/nodeagent/config.yaml"
    for before, after in ((None, "sample\n"), ("mine\n", "mine\n")):
        if before is not None:
            config.write_text(before)
        assert host.run("postinst", "configure", "") == (0, "")
        assert (config.read_text(), config.parent.joinpath("manifests").is_dir()) == (after, True)


def test_it_does_not_come_over_another_installation(tmp_path: Path) -> None:
    host = Host(tmp_path, active=False, populated=False)
    assert host.run("preinst", "install") == (0, "")
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    (units / "nodeagent.service").symlink_to("/dev/null")  # masked by somebody
    assert host.run("preinst", "install") == (0, "")
    (units / "nodeagent.service").unlink()
    (units / "nodeagent.service").touch()
    status, said = host.run("preinst", "install")
    assert status == 1
    assert "hint: sudo make uninstall" in said
