"""Figures that tests find and docs quote: printed even where pytest captures what passing tests print."""

import sys

import pytest


def tell(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")
