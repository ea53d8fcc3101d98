"""`nodeagent topology`: shows the machine as the agent understands it, this one or any copied root."""

import argparse
import json
import sys

from nodeagent.edge.sysfs import read_machine
from nodeagent.formats.sysfs import topology_of
from nodeagent.formats.topology_json import topology_document
from nodeagent.formats.topology_text import render_topology


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", metavar="DIR", default="/", help="file-system root with sys/ and proc/ (default: /)")
    parser.add_argument(
        "-o", "--output", choices=("text", "json", "yaml"), default="text", help="form of the answer (default: text)"
    )


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
            text = render_topology(topology)
    sys.stdout.write(text)
    return 0
