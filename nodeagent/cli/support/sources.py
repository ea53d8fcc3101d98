"""Which node a command is about: this one, a copied file-system root (`--root`), or a capture in a file (`--machine`).

The options and their meaning, the same for every command that reads a node.
"""

import argparse
import os
import shlex
import stat
import time
from pathlib import Path

from msgspec.structs import replace

from nodeagent.cli.support.configurations import load_config
from nodeagent.cli.support.known_state import (
    known_state,
    misfits,
    saved_at_ms,
    saved_in,
    shown_state,
    state_path,
)
from nodeagent.cli.support.named_files import NamedFile, file_type, is_absent, named_path, read_named
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


def add_agent_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where this node's agent is."""
    parser.add_argument(
        "--config",
        type=NamedFile,
        metavar="FILE|-",
        help=f"the configuration, if no running agent provides it (default: {DEFAULT_CONFIG})",
    )
    parser.add_argument(
        "--socket", type=named_path, metavar="PATH", help=f"the agent's socket (default: {DEFAULT_SOCKET})"
    )


def add_node_arguments(parser: argparse.ArgumentParser, *, described: bool = False) -> None:
    """Add the options that select the node; `described`: or a machine that need not exist."""
    add_agent_arguments(parser)
    add_machine_arguments(parser, described=described)


def add_machine_arguments(parser: argparse.ArgumentParser, *, described: bool = False) -> None:
    """Add the options that name another machine than this one."""
    other = parser.add_mutually_exclusive_group()
    other.add_argument(
        "--root",
        type=named_path,
        metavar="DIR",
        help="read a copied root file system instead of this node, with sys/, proc/ and, if present, etc/ and var/lib/nodeagent",
    )
    other.add_argument(
        "--machine",
        type=NamedFile,
        metavar="FILE|-",
        help="read a file from `nodeagent capture` or `nodeagent topology -o json` instead of this node",
    )
    if described:
        other.add_argument(
            "--topology",
            metavar="SPEC",
            help="describe a machine: 2s.2n.8c.2t has 2 sockets of 2 NUMA nodes of 8 cores of 2 threads; "
            "see docs/explain.md",
        )


def topology_from(options: argparse.Namespace) -> Topology:
    """Return the machine alone. Neither an agent nor a configuration is needed.

    Raises:
        NodeAgentError: it can't be read.

    """
    if options.machine is not None:
        return machine_file(options.machine)[0]
    return topology_of(read_machine(options.root or "/"))


def known_from(options: argparse.Namespace) -> NodeView:
    """Return the node with what was promised on it.

    This node's running agent reports its own configuration; for another node `--config` takes precedence over the captured one.

    Raises:
        NodeAgentError: with what to do.
    """
    if options.machine is not None:
        return _captured(options.machine, options.config)
    if is_copied(options):
        return _copied(options.root.rstrip("/"), options.config)
    return known_state(options.config or DEFAULT_CONFIG, options.socket)


def shown_from(options: argparse.Namespace) -> NodeView:
    """Return the result of `known_from`, for commands that only look: an invalid configuration does not hide the pods that run.

    Raises:
        NodeAgentError: as there.
    """
    return known_from(options) if is_elsewhere(options) else shown_state(options.config, options.socket)


def is_copied(options: argparse.Namespace) -> bool:
    """Whether a root other than this node's own was named."""
    return options.root is not None and Path(options.root).resolve() != Path("/")


def is_elsewhere(options: argparse.Namespace) -> bool:
    """Whether another node than this one is meant: a copied one, or what a file describes."""
    return options.machine is not None or is_copied(options)


def inspect_command(options: argparse.Namespace) -> str:
    """The command that shows the pods of the selected node."""
    other = [("--root", options.root), ("--machine", options.machine)]
    return shlex.join(["nodeagent", "inspect", *(word for option, value in other if value for word in (option, value))])


def own_config(options: argparse.Namespace) -> str:
    """Where the configuration of the selected node is: of this one, or of a copied one."""
    return f"{(options.root or '').rstrip('/')}{DEFAULT_CONFIG}"


def is_unconfigured(options: argparse.Namespace) -> bool:
    """Whether the node's configuration is unknown: none is given, and it has none of its own."""
    if options.config is not None:
        return False
    if options.machine is not None:
        capture = machine_file(options.machine)[1]
        return capture is None or capture.agent is None
    return is_absent(own_config(options))


