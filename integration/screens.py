"""`make screens`: the screenshots of docs/screens, of commands typed on a node in a guest, as pictures that any browser draws."""

import html
import io
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from integration.guest.guest import Guest
from integration.guest.images import guest_image
from integration.guest.machine import TWO_SOCKETS
from integration.guest.releases import release_of
from integration.node import Node, container, pod
from integration.screen import Screen, last_line_has, screen_of

ROOT = Path(__file__).parent.parent
SCREENS = ROOT / "docs/screens"
EXAMPLES = ROOT / "examples"
PODS = ("guaranteed", "burstable", "init-and-sidecar")
COLUMNS = 80
COMMANDS = {
    "inspect": ("nodeagent inspect", 70),
    "topology": ("nodeagent topology", 70),
    "explain": ("nodeagent explain large", 70),
}
"""Name of the picture: what is typed, and a number of lines that always suffices."""
WATCH = ("nodeagent inspect --watch", 24)
WATCH_COLUMNS = 100
"""Where the marks of what disturbs a container fit beside the names."""


class Picture(NamedTuple):
    name: str
    command: str
    """What is typed for it."""
    columns: int
    text: str
    """What the screen shows then, in colour."""


def main() -> int:
    SCREENS.mkdir(exist_ok=True)
    with Guest.boot(guest_image(release_of(12)), TWO_SOCKETS) as guest:
        node = Node(guest)
        node.run("systemctl is-active --quiet nodeagent || systemctl start nodeagent")
        for picture in screens(node):
            path = SCREENS / f"{picture.name}.svg"
            path.write_text(drawn(picture))
            print(path.relative_to(ROOT), file=sys.stderr)
    return 0


def plain(text: str) -> list[str]:
    """Return the lines of a screen without their colours."""
    return Text.from_ansi(text).plain.splitlines()


def screens(node: Node, is_wanted: Callable[[list[str]], bool] = lambda _: True) -> Iterator[Picture]:
    """Create pods on a node that has none, and take each picture.

    Args:
        node: without pods.
        is_wanted: whether a frame of the live view is the one to return: they differ, and one may be seen while half of it is drawn.
    """
    for name in sorted(PODS):  # one after the other: pods are shown in the order in which they came
        node.put_manifest(f"{name}.yaml", (EXAMPLES / f"{name}.yaml").read_bytes(), name)
        node.wait_running(name)
    node.apply(pod("large", container("app", ["sleep", "infinity"], cpu="14")))
    node.wait_refused("large")
    with screen_of(node, columns=COLUMNS) as screen:
        for name, (command, lines) in COMMANDS.items():
            screen.resize(COLUMNS, lines)
            screen.run(command)
            yield Picture(name, command, COLUMNS, _shown(screen))
        command, lines = WATCH
        screen.resize(WATCH_COLUMNS, lines)
        screen.type(command)
        text = screen.coloured_when(
            lambda text: is_measured(plain(text)) and is_wanted(plain(text)),
            "a frame with every rate, as in docs/screens (or else: make screens, and look at them)",
        )
        yield Picture("watch", command, WATCH_COLUMNS, text)


def is_measured(shown: list[str]) -> bool:
    """Whether the live view's frame has the loads of all NUMA nodes, and of a container."""
    loads = [line for line in shown if line.startswith("NUMA")]
    return (
        last_line_has(shown, "q leaves")
        and any(re.search(r" \d+m ", line) for line in shown)
        and "?" not in "".join(loads)
    )


def _shown(screen: Screen) -> str:
    """Return what is on the screen, without the shell's own lines."""
    return "\n".join(line for line in screen.coloured().splitlines() if not line.startswith("node#"))


def stable(lines: list[str]) -> list[str]:
    """Remove from a screen what is different each time: loads, their marks, amounts, ages, host processes, and the spaces."""
    kept, skipping = [], False
    for line in lines:
        skipping = line.startswith("HOST PROCESSES") or (skipping and not line.startswith("no difference"))
        if not skipping and not line.startswith("OTHERS on exclusive CPUs"):
            cut = line.partition("  ")[0] if line.startswith("default/") else _VARYING.sub("N", line)
            kept.append("".join(cut.split()))
    return [line for line in kept if line]


def drawn_lines(picture: str) -> list[str]:
    """Read the lines that a picture has."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in _TEXT.findall(picture):
        rows.setdefault(float(y), []).append((float(x), html.unescape(text).replace("\xa0", " ")))
    return ["".join(text for _, text in sorted(row)) for _, row in sorted(rows.items())]


def drawn(taken: Picture) -> str:
    """Return the SVG picture of a terminal's text."""
    console = Console(
        record=True, width=taken.columns, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.from_ansi(taken.text))
    picture = console.export_svg(title=taken.command, unique_id=taken.name)
    # no font from somebody's server: the reader's own
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL).replace("Fira Code", "DejaVu Sans Mono")
    return _INDENTED.sub(_moved, picture)


_TEXT = re.compile(r'<text class="[\w-]+" x="([\d.]+)" y="([\d.]+)" [^>]*clip-path[^>]*>([^<]*)</text>')
_VARYING = re.compile(r"\d+(?:\.\d+)?(?= ?(?:ms|%|m\b|[KMG]iB))|(?<= )-(?=%|$)|[▁-█?]{4,}")
_INDENTED = re.compile(r'x="([\d.]+)"( y="[\d.]+") textLength="([\d.]+)"([^>]*>)((?:&#160;)+)([^<\s][^<]*)')


def _moved(found: re.Match[str]) -> str:
    """Move an indented text to the right: some programs draw no spaces at the beginning of a text."""
    x, y, length, rest, spaces, text = found.groups()
    count = spaces.count("&") * float(length) / len(html.unescape(spaces + text))
    return f'x="{float(x) + count:g}"{y} textLength="{float(length) - count:g}"{rest}{text}'


if __name__ == "__main__":
    sys.exit(main())
