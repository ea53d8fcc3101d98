"""`nodeagent apply` and `nodeagent diff`: compare manifests with the installed ones, and make trial decisions on their pods."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from nodeagent.cli.support.colour import find_terminal_width, text_width
from nodeagent.cli.support.documents import format_document, render_document
from nodeagent.cli.support.exit_status import EXIT_ERROR, EXIT_REFUSED, EXIT_WRONG, PodRefusedError
from nodeagent.cli.support.manifest_changes import (
    FileChange,
    ManifestPlace,
    find_decision,
    find_undecided,
    format_unwritable_hint,
    plan_changes,
    read_installed,
    read_manifest_node,
    write_changes,
)
from nodeagent.cli.support.manifest_decisions import (
    WaitError,
    check_wait,
    decide_undecided,
    try_changes,
    wait_for_agent,
)
from nodeagent.cli.support.node.devices import add_this_nodes_devices
from nodeagent.cli.support.node.what_if import WhatIfNode
from nodeagent.cli.support.pod_files import PodFile, read_pod_files, read_workload_files, resolve_claims
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.edge.files.manifests import lock_manifests
from nodeagent.views.apply.document import VERSION, add_decision, describe_applied
from nodeagent.views.apply.text import format_applied, format_decision, format_differences, format_refused, full_name
from nodeagent.views.wording.columns import fit_lines

if TYPE_CHECKING:
    from nodeagent.formats.manifest.claim_documents import ClaimDocument

Document = dict[str, Any]


def apply_manifests(options: argparse.Namespace) -> int:
    """Install the manifests that the command line names, as described for `install`.

    Raises:
        NodeAgentError: the manifests are invalid, would be refused, or can't be installed.
    """
    return install(options, read_pod_files(options.files), ("apply", *options.files))


def install(options: argparse.Namespace, files: Sequence[PodFile], words: Sequence[str]) -> int:
    """Install manifests, report the results for their pods, and return the exit status.

    Args:
        options: the parsed command line, with `force` and the options for waiting, output and the agent.
        files: the manifests to install.
        words: the command line as typed, for a hint that repeats it.

    Raises:
        NodeAgentError: the manifests would be refused, or can't be installed.
    """
    place, _ = read_manifest_node(options)
    check_wait(options, place)
    hint = format_unwritable_hint(place, "nodeagent", *words)
    with lock_manifests(place.directory, hint):
        place, node = read_manifest_node(
            options
        )  # the manifests are read again, because they may have changed before the directory was locked
        changes, document = _try_changes("Apply", files, place, node)
        refused = [pod for pod in document["pods"] if pod["decision"] == "refused" and not pod["decided"]]
        document["applied"] = not refused or options.force
        if document["applied"]:
            write_changes(changes, hint)
    if not document["applied"]:
        return _report_refusal(options, document, refused, words[0])
    if options.output == "text":
        sys.stdout.write(fit_lines(format_applied(document), find_terminal_width()))
        sys.stdout.flush()
    pods = _wait_for_decisions(options, place, changes, document["pods"]) if options.wait else document["pods"]
    if options.output == "text" and not place.is_live:
        note = "note: the agent is not running; it will act on this once started: systemctl start nodeagent"
        sys.stdout.write(fit_lines(note, find_terminal_width()))
    if options.output != "text":
        sys.stdout.write(format_document(document | {"pods": pods}, options.output))
    if any(pod["decision"] == "refused" and (pod["decided"] or not options.force) for pod in pods):
        return EXIT_REFUSED
    is_late = options.wait and any(not pod["decided"] and not _leaves_running_pod(pod) for pod in pods)
    return EXIT_ERROR if is_late else 0


def _try_changes(
    kind: str, files: Sequence[PodFile], place: ManifestPlace, node: WhatIfNode
) -> tuple[tuple[FileChange, ...], Document]:
    """Make trial decisions on the pods of manifests. Installed pods without a decision are tried first, because the agent will decide on
    them first.
    """
    held = read_installed(place)
    files = resolve_claims(files, (document for file in held for document in file.claims))
    changes = plan_changes(files, held, place)
    before = find_undecided(files, held, place)
    coming = (*before, *(one.pod for change in changes for one in change.pods))
    what_if = add_this_nodes_devices(node.what_if, coming)
    pods = [describe_applied(pod) for pod in try_changes(changes, decide_undecided(what_if, before))]
    names = [pod.full_name for pod in before] if any(not pod["decided"] for pod in pods) else []
    document = {"kind": kind, "version": VERSION, "undecided": names}
    installed = {(one.kind, one.name): replace(one, line=None) for file in held for one in file.claims}
    documents = [
        {"change": _compare_document(one, installed), "file": change.path, "kind": one.kind, "name": one.name}
        for change in changes
        for one in change.claims
    ]
    if documents:
        document["documents"] = documents
    return changes, document | {"pods": [pod | {"admitted": None} for pod in pods]}


def _compare_document(document: "ClaimDocument", installed: Mapping[tuple[str, str], "ClaimDocument"]) -> str:
    before = installed.get((document.kind, document.name))
    if before is None:
        return "created"
    return "unchanged" if before == replace(document, line=None) else "changed"


_WAYS_OUT = {
    "apply": "make room or change the manifest, then apply it again: `nodeagent explain -f FILE` shows each step; --force installs it "
    "anyway",
    "pin": "make room or ask for other amounts, as the lines above say, then pin the unit again; --force installs its manifest anyway",
}
"""Next step after a refusal, by the command that the user ran."""


def _report_refusal(options: argparse.Namespace, document: Document, refused: list[Document], command: str) -> int:
    if options.output != "text":
        sys.stdout.write(format_document(document, options.output))
        return EXIT_REFUSED
    sys.stdout.write(format_refused(document, text_width()))
    names = ", ".join(full_name(pod) for pod in refused)
    raise PodRefusedError(
        f"nothing was installed: {names} would be refused",
        hint=_WAYS_OUT[command],
    )


def _wait_for_decisions(
    options: argparse.Namespace, place: ManifestPlace, changes: tuple[FileChange, ...], pods: list[Document]
) -> list[Document]:
    """Wait for the decisions on the changed pods, report them, and add them to the pods' documents."""
    waiting = [change for file in changes for change in file.pods if change.decided is None]
    kept = {pod["uid"] for pod in pods if _leaves_running_pod(pod)}
    awaited = [change for change in waiting if change.pod.uid not in kept]

    def is_over(state: NodeState) -> bool:
        return all(_has_effect(find_decision(change, state)) for change in awaited)

    state = wait_for_agent(
        options, place, [c.entry for c in awaited if c.entry is not None and c.entry.is_active], is_over
    )
    found = {change.pod.uid: find_decision(change, state) for change in awaited}
    if options.output == "text":
        for change in awaited:
            entry = found[change.pod.uid]
            sys.stdout.write(
                ""
                if entry is None
                else fit_lines(
                    format_decision(entry, state.promises, restarts=change.restarts or change.resizes),
                    find_terminal_width(),
                )
            )
        late = [change.pod.full_name for change in awaited if not _has_effect(found[change.pod.uid])]
        if late:
            sys.stdout.flush()
            raise WaitError(
                f"installed, but not started yet: {', '.join(late)}",
                hint="the agent keeps trying: `nodeagent inspect` shows what blocks the pods, and with --timeout SECONDS, the command "
                "waits longer",
            )
    return [add_decision(pod, found[pod["uid"]]) if pod["uid"] in found else pod for pod in pods]


def _has_effect(entry: PodEntry | None) -> bool:
    """Tell whether a decision has taken effect: the pod was refused, or it was admitted and its first process was started."""
    if entry is None:
        return False
    launched = [status for container, status in entry.pairs() if container.is_launched]
    return not (entry.is_active and launched) or any(status.attempt for status in launched)


def _leaves_running_pod(pod: Document) -> bool:
    """Tell whether the pod keeps running unchanged because its changed manifest was refused. The agent tries a change before it ends a pod
    (D7).
    """
    return bool((pod["restarts"] or pod["resizes"]) and pod["decision"] == "refused")


def diff_manifests(options: argparse.Namespace) -> int:
    """Print the changes that manifests would cause, and return the exit status.

    Raises:
        NodeAgentError: the manifests are invalid, or the installed ones can't be read.
    """
    files = read_workload_files(options.files)
    place, node = read_manifest_node(options)
    _, document = _try_changes("Diff", files, place, node)
    sys.stdout.write(
        render_document(
            document,
            options.output,
            lambda one: fit_lines(format_differences(one, text_width()), find_terminal_width()),
        )
    )
    differs = any(one["change"] != "unchanged" for one in (*document["pods"], *document.get("documents", ())))
    return EXIT_WRONG if differs else 0
