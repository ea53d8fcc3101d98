"""Machine that the options select: this machine, a copied file system (`--root`), or a machine in a file (`--machine`)."""

import argparse
import os

from nodeagent.cli.support.named_files import is_absent, read_named
from nodeagent.cli.support.node.arguments import find_own_config, is_copied
from nodeagent.cli.support.node.this_node import state_path
from nodeagent.cli.support.places import DEFAULT_SOCKET
from nodeagent.core.model.config import Config
from nodeagent.core.model.topology import Topology
from nodeagent.edge.kernel.sysfs import read_machine
from nodeagent.errors import NodeAgentError
from nodeagent.formats.capture import MAX_BYTES, Capture, CaptureError, decode_capture
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.topology.topology_json import TopologyDocumentError, topology_from_document


class SourceError(NodeAgentError):
    """The named file doesn't contain what the command needs."""


def read_topology(options: argparse.Namespace) -> Topology:
    """Read the selected machine's topology. Neither an agent nor a configuration is needed.

    Raises:
        NodeAgentError: the machine can't be read.
    """
    if options.machine is not None:
        return read_machine_file(options.machine)[0]
    return topology_of(read_machine(options.root or "/"))


def read_machine_file(path: str) -> tuple[Topology, Capture | None]:
    """Read the file that `--machine` names. The capture is None if the file only describes a machine.

    Raises:
        NodeAgentError: the file can't be read, or is neither a capture nor a description.
    """
    content = read_named(path, MAX_BYTES)
    if content is None:
        raise SourceError(f"there is no file {path}", hint="make one with `nodeagent capture --out FILE`")
    return decode_machine_file(content, path)


def decode_machine_file(content: bytes, path: str) -> tuple[Topology, Capture | None]:
    """Decode a capture or the description of a machine. The capture is None for a description.

    Args:
        content: the content of the file.
        path: the name of the file, for errors.

    Raises:
        NodeAgentError: the file is neither a capture nor a description.
    """
    found = decode_capture(content, path)
    if isinstance(found, Capture):
        return topology_of(found.sample), found
    try:
        return topology_from_document(found), None
    except TopologyDocumentError as err:
        raise CaptureError(
            path, f"it is neither a capture (kind: NodeCapture) nor a description of a machine: {err.message}"
        ) from err


def is_unconfigured(options: argparse.Namespace) -> bool:
    """Return whether the selected node has no configuration file, and the options don't name one either."""
    if options.config is not None:
        return False
    if options.machine is not None:
        capture = read_machine_file(options.machine)[1]
        return capture is None or capture.agent is None
    return is_absent(find_own_config(options))


def is_without_agent(options: argparse.Namespace) -> bool:
    """Return whether the selected node certainly has no agent, no saved state and no configuration.

    Raises:
        NodeAgentError: a named capture can't be read.
    """
    if options.machine is not None:
        capture = read_machine_file(options.machine)[1]
        return capture is None or capture.agent is None
    places = [find_own_config(options), f"{(options.root or '').rstrip('/')}{state_path(Config())}"]
    if not is_copied(options):
        places.append(options.socket or DEFAULT_SOCKET)
    for path in places:
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # the path exists, but the user may not access the file
            return False
        return False
    return True
