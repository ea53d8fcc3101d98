"""`nodeagent release`: stops pods and frees their resources; `--all` stops all pods, `--purge` also removes the agent's files."""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nodeagent.cli.support.colour import find_terminal_width
from nodeagent.cli.support.documents import add_output_argument, format_document
from nodeagent.cli.support.manifest_arguments import DAY_SECONDS, SPARE_SECONDS
from nodeagent.cli.support.node.arguments import add_node_arguments, format_inspect_command, is_elsewhere
from nodeagent.cli.support.node.selected import read_node
from nodeagent.cli.support.numeric_arguments import seconds
from nodeagent.cli.support.places import DEFAULT_CONFIG, PODS_CGROUP
from nodeagent.core.model.config import Config
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.daemon.start.startup import StartError
from nodeagent.edge.transport.local_api_client import TURN_CALL_SECONDS, ApiUnavailable, call
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.node_state import state_from_document
from nodeagent.formats.manifest.pod_names import find_pod
from nodeagent.formats.node_view import NodeView
from nodeagent.views.release_text import (
    Document,
    add_outcome,
    describe_plan,
    find_longest_end_seconds,
    format_events,
    format_plan,
)
from nodeagent.views.wording.columns import fit_lines
from nodeagent.views.wording.words import format_count

if TYPE_CHECKING:
    from nodeagent.daemon.start.releasing import Pods

_VERSION = 1
_PAUSE_SECONDS = 0.1
_ANSWER_SECONDS = 10.0


class ReleaseError(NodeAgentError):
    """A pod, cgroup or setting was not released."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = """\
nodeagent release [-o {text,json,yaml}] [--timeout SECONDS]
                         [--config FILE|-] [--socket PATH]
                         [--dry-run [--root DIR | --machine FILE|-]]
                         (POD ... | --all [--purge] | --host-settings)"""
    parser.add_argument("pods", nargs="*", metavar="POD", help="name, namespace/name or UID")
    parser.add_argument("--all", action="store_true", help="every pod; needs no running agent")
    parser.add_argument(
        "--purge",
        action="store_true",
        help="with --all, after `systemctl stop nodeagent`: also remove the agent's state and sockets",
    )
    parser.add_argument(
        "--host-settings",
        action="store_true",
        help="end no pods; restore the original CPUs of interrupts, work queues and units (a running agent sets its own again; without "
        "an agent, also of pinned units)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done, in order")
    add_output_argument(parser)
    parser.add_argument(
        "--timeout",
        type=seconds(0, DAY_SECONDS),
        metavar="SECONDS",
        help=f"longest wait (default: the longest grace period of the pods, plus {SPARE_SECONDS} s)",
    )
    add_node_arguments(parser)
    parser.epilog = """\
exit status: 0: released, or nothing to release; 1: a pod or cgroup is left; 3: the agent doesn't answer any more; 64: wrong arguments

examples:
  nodeagent release default/web
  nodeagent release --all --dry-run
  nodeagent release --all
  nodeagent release --all -o json | jq -r '.pods[] | select(.outcome == "left") | .name'
  nodeagent release --all --dry-run --machine node.json

Needs root. Every process gets SIGTERM and its pod's grace period, apps before sidecars; CPUs and memory are free once the last process
has ended. A released pod is shown as Refused (Released), even after a restart of the agent, until its manifest changes or you retry it.
Remove its manifest to forget it. Manifests, configuration and logs are kept. If no agent is running, --all ends the pods itself, and
removes the agent's cgroups. With -o json or yaml, the document is printed at the end, and each step goes to stderr.
next: nodeagent retry POD starts a pod again, nodeagent inspect shows what is left"""
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Release the pods, and wait until they have ended.

    Raises:
        NodeAgentError: a pod is left, or can't be released.
    """
    if options.host_settings:
        return _restore_host_settings(options)
    if bool(options.pods) == options.all:
        options.parser.error("either name pods, or use --all" if options.all else "which pods? name them, or use --all")
    if options.purge and not options.all:
        options.parser.error("--purge needs --all")
    is_other_node = is_elsewhere(options)
    if is_other_node and (options.purge or not options.dry_run):
        options.parser.error(
            "another node's pods can't be released from here: add --dry-run to see the steps, without --purge"
        )
    known: NodeView | NodeAgentError
    try:
        known = read_node(options)
    except StartError:
        raise  # without the configuration, the locations of the agent's cgroups and files are unknown
    except NodeAgentError as err:
        if is_other_node or not options.all or os.geteuid() != 0:
            raise
        known = err
    is_live = not isinstance(known, NodeAgentError) and known.is_live
    if options.pods and not is_live and not is_other_node:
        raise ReleaseError(
            "the agent is not running, and only the agent can release single pods",
            hint="start it with `systemctl start nodeagent`, or release all pods: `nodeagent release --all`",
        )
    answer = _ReleaseReport(options, by_agent=is_live or bool(options.pods))
    if not isinstance(known, NodeAgentError) and known.is_live:
        return _release_by_agent(options, known, answer)
    return _plan_without_agent(options, known, answer) if options.dry_run else _release_without_agent(options, answer)


