"""Readers of configurations: a file, or a pipe that the user names."""

from nodeagent.cli.support.named_files import read_named
from nodeagent.core.model.config import Config
from nodeagent.daemon.start import startup
from nodeagent.daemon.start.startup import ABSENT_HINT, StartError
from nodeagent.formats.syntax.findings import DocumentError


def load_config(path: str, *, absent_hint: str = ABSENT_HINT) -> Config:
    """Read and parse a configuration.

    Args:
        path: the file, or a pipe that the user named.
        absent_hint: the next step for the user if the file doesn't exist.

    Raises:
        StartError: the file is missing or invalid. The message has one finding per line.
    """
    content = read_config(path, absent_hint=absent_hint)
    from nodeagent.formats.config.config_yaml import parse_config

    try:
        return parse_config(content, path)
    except DocumentError as err:
        raise StartError(err.message, hint=err.hint) from err


def read_config(path: str, *, absent_hint: str = ABSENT_HINT) -> bytes:
    """Read a configuration as text, without parsing it.

    Args:
        path: the file, or a pipe that the user named.
        absent_hint: the next step for the user if the file doesn't exist.

    Raises:
        StartError: the file is missing or cannot be read.
    """
    return startup.read_config_text(path, absent_hint=absent_hint, read=read_named)
