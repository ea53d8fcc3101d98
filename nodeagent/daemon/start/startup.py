"""Loading of a node: configuration, machine, managers. Each error has the file, the value and the next step."""

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
"""The agent's last configuration, in the state directory. Commands use it while no agent runs and the configuration is invalid."""
EX_CONFIG = 78
"""Exit status for errors that a restart can't fix (sysexits.h)."""
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


def read_config_text(
    path: str, *, absent_hint: str = ABSENT_HINT, read: Callable[[str, int], bytes | None] = _regular_file
) -> bytes:
    """Read the text of the configuration. `read` returns the content of a file up to a size, or None if there is no file.

    Raises:
        StartError: the file is missing or can't be read.
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
        StartError: the configuration is missing, invalid, or doesn't fit this machine. kubelet would not start either, and its words are
            used. The message has one finding per line.
    """
    from nodeagent.formats.config.config_yaml import judged_config  # noqa: PLC0415 - commands that ask the agent do without YAML

    content, topology = read_config_text(path), topology_of(read_machine(root))
    config, findings = judged_config(content, path, lambda config: find_unsuited(config, topology))
    if config is None or findings:
        raise StartError(
            "\n".join(map(str, findings)),
            hint=f"correct {path}, or what it names, then `systemctl restart nodeagent` (or reload)",
        )
    node = on_machine(load_plugins(config)[0], topology)
    assert isinstance(node, NodeSetup), "the machine has been asked"
    return node


def find_unsuited(config: Config, topology: Topology) -> tuple[StartRefused, ...]:
    """Explain which settings don't fit a machine or name plugins that can't be loaded. The configuration may be invalid in other ways."""
    config, missing = load_plugins(config)
    node = on_machine(config, topology)
    known = misconfigured(config.placement)
    found = () if isinstance(node, NodeSetup) else tuple(refused for refused in node if refused not in known)
    return (*found, *missing)


def load_plugins(config: Config) -> tuple[Config, tuple[StartRefused, ...]]:
    """Load the CPU plugins of a configuration. Also return the plugins that can't be loaded."""
    plugins = config.placement.cpu_plugins
    if not plugins:
        return config, ()
    from nodeagent.edge.plugins.cpu_plugins import load_plugins  # noqa: PLC0415 - only where there are plugins

    found, wrong = load_plugins(plugins)
    return replace(config, placement=replace(config.placement, cpu_plugins=found)), wrong


def begin_turn(node: NodeSetup, alive: Callable[[], None]) -> None:
    """Give CPU plugins their time for a turn or a start. `alive` is called after each of their answers."""
    for plugin in node.managers.providers.of(CpuResource).manager.plugins:
        if plugin.code is not None:
            plugin.code.begin_turn(alive)


def discover(config: Config, source: str) -> NodeSetup:
    """Read this machine and build the node. Raises StartError as `node_of` does."""
    return node_of(config, topology_of(read_machine()), source)


def node_of(config: Config, topology: Topology, source: str) -> NodeSetup:
    """Build the managers of a node. `source` is the file or other origin of the configuration, for messages.

    Raises:
        StartError: the configuration doesn't fit the machine.
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
    """Return the content of a file. None means that it doesn't exist.

    Raises:
        StartError: the file can't be read.
    """
    try:
        return state_files.read(path, max_bytes=max_bytes)
    except state_files.StateFileError as err:
        raise StartError(err.message, hint=err.hint) from err
