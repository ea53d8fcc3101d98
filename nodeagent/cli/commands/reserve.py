"""`nodeagent reserve`: reserves CPUs and memory for the jobs of one user in a certain period, lists reservations, or cancels a
reservation.
"""

import argparse
import sys
import time

from nodeagent.cli.support.clock_times import format_local_time
from nodeagent.cli.support.colour import find_terminal_width
from nodeagent.cli.support.documents import Document, add_output_argument, render_document
from nodeagent.cli.support.exit_status import PodRefusedError
from nodeagent.cli.support.named_files import add_socket_argument
from nodeagent.cli.support.numeric_arguments import amount, begin_of_span, time_span
from nodeagent.cli.support.places import DEFAULT_JOB_SOCKET
from nodeagent.edge.processes.user_database import find_user_id, name_user
from nodeagent.edge.transport.local_api_client import TURN_CALL_SECONDS, call
from nodeagent.errors import NodeAgentError
from nodeagent.views.job_queue import describe_reservations
from nodeagent.views.wording.reservations import render_reservations


class ReserveError(NodeAgentError):
    """There is no user with the given name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = """\
nodeagent reserve --cpus N [--memory AMOUNT] [--from TIME] --for TIME
                         [--name NAME] [--user USER] [--socket PATH]
                         [-o text|json|yaml]
       nodeagent reserve --list [--socket PATH] [-o text|json|yaml]
       nodeagent reserve --cancel RESERVATION [--socket PATH]
                         [-o text|json|yaml]"""
    parser.add_argument("--cpus", type=amount, metavar="N", help="CPUs for all jobs in the reservation together")
    parser.add_argument(
        "--memory",
        type=amount,
        metavar="AMOUNT",
        help="memory for these jobs, such as 4Gi (default: none is kept free, so they may have to wait for memory)",
    )
    parser.add_argument(
        "--from",
        dest="begin",
        type=begin_of_span,
        metavar="TIME",
        help="local time of its start, such as 22:00 for the next time that the clock shows 22:00, or 2026-11-29T22:00 (default: now)",
    )
    parser.add_argument(
        "--for",
        dest="span",
        type=time_span,
        metavar="TIME",
        help="length of the reservation, such as 2h or 90m, at most 168h",
    )
    parser.add_argument("--name", metavar="NAME", help="name of the reservation (default: made from its start)")
    parser.add_argument(
        "--user", metavar="USER", help="the user whose jobs may run in the reservation (default: yourself; root only)"
    )
    parser.add_argument("--list", action="store_true", help="list the reservations")
    parser.add_argument("--cancel", metavar="RESERVATION", help="end a reservation; its running jobs keep their times")
    add_socket_argument(parser, DEFAULT_JOB_SOCKET, "the agent's socket for jobs")
    add_output_argument(parser)
    parser.epilog = """\
exit status: 0: reserved, listed or cancelled; 4: refused; 1: not done; 3: the agent doesn't answer; 64: wrong arguments

examples:
  sudo nodeagent reserve --cpus 8 --from 22:00 --for 2h --name nightly --user alice
  nodeagent reserve --list
  nodeagent reserve --cancel nightly

During the reservation, its CPUs and memory are kept free of other jobs: a job that would need them waits or is refused. Jobs started with
`nodeagent job --reservation` run in the reservation and end with it. A reservation is refused if a running job may still need the CPUs or
memory, or if the start of a waiting job would be delayed. Pods that aren't jobs are admitted in any case. Reservations survive restarts and
reboots. All users who may run jobs may make reservations.
next: nodeagent queue lists jobs and reservations, nodeagent job --reservation NAME runs a job in one"""
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Send the request to the agent, and print the answer.

    Raises:
        NodeAgentError: the agent doesn't answer, the user may not ask it, or it refuses the reservation.
    """
    makes = options.cpus is not None or options.span is not None
    if [makes, options.list, options.cancel is not None].count(True) != 1:
        options.parser.error("name --cpus and --for, or --list, or --cancel NAME")
    if not makes and any(one is not None for one in (options.memory, options.begin, options.name, options.user)):
        options.parser.error("--memory, --from, --name and --user are for a new reservation, with --cpus and --for")
    if options.list:
        document = call(options.socket, "queue")
        return _print(options, describe_reservations(document["reservations"], document["atMs"]), "no reservations\n")
    if options.cancel is not None:
        answer = call(options.socket, "cancel-reservation", timeout_seconds=TURN_CALL_SECONDS, name=options.cancel)
        document = describe_reservations([answer["reservation"]], _read_now_ms())
        sys.stdout.write(render_document(document, options.output, lambda _: f"cancelled {options.cancel}\n"))
        return 0
    if options.cpus is None or options.span is None:
        options.parser.error("--cpus and --for are needed together")
    begin = begin_of_span("now") if options.begin is None else options.begin
    asked: dict[str, object] = {
        "name": options.name or f"at-{begin:%m%d-%H%M}",
        "amounts": {"cpu": options.cpus} | ({} if options.memory is None else {"memory": options.memory}),
        "fromMs": round(begin.timestamp() * 1000),
        "forMs": round(options.span * 1000),
    }
    asked |= {} if options.user is None else {"user": find_user(options.user)}
    answer = call(options.socket, "reserve", timeout_seconds=TURN_CALL_SECONDS, **asked)
    if "refused" in answer:
        raise PodRefusedError(
            f"nothing is reserved: {answer['refused']}",
            hint="choose another time, or fewer CPUs; `nodeagent queue` lists jobs and reservations",
        )
    return _print(options, describe_reservations([answer["reservation"]], _read_now_ms()), "", "reserved:\n")


def _print(options: argparse.Namespace, document: Document, nothing: str, heading: str = "") -> int:
    def render(shown: Document) -> str:
        width = find_terminal_width()
        rows = render_reservations(shown["reservations"], shown["atMs"], width, name_user, format_local_time)
        return f"{heading}{rows}" if rows else nothing

    sys.stdout.write(render_document(document, options.output, render))
    return 0


def _read_now_ms() -> int:
    return time.time_ns() // 1_000_000


def find_user(name: str) -> int:
    """Return the user ID for a user's name.

    Raises:
        ReserveError: there is no such user.
    """
    found = find_user_id(name)
    if found is None:
        raise ReserveError(f"there is no user '{name}'", hint="`getent passwd` lists them")
    return found
