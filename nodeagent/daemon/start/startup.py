"""Parts of the start that commands use, too: file names, the exit status, and reading the configuration file."""

import re
from collections.abc import Callable

from nodeagent.edge.files import state_files
from nodeagent.errors import NodeAgentError

STATE_FILE = "nodeagent_state"
LAST_CONFIG = "last_config.yaml"
"""File name of the last valid configuration, in the state directory.

While the agent isn't running and the configuration file is invalid, commands use this file.
"""
EX_CONFIG = 78
"""Exit status for errors that a restart can't fix (sysexits.h)."""
MAX_CONFIG_BYTES = 1 << 20
CPU_CHECKPOINT = "cpu_manager_state"
MEMORY_CHECKPOINT = "memory_manager_state"
DEVICE_CHECKPOINT = "kubelet_internal_checkpoint"
MAX_CHECKPOINT_BYTES = 64 << 20


class StartError(NodeAgentError):
    """The agent can't start until a person corrects the configuration, a file or the machine."""


A_FIELD = re.compile(rb"^[^\S\n]*(?!#|---|\.\.\.)\S", re.MULTILINE)
"""Pattern of a line with YAML content. Comments, document markers and empty lines don't match, so a file without a match sets no field."""
NAME_ANOTHER = ", or name another file with --config"
ABSENT_HINT = f"copy examples/config.yaml there (`nodeagent --help` says where it is){NAME_ANOTHER}"


def _regular_file(path: str, max_bytes: int) -> bytes | None:
    return state_files.read(path, max_bytes=max_bytes, follow_symlinks=True)


def read_config_text(
    path: str, *, absent_hint: str = ABSENT_HINT, read: Callable[[str, int], bytes | None] = _regular_file
) -> bytes:
    """Read the text of the configuration file.

    Args:
        path: the file.
        absent_hint: hint of the error if the file doesn't exist.
        read: function that reads a file of limited size. It returns None if the file doesn't exist.

    Raises:
        StartError: the file is missing, unreadable or empty. A crash or a full disk can leave an empty file, which must not count as a
            configuration.
    """
    try:
        content = read(path, MAX_CONFIG_BYTES)
    except state_files.StateFileError as err:
        raise StartError(err.message, hint=err.hint) from err
    if content is None:
        raise StartError(f"no configuration at {path}", hint=absent_hint)
    if A_FIELD.search(content) is None:
        raise StartError(
            f"{path} is empty",
            hint="kubelet refuses an empty configuration, too; set a field, such as `cpuManagerPolicy: none` for kubelet's defaults",
        )
    return content


def read_file(path: str, max_bytes: int) -> bytes | None:
    """Return the content of a file. None means that the file doesn't exist.

    Raises:
        StartError: the file can't be read.
    """
    try:
        return state_files.read(path, max_bytes=max_bytes)
    except state_files.StateFileError as err:
        raise StartError(err.message, hint=err.hint) from err
