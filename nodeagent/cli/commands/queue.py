"""`nodeagent queue`: lists running jobs, waiting jobs with their latest start times, and reservations."""

import argparse
import sys

from nodeagent.cli.support.clock_times import format_local_time
from nodeagent.cli.support.colour import find_terminal_width
from nodeagent.cli.support.documents import add_output_argument, render_document
from nodeagent.cli.support.named_files import add_socket_argument
from nodeagent.cli.support.places import DEFAULT_JOB_SOCKET
from nodeagent.edge.processes.user_database import name_user
from nodeagent.edge.transport.local_api_client import call
from nodeagent.views.job_queue import render_queue


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_socket_argument(parser, DEFAULT_JOB_SOCKET, "the agent's socket for jobs")
    add_output_argument(parser)
    parser.epilog = """\
exit status: 0: listed; 1: not listed; 3: the agent doesn't answer; 64: wrong arguments

examples:
  nodeagent queue
  nodeagent queue -o json | jq '.jobs[] | select(.state == "waiting") | .startsByMs'

The shown start of a waiting job is the latest possible start: it assumes that every job before it takes all of its time (`job
--max-time`), and each reservation its whole length. The start is unknown if the job needs CPUs or memory of a job without a time limit,
or of a pod that isn't a job. All users who may run jobs may list them.
next: nodeagent job --wait adds a job, nodeagent release jobs/NAME ends one, nodeagent reserve keeps room free, nodeagent inspect shows
which pods have which CPUs"""


def run(options: argparse.Namespace) -> int:
    """Ask the agent for the queue, and print it.

    Raises:
        NodeAgentError: the agent doesn't answer, or the user may not ask it.
    """
    document = call(options.socket, "queue")
    width = find_terminal_width()
    text = render_document(
        document, options.output, lambda shown: render_queue(shown, width, name_user, format_local_time)
    )
    sys.stdout.write(text)
    return 0
