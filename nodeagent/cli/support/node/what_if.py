"""Node for trial decisions: this node, or a copied, captured or described one, under its own or another configuration."""

import argparse
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.cli.support.configurations import load_config
from nodeagent.cli.support.node.arguments import is_copied, is_elsewhere
from nodeagent.cli.support.node.observation import add_cgroups
from nodeagent.cli.support.node.selected import read_node
from nodeagent.cli.support.node.selected_machine import is_unconfigured, read_topology
from nodeagent.cli.support.places import DEFAULT_CONFIG
from nodeagent.core.admission.managers import initial, resume
from nodeagent.core.admission.node_capacity import Allocatable
from nodeagent.core.admission.node_setup import NodeSetup, on_machine, with_managers, with_plugins
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.model.config import Config, Errata
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.topology import Topology
from nodeagent.daemon.start.node_builder import load_plugins
from nodeagent.daemon.start.startup import NAME_ANOTHER, StartError
from nodeagent.errors import NodeAgentError
from nodeagent.formats.node_view import NodeView
from nodeagent.formats.topology.topology_spec import topology_from_spec

_OWN_CONFIG = "the node's configuration"
_ABSENT_HINT = "name one with --config FILE, for example examples/config.yaml (`nodeagent --help` says where it is)"


class WhatIfError(NodeAgentError):
    """The node can't be used for trial decisions."""


class WhatIfMachine(Struct, frozen=True):
    """Machine for trial decisions, and the node's state with its pods."""

    topology: Topology
    where: str
    """Short text that says where the machine's description is from."""
    known: NodeView | None = None
    """State of the node. None means that the node has no pods, or that the user wants its pods to be ignored."""

    @property
    def pods(self) -> tuple[Pod, ...]:
        """Pods that have allocated resources, in the order of the decisions on them."""
        return () if self.known is None else self.known.state.holding_pods()


class WhatIfNode(Struct, frozen=True):
    what_if: WhatIf
    config: Config
    source: str
    """File name of the configuration, or a text that says where the configuration is from."""
    where: str
    """Short text that says where the machine's description is from."""
    state: NodeState | None = None
    """State of the node. None means that the node has no pods, or that the user wants its pods to be ignored."""
    has_partitions: bool | None = None
    """Whether the node's kernel supports cpuset partitions below other cgroups (6.7). None means that this is unknown, or that no partition
    is needed, because `hostIsolation` is none.
    """


def read_what_if_machine(options: argparse.Namespace, otherwise: str | None = None) -> WhatIfMachine:
    """Read the selected machine and the pods on it.

    Args:
        options: the options that select the node.
        otherwise: a configuration with which to read the pods if the node has no configuration of its own.

    Raises:
        NodeAgentError: the machine can't be read, or its pods are unknown.
    """
    if options.topology is not None:
        return WhatIfMachine(topology_from_spec(options.topology), f"as described, {options.topology}")
    where = options.machine or (f"copied to {options.root}" if is_copied(options) else "this one")
    if options.empty:
        return WhatIfMachine(read_topology(options), f"{where}, without its pods")
    # If another node has no configuration of its own, the named configuration is used to read the node, too.
    config = options.config if is_elsewhere(options) else None
    if otherwise is not None and is_unconfigured(options):
        config = otherwise
    try:
        known = read_node(argparse.Namespace(**{**vars(options), "config": config}))
    except NodeAgentError as err:
        if config is not None and isinstance(err, StartError):
            raise  # the hint below, to leave out the pods, doesn't help with an invalid configuration
        # In these commands, --config names the configuration of the trial, not that of the running pods, so the advice to name another file
        # is removed.
        hint = err.hint.removesuffix(NAME_ANOTHER) if config is None else err.hint
        raise WhatIfError(
            err.message,
            hint=f"{hint}; or leave its pods out with --empty, or describe a machine: --topology 2s.2n.8c.2t",
        ) from err
    return WhatIfMachine(known.node.topology, where, known)


def find_errata(options: argparse.Namespace) -> Errata:
    """Return the rules of the decisions, as requested with `--errata`: nodeagent's own rules, or those of a kubelet with its bugs."""
    return Errata.FIXED if options.errata is None else Errata(options.errata)


def create_empty_node(machine: WhatIfMachine, config: Config, path: str, errata: Errata) -> WhatIfNode:
    """Return a machine as a node without pods.

    Args:
        machine: the machine.
        config: the configuration of the node.
        path: the path of the configuration file.
        errata: the rules by which to decide.

    Raises:
        NodeAgentError: the configuration is invalid for the machine.
    """
    node = _load_plugins(_set_up_node(config, machine.topology, errata, path), path)
    return WhatIfNode(
        WhatIf.of(node.managers, initial(node.managers), (), _find_allocatable(node)),
        node.config,
        Path(path).name,
        machine.where,
    )


