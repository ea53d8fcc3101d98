"""The page that says where to add what names files and folders that exist, and every package says what it is for."""

import inspect
import pkgutil
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import nodeagent

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()


def named() -> list[str]:
    return sorted(
        set(
            re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", PAGE)
            + re.findall(r" ((?:core|daemon|edge)/[a-z_/]+\.py)", PAGE)
        )
    )


def test_every_file_that_the_page_names_is_there() -> None:
    assert len(named()) > 30
    assert [path for path in named() if not ((ROOT / "nodeagent" / path).is_file() or (ROOT / path).is_file())] == []


def test_every_name_that_the_page_gives_is_in_the_code() -> None:
    sources = [path for name in ("nodeagent", "tests") for path in (ROOT / name).rglob("*.py")]
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in sources)))
    names = set(re.findall(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`", PAGE))
    assert len(names) > 80
    assert sorted(name for name in names if name.rpartition(".")[2] not in words) == []


def test_every_package_of_core_and_every_ring_is_in_the_tables() -> None:
    rings = {path.name for path in (ROOT / "nodeagent").iterdir() if (path / "__init__.py").exists()}
    rooms = {path.name for path in (ROOT / "nodeagent/core").iterdir() if (path / "__init__.py").exists()}
    cells = set(re.findall(r"`(?:nodeagent/)?([a-z]+)`", "".join(re.findall(r"(?m)^\|[^|]*\|", PAGE))))
    assert rings | rooms <= cells


def test_every_package_says_what_lives_in_it() -> None:
    packages = (ROOT / "nodeagent").rglob("__init__.py")
    assert [path for path in packages if not path.read_text().startswith('"""')] == []


def test_each_folder_of_tests_has_the_name_of_the_code_that_it_tests() -> None:
    whole_program = {"extension", "golden", "harness", "project", "results", "support", "vectors"}
    recorded_files = {"formats/kernel/rt_tests"}
    folders = {path.parent.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("*.*")} - {"."}
    folders = {name for name in folders if name.partition("/")[0] not in whole_program and "__pycache__" not in name}
    assert {name for name in folders if not (ROOT / "nodeagent" / name).is_dir()} == recorded_files


def test_every_file_that_a_module_names_is_there() -> None:
    """A path begins in nodeagent/, a bare name is of the same folder."""
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "nodeagent").rglob("*.py")
        for name in re.findall(r"(?<![\w/.*])(?:[a-z_]+/)*[a-z_]+\.py\b", path.read_text().split('"""')[1])
        if not ((ROOT / "nodeagent" if "/" in name else path.parent) / name).is_file()
    ]
    assert missing == []


def test_no_two_classes_have_the_same_name() -> None:
    modules = [
        import_module(found.name)
        for found in pkgutil.walk_packages(nodeagent.__path__, "nodeagent.")
        if not found.name.endswith("__main__")
    ]
    classes = {
        kind
        for module in modules
        for kind in vars(module).values()
        if inspect.isclass(kind) and kind.__module__ == module.__name__
    }
    assert len(classes) > 300
    assert [name for name, count in Counter(kind.__name__ for kind in classes).items() if count > 1] == []
