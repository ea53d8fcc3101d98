"""From files to a node that can run: configuration, machine, managers. Each failure has the file, the value and the next step."""

from collections.abc import Callable

from msgspec.structs import replace

from nodeagent.core.admission.managers import misconfigured
from nodeagent.core.admission.node_setup import NodeSetup, on_machine
from nodeagent.core.model.config import Config
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.edge.files import state_files
from nodeagent.edge.kernel.sysfs import read_machine
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.sysfs import topology_of

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


def load_node(path: str, root: str = "/") -> NodeSetup:
    """Read the configuration and the machine.

    Raises:
        StartError: the configuration is missing or invalid, or does not fit this machine: kubelet would not start either, with these words.
            The message has every finding, one per line.
    """
    from nodeagent.formats.config.config_yaml import judge_config  # noqa: PLC0415 - commands that ask the agent do without YAML

    content, topology = config_content(path), topology_of(read_machine(root))
    config, findings = judge_config(content, path, lambda config: unsuited(config, topology))
    if config is None or findings:
        raise StartError(
            "\n".join(map(str, findings)),
            hint=f"correct {path}, or what it names, then `systemctl restart nodeagent` (or reload)",
        )
    node = on_machine(plugged(config)[0], topology)
    assert isinstance(node, NodeSetup), "the machine has been asked"
    return node


def unsuited(config: Config, topology: Topology) -> tuple[StartRefused, ...]:
    """Explain what in a configuration, valid by itself or not, does not fit a machine, or names what is not installed there."""
    config, missing = plugged(config)
    node = on_machine(config, topology)
    known = misconfigured(config.placement)
    found = () if isinstance(node, NodeSetup) else tuple(refused for refused in node if refused not in known)
    return (*found, *missing)


def plugged(config: Config) -> tuple[Config, tuple[StartRefused, ...]]:
    """Load the CPU plugins that a configuration names, for who is to decide; and say which can't be loaded."""
    plugins = config.placement.cpu_plugins
    if not plugins:
        return config, ()
    from nodeagent.edge.plugins.cpu_plugins import loaded  # noqa: PLC0415 - only where there are plugins

    found, wrong = loaded(plugins)
    return replace(config, placement=replace(config.placement, cpu_plugins=found)), wrong


def begin_turn(node: NodeSetup, alive: Callable[[], None]) -> None:
    """Let CPU plugins have the time for a turn, or for a start, from now on; each of their answers is a sign of life."""
    for plugin in node.managers.providers.of(CpuResource).manager.plugins:
        if plugin.code is not None:
            plugin.code.begin_turn(alive)


def discover(config: Config, source: str) -> NodeSetup:
    """Read this machine and build the managers; otherwise like `node_of`."""
    return node_of(config, topology_of(read_machine()), source)


def node_of(config: Config, topology: Topology, source: str) -> NodeSetup:
    """Build the managers.

    Args:
        config: as read.
        topology: the machine.
        source: the configuration file, or what else it came from.

    Raises:
        StartError: they don't fit each other.
    """
    node = on_machine(config, topology)
    if isinstance(node, NodeSetup):
        return node
    raise StartError(
        "\n".join(refused.text for refused in node),
        hint=f"correct {', '.join(dict.fromkeys(refused.about for refused in node))} in {source}, or what it names; "
        "`nodeagent config validate` reports every error",
    )


def read_file(path: str, max_bytes: int) -> bytes | None:
    """Return the file's content; None: it doesn't exist.

    Raises:
        StartError: it cannot be read.
    """
    try:
        return state_files.read(path, max_bytes=max_bytes)
    except state_files.StateFileError as err:
        raise StartError(err.message, hint=err.hint) from err
