"""`nodeagent topology`: shows the machine as the agent understands it, this one (with who owns each CPU) or any copied root."""

import argparse
import json
import sys

from nodeagent.edge.sysfs import read_machine
from nodeagent.errors import NodeAgentError
from nodeagent.formats.sysfs import topology_of
from nodeagent.formats.topology_json import topology_document
from nodeagent.formats.topology_text import render_topology


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", metavar="DIR", default="/", help="file-system root with sys/ and proc/ (default: /)")
    parser.add_argument(
        "-o", "--output", choices=("text", "json", "yaml"), default="text", help="form of the answer (default: text)"
    )
    parser.add_argument(
        "--config", metavar="FILE", default="/etc/nodeagent/config.yaml", help="the agent's configuration"
    )
    parser.add_argument("--socket", metavar="PATH", help="the agent's socket, which says who owns which CPU")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = """\
exit status: 0: shown; 1: the machine could not be read; 2: wrong arguments

examples:
  nodeagent topology
  nodeagent topology --root /tmp/copy -o json

next: nodeagent inspect"""


def run(args: argparse.Namespace) -> int:
    """Print the machine.

    Raises:
        SysfsError: the machine's description can't be read.
    """
    topology = topology_of(read_machine(args.root))
    match args.output:
        case "json":
            text = json.dumps(topology_document(topology), indent=2, sort_keys=True) + "\n"
        case "yaml":
            import yaml  # noqa: PLC0415  the other forms don't pay for its start-up

            text = yaml.safe_dump(topology_document(topology), sort_keys=True)
        case _:
            text = render_topology(topology, _owners(args) if args.root == "/" else None)
    sys.stdout.write(text)
    return 0


def _owners(args: argparse.Namespace) -> dict[int, str] | None:
    """Who owns each CPU; None if nobody can say: then the machine is drawn as it is."""
    from nodeagent.cli.known_state import known_state  # noqa: PLC0415 - a copied root doesn't pay for its start-up
    from nodeagent.formats.cpu_owners import owners  # noqa: PLC0415 - as above

    try:
        known = known_state(args.config, args.socket)
    except NodeAgentError:
        return None  # no agent here, or not for us: the machine itself is still the answer
    return owners(known.node.managers, known.state)