def _restore_host_settings(options: argparse.Namespace) -> int:
    from nodeagent.cli.support.configurations import load_config
    from nodeagent.daemon.start import releasing

    others = (options.pods, options.all, options.purge, options.dry_run, options.timeout, options.output != "text")
    if any(others) or is_elsewhere(options):
        options.parser.error("--host-settings can be combined only with --config")
    if os.geteuid() != 0:
        raise ReleaseError("only root may change settings of the host", hint="sudo nodeagent release --host-settings")
    try:
        config = load_config(options.config or DEFAULT_CONFIG)
    except NodeAgentError as err:
        # Restoring the host's settings needs only the state directory, and is important enough to try the default directory.
        print(f"{err.message}; using the default state directory", file=sys.stderr)
        config = Config()
    has_agent = True
    try:
        call(options.socket or f"{config.runtime_directory}/agent.sock", "state")
    except ApiUnavailable:
        has_agent = False
    count = releasing.restore_host_settings(config, has_agent=has_agent)
    print(f"restored {format_count(count, 'setting')} of the host" if count else "nothing to restore")
    return 0


class _ReleaseReport:
    """Reporter of the command's steps. With `-o json` or `-o yaml`, it also prints a document with the outcome."""

    def __init__(self, options: argparse.Namespace, *, by_agent: bool) -> None:
        self._output = options.output
        self._by_agent = by_agent
        self._dry_run = options.dry_run
        self._plans: list[Document] = []
        self._after: NodeState | None = None
        self._cgroups: str | None = None
        self._files: list[str] = []
        self._problem: NodeAgentError | None = None

    def say(self, *lines: str) -> None:
        stream, width = (sys.stdout, find_terminal_width()) if self._output == "text" else (sys.stderr, None)
        stream.writelines(fit_lines(line, width) for line in lines)
        stream.flush()

    def plan(self, state: NodeState, entries: Sequence[PodEntry]) -> None:
        self._plans = [describe_plan(state, entry) for entry in entries]
        if self._dry_run and self._output == "text":
            lines = [line for plan in self._plans for line in format_plan(plan)]
            self.say(*(["would be done (dry run):", *lines] if lines else ["there are no pods"]))

    def removal(self, *, cgroups: str | None = None, file: str | None = None) -> None:
        """Report that the agent's cgroups or a file were removed or, in a dry run, would be removed."""
        self._cgroups = cgroups or self._cgroups
        self._files += [file] if file else []
        what = f"the agent's cgroups below {cgroups}" if cgroups else file
        if not self._dry_run:
            self.say(f"removed {what}")
        elif self._output == "text":
            that = f"the cgroups that the agent created below {cgroups} are" if cgroups else f"{file} is"
            self.say(f"then: {that} removed")

    def problem(self, err: NodeAgentError) -> None:
        """Report the error that prevents the command from finding the pods."""
        self._problem = err
        self.say(f"no saved state can be used: {err.message}", f"next: {err.hint}")

    def follow(self, after: NodeState) -> None:
        self._after = after

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Print the document when the `with` block ends, even if it ends with an error."""
        try:
            yield
        finally:
            if self._output != "text":
                sys.stdout.write(format_document(self._document(), self._output))
                sys.stdout.flush()

    def _document(self) -> Document:
        after, problem = self._after, self._problem
        return {
            "kind": "Release",
            "version": _VERSION,
            "dryRun": self._dry_run,
            "byAgent": self._by_agent,
            "pods": self._plans if after is None else [add_outcome(plan, after) for plan in self._plans],
            "removed": {"cgroups": self._cgroups, "files": self._files},
            "problem": None if problem is None else {"message": problem.message, "nextStep": problem.hint},
        }


def _release_by_agent(options: argparse.Namespace, known: NodeView, answer: _ReleaseReport) -> int:
    chosen = (
        known.state.own_entries()
        if options.all
        else tuple(find_pod(known.state, name, format_inspect_command(options)) for name in options.pods)
    )
    if options.purge:
        raise ReleaseError(
            "the agent is running, and would write the removed files again",
            hint="stop the agent first: `systemctl stop nodeagent`",
        )
    if options.dry_run:
        with answer.reported():
            answer.plan(known.state, chosen)
        return 0
    socket_path = options.socket or f"{known.node.config.runtime_directory}/agent.sock"
    deadline = _find_deadline(options, tuple(entry for entry in chosen if entry.is_active))
    wait_seconds = deadline - time.monotonic()
    asked = call(
        socket_path,
        "release",
        timeout_seconds=min(wait_seconds + _ANSWER_SECONDS, TURN_CALL_SECONDS),
        waitSeconds=wait_seconds,
        **({"all": True} if options.all else {"pods": options.pods}),
    )
    uids = frozenset(map(str, asked["released"]))
    with answer.reported():
        answer.plan(known.state, chosen)
        for entry in chosen:
            if entry.pod.uid not in uids:
                answer.say(*format_plan(describe_plan(known.state, entry)))
        _wait_for_end(known.state, uids, socket_path, answer, deadline)
        _report_count(len(uids), answer)
    return 0


def _wait_for_end(
    state: NodeState, uids: frozenset[str], socket_path: str, answer: _ReleaseReport, deadline: float
) -> None:
    reporter = _Reporter(answer, state, uids)
    while reporter.list_active():
        try:
            reporter(state_from_document(call(socket_path, "state")["state"]).state)
        except ApiUnavailable as err:
            raise ReleaseError(
                f"the agent does not answer any more: {err.message}",
                hint="start the agent with `systemctl start nodeagent`; the agent then continues to end the pods",
            ) from err
        left = reporter.list_active()
        if left and time.monotonic() > deadline:
            raise ReleaseError(
                f"some pods have not ended yet: {', '.join(left)}",
                hint="the agent keeps ending these pods, and a pod keeps its CPUs and memory until it ends: `nodeagent inspect POD` "
                "shows what delays it",
            )
        if left:
            time.sleep(_PAUSE_SECONDS)


class _Reporter:
    """Reporter that gets the successive states of the node, and prints what has happened to the pods in between."""

    def __init__(self, answer: _ReleaseReport, state: NodeState, uids: frozenset[str]) -> None:
        self._answer = answer
        self._uids = uids
        self._state = state
        answer.follow(state)

    def __call__(self, state: NodeState) -> None:
        self._answer.say(*format_events(self._state, state, self._uids, time.time_ns() // 1_000_000))
        self._answer.follow(state)
        self._state = state

    def list_active(self) -> list[str]:
        return [e.pod.full_name for e in self._state.entries if e.pod.uid in self._uids and e.is_active]


def _find_deadline(options: argparse.Namespace, entries: tuple[PodEntry, ...]) -> float:
    wait = options.timeout if options.timeout is not None else find_longest_end_seconds(entries) + SPARE_SECONDS
    return time.monotonic() + float(wait)


def _report_count(count: int, answer: _ReleaseReport) -> None:
    if count:
        answer.say(
            f"{format_count(count, 'pod')} released; to start one again: nodeagent retry POD, or change its manifest"
        )
    else:
        answer.say("nothing to release")


def _plan_without_agent(options: argparse.Namespace, known: NodeView | NodeAgentError, answer: _ReleaseReport) -> int:
    from nodeagent.cli.support.configurations import load_config
    from nodeagent.daemon.start import releasing

    with answer.reported():
        if isinstance(known, NodeAgentError):
            answer.problem(known)
        else:
            state = known.state
            answer.plan(
                state,
                state.own_entries()
                if options.all
                else [find_pod(state, name, format_inspect_command(options)) for name in options.pods],
            )
            if options.all and known.cgroup_root is not None:
                answer.removal(cgroups=known.cgroup_root)
        if options.purge:
            for path in releasing.find_own_files(load_config(options.config or DEFAULT_CONFIG)):
                answer.removal(file=path)
    return 0


def _release_without_agent(options: argparse.Namespace, answer: _ReleaseReport) -> int:
    from nodeagent.cli.support.configurations import load_config
    from nodeagent.daemon.start import releasing
    from nodeagent.daemon.start.node_builder import discover
    from nodeagent.edge.files import state_files

    if os.geteuid() != 0:
        raise ReleaseError("only root may end pods", hint="sudo nodeagent release --all")
    config_path = options.config or DEFAULT_CONFIG
    node = discover(load_config(config_path), config_path)
    with state_files.lock_directory(node.config.state_directory):
        pods = releasing.find_pods_cgroup(node.config, PODS_CGROUP)
        agent = None if pods is None else releasing.load_agent(node, pods)
        with answer.reported():
            count = 0
            if pods is None or agent is None:
                answer.say("no pod runs: the pods have no cgroup")
            else:
                entries = agent.state.own_entries()
                active = tuple(entry for entry in entries if entry.is_active)
                count = len(active)
                answer.plan(agent.state, entries)
                reporter = _Reporter(answer, agent.state, frozenset(e.pod.uid for e in active))
                releasing.drain(agent, reporter, _find_deadline(options, active))
            if releasing.restore_host_settings(node.config, forget=True):
                answer.say("restored the CPUs of the host's interrupts, work queues and units")
            # restore the settings first: the removal of the cgroups fails if they contain processes that belong to no pod
            if pods is not None:
                _remove_cgroups(pods, answer)
            if options.purge:
                for path in releasing.find_own_files(node.config):
                    state_files.remove(path)
                    answer.removal(file=path)
            else:
                _report_count(count, answer)
    return 0


def _remove_cgroups(pods: "Pods", answer: _ReleaseReport) -> None:
    from nodeagent.daemon.start.releasing import remove_cgroups

    orphans = remove_cgroups(pods.tree)
    if orphans:
        files = " ".join(f"{pods.tree.root}/{orphan}/cgroup.kill" for orphan in orphans)
        raise ReleaseError(
            f"processes run in cgroups that no pod owns: {', '.join(orphans)}",
            hint=f"end them: `echo 1 | tee {files}`, then run this again",
        )
    answer.removal(cgroups=str(pods.tree.root))
