"""State of another node, from a copy of its file system (`--root`) or a capture (`--machine`)."""

import stat
import time

from msgspec.structs import replace

from nodeagent.cli.support.configurations import load_config
from nodeagent.cli.support.named_files import find_file_type
from nodeagent.cli.support.node.saved_node import find_misfits
from nodeagent.cli.support.node.selected_machine import SourceError
from nodeagent.cli.support.node.this_node import read_save_time_ms, read_saved_state
from nodeagent.cli.support.places import DEFAULT_CONFIG, PODS_CGROUP
from nodeagent.core.admission.managers import initial
from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.topology import Topology
from nodeagent.daemon.start.node_builder import node_of
from nodeagent.edge.files import state_files
from nodeagent.edge.kernel.sysfs import read_machine
from nodeagent.formats.capture import Capture
from nodeagent.formats.checkpoint.node_state import SavedState
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.node_view import NodeView

_LONGEST_HOSTNAME = 256


def view_capture(topology: Topology, capture: Capture | None, path: str, config_path: str | None) -> NodeView:
    """Return the state of a captured node.

    Args:
        topology: the machine.
        capture: the capture. None means that the file only describes a machine.
        path: the path of the file.
        config_path: a configuration that replaces the captured one. None means that the captured one is used.

    Raises:
        NodeAgentError: there is no configuration, or it is invalid for the machine.
    """
    agent = None if capture is None else capture.agent
    if agent is None:
        if config_path is None:
            raise SourceError(f"{path} contains no configuration", hint="name one with --config FILE")
        view = _view_without_pods(node_of(load_config(config_path), topology, config_path), f"{path} contains no pods")
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


def read_copied_node(root: str, config_path: str | None) -> NodeView:
    """Read the state of a node from a copy of its file system.

    Args:
        root: the directory of the copy.
        config_path: a configuration that replaces the copied one. None means that the copied one is used.

    Raises:
        NodeAgentError: the state or the configuration can't be read, or the configuration is invalid for the machine.
    """
    topology = topology_of(read_machine(root))
    config_path = config_path or f"{root}{DEFAULT_CONFIG}"
    config = load_config(config_path)
    node = node_of(config, topology, config_path)
    saved = read_saved_state(config, root)
    if saved is None:
        view = _view_without_pods(node, f"there is no saved state in {root}{config.state_directory}")
        return replace(_mark_copied(view, 0), hostname=read_hostname(root))
    cgroups = f"{root}{config.cgroup_root or PODS_CGROUP}"
    view = NodeView(
        node,
        saved.state,
        cgroups if find_file_type(cgroups) == stat.S_IFDIR else None,
        problems=tuple(find_misfits(node, saved, root)),
        policies=saved.policies,
    )
    return replace(_mark_copied(view, read_save_time_ms(config, root)), hostname=read_hostname(root))


def read_hostname(root: str) -> str:
    """Read the host name in a copied file system. The result is empty if the name can't be read."""
    for path in ("proc/sys/kernel/hostname", "etc/hostname"):
        try:
            content = state_files.read(f"{root}/{path}", max_bytes=_LONGEST_HOSTNAME)
        except state_files.StateFileError:
            continue
        if content is not None:
            return content.decode("ascii", "replace").strip()
    return ""


def _mark_copied(view: NodeView, at_ms: int) -> NodeView:
    """Mark a view as the view of another node, as it was at the time `at_ms`. 0 means that this time is unknown."""
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_ms // 1000)) if at_ms else None
    return replace(view, is_here=False, at_ms=at_ms, copied_at=at)


def _view_without_pods(node: NodeSetup, why: str) -> NodeView:
    return NodeView(node, NodeState(initial(node.managers)), problems=(why,), is_agent_known=False)
