"""State of the node that the options select: this node, a copied file system (`--root`), or a capture in a file (`--machine`)."""

import argparse

from nodeagent.cli.support.node.arguments import is_copied, is_elsewhere
from nodeagent.cli.support.node.this_node import read_this_node, read_this_node_for_display
from nodeagent.cli.support.places import DEFAULT_CONFIG
from nodeagent.formats.node_view import NodeView, ViewReader


def read_node(options: argparse.Namespace) -> NodeView:
    """Read the state of the selected node.

    For this node, `--config` is used only if the agent doesn't answer, because a running agent reports its own configuration. For another
    node, `--config` takes precedence over the captured configuration.

    Raises:
        NodeAgentError: the state or the configuration can't be read, or don't match the machine.
    """
    if options.machine is None and not is_copied(options):
        return read_this_node(options.config or DEFAULT_CONFIG, options.socket)
    from nodeagent.cli.support.node.copied_node import read_copied_node, view_capture
    from nodeagent.cli.support.node.selected_machine import read_machine_file

    if options.machine is not None:
        return view_capture(*read_machine_file(options.machine), options.machine, options.config)
    return read_copied_node(options.root.rstrip("/"), options.config)


def read_node_for_display(options: argparse.Namespace, read: ViewReader | None = None) -> NodeView:
    """Read the state of the selected node for display. The running pods of this node are shown even if its configuration is invalid.

    `read` means the same as for `read_this_node`.

    Raises:
        NodeAgentError: see `read_node`.
    """
    if is_elsewhere(options):
        return read_node(options)
    return read_this_node_for_display(options.config, options.socket, read)
