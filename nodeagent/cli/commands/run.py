"""`nodeagent run`: runs the agent."""

import argparse
import gc

from nodeagent.cli.support.named_files import named_path
from nodeagent.cli.support.places import DEFAULT_CONFIG


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=named_path,
        default=DEFAULT_CONFIG,
        metavar="FILE",
        help=f"the configuration (default: {DEFAULT_CONFIG})",
    )
    parser.epilog = """\
exit status: 0: stopped on request; 78: the configuration or the state must be fixed by hand (see the message); 1: another failure;
64: wrong arguments

examples:
  systemctl enable --now nodeagent
  nodeagent run --config /etc/nodeagent/config.yaml

`nodeagent config reload`, systemctl reload nodeagent or SIGHUP reads the configuration again. Stopping the agent stops no pod.
next: nodeagent inspect, or journalctl -u nodeagent"""


def run(options: argparse.Namespace) -> int:
    gc.disable()  # modules, state and the first turn create no garbage; the agent enables the collector after this turn
    from nodeagent.daemon.service import serve

    return serve(options.config)
