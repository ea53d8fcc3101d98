"""What commands draw in a real terminal: tmux on the node, driven by keys and read as the screen it shows."""

import re
from collections.abc import Iterator

import pytest

from integration.guest.guest import Guest
from integration.node import Node, container, pod
from integration.screen import Screen, last_line_has, screen_of

SLEEP = ["sleep", "infinity"]
LOAD = "while :; do i=0; while [ $i -lt 500 ]; do i=$((i+1)); done; sleep 0.05; done"
"""It pauses: an emulated processor that never does takes a real one from everybody else."""
ESCAPE = "\x1b["


@pytest.fixture
def screen(two_sockets: Guest) -> Iterator[Screen]:
    """A terminal on a node that has a few pods."""
    node = Node(two_sockets)
    node.apply(
        pod("busy", container("app", ["sh", "-c", LOAD], cpu="2")),
        *(pod(f"pod-{n:02}", container("app", SLEEP)) for n in range(12)),
    )
    node.wait_running("busy", *(f"pod-{n:02}" for n in range(12)))
    with screen_of(node) as screen:
        yield screen


def _is_shown(lines: list[str], row: str) -> bool:
    return any(re.search(row, line) for line in lines)


def test_watch_is_drawn_scrolled_sorted_resized_left_stopped_and_interrupted(screen: Screen) -> None:
    screen.resize(80, 16)
    screen.type("nodeagent inspect --watch")
    shown = screen.wait(lambda lines: _is_shown(lines, "default/busy app"), "the first frame")
    assert len(shown) == 16
    assert max(map(len, shown)) <= 80
    assert "q leaves" in shown[-1]
    screen.wait(lambda lines: _is_shown(lines, r"default/busy app.* [1-9]\d+m "), "the container's load")
    assert f"{ESCAPE}7m" in screen.coloured(), "the table's heading is reversed"

    screen.press("Down")
    screen.wait(lambda lines: not _is_shown(lines, "default/busy"), "the first row to go")
    screen.press("Up")
    screen.wait(lambda lines: _is_shown(lines, "default/busy"), "the first row to come back")
    screen.press("c")
    screen.wait(lambda lines: last_line_has(lines, "by CPU"), "another order")

    screen.resize(60, 14)
    shown = screen.wait(lambda lines: len(lines) == 14 and last_line_has(lines, "by CPU"), "a frame of the new size")
    assert max(map(len, shown)) <= 60

    screen.press("q")
    shown = screen.wait(
        lambda lines: last_line_has(lines, "node#") and not _is_shown(lines, "default/busy"), "the prompt"
    )
    assert _is_shown(shown, "nodeagent inspect --watch"), "what was there before is there again"

    screen.resize(80, 24)
    screen.type("clear")
    screen.type("nodeagent inspect --watch")
    screen.wait(lambda lines: last_line_has(lines, "q leaves"), "the first frame")
    screen.press("C-z")
    screen.wait(lambda lines: any("Stopped" in line for line in lines) and last_line_has(lines, "node#"), "the shell")
    screen.type("fg")
    screen.wait(lambda lines: last_line_has(lines, "q leaves"), "the frame")
    screen.press("C-c")
    screen.wait(lambda lines: last_line_has(lines, "node#"), "the prompt")
    assert screen.run("echo status $?; stty -a | grep -o ' [-]*echo '") == ["status 0", " echo"]


def test_a_picture_has_colours_where_they_are_wanted_and_tables_fit(screen: Screen) -> None:
    screen.resize(80, 50)
    plain = screen.run("NO_COLOR=1 nodeagent topology")
    assert ESCAPE not in screen.coloured()
    assert screen.run("nodeagent topology") == plain, "colours add nothing but colours"
    assert ESCAPE in screen.coloured()
    assert max(map(len, plain)) <= 80

    shown = screen.run("nodeagent inspect")
    assert max(map(len, shown)) <= 80
    assert sum("pod-" in line for line in shown) >= 12
