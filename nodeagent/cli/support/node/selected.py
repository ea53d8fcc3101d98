"""State of the node that a command is about: this node, a copied file-system root (`--root`), or a capture in a file (`--machine`)."""

import argparse
import os
import stat
import time

from msgspec.structs import replace

from nodeagent.cli.support.configurations import load_config
from nodeagent.cli.support.named_files import file_type, is_absent, read_named
from nodeagent.cli.support.node.arguments import find_own_config, is_copied, is_elsewhere
from nodeagent.cli.support.node.this_node import (
    find_misfits,
    read_save_time_ms,
    read_saved_state,
    read_this_node,
    read_this_node_for_display,
    state_path,
)
from nodeagent.cli.support.places import DEFAULT_CONFIG, DEFAULT_SOCKET, PODS_CGROUP
from nodeagent.core.admission.managers import initial
from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.model.config import Config
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.topology import Topology
from nodeagent.daemon.start.startup import node_of
from nodeagent.edge.files import state_files
from nodeagent.edge.kernel.sysfs import read_machine
from nodeagent.errors import NodeAgentError
from nodeagent.formats.capture import MAX_BYTES, Capture, CaptureError, decode_capture
from nodeagent.formats.checkpoint.node_state import SavedState
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.node_view import NodeView
from nodeagent.formats.topology.topology_json import TopologyDocumentError, topology_from_document

_LONGEST_HOSTNAME = 256


class SourceError(NodeAgentError):
    """The named file lacks what the command needs."""


def read_topology(options: argparse.Namespace) -> Topology:
    """Read the selected machine's topology. It needs neither an agent nor a configuration.

    Raises:
        NodeAgentError: the machine can't be read.
    """
    if options.machine is not None:
        return read_machine_file(options.machine)[0]
    return topology_of(read_machine(options.root or "/"))


def read_node(options: argparse.Namespace) -> NodeView:
    """Read the state of the selected node.

    This node's running agent reports its own configuration; for another node `--config` takes precedence over the captured one.

    Raises:
        NodeAgentError: the state or the configuration can't be read, or they don't fit the machine.
    """
    if options.machine is not None:
        return view_capture(*read_machine_file(options.machine), options.machine, options.config)
    if is_copied(options):
        return _read_copied(options.root.rstrip("/"), options.config)
    return read_this_node(options.config or DEFAULT_CONFIG, options.socket)


def read_node_for_display(options: argparse.Namespace) -> NodeView:
    """Read the state of the selected node for display. An invalid configuration of this node does not hide its running pods.

    Raises:
        NodeAgentError: see `read_node`.
    """
    return read_node(options) if is_elsewhere(options) else read_this_node_for_display(options.config, options.socket)


def is_unconfigured(options: argparse.Namespace) -> bool:
    """Whether the node's configuration is unknown, because none is named and the node has none of its own."""
    if options.config is not None:
        return False
    if options.machine is not None:
        capture = read_machine_file(options.machine)[1]
        return capture is None or capture.agent is None
    return is_absent(find_own_config(options))


def is_without_agent(options: argparse.Namespace) -> bool:
    """Whether the selected node has neither an agent nor its state nor its configuration.

    Raises:
        NodeAgentError: a named capture can't be read.
    """
    if options.machine is not None:
        capture = read_machine_file(options.machine)[1]
        return capture is None or capture.agent is None
    places = [find_own_config(options), f"{(options.root or '').rstrip('/')}{state_path(Config())}"]
    if not is_copied(options):
        places.append(options.socket or DEFAULT_SOCKET)
    for path in places:
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # the path exists, but this user may not look at it
            return False
        return False
    return True


def read_machine_file(path: str) -> tuple[Topology, Capture | None]:
    """Read the file that `--machine` names. The capture is None if the file only describes a machine.

    Raises:
        NodeAgentError: the file is neither.
    """
    content = read_named(path, MAX_BYTES)
    if content is None:
        raise SourceError(f"there is no file {path}", hint="make one with `nodeagent capture --out FILE`")
    return decode_machine_file(content, path)


def decode_machine_file(content: bytes, path: str) -> tuple[Topology, Capture | None]:
    """Decode a capture, or the description of a machine. The capture is None for a description.

    Args:
        content: content of the file.
        path: name of the file, for errors.

    Raises:
        NodeAgentError: the file is neither.
    """
    found = decode_capture(content, path)
    if isinstance(found, Capture):
        return topology_of(found.sample), found
    try:
        return topology_from_document(found), None
    except TopologyDocumentError as err:
        raise CaptureError(path, f"{err.message}, and kind is not NodeCapture") from err


def view_capture(topology: Topology, capture: Capture | None, path: str, config_path: str | None) -> NodeView:
    """Return the state of a captured node.

    Args:
        topology: the machine.
        capture: the capture, or None if there is only the machine.
        path: file with both.
        config_path: configuration that replaces the captured one, or None.

    Raises:
        NodeAgentError: there is no configuration, or it doesn't fit the machine.
    """
    agent = None if capture is None else capture.agent
    if agent is None:
        if config_path is None:
            raise SourceError(f"{path} contains no configuration", hint="name one with --config FILE")
        view = _empty_view(node_of(load_config(config_path), topology, config_path), f"{path} contains no pods")
    elif config_path is None:
        view = agent
    else:
        node = node_of(load_config(config_path), topology, config_path)
        problems = find_misfits(node, SavedState(agent.state, agent.policies or {}), path)
        view = NodeView(node, agent.state, agent.cgroup_root, agent.pids, tuple(problems))
    observation = None if capture is None else capture.observation
    if capture is not None:
        view = replace(view, observation=observation, hostname=capture.hostname)
    return _mark_copied(view, 0 if observation is None else observation.at_ms)


def _read_copied(root: str, config_path: str | None) -> NodeView:
    topology = topology_of(read_machine(root))
    config_path = config_path or f"{root}{DEFAULT_CONFIG}"
    config = load_config(config_path)
    node = node_of(config, topology, config_path)
    saved = read_saved_state(config, root)
    if saved is None:
        view = _empty_view(node, f"there is no saved state in {root}{config.state_directory}")
        return replace(_mark_copied(view, 0), hostname=read_hostname(root))
    cgroups = f"{root}{config.cgroup_root or PODS_CGROUP}"
    view = NodeView(
        node,
        saved.state,
        cgroups if file_type(cgroups) == stat.S_IFDIR else None,
        problems=tuple(find_misfits(node, saved, root)),
        policies=saved.policies,
    )
    return replace(_mark_copied(view, read_save_time_ms(config, root)), hostname=read_hostname(root))


def read_hostname(root: str) -> str:
    """Return the host name in a copied file system, or an empty string if it can't be read."""
    for path in ("proc/sys/kernel/hostname", "etc/hostname"):
        try:
            content = state_files.read(f"{root}/{path}", max_bytes=_LONGEST_HOSTNAME)
        except state_files.StateFileError:
            continue
        if content is not None:
            return content.decode("ascii", "replace").strip()
    return ""


def _mark_copied(view: NodeView, at_ms: int) -> NodeView:
    """Mark a view as another node's, read at this time. 0 means that the time is unknown."""
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_ms // 1000)) if at_ms else None
    return replace(view, is_here=False, at_ms=at_ms, copied_at=at)


def _empty_view(node: NodeSetup, why: str) -> NodeView:
    return NodeView(node, NodeState(initial(node.managers)), problems=(why,), is_agent_known=False)
