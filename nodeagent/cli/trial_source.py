"""On which node decisions are tried out: the live one, a captured or a described machine; under its own or another configuration."""

import argparse
from dataclasses import dataclass, replace

from nodeagent.cli.known_state import DEFAULT_CONFIG, DEFAULT_SOCKET, known_state
from nodeagent.core.config import Config, Errata
from nodeagent.core.managers import initial, resume
from nodeagent.core.node_capacity import Allocatable
from nodeagent.core.refusals import StartRefused
from nodeagent.core.state import NodeState
from nodeagent.core.topology import Topology
from nodeagent.core.trial import Trial
from nodeagent.daemon.machine import Node, on_machine
from nodeagent.daemon.startup import load_config
from nodeagent.edge.sysfs import read_machine
from nodeagent.errors import NodeAgentError
from nodeagent.formats.sysfs import topology_of
from nodeagent.formats.topology_spec import topology_from_spec


class TrialError(NodeAgentError):
    """There is no node to try anything out on."""


@dataclass(frozen=True, slots=True)
class TrialNode:
    trial: Trial
    config: Config
    state: NodeState | None
    """Of the live node; None: it is a described machine, or it is looked at as if it were empty."""
    where: str
    """The machine, in a few words."""


def add_trial_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say on which node, and under which rules."""
    machine = parser.add_mutually_exclusive_group()
    machine.add_argument("--root", metavar="DIR", help="a copied file-system root with sys/ and proc/, without pods")
    machine.add_argument(
        "--topology",
        metavar="SPEC",
        help="a machine in a few words: 2s.2n.8c.2t has 2 sockets of 2 NUMA nodes of 8 cores of 2 threads; docs/explain.md has all of it",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"decide under this configuration (default: the running agent's; on other machines {DEFAULT_CONFIG})",
    )
    parser.add_argument("--socket", metavar="PATH", help=f"the agent's socket (default: {DEFAULT_SOCKET})")
    parser.add_argument("--empty", action="store_true", help="as if this node had no pods; asks no agent")
    parser.add_argument(
        "--errata",
        choices=tuple(item.value for item in Errata),
        default=Errata.FIXED.value,
        help="whose decisions: nodeagent's (fixed, default), or kubelet's with its mistakes (kubelet-1.36)",
    )


def trial_node(options: argparse.Namespace, config_path: str | None = None) -> TrialNode:
    """Find the node.

    Args:
        options: as parsed by these arguments.
        config_path: instead of `--config`.

    Raises:
        NodeAgentError: machine, configuration or state can't be read, or don't go together.
    """
    given = config_path or options.config
    path = given or DEFAULT_CONFIG
    errata = Errata(options.errata)
    if options.topology is not None:
        return _empty(topology_from_spec(options.topology), path, errata, f"described: {options.topology}")
    if options.root is not None:
        return _empty(topology_of(read_machine(options.root)), path, errata, f"copied: {options.root}")
    if options.empty:
        return _empty(topology_of(read_machine()), path, errata, "this one, without its pods")
    return _live(options, given, errata)


def _empty(topology: Topology, path: str, errata: Errata, where: str) -> TrialNode:
    node = _node(load_config(path), topology, errata, path)
    return TrialNode(Trial(node.managers, initial(node.managers), (), _room(node)), node.config, None, where)


def _node(config: Config, topology: Topology, errata: Errata, path: str | None) -> Node:
    config = replace(config, placement=replace(config.placement, errata=errata))
    node = on_machine(config, topology)
    if isinstance(node, Node):
        return node
    raise TrialError(
        "\n".join(f"{path or 'the default configuration'}: {refused.about}: {refused.message}" for refused in node),
        hint="name a configuration that suits this machine with --config",
    )


def _live(options: argparse.Namespace, path: str | None, errata: Errata) -> TrialNode:
    try:
        known = known_state(DEFAULT_CONFIG, options.socket)
    except NodeAgentError as err:
        raise TrialError(
            err.message, hint=f"{err.hint}; or try it on another machine: --empty, --topology 2s.2n.8c.2t, --root DIR"
        ) from err
    node, promises = known.node, known.state.promises
    where = "this one, with its pods" + ("" if known.is_live else " as they were saved")
    if path is not None or errata is not Errata.FIXED:
        node = _node(node.config if path is None else load_config(path), node.topology, errata, path)
        judged = resume(node.managers, promises)
        if isinstance(judged, StartRefused):
            raise TrialError(
                f"the pods there are don't fit that configuration: {judged.about}: {judged.message}",
                hint="--empty leaves them out; nodeagent simulate decides on them anew",
            )
        promises = judged
    trial = Trial(node.managers, promises, known.state.active_pods(), _room(node))
    return TrialNode(trial, node.config, known.state, where)


def _room(node: Node) -> Allocatable | None:
    return node.allocatable if node.config.check_allocatable else None
