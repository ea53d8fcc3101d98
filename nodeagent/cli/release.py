"""`nodeagent release`: ends pods and gives back what they hold; with `--all` all of them, with `--purge` the agent's files too."""

import argparse
import os
import sys
import time
from collections.abc import Callable

from nodeagent.cli.known_state import DEFAULT_CONFIG, PODS_CGROUP, Known, known_state
from nodeagent.cli.sources import add_agent_arguments
from nodeagent.core.state import NodeState, PodEntry
from nodeagent.edge.local_api_client import ApiUnavailable, call
from nodeagent.errors import NodeAgentError
from nodeagent.formats.inspection_words import counted
from nodeagent.formats.node_state import state_from_document
from nodeagent.formats.pod_names import find_pod
from nodeagent.formats.release_text import events, longest_end_seconds, plan_text

_PAUSE_SECONDS = 0.1
_SPARE_SECONDS = 20
"""For all that a grace period does not cover: kills, turns of the agent, a machine under load."""


class ReleaseError(NodeAgentError):
    """Something was not released."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = """\
nodeagent release [--dry-run] [--timeout SECONDS] [--config FILE]
                         [--socket PATH] (POD ... | --all [--purge])"""
    parser.add_argument("pods", nargs="*", metavar="POD", help="name, namespace/name or UID")
    parser.add_argument("--all", action="store_true", help="every pod; needs no running agent")
    parser.add_argument(
        "--purge",
        action="store_true",
        help="with --all, and without a running agent: remove its state and sockets, too",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done, in its order")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help=f"how long to wait (default: the longest grace period of the pods and {_SPARE_SECONDS} s)",
    )
    add_agent_arguments(parser)
    parser.epilog = """\
exit status: 0: released, or nothing to release; 1: something is left; 2: wrong arguments

examples:
  nodeagent release default/web
  nodeagent release --all --dry-run
  nodeagent release --all

Needs root. Every process gets SIGTERM and its pod's grace period, apps before sidecars; CPUs and memory come back when the last one has
gone. A released pod is shown Refused (Released) and stays so, over restarts too, until its manifest changes or you retry it: to forget
it, remove its manifest. Manifests, configuration and logs are yours and stay. Without a running agent, --all does the same itself, and
removes the agent's cgroups.
next: nodeagent retry POD brings one back, nodeagent inspect shows what is left"""
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Release, and wait for the end.

    Raises:
        NodeAgentError: with what to do.

    """
    if bool(options.pods) == options.all:
        options.parser.error("either name pods, or say --all" if options.all else "which pods? name them, or say --all")
    if options.purge and not options.all:
        options.parser.error("--purge goes with --all only")
    known = _known(options)
    if not isinstance(known, NodeAgentError) and known.is_live:
        return _by_agent(options, known)
    if options.pods:
        raise ReleaseError(
            "the agent does not run, and only it can release single pods",
            hint="start it with `systemctl start nodeagent`, or release all: `nodeagent release --all`",
        )
    if options.dry_run:
        return _told_without_agent(options, known)
    return _without_agent(options)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds of at most a day")
    return seconds


def _known(options: argparse.Namespace) -> Known | NodeAgentError:
    """Give why, if without an agent nothing that it has saved can be used."""
    try:
        return known_state(options.config or DEFAULT_CONFIG, options.socket)
    except NodeAgentError as err:
        if not options.all or os.geteuid() != 0:
            raise
        return err


