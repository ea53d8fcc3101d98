"""The project's own rules, as tests: nobody can forget a linter."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "format", "--check", "--quiet", "."],
        ["ruff", "check", "--quiet", "."],
        ["mypy"],
        ["lint-imports"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_linter_finds_nothing(command):
    result = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_module_says_what_it_is():
    silent = [path for path in ROOT.glob("nodeagent/**/*.py") if not path.read_text().startswith('"""')]
    assert silent == [], "a module opens with what it decides and what it must not know"


def test_nothing_is_left_to_do_or_silenced_without_a_reason():
    marks = ("TO" + "DO", "FIX" + "ME", "# type: " + "ignore")
    paths = [p for part in ("nodeagent", "tests", "integration", "benchmarks") for p in (ROOT / part).glob("**/*.py")]
    found = [
        f"{p.relative_to(ROOT)}:{n}"
        for p in paths
        for n, line in enumerate(p.read_text().splitlines(), 1)
        if any(m in line for m in marks)
    ]
    assert found == []


def test_the_package_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "nodeagent", "--version"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout.split()[:1], done.stderr, done.returncode) == (["nodeagent"], "", 0)


def test_the_launcher_needs_nothing_but_the_standard_library():
    every = [f"nodeagent.launcher.{path.stem}" for path in (ROOT / "nodeagent/launcher").glob("[!_]*.py")]
    before, program = "import sys; before = {*sys.modules}", "print(*{*sys.modules} - before)"
    loaded = subprocess.run(
        [sys.executable, "-c", f"{before}; import {', '.join(every)}; {program}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert {*every} <= {*loaded}
    foreign = {m for m in loaded if m.partition(".")[0] not in sys.stdlib_module_names}
    assert {m for m in foreign if not m.startswith("nodeagent.launcher.")} <= {"nodeagent", "nodeagent.launcher"}


SHELL = [*ROOT.glob("scripts/*.sh"), *(ROOT / "debian" / name for name in ("preinst", "postinst", "prerm", "postrm"))]


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_shell_scripts_parse(path):
    subprocess.run(["sh", "-n", path], check=True)


def test_the_tests_of_each_lane_run_in_one_process(tmp_path):
    """Beside them the others, in as many processes as `make test` takes."""
    files = {
        1: ["integration/test_pinning.py", "integration/test_manifests_live.py"],
        2: ["integration/test_policies.py"],
        0: ["tests/test_x.py"],
    }
    options = re.search(r"^AT_ONCE := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert options
    told = "import os, pathlib\n" + "".join(
        f"def test_{n}(): pathlib.Path(__file__ + '.{n}').write_text(os.environ['PYTEST_XDIST_WORKER'])\n"
        for n in range(6)
    )
    for directory in ("tests", "integration"):
        (tmp_path / directory).mkdir()
    for file in (
        "conftest.py",
        "integration/__init__.py",
        "integration/lanes.py",
        "integration/repeats.py",
        "integration/telling.py",
    ):
        shutil.copy(ROOT / file, tmp_path / file)
    for names in files.values():
        for name in names:
            (tmp_path / name).write_text(told)
    subprocess.run(
        [sys.executable, "-m", "pytest", *options[1].replace("$(PROCESSES)", "3").split(), "tests", "integration"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        check=True,
        capture_output=True,
    )
    workers = {
        lane: {(tmp_path / f"{name}.{n}").read_text() for name in names for n in range(6)}
        for lane, names in files.items()
    }
    assert len(workers[1]) == len(workers[2]) == 1
    assert workers[1] != workers[2]
    assert workers[0]
