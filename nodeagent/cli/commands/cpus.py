"""`nodeagent cpus`: prints a container's CPUs or memory nodes in the notation of other tools."""

import argparse
import sys

from nodeagent.cli.support.documents import add_output_argument, format_document
from nodeagent.cli.support.entering import check_container, find_placement
from nodeagent.cli.support.node.arguments import add_agent_arguments
from nodeagent.cli.support.node.this_node import read_this_node_for_display
from nodeagent.cli.support.standard_streams import write_error
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import PodEntry
from nodeagent.edge.cgroups.cgroup_entry import read_own_cpus
from nodeagent.errors import NodeAgentError
from nodeagent.formats.manifest.pod_names import find_pod
from nodeagent.views.container_cpus import describe_container_cpus

_CPUS, _EXCLUSIVE, _SHARED, _MEMS = "cpus", "exclusiveCPUs", "sharedCPUs", "memoryNodes"
"""Fields of the document that `nodeagent cpus` prints. Each of them can also be printed alone."""


class NoCpusError(NodeAgentError):
    """The container has no CPUs of the requested kind, or the pod has several containers and the user named none."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pod", metavar="POD", help="name, namespace/name or UID")
    parser.add_argument("container", nargs="?", metavar="CONTAINER", help="name of a container, if the pod has several")
    which = parser.add_mutually_exclusive_group()
    for option, field, what in (
        ("--exclusive", _EXCLUSIVE, "only the CPUs on which no other container runs"),
        ("--shared", _SHARED, "only the container's shared CPUs"),
        ("--mems", _MEMS, "the container's memory nodes instead of its CPUs"),
    ):
        which.add_argument(option, dest="which", action="store_const", const=field, default=_CPUS, help=what)
    parser.add_argument(
        "--format",
        choices=("list", "mask"),
        help="list: 2-3,10, as `taskset -c`, `--cpuset-cpus`, numactl and DPDK's `-l` read it; mask: 0x40c, as `taskset` and DPDK's `-c` "
        "do (default: list)",
    )
    add_output_argument(parser)
    add_agent_arguments(parser)
    parser.epilog = """\
exit status: 0: printed; 1: nothing printed, because the container is unknown, not running yet or has none;
3: the agent doesn't answer, and has saved no state; 64: wrong arguments

examples:
  nodeagent cpus default/web app
  nodeagent cpus cgroup-only --mems
  nodeagent cpus cgroup-only --exclusive --format mask
  nodeagent cpus default/web app -o json | jq -r .exclusiveCPUs

Prints the CPUs on which the container may run now: its exclusive CPUs, the shared pool, or both for a container that has both. The shared
pool changes when other pods start and end. Exclusive CPUs are printed once all other tasks have left them.
docs/how-to/podman.md has examples for containers and for programs that pin their own threads.
next: nodeagent exec runs a command on these CPUs, nodeagent inspect POD shows where they are"""
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Print the CPUs or memory nodes of a container.

    Raises:
        NodeAgentError: the state is unknown, or the container has no CPUs of the requested kind.
    """
    if options.output != "text" and (options.which != _CPUS or options.format is not None):
        options.parser.error(f"-o {options.output} prints all CPUs in each form: leave out the other options")
    known = read_this_node_for_display(options.config, options.socket)
    entry = find_pod(known.state, options.pod)
    name = find_container(entry, options.container)
    placement = find_placement(known, entry, name)
    is_closed = known.node.config.host_isolation != "none" and bool(placement.exclusive_cpus)
    document = describe_container_cpus(entry.pod, name, placement, is_closed=is_closed)
    if options.output != "text":
        sys.stdout.write(format_document(document, options.output))
    elif document[options.which]:
        sys.stdout.write(f"{(document['masks'] if options.format == 'mask' else document)[options.which]}\n")
    else:
        what = "exclusive CPUs" if options.which == _EXCLUSIVE else "shared CPUs"
        raise NoCpusError(
            f"container {name} of pod {entry.pod.full_name} has no {what}",
            hint=f"`nodeagent explain {entry.pod.full_name}` says why; without --exclusive or --shared, this command prints all CPUs of "
            "the container",
        )
    if (
        is_closed
        and not placement.exclusive_cpus <= CpuSet.parse(read_own_cpus())
        and options.which in {_CPUS, _EXCLUSIVE}
    ):
        write_error(
            f"nodeagent: note: CPUs {placement.exclusive_cpus} can be used only from inside the container's cgroup (hostIsolation)\n"
            f"hint: start the program there: nodeagent exec {entry.pod.full_name} {name} -- COMMAND\n"
        )
    return 0


def find_container(entry: PodEntry, name: str | None) -> str:
    """Return the name of the chosen container. If `name` is None, return the name of the pod's only container.

    Raises:
        NodeAgentError: the pod has no such container, or has several containers and `name` is None.
    """
    if name is not None:
        check_container(entry, name)
        return name
    names = [container.name for container in entry.pod.containers]
    if len(names) == 1:
        return names[0]
    pod = entry.pod.full_name
    raise NoCpusError(
        f"pod {pod} has {len(names)} containers",
        hint=f"name one of them: `nodeagent cpus {pod} {names[0]}`; the pod's containers are {', '.join(names)}",
    )
