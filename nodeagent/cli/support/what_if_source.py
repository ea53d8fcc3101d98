"""The node that decisions are tried out on: this one, a copied, captured or described machine; under its own or another configuration."""

import argparse
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.cli.support.configurations import load_config
from nodeagent.cli.support.known_state import looked_at
from nodeagent.cli.support.places import DEFAULT_CONFIG
from nodeagent.cli.support.sources import is_copied, is_elsewhere, is_unconfigured, known_from, topology_from
from nodeagent.core.admission.managers import initial, resume
from nodeagent.core.admission.node_capacity import Allocatable
from nodeagent.core.admission.node_setup import NodeSetup, on_machine, with_plugins
from nodeagent.core.explain.what_if import WhatIf
from nodeagent.core.model.config import Config, Errata
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.topology import Topology
from nodeagent.daemon.start.startup import plugged
from nodeagent.errors import NodeAgentError
from nodeagent.formats.node_view import NodeView
from nodeagent.formats.topology.topology_spec import topology_from_spec

_ABSENT_HINT = "name one with --config FILE, for example examples/config.yaml (`nodeagent --help` says where it is)"


class WhatIfError(NodeAgentError):
    """No node to try decisions on."""


class WhatIfMachine(Struct, frozen=True):
    """A machine, and the pods on it."""

    topology: Topology
    where: str
    """In a few words."""
    known: NodeView | None = None
    """None: it has no pods, or they are ignored."""

    @property
    def pods(self) -> tuple[Pod, ...]:
        """Those that hold what they were promised, in decision order."""
        return () if self.known is None else self.known.state.holding_pods()


class WhatIfNode(Struct, frozen=True):
    what_if: WhatIf
    config: Config
    source: str
    """Where the configuration comes from."""
    where: str
    """The machine, in a few words."""
    state: NodeState | None = None
    """None: it has no pods, or they are ignored."""
    has_partitions: bool | None = None
    """Whether its kernel has them below other cgroups (6.7). None: unknown, or nobody wants any."""


def machine_of(options: argparse.Namespace, otherwise: str | None = None) -> WhatIfMachine:
    """Find the machine, and the pods on it.

    Args:
        options: select the node.
        otherwise: the configuration for reading its pods if it has none of its own.

    Raises:
        NodeAgentError: it can't be read, or its pods are unknown.
    """
    if options.topology is not None:
        return WhatIfMachine(topology_from_spec(options.topology), f"as described, {options.topology}")
    where = options.machine or (f"copied to {options.root}" if is_copied(options) else "this one")
    if options.empty:
        return WhatIfMachine(topology_from(options), f"{where}, without its pods")
    # another node's own configuration may be missing, so reading it needs the given one
    config = options.config if is_elsewhere(options) else None
    if otherwise is not None and is_unconfigured(options):
        config = otherwise
    try:
        known = known_from(argparse.Namespace(**{**vars(options), "config": config}))
    except NodeAgentError as err:
        raise WhatIfError(
            err.message,
            hint=f"{err.hint}; or leave its pods out with --empty, or describe a machine: --topology 2s.2n.8c.2t",
        ) from err
    return WhatIfMachine(known.node.topology, where, known)


def errata_of(options: argparse.Namespace) -> Errata:
    """Whose decisions are asked for."""
    return Errata.FIXED if options.errata is None else Errata(options.errata)


def empty_node(machine: WhatIfMachine, config: Config, path: str, errata: Errata) -> WhatIfNode:
    """Return the machine as a node without pods.

    Args:
        machine: as found.
        config: as read.
        path: its origin.
        errata: whose decisions.

    Raises:
        NodeAgentError: the configuration doesn't fit the machine.
    """
    node = _plugged(_node(config, machine.topology, errata, path), path)
    return WhatIfNode(
        WhatIf.of(node.managers, initial(node.managers), (), _allocatable(node)),
        node.config,
        Path(path).name,
        machine.where,
    )


def what_if_node(options: argparse.Namespace) -> WhatIfNode:
    """Find the node as it is.

    Raises:
        NodeAgentError: machine, configuration or state can't be read, or don't match.
    """
    machine = machine_of(options)
    known = machine.known
    if known is None:
        path = options.config or DEFAULT_CONFIG
        return empty_node(machine, load_config(path, absent_hint=_ABSENT_HINT), path, errata_of(options))
    errata = errata_of(options)
    node, promises, source = known.node, known.state.promises, "its own"
    if options.config is not None or errata is not Errata.FIXED:
        config, reserved = node.config, node.reserved
        if options.config is not None:
            source = Path(options.config).name
            config, reserved = load_config(options.config, absent_hint=_ABSENT_HINT), CpuSet()
        node = _node(config, node.topology, errata, source, reserved)
        judged = resume(node.managers, promises)
        if isinstance(judged, StartRefused):
            raise WhatIfError(
                f"what the pods there have doesn't fit {source}: {judged.about}: {judged.message}",
                hint="--empty leaves them out; `nodeagent simulate --compare` decides on them again",
            )
        promises = judged
    node = _plugged(node, source)
    what_if = _with_pods(node, promises, known.state)
    return WhatIfNode(what_if, node.config, source, machine.where, known.state, has_partitions(known, node.config))


def what_if_of(known: NodeView) -> WhatIfNode:
    """Return this node as it is, under the configuration that it runs with.

    Raises:
        WhatIfError: a CPU plugin that it runs with can't be loaded.
    """
    state, node = known.state, _plugged(known.node, "its own")
    what_if = _with_pods(node, state.promises, state)
    return WhatIfNode(what_if, node.config, "its own", "this one", state)


def _with_pods(node: NodeSetup, promises: Promises, state: NodeState) -> WhatIf:
    there = WhatIf.of(node.managers, promises, state.holding_pods(), _allocatable(node), state.idle_pods())
    return replace(there, moving=state.ending())


def has_partitions(known: NodeView, config: Config) -> bool | None:
    """Return it for the kernel of a node whose cgroups were, or can be, observed."""
    if config.host_isolation == "none":
        return None
    kernel = looked_at(known).kernel
    return None if kernel is None else bool(kernel.path_to_partitions)


def _node(config: Config, topology: Topology, errata: Errata, source: str, reserved: CpuSet = CpuSet()) -> NodeSetup:
    config = replace(config, placement=replace(config.placement, errata=errata))
    node = on_machine(config, topology, reserved or None)
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
                "name a configuration that suits this machine with --config",
            ]
        ),
    )


def _plugged(node: NodeSetup, source: str) -> NodeSetup:
    """Load the CPU plugins that decide on that node: without them, other decisions would come out."""
    config, missing = plugged(node.config)
    if not missing:
        return with_plugins(node, config.placement.cpu_plugins) if config.placement.cpu_plugins else node
    raise WhatIfError(
        "\n".join(f"{source}: {refused.about}[{refused.entry}]: {refused.message}" for refused in missing),
        hint="install here what decides there, with its entry point (docs/how-to/cpu-plugins.md); or name a configuration without it "
        "with --config, for what kubelet's own policy decides",
    )


def _allocatable(node: NodeSetup) -> Allocatable | None:
    return node.allocatable if node.config.check_allocatable else None