def read_what_if_node(options: argparse.Namespace) -> WhatIfNode:
    """Read the selected node and its pods, for trial decisions.

    Raises:
        NodeAgentError: machine, configuration or state can't be read, or don't match.
    """
    machine = read_what_if_machine(options)
    known = machine.known
    if known is None:
        path = options.config or DEFAULT_CONFIG
        return create_empty_node(machine, load_config(path, absent_hint=_ABSENT_HINT), path, find_errata(options))
    errata = find_errata(options)
    promises, source = known.state.promises, _OWN_CONFIG
    if options.config is not None or errata is not Errata.FIXED:
        config, reserved = known.node.config, known.node.reserved
        if options.config is not None:
            source = Path(options.config).name
            config, reserved = load_config(options.config, absent_hint=_ABSENT_HINT), CpuSet()
        node = _set_up_node(config, known.node.topology, errata, source, reserved)
        judged = resume(node.managers, promises)
        if isinstance(judged, StartRefused):
            raise WhatIfError(
                f"the resources allocated to the node's pods don't fit {source}: {judged.about}: {judged.message}",
                hint="leave the pods out with --empty, or decide on them again with `nodeagent simulate --compare OLD.yaml NEW.yaml`",
            )
        node, promises = _load_plugins(node, source), judged
    else:
        node = _load_plugins(_require_fit(with_managers(known.node), source), source)
    what_if = _build_what_if(node, promises, known.state)
    return WhatIfNode(what_if, node.config, source, machine.where, known.state, has_partitions(known, node.config))


def create_what_if_node(known: NodeView) -> WhatIfNode:
    """Return the node of a view, with its pods and under its own configuration, for trial decisions.

    Raises:
        WhatIfError: a CPU plugin of its configuration can't be loaded.
    """
    state, node = known.state, _load_plugins(_require_fit(with_managers(known.node), _OWN_CONFIG), _OWN_CONFIG)
    what_if = _build_what_if(node, state.promises, state)
    return WhatIfNode(what_if, node.config, _OWN_CONFIG, "this one", state)


def _build_what_if(node: NodeSetup, promises: Promises, state: NodeState) -> WhatIf:
    what_if = replace(WhatIf.of_state(node.managers, state, _find_allocatable(node)), promises=promises)
    origins = {entry.pod.uid: entry.origin for entry in state.entries}
    return replace(what_if, moving=state.ending_uids(), origins=origins)


def has_partitions(known: NodeView, config: Config) -> bool | None:
    """Return whether the kernel supports cpuset partitions below other cgroups. None means that this is unknown, or that no partition is
    needed, because `hostIsolation` is none.
    """
    if config.host_isolation == "none":
        return None
    kernel = add_cgroups(known).kernel
    return None if kernel is None else bool(kernel.path_to_partitions)


def _set_up_node(
    config: Config, topology: Topology, errata: Errata, source: str, reserved: CpuSet = CpuSet()
) -> NodeSetup:
    config = replace(config, placement=replace(config.placement, errata=errata))
    return _require_fit(on_machine(config, topology, reserved or None), source, errata)


def _require_fit(node: NodeSetup | tuple[StartRefused, ...], source: str, errata: Errata = Errata.FIXED) -> NodeSetup:
    """Return the node. If its configuration is invalid for its machine, raise an error that describes each problem."""
    if isinstance(node, NodeSetup):
        return node
    raise WhatIfError(
        "\n".join(
            f"{source}: {refused.about}: {(refused.plain if errata is Errata.FIXED else '') or refused.message}"
            for refused in node
        ),
        hint="; or ".join(
            [
                *(f"{refused.about}: {refused.allowed}" for refused in node if refused.allowed),
                "name a configuration that is valid for this machine with --config",
            ]
        ),
    )


def _load_plugins(node: NodeSetup, source: str) -> NodeSetup:
    """Load the CPU plugins that the node's configuration names, because decisions depend on them."""
    config, missing = load_plugins(node.config)
    if not missing:
        return with_plugins(node, config.placement.cpu_plugins) if config.placement.cpu_plugins else node
    raise WhatIfError(
        "\n".join(f"{source}: {refused.about}[{refused.entry}]: {refused.message}" for refused in missing),
        hint="install the node's plugin and its entry point on this machine (docs/how-to/cpu-plugins.md); or name a configuration "
        "without the plugin with --config, to decide by kubelet's own policy",
    )


def _find_allocatable(node: NodeSetup) -> Allocatable | None:
    return node.allocatable if node.config.check_allocatable else None