def _by_agent(options: argparse.Namespace, known: Known) -> int:
    chosen = known.state.entries if options.all else tuple(find_pod(known.state, name) for name in options.pods)
    if options.purge:
        raise ReleaseError("the agent runs and would write its files again", hint="first: `systemctl stop nodeagent`")
    if options.dry_run:
        _print(*_planned(known.state, chosen))
        return 0
    socket_path = options.socket or f"{known.node.config.runtime_directory}/agent.sock"
    answer = call(socket_path, "release", **({"all": True} if options.all else {"pods": options.pods}))
    uids = frozenset(map(str, answer["released"]))
    for entry in chosen:
        if entry.pod.uid not in uids:
            _print(*plan_text(known.state, [entry]))
    teller = _Teller(known.state, uids)
    deadline = _deadline(options, tuple(e for e in known.state.entries if e.pod.uid in uids))
    while teller.left():
        if time.monotonic() > deadline:
            raise ReleaseError(
                f"still there: {', '.join(teller.left())}",
                hint="the agent goes on, and they keep what they hold until they have gone: `nodeagent inspect POD` shows why",
            )
        time.sleep(_PAUSE_SECONDS)
        try:
            teller(state_from_document(call(socket_path, "state")["state"]).state)
        except ApiUnavailable as err:
            raise ReleaseError(
                f"the agent does not answer any more: {err.message}",
                hint="start it with `systemctl start nodeagent`: it goes on with what it was asked for",
            ) from err
    return _done(len(uids))


class _Teller:
    """Prints what happens, from one state to the next."""

    def __init__(self, state: NodeState, uids: frozenset[str]) -> None:
        self._state = state
        self._uids = uids

    def __call__(self, state: NodeState) -> None:
        _print(*events(self._state, state, self._uids, time.time_ns() // 1_000_000))
        self._state = state

    def left(self) -> list[str]:
        return [e.pod.full_name for e in self._state.entries if e.pod.uid in self._uids and e.is_active]


def _deadline(options: argparse.Namespace, entries: tuple[PodEntry, ...]) -> float:
    seconds = options.timeout if options.timeout is not None else longest_end_seconds(entries) + _SPARE_SECONDS
    return time.monotonic() + float(seconds)


def _done(count: int) -> int:
    if count:
        _print(f"{counted(count, 'pod')} released; to bring one back: nodeagent retry POD, or change its manifest")
    else:
        _print("nothing was to be released")
    return 0


def _planned(state: NodeState, entries: tuple[PodEntry, ...]) -> list[str]:
    return ["would be done, nothing is:", *plan_text(state, entries)] if entries else ["there are no pods"]


def _told_without_agent(options: argparse.Namespace, known: Known | NodeAgentError) -> int:
    from nodeagent.daemon import releasing
    from nodeagent.daemon.startup import load_config

    if isinstance(known, NodeAgentError):
        _print(f"no saved state can be used: {known.message}", f"next: {known.hint}")
    else:
        _print(*_planned(known.state, known.state.entries))
        if known.cgroup_root is not None:
            _print(f"then: the cgroups that the agent made below {known.cgroup_root} are removed")
    if options.purge:
        for path in releasing.own_files(load_config(options.config or DEFAULT_CONFIG)):
            _print(f"then: {path} is removed")
    return 0


def _without_agent(options: argparse.Namespace) -> int:
    from nodeagent.daemon import releasing
    from nodeagent.daemon.startup import load_node
    from nodeagent.edge import state_files

    if os.geteuid() != 0:
        raise ReleaseError("only root may end pods", hint="sudo nodeagent release --all")
    node = load_node(options.config or DEFAULT_CONFIG)
    with state_files.lock_directory(node.config.state_directory):
        pods = releasing.find_pods_cgroup(node.config, PODS_CGROUP)
        count = 0
        if pods is None:
            _print("no pod runs: there is no cgroup of theirs")
        else:
            agent = releasing.load_agent(node, pods)
            active = tuple(entry for entry in agent.state.entries if entry.is_active)
            count = len(active)
            tell: Callable[[NodeState], None] = _Teller(agent.state, frozenset(e.pod.uid for e in active))
            releasing.drain(agent, tell, _deadline(options, active))
            strangers = releasing.remove_cgroups(pods.tree)
            if strangers:
                raise ReleaseError(
                    f"processes run in cgroups that no pod owns: {', '.join(strangers)}",
                    hint=f"end them: `echo 1 > {pods.tree.root}/{strangers[0]}/cgroup.kill`, then again",
                )
            _print(f"removed the agent's cgroups below {pods.tree.root}")
        if options.purge:
            for path in releasing.own_files(node.config):
                state_files.remove(path)
                _print(f"removed {path}")
    return _done(count) if not options.purge else 0


def _print(*lines: str) -> None:
    for line in lines:
        print(line)
    sys.stdout.flush()
