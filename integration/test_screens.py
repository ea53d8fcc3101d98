"""The screenshots in docs/screens show what the commands print: on a node as in the pictures, except what is different each time."""

import pytest

from integration.guest.guest import Guest
from integration.node import Node
from integration.screens import COLUMNS, SCREENS, Picture, drawn, drawn_lines, is_measured, plain, screens, stable


@pytest.mark.parametrize("text", ["two  columns\n   indented", "\x1b[31mred\x1b[0m and <plain> & more"])
def test_a_pictures_lines_can_be_read(text: str) -> None:
    assert stable(drawn_lines(drawn(Picture("name", "title", COLUMNS, text)))) == stable(plain(text))


@pytest.mark.parametrize(
    ("shown", "measured"),
    [
        ([], False),
        (["NUMA 0   ? ", "app 100m ", "q leaves"], False),
        (["NUMA 0 3%", "app - ", "q leaves"], False),
        (["NUMA 0 3%", "app 100m ", "q leaves"], True),
    ],
)
def test_a_picture_waits_for_every_rate(shown: list[str], *, measured: bool) -> None:
    """A program clears the screen before its first frame: there is nothing on it then."""
    assert is_measured(shown) == measured


def test_the_pictures_are_of_what_is_shown_now(two_sockets: Guest) -> None:
    kept = {path.stem: stable(drawn_lines(path.read_text())) for path in sorted(SCREENS.glob("*.svg"))}
    node = Node(two_sockets)
    pictures = screens(node, lambda shown: stable(shown) == kept["watch"])
    taken = {picture.name: stable(plain(picture.text)) for picture in pictures}
    assert kept == taken, "run: make screens, and look at them"
