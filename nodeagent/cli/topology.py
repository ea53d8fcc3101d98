"""`nodeagent topology`: shows the machine as the agent understands it, this one (with who owns each CPU) or any copied root."""

import argparse
import json
import sys

from nodeagent.cli.sources import add_node_arguments, known_from, topology_from
from nodeagent.errors import NodeAgentError
from nodeagent.formats.cpu_owners import owners
from nodeagent.formats.topology_json import topology_document
from nodeagent.formats.topology_text import render_topology


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", choices=("text", "json", "yaml"), default="text", help="form of the answer (default: text)"
    )
    add_node_arguments(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = """\
exit status: 0: shown; 1: the machine could not be read; 2: wrong arguments

examples:
  nodeagent topology
  nodeagent topology --root /mnt/copy -o json

next: nodeagent inspect"""


def run(args: argparse.Namespace) -> int:
    """Print the machine.

    Raises:
        SysfsError: the machine's description can't be read.
    """
    topology = topology_from(args)
    match args.output:
        case "json":
            text = json.dumps(topology_document(topology), indent=2, sort_keys=True) + "\n"
        case "yaml":
            import yaml  # noqa: PLC0415  the other forms don't pay for its start-up

            text = yaml.safe_dump(topology_document(topology), sort_keys=True)
        case _:
            text = render_topology(topology, _owners(args))
    sys.stdout.write(text)
    return 0


def _owners(args: argparse.Namespace) -> dict[int, str] | None:
    """Who owns each CPU; None if nobody can say: then the machine is drawn as it is."""
    try:
        known = known_from(args)
    except NodeAgentError:
        return None  # no agent here, or not for us: the machine itself is still the answer
    return owners(known.node.managers, known.state)