def is_without_agent(options: argparse.Namespace) -> bool:
    """Whether the selected node has nothing of nodeagent: no agent, no state, and no configuration of its own.

    Raises:
        NodeAgentError: a named capture can't be read.
    """
    if options.machine is not None:
        capture = machine_file(options.machine)[1]
        return capture is None or capture.agent is None
    places = [own_config(options), f"{(options.root or '').rstrip('/')}{state_path(Config())}"]
    if not is_copied(options):
        places.append(options.socket or DEFAULT_SOCKET)
    return not any(map(_is_there, places))


def _is_there(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # not permitted for us, but it exists
        return True
    return True


def machine_file(path: str) -> tuple[Topology, Capture | None]:
    """Read what `--machine` names; unless it is a capture, the machine is only described.

    Raises:
        NodeAgentError: it is neither.
    """
    content = read_named(path, MAX_BYTES)
    if content is None:
        raise SourceError(f"there is no file {path}", hint="make one with `nodeagent capture --out FILE`")
    return machine_in(content, path)


def machine_in(content: bytes, path: str) -> tuple[Topology, Capture | None]:
    """Read a capture, or a machine that is only described.

    Args:
        content: of the file.
        path: its name, for errors.

    Raises:
        NodeAgentError: it is neither.
    """
    found = decode_capture(content, path)
    if isinstance(found, Capture):
        return topology_of(found.sample), found
    try:
        return topology_from_document(found), None
    except TopologyDocumentError as err:
        raise CaptureError(path, f"{err.message}, and kind is not NodeCapture") from err


def _captured(path: str, config_path: str | None) -> NodeView:
    topology, capture = machine_file(path)
    return captured_view(topology, capture, path, config_path)


def captured_view(topology: Topology, capture: Capture | None, path: str, config_path: str | None) -> NodeView:
    """Return a node as its capture has it.

    Args:
        topology: the machine.
        capture: None: there is only the machine.
        path: where both come from.
        config_path: replaces the captured configuration.

    Raises:
        NodeAgentError: there is no configuration, or it doesn't fit the machine.
    """
    agent = None if capture is None else capture.agent
    if agent is None:
        if config_path is None:
            raise SourceError(f"{path} holds no configuration", hint="name one with --config FILE")
        view = _unpromised(node_of(load_config(config_path), topology, config_path), f"{path} holds no pods")
    elif config_path is None:
        view = agent
    else:
        node = node_of(load_config(config_path), topology, config_path)
        problems = misfits(node, SavedState(agent.state, agent.policies or {}), path)
        view = NodeView(node, agent.state, agent.cgroup_root, agent.pids, tuple(problems))
    observation = None if capture is None else capture.observation
    if capture is not None:
        view = replace(view, observation=observation, hostname=capture.hostname)
    return _copy(view, 0 if observation is None else observation.at_ms)


def _copied(root: str, config_path: str | None) -> NodeView:
    topology = topology_of(read_machine(root))
    config_path = config_path or f"{root}{DEFAULT_CONFIG}"
    config = load_config(config_path)
    node = node_of(config, topology, config_path)
    saved = saved_in(config, root)
    if saved is None:
        view = _unpromised(node, f"there is no saved state in {root}{config.state_directory}")
        return replace(_copy(view, 0), hostname=hostname_below(root))
    cgroups = f"{root}{config.cgroup_root or PODS_CGROUP}"
    view = NodeView(
        node,
        saved.state,
        cgroups if file_type(cgroups) == stat.S_IFDIR else None,
        problems=tuple(misfits(node, saved, root)),
        policies=saved.policies,
    )
    return replace(_copy(view, saved_at_ms(config, root)), hostname=hostname_below(root))


def hostname_below(root: str) -> str:
    """Return the name of a node whose file system was copied; empty: it can't be read."""
    for path in ("proc/sys/kernel/hostname", "etc/hostname"):
        try:
            content = state_files.read(f"{root}/{path}", max_bytes=_LONGEST_HOSTNAME)
        except state_files.StateFileError:
            continue
        if content is not None:
            return content.decode("ascii", "replace").strip()
    return ""


def _copy(view: NodeView, at_ms: int) -> NodeView:
    """Mark it as another node's; 0: the time is unknown."""
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_ms // 1000)) if at_ms else None
    return replace(view, is_here=False, at_ms=at_ms, copied_at=at)


def _unpromised(node: NodeSetup, why: str) -> NodeView:
    return NodeView(node, NodeState(initial(node.managers)), problems=(why,), is_agent_known=False)
