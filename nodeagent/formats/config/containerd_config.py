"""Parser of the NRI settings in containerd's configuration: the switch that disables NRI, the socket, and the timeouts of plugins.

A file may import other files, whose settings take precedence. If no file sets the switch, NRI is off in containerd 1.7 and on since 2.0.
"""

import tomllib
from typing import Any

from msgspec import Struct

from nodeagent.errors import printable
from nodeagent.formats.syntax.durations import DurationSyntaxError, parse_duration_ns

PLUGIN = "io.containerd.nri.v1.nri"
_NS_PER_MS = 1_000_000


class ConfiguredValue(Struct, frozen=True):
    """Value of a setting, with the path of the file that sets it."""

    value: Any
    path: str


class NriConfig(Struct, frozen=True):
    """NRI settings of containerd. None means that no file contains the setting."""

    is_off: ConfiguredValue | None = None
    """Whether NRI is off, with the path of the file that sets this."""
    socket: ConfiguredValue | None = None
    """Path of NRI's socket, with the file that sets it."""
    registration_timeout_ms: ConfiguredValue | None = None
    request_timeout_ms: ConfiguredValue | None = None


class ContainerdConfigError(ValueError):
    """A file is not valid TOML, or an NRI setting has the wrong type. The message names the file."""


def read_imports(content: bytes, path: str) -> tuple[str, ...]:
    """Return the path patterns in a file's field `imports`, in their order.

    Raises:
        ContainerdConfigError: the file can't be read.
    """
    found = _parse_table(content, path).get("imports", [])
    if not isinstance(found, list) or not all(isinstance(pattern, str) for pattern in found):
        raise ContainerdConfigError(f"{path}: imports must be a list of paths")
    return tuple(found)


def read_nri_config(files: tuple[tuple[str, bytes], ...]) -> NriConfig:
    """Return the NRI settings of the files, given by path and content. Later files override earlier ones.

    Raises:
        ContainerdConfigError: a file can't be read.
    """
    found: dict[str, ConfiguredValue] = {}
    for path, content in files:
        document = _parse_table(content, path)
        off = document.get("disabled_plugins", [])
        if isinstance(off, list) and PLUGIN in off:
            found["is_off"] = ConfiguredValue(value=True, path=path)
        plugin = document.get("plugins", {})
        part = plugin.get(PLUGIN, {}) if isinstance(plugin, dict) else {}
        if not isinstance(part, dict):
            raise ContainerdConfigError(f"{path}: [plugins.{PLUGIN!r}] must be a table")
        for field, key, read in (
            ("is_off", "disable", _read_flag),
            ("socket", "socket_path", _read_text),
            ("registration_timeout_ms", "plugin_registration_timeout", _read_milliseconds),
            ("request_timeout_ms", "plugin_request_timeout", _read_milliseconds),
        ):
            if key in part:
                found[field] = ConfiguredValue(read(part[key], f"{path}: {key}"), path)
    return NriConfig(**found)


def _parse_table(content: bytes, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as err:
        raise ContainerdConfigError(f"{path}: {printable(str(err)[:200])}") from err


def _read_flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ContainerdConfigError(f"{where} must be true or false")
    return value


def _read_text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ContainerdConfigError(f"{where} must be a string")
    return printable(value)


def _read_milliseconds(value: object, where: str) -> int:
    try:
        return parse_duration_ns(_read_text(value, where)) // _NS_PER_MS
    except DurationSyntaxError as err:
        raise ContainerdConfigError(f"{where} must be a duration such as 2s") from err
