"""`nodeagent capture`: saves the data of a node to one file. Every command that reads a node accepts this file with `--machine`."""

import argparse
import os
import sys
import time

from msgspec.structs import replace

from nodeagent import __version__
from nodeagent.cli.support.documents import add_out_argument, write_out
from nodeagent.cli.support.node.arguments import add_node_arguments, is_copied
from nodeagent.cli.support.node.copied_node import read_hostname
from nodeagent.cli.support.node.observation import add_observation
from nodeagent.cli.support.node.selected import read_node
from nodeagent.cli.support.node.selected_machine import SourceError, read_machine_file
from nodeagent.daemon.start.startup import StartError
from nodeagent.edge.kernel.sysfs import read_devices, read_machine, read_settings
from nodeagent.errors import NodeAgentError
from nodeagent.formats.capture import Capture, encode_capture
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.kernel.sysfs_sample import SysfsError
from nodeagent.formats.node_view import NodeView, Observation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_out_argument(parser)
    add_node_arguments(parser)
    parser.epilog = """\
exit status: 0: captured; 1: the machine or a named file could not be read, or the capture not written; 3: the agent
named with --socket doesn't answer, and has saved no state; 64: wrong arguments

examples:
  nodeagent capture --out node.json
  nodeagent capture --root /mnt/copy --out node.json
  nodeagent capture >node.json

Contains the machine's description and devices, the agent's configuration and allocations, the pods' cgroups, the settings that
`nodeagent check` judges, and versions; never a container's command, arguments or environment. docs/capture.md (nodeagent --help says where)
describes the format. If no agent answers, root gets its saved state. Without a saved state, only the machine is captured, and stderr says
so.
A configuration named with --config must be valid, and an agent named with --socket must answer or have saved its state.
next: nodeagent inspect --machine node.json, nodeagent topology --machine node.json"""


def run(options: argparse.Namespace) -> int:
    """Write the capture of the node to the file that `--out` names.

    Raises:
        NodeAgentError: the machine can't be read, the file can't be written, or a named file is missing.
    """
    write_out(options.out, encode_capture(_capture(options)).encode())
    return 0


def _capture(options: argparse.Namespace) -> Capture:
    if options.machine is not None:
        capture = read_machine_file(options.machine)[1]
        if capture is None:
            raise SourceError(
                f"{options.machine} is the description of a machine, not a capture",
                hint="take a capture on the node itself: nodeagent capture --out FILE",
            )
        return replace(capture, agent=_read_agent_state(options))
    root = options.root or "/"
    sample = read_machine(root)
    topology_of(sample)  # topology_of fails if the files don't describe a machine
    known = _read_agent_state(options)
    if known is not None:
        observation = add_observation(known, host_processes=True).observed
    else:
        at_ms = 0 if is_copied(options) else time.time_ns() // 1_000_000
        observation = Observation(at_ms, os.sysconf("SC_PAGE_SIZE"))
    devices = None
    try:
        devices = read_devices(root)
    except SysfsError as err:
        print(f"nodeagent: devices are left out: {err.message}\nhint: {err.hint}", file=sys.stderr)
    settings = read_settings(root)
    return Capture(
        nodeagent=__version__,
        hostname=read_hostname(root) if is_copied(options) else os.uname().nodename,
        kernel=settings.sample.files.get("proc/sys/kernel/osrelease", "").strip(),
        sample=sample,
        observation=observation,
        agent=known,
        settings=settings,
        devices=devices,
    )


def _read_agent_state(options: argparse.Namespace) -> NodeView | None:
    """Read the agent's state for the capture. If the state is unknown, print the reason to stderr and return None."""
    try:
        return read_node(options)
    except NodeAgentError as err:
        is_named = options.config is not None and isinstance(
            err, StartError
        )  # a StartError means that the configuration is invalid
        if is_named or options.socket is not None:
            raise
        print(f"nodeagent: only the machine is captured: {err.message}", file=sys.stderr)
        print(f"hint: {err.hint}", file=sys.stderr)
        return None
