"""`nodeagent exec`: becomes a command inside a container's cgroup, on the container's CPUs from its first instruction, or refuses."""

import argparse
import os
import shlex
import signal
import sys
from typing import NoReturn

from nodeagent.cli.support.known_state import known_state, looked_at
from nodeagent.cli.support.places import DEFAULT_CONFIG
from nodeagent.cli.support.sources import add_agent_arguments
from nodeagent.core.cgroups.desired_cgroups import desired_cgroups
from nodeagent.core.cgroups.exec_preconditions import obstacle
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import PodEntry
from nodeagent.edge.cgroup_entry import join, own_cgroup, own_cpus, used_below
from nodeagent.errors import NodeAgentError
from nodeagent.formats.manifest.pod_names import find_pod
from nodeagent.formats.node_view import NodeView

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
    # Names are looked up, never used as pieces of a path: what isn't in the state doesn't exist.
    names = [c.name for c in entry.pod.containers]
    if options.container not in names:
        raise ExecError(
            f"pod {entry.pod.full_name} has no container '{options.container}'",
            hint=f"it has: {', '.join(names)}; see `nodeagent inspect {entry.pod.full_name}`",
        )
    path = entry.container_path(options.container)
    directory = f"{known.cgroup_root}/{path}"
    expected = _expected_cpus(known, entry, options.container, directory)
    join(directory)
    found = own_cgroup()
    if not directory.endswith(found) or not found.endswith(path):
        raise ExecError(f"the kernel has put this process into {found} instead of {directory}", hint=_AGAIN)
    cpus = own_cpus()
    if cpus != expected:
        raise ExecError(f"CPUs in {directory} are {cpus}, promised are {expected}", hint=_AGAIN)


_AGAIN = "it may just be changing: try again, and see `nodeagent inspect`"


def _expected_cpus(known: NodeView, entry: PodEntry, container: str, directory: str) -> CpuSet:
    """Return the CPUs that the command should have, if the container can be entered at all."""
    view = looked_at(known)
    observed, kernel = view.observed.cgroups or {}, view.kernel
    if entry.is_active and kernel is None:
        problems = "; ".join((*view.problems, *view.observed.problems))
        raise ExecError(
            "the pods' cgroup cannot be read: " + (problems or "its location is unknown"),
            hint="start the pods' unit: systemctl start nodeagent-pods",
        )
    wanted = () if kernel is None else desired_cgroups(view.node.config, view.node.managers, kernel, view.state)
    path = entry.container_path(container)
    below = used_below(directory) if path in observed else ()
    hindrance = obstacle(entry, container, desired=wanted, observed=observed, used_below=below)
    if hindrance is not None:
        raise ExecError(hindrance.why, hint=hindrance.next_step)
    return next(want.cpus() for want in wanted if want.path == path)


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
