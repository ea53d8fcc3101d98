"""Construction of the node for decisions: configuration, machine and resource managers.

Commands that only read a running agent's node don't import this module, to start faster.
"""

from collections.abc import Callable

from msgspec.structs import replace

from nodeagent.core.admission.managers import find_misconfigurations
from nodeagent.core.admission.node_setup import NodeSetup, on_machine
from nodeagent.core.model.config import Config
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.topology import Topology
from nodeagent.daemon.start.startup import StartError, read_config_text
from nodeagent.edge.kernel.sysfs import read_machine
from nodeagent.formats.kernel.sysfs import topology_of


def load_node(path: str, root: str = "/") -> NodeSetup:
    """Read the configuration and the machine, and build the node.

    Raises:
        StartError: the configuration is missing, invalid, or doesn't fit this machine. The message has one line for each finding, in
            kubelet's words where kubelet would refuse to start, too.
    """
    return build_node(read_config_text(path), path, root)


def build_node(content: bytes, path: str, root: str = "/") -> NodeSetup:
    """Build the node from the content of the configuration file at `path`.

    Raises:
        StartError: as in `load_node`.
    """
    from nodeagent.formats.config.config_yaml import judge_config  # noqa: PLC0415 - commands that ask the agent do without YAML

    topology = topology_of(read_machine(root))
    config, findings = judge_config(content, path, lambda config: find_unsuited(config, topology))
    if config is None or findings:
        raise StartError(
            "\n".join(map(str, findings)),
            hint=f"correct {path}, or add what is missing; then run `nodeagent config reload`, or, if the agent doesn't run, `systemctl "
            "start nodeagent`",
        )
    node = on_machine(load_plugins(config)[0], topology)
    assert isinstance(node, NodeSetup), "the machine has been asked"
    return node


def find_unsuited(config: Config, topology: Topology) -> tuple[StartRefused, ...]:
    """Return the settings that don't fit the machine, and the plugins that can't be loaded. Other errors of the configuration are not
    included.
    """
    config, missing = load_plugins(config)
    node = on_machine(config, topology)
    known = find_misconfigurations(config.placement)
    found = () if isinstance(node, NodeSetup) else tuple(refused for refused in node if refused not in known)
    return (*found, *missing)


def load_plugins(config: Config) -> tuple[Config, tuple[StartRefused, ...]]:
    """Load the CPU plugins that a configuration names.

    Returns:
        The configuration with the loaded plugins, and a refusal for each plugin that can't be loaded.
    """
    plugins = config.placement.cpu_plugins
    if not plugins:
        return config, ()
    from nodeagent.edge.plugins.cpu_plugins import load_plugins as load  # noqa: PLC0415 - only where there are plugins

    found, wrong = load(plugins)
    return replace(config, placement=replace(config.placement, cpu_plugins=found)), wrong


def begin_turn(node: NodeSetup, alive: Callable[[], None]) -> None:
    """Start the time limit that all answers of a CPU plugin share, during a turn or the agent's start.
    `alive` is called after each answer.
    """
    for plugin in node.managers.cpu_plugins:
        if plugin.code is not None:
            plugin.code.begin_turn(alive)


def discover(config: Config, source: str) -> NodeSetup:
    """Read this machine, and build the node.

    Raises:
        StartError: as in `node_of`.
    """
    return node_of(config, topology_of(read_machine()), source)


def node_of(config: Config, topology: Topology, source: str) -> NodeSetup:
    """Build the node from a configuration and a machine. `source` is the origin of the configuration for messages, such as its file.

    Raises:
        StartError: the configuration doesn't fit the machine.
    """
    node = on_machine(config, topology)
    if isinstance(node, NodeSetup):
        return node
    raise StartError(
        "\n".join(refused.text for refused in node),
        hint=f"correct {', '.join(dict.fromkeys(refused.about for refused in node))} in {source}, or the file or plugin that it names; "
        "`nodeagent config validate` reports every error",
    )
