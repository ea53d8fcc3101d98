"""`nodeagent inspect`: shows pods, their CPUs and memory, and every difference between what was promised and what is there."""

import argparse
import json
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from nodeagent.cli.known_state import (
    DEFAULT_CONFIG,
    DEFAULT_SOCKET,
    Known,
    known_state,
    processes_of,
    sight_of,
)
from nodeagent.cli.main import EXIT_DIFFERENCE
from nodeagent.core.idset import CpuSet
from nodeagent.core.layout import container_path
from nodeagent.core.state import run_id
from nodeagent.errors import NodeAgentError
from nodeagent.formats.inspection import Document, HostProcess, HostProcesses, has_difference, inspection
from nodeagent.formats.inspection_text import render, render_in_full, render_wide
from nodeagent.formats.pod_names import find_pods

_LOOKS = 5
_PAUSE_SECONDS = 0.2


class NothingComparedError(NodeAgentError):
    """What was promised is known, what is there is not."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pod", nargs="?", metavar="POD", help="only this pod, in full: name, namespace/name or UID")
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "wide", "json", "yaml"),
        default="text",
        help="form of the answer: text fits 80 columns, wide has one line per container (default: text)",
    )
    parser.add_argument(
        "--no-host-processes",
        action="store_true",
        help="don't look which host processes may run on exclusive CPUs (with POD it is never looked)",
    )
    add_source_arguments(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = """\
exit status: 0: all is as promised; 3: there is a difference; 1: it could not be found out; 2: wrong arguments

examples:
  nodeagent inspect
  nodeagent inspect default/web
  nodeagent inspect -o wide | grep exclusive
  nodeagent inspect -o json | jq '.pods[] | select(.phase == "Refused") | .refusal'

The agent is asked over its socket (as root, or as a member of the group nodeagent). If it doesn't run, root gets its saved state.
next: nodeagent inspect POD shows one in full, nodeagent topology who owns which CPU"""


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the state comes from."""
    parser.add_argument(
        "--config",
        default=DEFAULT_CONFIG,
        metavar="FILE",
        help=f"the agent's configuration, read if it doesn't run (default: {DEFAULT_CONFIG})",
    )
    parser.add_argument("--socket", metavar="PATH", help=f"the agent's socket (default: {DEFAULT_SOCKET})")


def run(options: argparse.Namespace) -> int:
    """Print the inspection.

    Raises:
        NodeAgentError: the state cannot be found out, there is no such pod, or nothing could be compared with what was promised.

    """
    document = _settled(options)
    sys.stdout.write(_printed(document, options))
    sys.stdout.flush()
    check_compared(document)
    return EXIT_DIFFERENCE if has_difference(document) else 0


def check_compared(document: Document) -> None:
    """Do nothing if there was anything to compare with.

    Raises:
        NothingComparedError: there was not.

    """
    if document["differences"] is None:
        where = document["node"]["cgroupRoot"] or "nobody says where they are"
        raise NothingComparedError(
            f"the pods' cgroups cannot be read ({where}), so nothing was compared with what was promised",
            hint="start them with `systemctl start nodeagent-pods`, or run this as root; PROBLEMS in `nodeagent inspect` has the reason",
        )


def _settled(options: argparse.Namespace) -> Document:
    """Look again while what is found may only be a decision being carried out: a difference counts when two looks agree on it."""
    document = _look(options)
    for _ in range(_LOOKS - 1):
        if not (document["node"]["agent"]["live"] and has_difference(document)):
            return document
        time.sleep(_PAUSE_SECONDS)
        before, document = document, _look(options)
        if _stands(before, document):
            return document
    return document


def _stands(before: Document, after: Document) -> bool:
    keys = ("differences", "strangers")
    return before["node"]["generation"] == after["node"]["generation"] and all(before[k] == after[k] for k in keys)


def _look(options: argparse.Namespace) -> Document:
    known = known_state(options.config, options.socket)
    entries = known.state.entries if options.pod is None else find_pods(known.state, options.pod)
    processes = processes_of(known)
    sight = replace(
        sight_of(known),
        process_counts={path: len(pids) for path, pids in processes.items()},
        strays=_strays(known, processes),
    )
    if options.pod is None and not options.no_host_processes:
        exclusive = known.state.promises.exclusive() & known.node.topology.online
        ours = frozenset(pid for pids in processes.values() for pid in pids)
        sight = replace(sight, host=_host_processes(exclusive, ours))
    return inspection(sight, None if options.pod is None else frozenset(e.pod.uid for e in entries))


def _strays(known: Known, processes: Mapping[str, Collection[int]]) -> dict[str, int]:
    """Find main processes that are not where they were started."""
    strays = {}
    for entry in known.state.entries:
        for status in (status for container, status in entry.pairs() if container.command):
            pid = (known.pids or {}).get(run_id(entry, status))
            path = container_path(entry, status.name)
            if pid is not None and pid not in processes.get(path, ()):
                strays[path] = pid
    return strays


def _host_processes(exclusive: CpuSet, ours: frozenset[int]) -> HostProcesses:
    """Look who else may run on exclusive CPUs (D12)."""
    if not exclusive:
        return HostProcesses()
    from nodeagent.edge.processes import may_run_on  # noqa: PLC0415 - costs start-up time, and only matters here

    scan = may_run_on(exclusive, excluding=ours.__contains__)
    threads = [p for p in scan.found if p.is_kernel_thread]
    return HostProcesses(
        processes=tuple(HostProcess(p.pid, p.name, p.cpus & exclusive) for p in scan.found if not p.is_kernel_thread),
        kernel_threads=len(threads),
        kernel_thread_cpus=CpuSet.from_ids(cpu for p in threads for cpu in p.cpus & exclusive),
        hidden=len(scan.hidden),
    )


def _printed(document: Document, options: argparse.Namespace) -> str:
    match options.output:
        case "json":
            return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        case "yaml":
            return _yaml(document)
        case "wide":
            return render_wide(document)
        case _:
            return render(document) if options.pod is None else render_in_full(document)


def _yaml(document: Document) -> str:
    import yaml  # noqa: PLC0415 - the other forms don't pay for its start-up

    plain: Any = json.loads(json.dumps(document))  # without shared parts, which YAML would write as anchors
    text: str = yaml.safe_dump(plain, sort_keys=True, allow_unicode=True)
    return text
