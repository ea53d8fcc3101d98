"""`nodeagent simulate`: replays scenarios, or makes trial decisions on pods. The machine is this one, or a copied, captured or described
one.
"""

import argparse
import sys

from nodeagent.cli.support.named_files import NamedFile
from nodeagent.cli.support.node.arguments import add_what_if_arguments
from nodeagent.cli.support.numeric_arguments import whole_number

_EPILOG = """\
exit status: 0: scenarios are replayed, or all pods fit; 4: a pod would be refused (--capacity: not one copy fits); 2: decisions differ
(--compare); 1: something could not be read; 3: the agent doesn't answer, and has saved no state; 64: wrong arguments

examples:
  nodeagent simulate examples/scenario.jsonl
  nodeagent simulate examples/scenario.jsonl --topology 2s.2n.8c.2t --config examples/config.yaml --errata fixed
  nodeagent simulate examples/scenario.jsonl -o json
  nodeagent simulate -f examples/guaranteed.yaml --topology 2s.2n.8c.2t --config examples/config.yaml
  nodeagent simulate --capacity -f examples/guaranteed.yaml --topology 2s.2n.8c.2t --config examples/config.yaml
  nodeagent simulate -f examples/guaranteed.yaml --topology 2n.4c.2t --config examples/config.yaml -o svg >node.svg
  nodeagent simulate --compare examples/config.yaml examples/strict-reservation/config.yaml -f examples/guaranteed.yaml --topology 2n.4c.2t

on a node:
  nodeagent simulate --capacity -f pod.yaml
  nodeagent simulate --compare /etc/nodeagent/config.yaml new.yaml
  nodeagent simulate scenarios.jsonl --root / --config /etc/nodeagent/config.yaml
  nodeagent simulate - -o json <scenarios.jsonl | jq '.steps[].admitted'

Changes nothing. --compare decides again on all existing pods, then on those of -f. For scenarios, --root (/ is this node), --machine
and --topology replace the machine, --config the configuration, and --errata the rules of the decisions.
next: nodeagent explain -f pod.yaml says why; docs/simulate.md (nodeagent --help says where) describes scenarios and -o json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", type=NamedFile, metavar="FILE|-", help="scenarios, one JSON object per line; - reads stdin"
    )
    parser.add_argument(
        "--bench",
        metavar="N",
        type=whole_number,
        help="replay each scenario N times in memory and print the time of its add steps (decision and both checkpoint texts)",
    )
    parser.add_argument(
        "-f",
        "--file",
        dest="manifests",
        action="append",
        type=NamedFile,
        metavar="FILE|-|DIR",
        help="decide on these pods: a manifest, - for stdin, or a directory of manifests; can be repeated",
    )
    parser.add_argument(
        "--capacity",
        action="store_true",
        help="find how many more copies of these pods fit, all pods together; a pod that is named twice counts as two",
    )
    parser.add_argument(
        "--compare",
        nargs=2,
        type=NamedFile,
        metavar=("A.yaml", "B.yaml"),
        help="decide under two configurations, side by side",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json", "yaml", "svg"),
        default="text",
        help="output format (default: text); for scenarios, json prints a line and yaml a document each; svg draws the owner of each CPU",
    )
    add_what_if_arguments(parser, scenarios=True)
    parser.epilog = _EPILOG
    parser.set_defaults(parser=parser)


def run(args: argparse.Namespace) -> int:
    """Print the outcome of the scenarios or pods.

    Raises:
        NodeAgentError: scenarios, manifests, machine or configuration can't be read.
    """
    about_pods = args.manifests is not None or args.compare is not None
    if (args.file is None) != about_pods:
        args.parser.error("give either scenarios, or pods with -f (or --compare)")
    if args.capacity and (args.manifests is None or args.compare is not None):
        args.parser.error("--capacity needs pods with -f, and excludes --compare")
    if args.compare is not None and args.config is not None:
        args.parser.error("--compare names both configurations: leave out --config")
    if args.file is None and args.bench is not None:
        args.parser.error(f"--bench {args.bench} times scenarios, not pods: leave it out")
    if args.file is not None and args.socket is not None:
        args.parser.error(
            f"--socket {args.socket} asks an agent about its pods, and scenarios start without pods: use --root / for this node's machine"
        )
    if args.file is not None and args.empty:
        args.parser.error("--empty leaves out a node's pods, and scenarios start without pods: leave it out")
    if args.output == "svg" and (args.compare is not None or args.capacity or not about_pods):
        args.parser.error(
            "-o svg draws the end of one run: it needs pods with -f, and excludes --compare and --capacity"
        )
    if about_pods:
        from nodeagent.cli.commands.simulate_pods import simulate_pods

        text, status = simulate_pods(args)
        sys.stdout.write(text)
        return status
    from nodeagent.cli.commands.simulate_scenarios import simulate_scenarios

    simulate_scenarios(args)
    return 0
