"""The reference's decisions (tests/vectors): reading them, and saying where a result differs."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "vectors"
FILES = ("default", "options", "topology", "memory", "podlevel", "restart", "start", "all", "devices")
ABOUT_CHANCE = ("branches", "choices", "messages")
"""Fields about what kubelet draws at random."""
LEFT_OUT = ("kubeletInternalCheckpoint", "kubeletInternalCheckpointText", "pluginCalls")
"""Fields that the reference leaves out where kubelet draws them at random."""


def vectors(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(FOLDER / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def difference(expected: Any, result: Any, path: str = "") -> str | None:
    """Name the first place where a result isn't what the reference gave."""
    if path == ".startError" and isinstance(result, str):
        # `*` stands for any text: a JSON decoder's own words, or any one of several causes.
        matches = re.fullmatch(".*".join(map(re.escape, expected.split("*"))), result, re.DOTALL)
        return None if matches else f"{path}: {result!r} instead of {expected!r}"
    if isinstance(expected, dict) and isinstance(result, dict):
        for key in sorted(expected.keys() | result.keys()):
            if key in ABOUT_CHANCE or (key in LEFT_OUT and key not in expected):
                continue
            if key == "message" and result.get(key) in expected.get("messages", ()):
                continue
            if key not in result:
                return f"{path}.{key}: missing, should be {expected[key]!r}"
            if key not in expected:
                return f"{path}.{key}: unexpected {result[key]!r}"
            found = difference(expected[key], result[key], f"{path}.{key}")
            if found:
                return found
        return None
    if isinstance(expected, list) and isinstance(result, list) and len(expected) == len(result):
        places = (difference(e, r, f"{path}[{i}]") for i, (e, r) in enumerate(zip(expected, result, strict=True)))
        return next((place for place in places if place), None)
    return None if expected == result else f"{path}: {result!r} instead of {expected!r}"
