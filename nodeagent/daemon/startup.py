"""From files to a node that can be run: configuration, machine, managers. Each failure has the file, the value and the next step."""

from collections.abc import Callable

from nodeagent.core.admission.managers import misconfigured
from nodeagent.core.admission.node_setup import NodeSetup, on_machine
from nodeagent.core.model.config import Config
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.topology import Topology
from nodeagent.edge import state_files
from nodeagent.edge.sysfs import read_machine
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.sysfs import topology_of

STATE_FILE = "nodeagent_state"
LAST_CONFIG = "last_config.yaml"
"""The configuration that the agent last ran with, in the state directory: for commands, where it does not run and its own is wrong."""
EX_CONFIG = 78
"""sysexits.h: something in the configuration or the state that starting again cannot mend."""
MAX_CONFIG_BYTES = 1 << 20
CPU_CHECKPOINT = "cpu_manager_state"
MEMORY_CHECKPOINT = "memory_manager_state"
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
        absent_hint: what to do if there is none.
        read: gives the content of a path, at most so many bytes, or None where nothing is.

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
        StartError: the configuration is missing or wrong, or does not suit this machine: kubelet would not start either,
            and says it in these words. Every finding is in the message, one a line.

    """
    from nodeagent.formats.config.config_yaml import judged_config  # noqa: PLC0415 - commands that ask the agent do without YAML

    content, topology = config_content(path), topology_of(read_machine(root))
    config, findings = judged_config(content, path, lambda config: unsuited(config, topology))
    if config is None or findings:
        raise StartError(
            "\n".join(map(str, findings)),
            hint=f"correct {path}, or what it names, then `systemctl restart nodeagent` (or reload)",
        )
    node = on_machine(config, topology)
    assert isinstance(node, NodeSetup), "the machine has been asked"
    return node


def unsuited(config: Config, topology: Topology) -> tuple[StartRefused, ...]:
    """Say what of a configuration, right or wrong by itself, does not suit a machine."""
    node = on_machine(config, topology)
    known = misconfigured(config.placement)
    return () if isinstance(node, NodeSetup) else tuple(refused for refused in node if refused not in known)


def discover(config: Config, source: str) -> NodeSetup:
    """Read this machine and build the managers; else as `node_of`."""
    return node_of(config, topology_of(read_machine()), source)


def node_of(config: Config, topology: Topology, source: str) -> NodeSetup:
    """Build the managers.

    Args:
        config: as read.
        topology: the machine.
        source: the configuration's file, or who told it.

    Raises:
        StartError: they don't suit each other.

    """
    node = on_machine(config, topology)
    if isinstance(node, NodeSetup):
        return node
    raise StartError(
        "\n".join(refused.told for refused in node),
        hint=f"correct {', '.join(dict.fromkeys(refused.about for refused in node))} in {source}, or what it names; "
        "`nodeagent config validate` reports every error",
    )


def read_file(path: str, max_bytes: int) -> bytes | None:
    """Give the file's content; None: there is none.

    Raises:
        StartError: it cannot be read.

    """
    try:
        return state_files.read(path, max_bytes=max_bytes)
    except state_files.StateFileError as err:
        raise StartError(err.message, hint=err.hint) from err
