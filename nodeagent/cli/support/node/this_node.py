"""State of this node, from its running agent or else from the saved state."""

import os
from pathlib import Path

from msgspec.structs import replace

from nodeagent.cli.support.configurations import load_config
from nodeagent.cli.support.named_files import is_absent
from nodeagent.cli.support.places import DEFAULT_CONFIG, DEFAULT_SOCKET
from nodeagent.core.model.config import Config
from nodeagent.daemon.start.startup import LAST_CONFIG, STATE_FILE, StartError
from nodeagent.edge.files import state_files
from nodeagent.edge.transport.local_api_client import ApiUnavailable, call
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.node_state import (
    MAX_BYTES,
    NodeStateError,
    SavedState,
    decode_state,
)
from nodeagent.formats.node_view import NodeView, ViewReader
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError

LAST_CONFIG_PATH = f"{Config().state_directory}/{LAST_CONFIG}"


class UnknownStateError(NodeAgentError):
    """The state of this node can't be determined."""


class NeverSavedError(UnknownStateError):
    """The agent isn't running, and it has never saved a state."""


def read_this_node(config_path: str, socket: str | None, read: ViewReader | None = None) -> NodeView:
    """Ask the agent for this node's state. If the agent doesn't answer, read the saved state.

    Args:
        config_path: the configuration. It is used only if the agent doesn't answer, because a running agent reports its own configuration.
        socket: the agent's socket. None means the default socket or, if the agent doesn't answer there, the configured socket.
        read: the decoder of the agent's answer. A caller that asks repeatedly can pass the same decoder, which decodes only what has
            changed. None means a new decoder.

    Raises:
        NodeAgentError: neither the agent's answer nor the saved state can be read.
    """
    read = read or ViewReader()
    try:
        return _ask_agent(socket or DEFAULT_SOCKET, read)
    except ApiUnavailable as err:
        down = err
    try:
        return _read_without_answer(config_path, socket, read, down)
    except NodeAgentError as err:
        raise err from down  # with `down` as the cause, the command exits with the status for an agent that doesn't answer


def _read_without_answer(config_path: str, socket: str | None, read: ViewReader, down: ApiUnavailable) -> NodeView:
    """Ask the agent at its configured socket. If it doesn't answer there either, read the saved state. `down` is the error from the default
    socket.
    """
    config = load_config(config_path)
    other_socket = socket_path(config)
    if socket is None and other_socket != DEFAULT_SOCKET:
        try:
            return _ask_agent(other_socket, read)
        except ApiUnavailable as err:
            down = err
    from nodeagent.cli.support.node.saved_node import read_saved_node

    return read_saved_node(config, config_path, down)


def read_this_node_for_display(config_path: str | None, socket: str | None, read: ViewReader | None = None) -> NodeView:
    """Read this node's state for display, even if its configuration is invalid and the agent therefore isn't running.

    In this case, the configuration that the agent used last is taken instead. A configuration that the user names must be valid.
    """
    try:
        return read_this_node(config_path or DEFAULT_CONFIG, socket, read)
    except StartError as err:
        if config_path is not None or is_absent(LAST_CONFIG_PATH):
            raise
        wrong = err
    try:
        view = read_this_node(LAST_CONFIG_PATH, socket, read)
    except StartError:  # the last valid configuration can't be read either
        raise wrong from wrong.__cause__
    first, *rest = wrong.message.splitlines()
    problem = f"the configuration is invalid, so the agent's last valid configuration is used: {first}"
    more = f", and {len(rest)} more" if rest else ""
    return replace(view, problems=(f"{problem}{more} (all errors: nodeagent config validate)", *view.problems))


def _ask_agent(socket: str, read: ViewReader) -> NodeView:
    try:
        return replace(read(JsonValue(call(socket, "state"))), hostname=os.uname().nodename)
    except (NodeStateError, MisfitError) as err:
        raise UnknownStateError(
            f"cannot understand the agent's state: {err}",
            hint="after an upgrade, restart the agent: `systemctl restart nodeagent` (pods keep running)",
        ) from err


def read_saved_state(config: Config, root: str = "") -> SavedState | None:
    """Read the state that the agent has saved, in the file system below `root`. None means that there is no saved state.

    Raises:
        NodeAgentError: the state cannot be read.
    """
    path = root + state_path(config)
    content = state_files.read(path, max_bytes=MAX_BYTES)
    if content is None:
        return None
    try:
        return decode_state(content)
    except NodeStateError as err:
        hint = "start the agent: its message says what to do (`journalctl -u nodeagent`)"
        if root:
            hint = "copy it from the node once more, or take a capture there: `nodeagent capture --out FILE`"
        raise UnknownStateError(f"cannot use {path}: {err}", hint=hint) from err


def read_save_time_ms(config: Config, root: str) -> int:
    """Return the time at which the state was saved. The state's file must exist."""
    return Path(root + state_path(config)).stat().st_mtime_ns // 1_000_000


def state_path(config: Config) -> str:
    """Return the path of the file in which the agent saves its state."""
    return str(Path(config.state_directory) / STATE_FILE)


def socket_path(config: Config) -> str:
    """Return the path of the agent's socket for its local API."""
    return f"{config.runtime_directory}/agent.sock"
