"""Files of the agent, and the reading of its configuration. Each failure has the file, the value and the next step."""

from collections.abc import Callable

from nodeagent.edge.files import state_files
from nodeagent.errors import NodeAgentError

STATE_FILE = "nodeagent_state"
LAST_CONFIG = "last_config.yaml"
"""The configuration that the agent last ran with, in the state directory: for commands, when no agent runs and its configuration is
invalid.
"""
EX_CONFIG = 78
"""sysexits.h: something in the configuration or the state that starting again can't fix."""
MAX_CONFIG_BYTES = 1 << 20
CPU_CHECKPOINT = "cpu_manager_state"
MEMORY_CHECKPOINT = "memory_manager_state"
DEVICE_CHECKPOINT = "kubelet_internal_checkpoint"
MAX_CHECKPOINT_BYTES = 64 << 20


class StartError(NodeAgentError):
    """The agent cannot start until a person changes something."""


ABSENT_HINT = (
    "copy examples/config.yaml there (`nodeagent --help` says where it is), or name another file with --config"
)


def _regular_file(path: str, max_bytes: int) -> bytes | None:
    return state_files.read(path, max_bytes=max_bytes, follow_symlinks=True)


def config_content(
    path: str, *, absent_hint: str = ABSENT_HINT, read: Callable[[str, int], bytes | None] = _regular_file
) -> bytes:
    """Read the configuration's text.

    Args:
        path: the file.
        absent_hint: what to do if it doesn't exist.
        read: returns a file's content, up to a number of bytes, or None if there is no file.

    Raises:
        StartError: it is missing, or cannot be read.
    """
    try:
        content = read(path, MAX_CONFIG_BYTES)
    except state_files.StateFileError as err:
        raise StartError(err.message, hint=err.hint) from err
    if content is None:
        raise StartError(f"no configuration at {path}", hint=absent_hint)
    return content


def read_file(path: str, max_bytes: int) -> bytes | None:
    """Return the file's content; None: it doesn't exist.

    Raises:
        StartError: it cannot be read.
    """
    try:
        return state_files.read(path, max_bytes=max_bytes)
    except state_files.StateFileError as err:
        raise StartError(err.message, hint=err.hint) from err
