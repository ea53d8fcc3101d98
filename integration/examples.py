"""The manifests of examples/, each with the configuration that it is for and the allocation that its comment promises."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"
_GETS = re.compile(
    r"^# gets: (?P<names>[\w, -]+): (?:(?P<own>\d+) CPUs? of its own|the pod's (?P<pod>\d+) CPUs|the node's shared CPUs)$"
)


@dataclass(frozen=True, slots=True)
class Share:
    level: str
    """As `nodeagent inspect` has it: `container`, `pod` or `host`."""
    cpus: int | None
    """None: as many as the node shares."""


@dataclass(frozen=True, slots=True)
class Example:
    """One pod."""

    path: Path
    text: str
    name: str
    gets: tuple[tuple[str, Share], ...]
    """By container."""
    refused: str | None


def configurations() -> dict[Path, tuple[Example, ...]]:
    """Return the examples by their configuration: the nearest config.yaml, in the manifest's directory or above."""
    found: dict[Path, list[Example]] = {}
    for path in sorted(EXAMPLES.rglob("*.yaml")):
        if path.name != "config.yaml":
            config = next(d / "config.yaml" for d in path.parents if (d / "config.yaml").exists())
            found.setdefault(config, []).extend(_examples(path))
    return {config: tuple(examples) for config, examples in found.items()}


def _examples(path: Path) -> Iterator[Example]:
    for text in re.split(r"^---\n", path.read_text(), flags=re.MULTILINE):
        name = re.search(r"^metadata:\s*(?:\{|\n\s+)name: ([\w-]+)", text, re.MULTILINE)
        if name is not None:
            refused = re.search(r"^# refused: (\w+)$", text, re.MULTILINE)
            yield Example(path, text, name[1], tuple(_gets(text)), refused[1] if refused else None)


def _gets(text: str) -> Iterator[tuple[str, Share]]:
    for line in text.splitlines():
        if line.startswith("# gets:"):
            match = _GETS.fullmatch(line)
            assert match is not None, line
            own, pod = match["own"], match["pod"]
            share = Share("container", int(own)) if own else Share("pod", int(pod)) if pod else Share("host", None)
            yield from ((name, share) for name in match["names"].split(", "))
