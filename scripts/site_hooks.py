# ruff: noqa: INP001 - loaded by mkdocs (mkdocs.yml), and not a part of the program
"""Lets the site have the files that its pages link to: examples/ and contrib/ lie beside docs/, in the site among the pages."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parent.parent
_BESIDE = ("contrib", "examples")
_LINK = re.compile(rf"(\]\((?:\.\./)*)\.\./((?:{'|'.join(_BESIDE)})/)")


def on_files(files: Files, config: Any) -> Files:
    """Add them to the site's files."""
    for directory in _BESIDE:
        for path in sorted((_ROOT / directory).rglob("*")):
            if path.is_file():
                files.append(File.generated(config, str(path.relative_to(_ROOT)), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point the links at them there."""
    return _LINK.sub(r"\1\2", markdown)
