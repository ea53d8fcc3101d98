"""The project's own rules, as tests: nobody can forget a linter."""

import subprocess
import sys
from pathlib import Path

import grimp
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
    """Imports in functions count, too: import-linter's graph has them."""
    graph = grimp.build_graph("nodeagent", include_external_packages=True, cache_dir=None)
    own = {"nodeagent", "nodeagent.launcher", *graph.find_descendants("nodeagent.launcher")}
    assert {f"nodeagent.launcher.{path.stem}" for path in (ROOT / "nodeagent/launcher").glob("[!_]*.py")} <= own
    foreign = {
        f"{module} imports {imported}"
        for module in own
        for imported in graph.find_modules_directly_imported_by(module) - own
        if imported not in sys.stdlib_module_names
    }
    assert foreign == set()


SHELL = [*ROOT.glob("scripts/*.sh"), *(ROOT / "debian" / name for name in ("preinst", "postinst", "prerm", "postrm"))]


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_shell_scripts_parse(path):
    subprocess.run(["sh", "-n", path], check=True)
