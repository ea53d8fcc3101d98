"""`nodeagent explain`: explains the steps of a decision (hints, merge, allocation of CPUs and memory). For a refused pod, it also finds
changes with which the pod would be admitted.
"""

import argparse
import sys
from collections.abc import Iterator

from msgspec.structs import replace

from nodeagent.cli.support.colour import text_width
from nodeagent.cli.support.documents import render_document
from nodeagent.cli.support.exit_status import EXIT_REFUSED
from nodeagent.cli.support.explained_pods import explain_pod, explain_with_progress
from nodeagent.cli.support.node.arguments import format_inspect_command, is_elsewhere
from nodeagent.cli.support.node.devices import add_selected_devices
from nodeagent.cli.support.node.what_if import WhatIfNode, read_what_if_node
from nodeagent.cli.support.pod_files import read_workload_files, resolve_installed_claims
from nodeagent.cli.support.progress import Progress
from nodeagent.core.admission.resize import is_resize, moves_instead, resized_by, without_variables
from nodeagent.core.explain.replay_decision import replay_decision
from nodeagent.core.explain.resizing import resizing
from nodeagent.core.model.refusals import RESIZE_DEFERRED
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.waiting import RequestKind
from nodeagent.errors import NodeAgentError
from nodeagent.formats.manifest.pod_manifest import ManifestPod
from nodeagent.formats.manifest.pod_names import find_pod
from nodeagent.views.explain.document import Document, ExplainedPod, ResizedPod, describe_explanation
from nodeagent.views.explain.resizes import describe_resize, describe_resize_changes, format_refused_resize
from nodeagent.views.explain.text import render_explanation
from nodeagent.views.wording.refusal_advice import describe_retries
from nodeagent.views.wording.runtime_pods import find_known_amounts

_REPLACED = "A pod of this name exists already. The decision assumes that this pod has ended, as after a change of its manifest."


class ExplainError(NodeAgentError):
    """There is no pod to explain."""


def explain_pods(options: argparse.Namespace) -> int:
    """Print the explanation, and return the exit status.

    Raises:
        NodeAgentError: the node or the manifests can't be read, or there is no such pod.
    """
    files = () if options.file is None else read_workload_files(options.file)
    node = read_what_if_node(options)
    if not is_elsewhere(options) and options.topology is None:
        files = resolve_installed_claims(files, node.config.static_pod_path)
    pods = tuple(found for file in files for found in file.pods)
    what_if = add_selected_devices(node.what_if, (found.pod for found in pods), options)
    node = replace(node, what_if=what_if)
    explained = (
        _explain_existing(node, options.pod, format_inspect_command(options))
        if options.pod is not None
        else _explain_new(node, pods)
    )
    with_headroom = options.output != "text"  # the text format doesn't show free resources
    document = describe_explanation(
        explained,
        config=node.config,
        what_if=node.what_if,
        where=node.where,
        has_partitions=node.has_partitions,
        with_headroom=with_headroom,
    )
    sys.stdout.write(render_document(document, options.output, lambda one: render_explanation(one, text_width())))
    sys.stdout.flush()
    return 0 if all(pod["decision"] == "admitted" for pod in document["pods"]) else EXIT_REFUSED


def _explain_existing(node: WhatIfNode, name: str, listed_by: str) -> Iterator[ExplainedPod]:
    if node.state is None:
        raise ExplainError(
            f"there is no pod '{name}': this machine has no pods",
            hint="give the pod's manifest with -f, or leave out --empty, --root and --topology to ask the live node",
        )
    entry = find_pod(node.state, name, listed_by)
    found = replay_decision(node.what_if, node.state, entry)
    explained = explain_with_progress(found.before, entry.pod)
    known = find_known_amounts(entry, node.state, node.what_if.managers.topology.memory_bytes)
    notes, resize = _explain_refused_change(node, entry)
    yield replace(
        explained,
        entry=entry,
        reproduced=found.reproduced,
        left_out=found.left_out,
        notes=notes,
        known=known,
        refused_resize=resize,
    )


def _explain_refused_change(node: WhatIfNode, entry: PodEntry) -> tuple[tuple[str, ...], Document | None]:
    """Explain why a running pod's changed manifest was refused. If the change is only a resize, try it again, and describe the result."""
    change = entry.refused_change
    if change is None:
        return (), None
    refusal = change.refusal
    retries = entry.list_retries(RequestKind.CHANGE, for_room=node.config.retries_for_room)
    notes = (
        f"Its changed manifest was refused, so the pod keeps running unchanged: {refusal.reason}: {refusal.message}",
        describe_retries(retries),
    )
    if (
        not entry.is_active
        or entry.pins_units
        or not is_resize(without_variables(entry.pod), without_variables(change.pod))
    ):
        return notes, None
    tried = resizing(node.what_if, entry.pod, change.pod)
    lines = format_refused_resize(tried, is_final=refusal.reason != RESIZE_DEFERRED)
    return (*notes, *lines), {**describe_resize_changes(tried), "retries": list(retries)}


def _explain_new(node: WhatIfNode, pods: tuple[ManifestPod, ...]) -> Iterator[ExplainedPod | ResizedPod]:
    """Make a trial decision on each pod, and yield the explanation. Each decision assumes that the pods before it are running."""
    what_if = node.what_if
    with Progress("pods", len(pods)) as progress:
        for found in pods:
            pod, former_count = found.pod, len(what_if.pods)
            old = resized_by(node.state, pod)
            tried = None if old is None else resizing(what_if, old, pod, progress.tick)
            if tried is not None and not moves_instead(pod, tried.answer):
                yield ResizedPod(describe_resize(tried, found.notes))
                what_if = tried.after
                progress.step()
                continue
            what_if = what_if.making_way(pod)
            replaced = (_REPLACED,) if len(what_if.pods) < former_count else ()
            explained = (
                explain_pod(what_if, pod, progress.tick) if len(pods) > 1 else explain_with_progress(what_if, pod)
            )
            yield replace(explained, notes=(*replaced, *found.notes))
            what_if = what_if.after(pod, explained.trace.decision)
            progress.step()
