"""`make dist`: what is in the wheel and in the source archive."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from integration.guest.images import project_files
from nodeagent import __version__
from nodeagent.cli.parser import COMMANDS
from nodeagent.cli.support.completion_scripts import FISH_PLACE, PLACES

ROOT = Path(__file__).parents[2]
NAME = f"nodeagent-{__version__}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with both; made of a copy, so that the checkout stays as it is."""
    copy = tmp_path_factory.mktemp("checkout")
    for path in project_files():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, copy / path)
    # the environment that runs the tests is the one that make would make
    make = ("make", "--old-file=.venv/.ready", "dist", f"BIN={Path(sys.executable).parent}")
    result = subprocess.run(make, cwd=copy, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return copy / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> set[str]:
    (path,) = built.glob("*.whl")
    assert path.name == f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def test_the_wheel_has_every_module_and_nothing_that_is_for_the_checkout(wheel: set[str]) -> None:
    modules = {str(path) for path in project_files() if path.parts[0] == "nodeagent"}
    assert {name for name in wheel if not name.startswith(f"{NAME}.")} == modules
    assert "nodeagent/py.typed" in modules


def test_the_wheel_brings_what_people_of_the_node_read_and_use(wheel: set[str]) -> None:
    brought = {name.removeprefix(f"{NAME}.data/data/") for name in wheel if name.startswith(f"{NAME}.data/")}
    shared = {path for path in project_files() if path.parts[0] in {"docs", "examples", "contrib", "systemd"}}
    manual = {f"share/man/man8/nodeagent{page}.8" for page in ("", *(f"-{command}" for command in COMMANDS))}
    completions = {f"share/{place}" for place in PLACES.values()} | {f"share/fish/vendor_completions.d/{FISH_PLACE}"}
    assert brought == {f"share/nodeagent/{path}" for path in (*shared, "README.md")} | manual | completions


def test_the_source_archive_has_all_that_building_and_testing_need(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    assert path.name == f"{NAME}.tar.gz"
    with tarfile.open(path) as archive:
        names = {member.name.removeprefix(f"{NAME}/") for member in archive.getmembers() if member.isfile()}
    missing = {str(path) for path in project_files()} - names
    assert {name for name in missing if not name.startswith(".")} == set()
