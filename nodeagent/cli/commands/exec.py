"""`nodeagent exec`: becomes a command inside a container's cgroup, on the container's CPUs from its first instruction, or refuses."""

import argparse
import os
import shlex
import signal
import sys
from typing import NoReturn

from nodeagent.cli.support.entering import check_container, expected_cpus
from nodeagent.cli.support.known_state import known_state
from nodeagent.cli.support.places import DEFAULT_CONFIG
from nodeagent.cli.support.sources import add_agent_arguments
from nodeagent.edge.cgroup_entry import join, own_cgroup, own_cpus
from nodeagent.errors import NodeAgentError
from nodeagent.formats.manifest.pod_names import find_pod

EXIT_NOT_ENTERED = 125
"""Like other container tools: nodeagent failed, not the command."""
EXIT_CANNOT_RUN = 126
EXIT_NOT_FOUND = 127


class ExecError(NodeAgentError):
    """The command was not started."""

    exit_status = EXIT_NOT_ENTERED


class CommandError(NodeAgentError):
    """The container was entered, but the command could not be started there."""

    def __init__(self, message: str, *, hint: str, exit_status: int) -> None:
        super().__init__(message, hint=hint)
        self.exit_status = exit_status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = """\
nodeagent exec [--config FILE|-] [--socket PATH] POD CONTAINER --
                      COMMAND [ARG ...]"""
    add_agent_arguments(parser)
    parser.add_argument("pod", metavar="POD", help="name, namespace/name or UID")
    parser.add_argument("container", metavar="CONTAINER", help="name of one of its containers")
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND [ARG ...]", help="what to run there")
    parser.epilog = """\
exit status: the command's own; 125: container not entered; 126: command cannot be run; 127: command not found; 2: wrong arguments

examples:
  nodeagent exec cgroup-only slot -- grep Cpus_allowed_list /proc/self/status
  nodeagent exec default/web app -- sh

Needs root. The command has your environment and working directory, the container's CPUs, memory nodes and limits, and no
namespaces. Your own affinity does not apply: narrow it inside, with taskset.
next: nodeagent inspect POD shows the container's CPUs and state"""
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Enter and become the command.

    Raises:
        NodeAgentError: not entered, or the command cannot be run.

    """
    command = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
    if not command:
        options.parser.error("name a command after --, such as: -- sh")
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
    become(command)


def _enter(options: argparse.Namespace) -> None:
    known = known_state(options.config or DEFAULT_CONFIG, options.socket)
    entry = find_pod(known.state, options.pod)
    check_container(entry, options.container)
    path = entry.container_path(options.container)
    directory = f"{known.cgroup_root}/{path}"
    expected = expected_cpus(known, entry, options.container)
    join(directory)
    found = own_cgroup()
    if not directory.endswith(found) or not found.endswith(path):
        raise ExecError(f"the kernel has put this process into {found} instead of {directory}", hint=_AGAIN)
    cpus = own_cpus()
    if cpus != expected:
        raise ExecError(f"CPUs in {directory} are {cpus}, promised are {expected}", hint=_AGAIN)


_AGAIN = "it may just be changing: try again, and see `nodeagent inspect`"


def become(command: list[str]) -> NoReturn:
    """Replace this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores these two, and ignored signals stay ignored after execve.
    ours = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell: that is the point
    except FileNotFoundError as err:
        looked = "" if "/" in command[0] else f" in PATH {os.environ.get('PATH', os.defpath)}"
        raise CommandError(
            f"cannot run '{command[0]}': not found{looked}",
            hint=f"containers have no image here: name a program of the host (`command -v {shlex.quote(command[0])}`), or its full path",
            exit_status=EXIT_NOT_FOUND,
        ) from err
    except OSError as err:
        raise CommandError(
            f"cannot run '{command[0]}': {os.strerror(err.errno or 0)}",
            hint=f"is it an executable file for this machine? see `ls -l {shlex.quote(command[0])}` and `file {shlex.quote(command[0])}`",
            exit_status=EXIT_CANNOT_RUN,
        ) from err
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
