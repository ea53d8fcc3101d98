"""`nodeagent exec`: runs a command in a container's cgroup. From its first instruction, the command runs on the container's CPUs."""

import argparse
import os

from nodeagent.cli.support.becoming import EXIT_NOT_ENTERED, run_command
from nodeagent.cli.support.entering import check_container, find_expected_cpus
from nodeagent.cli.support.node.arguments import add_agent_arguments
from nodeagent.cli.support.node.this_node import read_this_node
from nodeagent.cli.support.places import DEFAULT_CONFIG
from nodeagent.core.model.cgroup_layout import payload_path
from nodeagent.edge.cgroups.cgroup_entry import enter_cgroup, read_own_cgroup, read_own_cpus
from nodeagent.errors import NodeAgentError
from nodeagent.formats.manifest.pod_names import find_pod


class ExecError(NodeAgentError):
    """The command was not started in the container."""

    exit_status = EXIT_NOT_ENTERED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = """\
nodeagent exec [--config FILE|-] [--socket PATH] POD CONTAINER --
                      COMMAND [ARG ...]"""
    add_agent_arguments(parser)
    parser.add_argument("pod", metavar="POD", help="name, namespace/name or UID")
    parser.add_argument("container", metavar="CONTAINER", help="name of one of its containers")
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND [ARG ...]", help="command to run there")
    parser.epilog = """\
exit status: the command's own; 125: container not entered; 126: command cannot be run; 127: command not found; 64: wrong arguments

examples:
  nodeagent exec cgroup-only slot -- grep Cpus_allowed_list /proc/self/status
  nodeagent exec default/web app -- sh

Needs root. The command has your environment and working directory, the container's CPUs, memory nodes and limits, and no
namespaces of its own. Your own CPU affinity does not apply to the command: run taskset in the container to use
fewer CPUs.
next: nodeagent inspect POD shows the container's CPUs and state"""
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Enter the container's cgroup, and replace this process by the command.

    Raises:
        NodeAgentError: the container can't be entered, or the command cannot be run.
    """
    command = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
    if not command:
        options.parser.error(
            f"no command for container {options.container}: name it after --, such as: {options.pod} {options.container} -- sh"
        )
    if command is options.argv and command[0].startswith("-"):
        options.parser.error(
            f"{command[0]} is in the place of the command: put options before the pod, and -- before the command"
        )
    if os.geteuid() != 0:
        raise ExecError(
            "only root may enter a container", hint=f"sudo nodeagent exec {options.pod} {options.container} -- …"
        )
    try:
        _enter(options)
    except ExecError:
        raise
    except NodeAgentError as err:
        raise ExecError(err.message, hint=err.hint) from err
    run_command(command)


def _enter(options: argparse.Namespace) -> None:
    known = read_this_node(options.config or DEFAULT_CONFIG, options.socket)
    entry = find_pod(known.state, options.pod)
    check_container(entry, options.container)
    path = payload_path(entry.container_path(options.container))
    directory = f"{known.cgroup_root}/{path}"
    expected = find_expected_cpus(known, entry, options.container)
    enter_cgroup(directory)
    found = read_own_cgroup()
    if not directory.endswith(found) or not found.endswith(path):
        raise ExecError(f"the kernel has put this process into {found} instead of {directory}", hint=_AGAIN)
    cpus = read_own_cpus()
    if cpus != str(expected):
        raise ExecError(f"this process has CPUs {cpus} in {directory}, but {expected} are allocated", hint=_AGAIN)


_AGAIN = "the allocation may just be changing: try again; `nodeagent inspect` shows it"
