"""`make screens`: the screenshots of docs/screens, of commands that are typed on a node in a guest, as pictures that any browser draws."""

import html
import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from integration.guest.guest import Guest
from integration.guest.images import guest_image
from integration.guest.machine import TWO_SOCKETS
from integration.guest.releases import release_of
from integration.node import MANIFESTS, Node, container, pod
from integration.screen import Screen, screen_of

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
"""Name of the picture: what is typed, and lines that surely suffice."""
WATCH = ("nodeagent inspect --watch", 24)


def main() -> int:
    SCREENS.mkdir(exist_ok=True)
    with Guest.boot(guest_image(release_of(12)), TWO_SOCKETS) as guest:
        node = Node(guest)
        node.run("systemctl is-active --quiet nodeagent || systemctl start nodeagent", timeout_seconds=60)
        for name in PODS:
            guest.put(f"{MANIFESTS}/{name}.yaml", (EXAMPLES / f"{name}.yaml").read_bytes())
        node.wait_running(*PODS)
        node.apply(pod("large", container("app", ["sleep", "infinity"], cpu="14")))
        node.wait(lambda state: any("refusal" in entry for entry in state["entries"]), "the large pod to be refused")
        with screen_of(node, columns=COLUMNS) as screen:
            for name, (command, lines) in COMMANDS.items():
                screen.resize(COLUMNS, lines)
                screen.run(command)
                keep(name, command, screen)
            command, lines = WATCH
            screen.resize(COLUMNS, lines)
            screen.type(command)
            screen.wait(_has_rates, "a frame with rates")
            keep("watch", command, screen)
    return 0


def _has_rates(shown: list[str]) -> bool:
    return "q leaves" in shown[-1] and any(re.search(r" \d+m ", line) for line in shown)


def keep(name: str, command: str, screen: Screen) -> None:
    """Draw what the screen shows, without the shell's own lines."""
    lines = [line for line in screen.coloured().splitlines() if not line.startswith("node#")]
    path = SCREENS / f"{name}.svg"
    path.write_text(drawn("\n".join(lines), command, name))
    print(path.relative_to(ROOT), file=sys.stderr)


def drawn(text: str, title: str, name: str) -> str:
    """Give the SVG picture of a terminal's text."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(text))
    picture = console.export_svg(title=title, unique_id=name)
    # no font from somebody's server: the reader's own
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL).replace("Fira Code", "DejaVu Sans Mono")
    return _INDENTED.sub(_moved, picture)


_INDENTED = re.compile(r'x="([\d.]+)"( y="[\d.]+") textLength="([\d.]+)"([^>]*>)((?:&#160;)+)([^<\s][^<]*)')


def _moved(found: re.Match[str]) -> str:
    """Begin an indented text further right: some programs draw no spaces at a text's beginning."""
    x, y, length, rest, spaces, text = found.groups()
    count = spaces.count("&") * float(length) / len(html.unescape(spaces + text))
    return f'x="{float(x) + count:g}"{y} textLength="{float(length) - count:g}"{rest}{text}'


if __name__ == "__main__":
    sys.exit(main())
