"""`nodeagent run`: the daemon."""

import argparse

DEFAULT_CONFIG = "/etc/nodeagent/config.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", default=DEFAULT_CONFIG, metavar="FILE", help=f"the configuration (default: {DEFAULT_CONFIG})"
    )
    parser.epilog = (
        "Status 78: the message says what in the configuration or state needs a person. See also: nodeagent inspect"
    )


def run(options: argparse.Namespace) -> int:
    from nodeagent.daemon.service import serve  # noqa: PLC0415 - the daemon's imports cost every other command's start-up time

    return serve(options.config)
