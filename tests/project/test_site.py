"""The documentation as a site: built as `make docs` does, where a link that leads nowhere is an error."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

from integration.guest.images import project_files

ROOT = Path(__file__).parents[2]


def test_the_site_is_built_without_a_warning_and_has_every_page(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = [path for path in project_files() if path.parts[0] == "docs" and path.suffix == ".md"]
    assert len(pages) > 10
    for page in pages:
        made = tmp_path / "site" / page.relative_to("docs").with_suffix(".html")
        assert "</html>" in made.read_text(), page
    for path in project_files():
        if path.parts[0] in {"contrib", "examples"}:
            assert (tmp_path / "site" / path).read_bytes() == (ROOT / path).read_bytes()
    pictures = list((tmp_path / "site").glob("pictures/*.svg"))
    assert pictures
    assert all(ET.parse(picture).getroot().tag.endswith("svg") for picture in pictures)
