"""`nodeagent inspect`: shows pods with their CPUs and memory, and every difference between allocated and actual values."""

import argparse
import sys
import time

from msgspec.structs import replace

from nodeagent.cli.support.colour import add_color_argument, text_width, wants_colour
from nodeagent.cli.support.documents import format_document
from nodeagent.cli.support.exit_status import NO_FAIL_HELP, VERDICT_STATUSES
from nodeagent.cli.support.node.arguments import add_node_arguments, format_inspect_command
from nodeagent.cli.support.node.observation import add_observation
from nodeagent.cli.support.node.selected import read_node_for_display
from nodeagent.cli.support.numeric_arguments import seconds, whole_number
from nodeagent.cli.support.printable_output import write_coloured
from nodeagent.errors import NodeAgentError
from nodeagent.formats.manifest.pod_names import find_pods
from nodeagent.formats.node_view import NodeView, ViewReader
from nodeagent.views.inspect.document import Document, NodeVerdict, has_difference, inspect_node
from nodeagent.views.inspect.text import add_colours, format_health, render, render_in_full, render_wide

_MAX_READINGS = 5
_PAUSE_SECONDS = 0.2


class NothingComparedError(NodeAgentError):
    """Nothing was compared with the allocated values, because the pods' cgroups can't be read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pod", nargs="?", metavar="POD", help="only this pod, in detail: name, namespace/name or UID")
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "wide", "json", "yaml"),
        default="text",
        help="output format: text fits the terminal (else 80 columns), wide has one line per container (default: text)",
    )
    parser.add_argument("--no-fail", action="store_true", help=NO_FAIL_HELP)
    parser.add_argument(
        "--no-host-processes",
        action="store_true",
        help="don't check which host processes may run on exclusive CPUs (with POD this is never checked)",
    )
    parser.add_argument(
        "--watch", action="store_true", help="refresh continuously, on a terminal: with load, throttling, remote memory"
    )
    parser.add_argument(
        "--interval",
        type=seconds(0.1, 3600),
        metavar="SECONDS",
        help="with --watch: time between refreshes (default: 1)",
    )
    parser.add_argument(
        "--frames",
        type=whole_number,
        metavar="N",
        help="with --watch: print this many frames one below the other, for pipes and files",
    )
    parser.add_argument(
        "--interference",
        action="store_true",
        help="with --watch: show which other tasks ran on exclusive CPUs since the last refresh, like `nodeagent interference` "
        "(needs root, and slows task switches on these CPUs a little)",
    )
    add_color_argument(parser)
    add_node_arguments(parser)
    parser.epilog = """\
exit status: 0: the agent runs, its last sync is complete, and nothing needs attention; 2: something is wrong: a difference, a problem, a
refused, starved, degraded or crash-looping pod (with POD: of this pod, or of the node); 3: the agent doesn't answer, or the copy is of a
saved state; 4: POD is refused; 1: could not be determined; 64: wrong arguments

examples:
  nodeagent inspect
  nodeagent inspect default/web
  nodeagent inspect >/dev/null || echo "node needs attention"
  nodeagent inspect -o wide | awk -F '  +' '$10 == "container" {print $1, $4, $12}'
  nodeagent inspect -o json | jq '.pods[] | select(.phase == "Refused") | .refusal'
  nodeagent inspect --machine node.json
  nodeagent inspect --watch
  nodeagent inspect --watch --frames 3 --interval 5
  nodeagent inspect --watch --interference

Columns of -o wide, separated by two blanks, - for no value, never wrapped: POD QOS PHASE CONTAINER KIND STATE
RESTARTS OOM PID ISOLATION ALLOCATED CPUS MEMS QUOTA WEIGHT MEMORY WHERE NOTES. A refused pod has its reason in NOTES.

