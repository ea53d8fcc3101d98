"""`nodeagent interference`: counts the foreign tasks and interrupts on exclusive CPUs, namely those that don't belong to the owner of the
CPUs.
"""

import argparse
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from nodeagent.cli.support.colour import add_color_argument, text_width, wants_colour
from nodeagent.cli.support.counting import InterferenceError, count_interference
from nodeagent.cli.support.documents import add_output_argument, format_document
from nodeagent.cli.support.exit_status import EXIT_WRONG
from nodeagent.cli.support.node.arguments import add_agent_arguments
from nodeagent.cli.support.node.this_node import read_this_node_for_display
from nodeagent.cli.support.numeric_arguments import seconds
from nodeagent.cli.support.printable_output import write_coloured
from nodeagent.formats.manifest.pod_names import find_pods
from nodeagent.formats.node_view import NodeView
from nodeagent.views.interference.cpu_owners import ExclusiveCpus, find_exclusive_owners
from nodeagent.views.interference.document import describe_idle_node, describe_interference, is_alone
from nodeagent.views.interference.text import render_interference

_SECONDS = 10.0
_MOST_SECONDS = 3600
_ENDING_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pod", nargs="?", metavar="POD", help="only this pod's exclusive CPUs: name, namespace/name or UID"
    )
    parser.add_argument(
        "--seconds",
        type=seconds(0.1, _MOST_SECONDS),
        default=_SECONDS,
        metavar="N",
        help=f"how long to count (default: {_SECONDS:g}); Ctrl-C ends it early and shows what was counted",
    )
    add_output_argument(parser)
    add_color_argument(parser)
    add_agent_arguments(parser)
    parser.epilog = """\
exit status: 0: only owners, immovable kernel work and claimed interrupts ran there; 2: something else did; 1: could not be determined;
3: the agent doesn't answer, and has saved no state; 64: wrong arguments

examples:
  nodeagent interference
  nodeagent interference default/web --seconds 60
  nodeagent interference -o json | jq -r '.cpus[].tasks[] | select(.movable) | .name'

Needs root. The kernel counts in a separate tracing instance, on these CPUs only, and writes no single events. A task belongs to the owner
if it is in the owner's cgroup or was started by such a task. Kernel threads that are bound to their CPU, softirqs, and interrupts that
cannot be moved or that the pod claims (annotation interrupts.nodeagent.io/CONTAINER) are shown, but don't count as interference. The time
of a task includes the interrupts during it. The command itself stays off these CPUs. Its tracing instance disappears when it ends, even
after kill -9.
next: nodeagent inspect shows which host processes may run there, nodeagent check how to keep them off"""
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Count the foreign tasks and interrupts, and print the result.

    Raises:
        NodeAgentError: the state is unknown, there is no such pod, or the kernel cannot count.
    """
    view = read_this_node_for_display(options.config, options.socket)
    held = find_exclusive_cpus(view, options.pod)
    if held:
        with _blocked_signals(), count_interference(view, held) as end:
            ended_early = signal.sigtimedwait(_ENDING_SIGNALS, options.seconds) is not None
            use, seen = end()
        later = read_this_node_for_display(options.config, options.socket)
        document = describe_interference(later, held, use, seen, ended_early=ended_early)
    else:
        document = describe_idle_node()
    if options.output != "text":
        sys.stdout.write(format_document(document, options.output))
    else:
        colours = wants_colour(options.color)
        text = render_interference(document, text_width(), coloured=colours)
        (write_coloured if colours else sys.stdout.write)(text)
    if not is_alone(document):
        return EXIT_WRONG
    check_complete(document)
    return 0


def check_complete(document: Mapping[str, Any]) -> None:
    """Check that nothing was left out of the count.

    Raises:
        InterferenceError: the kernel's tables were full, or allocations changed during the count.
    """
    if document["dropped"]:
        raise InterferenceError(
            "the kernel's tables were full, so some tasks may not have been counted",
            hint="count for a shorter time, such as --seconds 1",
        )
    if document["changed"]:
        pods = ", ".join(one["pod"] for one in document["changed"])
        raise InterferenceError(
            f"allocations changed during the count: {pods}", hint="count again: `nodeagent interference`"
        )


def find_exclusive_cpus(view: NodeView, pod: str | None) -> tuple[ExclusiveCpus, ...]:
    """Return the exclusive CPUs of a pod. If `pod` is None, return those of all pods.

    Raises:
        NodeAgentError: there is no such pod, or it has no exclusive CPUs.
    """
    if pod is None:
        return find_exclusive_owners(view)
    entries = find_pods(view.state, pod)
    held = find_exclusive_owners(view, frozenset(entry.pod.uid for entry in entries))
    if not held:
        raise InterferenceError(
            f"{entries[0].pod.full_name} has no exclusive CPUs", hint=f"`nodeagent explain {pod}` says why"
        )
    return held


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block SIGINT, SIGTERM and SIGHUP, so that they can't end the command before it has restored the kernel's tracing settings. During the
    count, such a signal only ends the wait.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
