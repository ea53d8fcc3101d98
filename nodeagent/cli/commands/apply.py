"""`nodeagent apply`: puts manifests in place once it is known what comes of them. Only the arguments: apply_manifests.py does it."""

import argparse

from nodeagent.cli.support.documents import add_output_argument
from nodeagent.cli.support.manifest_arguments import add_wait_arguments, check_timeout
from nodeagent.cli.support.named_files import NamedFile
from nodeagent.cli.support.sources import add_agent_arguments

_EXAMPLES = """\
exit status: 0: in place; 4: a pod would be refused and nothing was put in place, or is refused; 1: it failed; 2: wrong arguments

examples:
  nodeagent apply examples/guaranteed.yaml
  nodeagent apply examples/guaranteed.yaml --wait
  nodeagent apply web.yaml db.yaml
  sed 's/cpu: "2"/cpu: "4"/' web.yaml | nodeagent apply -
  nodeagent apply web.yaml -o json | jq '.pods[].containers'

Needs root. The manifest is checked, and the decision on it tried on a copy of the node's state; only then it is put into the
manifest directory, whole and durably. A pod that is there already is replaced in its own file, whatever that is called; a changed pod
restarts. Of several manifests all are put in place or none.
next: nodeagent inspect POD shows what it got, nodeagent delete FILE ends it; nodeagent diff FILE only shows what would change"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "files",
        nargs="+",
        type=NamedFile,
        metavar="FILE|-|DIR",
        help="a manifest, - for stdin, or a directory of manifests",
    )
    parser.add_argument(
        "--force", action="store_true", help="put it in place though it would be refused; a pod that runs is kept then"
    )
    add_wait_arguments(parser, "decided on each pod")
    add_output_argument(parser)
    add_agent_arguments(parser)
    parser.epilog = _EXAMPLES
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Put them in place, and print what has become of each pod.

    Raises:
        NodeAgentError: a manifest is wrong, its pod would be refused, or it can't be put in place.
    """
    check_timeout(options)
    from nodeagent.cli.commands.apply_manifests import apply_manifests

    return apply_manifests(options)
