"""What the Debian package is made of agrees with the rest of the project."""

import re
import tomllib
from pathlib import Path

from integration.guest.images import project_files
from nodeagent import __version__

ROOT = Path(__file__).parent.parent
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
