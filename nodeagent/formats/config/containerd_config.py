"""containerd's configuration → what it says of NRI: whether that is off, where its socket is, how long plugins have.

Its files may import others, whose words count more. containerd 1.7 has NRI off unless its configuration says otherwise, 2.0 and later on.
"""

import tomllib
from typing import Any

from msgspec import Struct

from nodeagent.errors import printable
from nodeagent.formats.syntax.durations import DurationSyntaxError, parse_duration_ns

PLUGIN = "io.containerd.nri.v1.nri"
_NS_PER_MS = 1_000_000


class Said(Struct, frozen=True):
    """What one of the files says, and which."""

    value: Any
    path: str


class NriConfig(Struct, frozen=True):
    """Each None: no file says it."""

    is_off: Said | None = None
    """Its value: a bool."""
    socket: Said | None = None
    """Its value: a path."""
    registration_timeout_ms: Said | None = None
    request_timeout_ms: Said | None = None


class ContainerdConfigError(ValueError):
    """A file is no TOML, or has something else where NRI's part should be. The text names the file."""


def imported(content: bytes, path: str) -> tuple[str, ...]:
    """Return the patterns of files that a file imports, in their order.

    Raises:
        ContainerdConfigError: it can't be read.
    """
    found = _table(content, path).get("imports", [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ContainerdConfigError(f"{path}: imports is no list of paths")
    return tuple(found)


def nri_config(files: tuple[tuple[str, bytes], ...]) -> NriConfig:
    """Return what is said of NRI.

    Args:
        files: path and content; of those that say the same thing, the last one counts.

    Raises:
        ContainerdConfigError: one can't be read.
    """
    found: dict[str, Said] = {}
    for path, content in files:
        document = _table(content, path)
        off = document.get("disabled_plugins", [])
        if isinstance(off, list) and PLUGIN in off:
            found["is_off"] = Said(value=True, path=path)
        plugin = document.get("plugins", {})
        part = plugin.get(PLUGIN, {}) if isinstance(plugin, dict) else {}
        if not isinstance(part, dict):
            raise ContainerdConfigError(f"{path}: [plugins.{PLUGIN!r}] is no table")
        for field, key, read in (
            ("is_off", "disable", _flag),
            ("socket", "socket_path", _text),
            ("registration_timeout_ms", "plugin_registration_timeout", _milliseconds),
            ("request_timeout_ms", "plugin_request_timeout", _milliseconds),
        ):
            if key in part:
                found[field] = Said(read(part[key], f"{path}: {key}"), path)
    return NriConfig(**found)


def _table(content: bytes, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as err:
        raise ContainerdConfigError(f"{path}: {printable(str(err)[:200])}") from err


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ContainerdConfigError(f"{where} is neither true nor false")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ContainerdConfigError(f"{where} is no text")
    return printable(value)


def _milliseconds(value: object, where: str) -> int:
    try:
        return parse_duration_ns(_text(value, where)) // _NS_PER_MS
    except DurationSyntaxError as err:
        raise ContainerdConfigError(f"{where} is no duration such as 2s") from err
