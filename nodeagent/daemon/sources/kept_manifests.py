"""File of parsed manifests. The agent writes it when it stops, so that the next agent process needn't parse the manifests again."""

from contextlib import suppress
from pathlib import Path

from nodeagent import __version__
from nodeagent.core.model.config import Config
from nodeagent.edge.files import state_files
from nodeagent.edge.files.state_files import StateFileError, Sync
from nodeagent.formats.manifest.parsed_manifests import ParsedFiles, decode_parsed, encode_parsed

PARSED_MANIFESTS = "parsed_manifests"
_MAX_BYTES = 64 << 20
_PACKAGE = Path(__file__).parents[2]
_PARSERS = ("core/model", "formats/manifest", "formats/syntax")
"""Packages whose code determines how a manifest is parsed."""


class KeptManifests:
    """File of parsed manifests. It only saves time, so failures to read or write it are ignored."""

    def __init__(self, config: Config) -> None:
        self._path = str(Path(config.runtime_directory) / PARSED_MANIFESTS)
        self._program = _identify_program()

    def take(self) -> ParsedFiles:
        """Return the parsed manifests, and remove the file. The result is empty if the file is missing or was written by another build of
        the agent.
        """
        try:
            content = state_files.read(self._path, max_bytes=_MAX_BYTES)
            state_files.remove(self._path)
        except StateFileError:
            return {}
        return {} if content is None else decode_parsed(content, self._program)

    def leave(self, files: ParsedFiles) -> None:
        content = encode_parsed(files, self._program)
        if files and len(content) <= _MAX_BYTES:
            with suppress(StateFileError):
                state_files.write_atomically(self._path, content, sync=Sync.NONE)


def _identify_program() -> str:
    """Return a text that differs between builds of the parsers: the version, and the size and time of each module."""
    modules = (file for package in _PARSERS for file in sorted((_PACKAGE / package).glob("*.py")))
    stats = ((file.name, file.stat()) for file in modules)
    return " ".join([__version__, *(f"{name}:{stat.st_size}:{stat.st_mtime_ns}" for name, stat in stats)])
