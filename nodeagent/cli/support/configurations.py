"""Configurations that commands read: the node's own, or a named one, possibly from a pipe."""

from nodeagent.cli.support.named_files import read_named
from nodeagent.core.model.config import Config
from nodeagent.daemon.start import startup
from nodeagent.daemon.start.startup import ABSENT_HINT, StartError
from nodeagent.formats.syntax.findings import DocumentError


def load_config(path: str, *, absent_hint: str = ABSENT_HINT) -> Config:
    """Read the configuration.

    Args:
        path: the file.
        absent_hint: what to do if it doesn't exist.

    Raises:
        StartError: it is missing or invalid; every finding is in the message, one per line.
    """
    content = read_config(path, absent_hint=absent_hint)
    from nodeagent.formats.config.config_yaml import parse_config

    try:
        return parse_config(content, path)
    except DocumentError as err:
        raise StartError(err.message, hint=err.hint) from err


def read_config(path: str, *, absent_hint: str = ABSENT_HINT) -> bytes:
    """Read the configuration's text.

    Args:
        path: the file.
        absent_hint: what to do if it doesn't exist.

    Raises:
        StartError: it is missing, or cannot be read.
    """
    return startup.config_content(path, absent_hint=absent_hint, read=read_named)