Asks the agent over its socket (as root or a member of the group nodeagent). If it isn't running, root sees its saved state.
next: nodeagent inspect POD shows one pod in detail, nodeagent explain POD says why, nodeagent topology shows the owner of each CPU"""
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Print the inspection of the node, and return the exit status for its verdict.

    Raises:
        NodeAgentError: the state is unknown, there is no such pod, or the pods' cgroups can't be read.
    """
    if options.watch:
        if options.pod is not None or options.output != "text":
            options.parser.error("--watch shows all pods as text: leave it out to name a POD or to use -o")
        if options.no_fail:
            options.parser.error("--watch ends with 0: leave out --no-fail")
        if options.color != "auto":
            options.parser.error("--watch has no colours: leave out --color")
        if options.root is not None or options.machine is not None:
            options.parser.error("--watch is only for this node, because a copy doesn't change: leave out --watch")
        from nodeagent.cli.commands.watch import watch

        return watch(options)
    for option, value in (("--interval", options.interval), ("--frames", options.frames)):
        if value is not None:
            options.parser.error(f"{option} needs --watch")
    if options.interference:
        options.parser.error("--interference needs --watch: `nodeagent interference` counts once")
    document = _inspect_settled(options)
    text = _render(document, options)
    if document["verdict"] != NodeVerdict.HEALTHY and options.output in {"text", "wide"}:
        text += f"{format_health(document)}\n"
    if options.output in {"text", "wide"} and wants_colour(options.color):
        write_coloured(add_colours(text))
    else:
        sys.stdout.write(text)
    sys.stdout.flush()
    if document["verdict"] == NodeVerdict.HEALTHY:
        check_compared(document)
    return 0 if options.no_fail else VERDICT_STATUSES[document["verdict"]]


def check_compared(document: Document) -> None:
    """Check that the allocated values were compared with actual values. A copy of a node isn't checked, because it may lack the actual
    values.

    Raises:
        NothingComparedError: the pods' cgroups can't be read.
    """
    if document["differences"] is None and not document["node"]["copied"]:
        where = document["node"]["cgroupRoot"] or "their location is unknown"
        hint = "start their unit with `systemctl start nodeagent-pods`, or run this as root; PROBLEMS in `nodeagent inspect` has the reason"
        raise NothingComparedError(
            f"the pods' cgroups cannot be read ({where}), so nothing was compared with the allocated values",
            hint=hint,
        )


def _inspect_settled(options: argparse.Namespace) -> Document:
    """Inspect the node. If there are differences, repeat this until two readings show the same ones, because the agent may still be
    carrying out a decision.
    """
    read = ViewReader(options.pod)
    known = read_node_for_display(options, read)
    document = _inspect_once(known, options)
    for _ in range(_MAX_READINGS - 1):
        if not (known.is_live and known.is_here and has_difference(document)):
            return document
        time.sleep(_PAUSE_SECONDS)
        known = read_node_for_display(options, read)
        before, document = document, _inspect_once(known, options)
        is_same = all(before[key] == document[key] for key in ("differences", "orphans"))
        if is_same and before["node"]["generation"] == document["node"]["generation"]:
            return document
    return document


def _inspect_once(known: NodeView, options: argparse.Namespace) -> Document:
    if options.pod is None:
        return inspect_node(add_observation(known, host_processes=not options.no_host_processes))
    entries = find_pods(known.state, options.pod, format_inspect_command(options))
    narrowed = replace(known, state=replace(known.state, entries=tuple(entries)))
    looked = add_observation(narrowed, host_processes=False, only_pods=True)
    return inspect_node(looked, frozenset(e.pod.uid for e in entries))


def _render(document: Document, options: argparse.Namespace) -> str:
    match options.output:
        case "json" | "yaml":
            return format_document(document, options.output)
        case "wide":
            return render_wide(document)
        case _:
            width = text_width()
            if options.pod is not None:
                return render_in_full(document, width)
            if not document["node"]["reservations"]:
                return render(document, width)
            from nodeagent.cli.support.clock_times import format_local_time, format_utc
            from nodeagent.edge.processes.user_database import name_user

            if document["node"]["copied"]:  # users and time zone of the copied node are unknown
                return render(document, width, format_time=format_utc)
            return render(document, width, name_user, format_local_time)
