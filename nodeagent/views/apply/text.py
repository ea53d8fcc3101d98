"""Text output of `apply`, `diff` and `delete`. Each pod has one line, followed by details and notes."""

from collections.abc import Iterator, Mapping
from typing import Any

from nodeagent.core.model.pod import OWN, SYSTEMD
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.state import PodEntry
from nodeagent.views.explain.text import format_container
from nodeagent.views.holdings.cpu import format_place
from nodeagent.views.wording.columns import break_text, format_table
from nodeagent.views.wording.refusal_advice import advise_next_step

Document = Mapping[str, Any]
WIDTH = 80
_INDENT = "  "
_POD_STAYS = "; the running pod stays unchanged"
_CHANGE_VERBS = {"created": "does not exist yet", "changed": "changes"}
_MAX_LISTED = 4
"""Maximum number of containers or pods listed in one line."""


def format_applied(document: Document) -> str:
    """Format the installed manifests, with one line per pod and per note."""
    documents = [
        f"{one['kind']} {one['name']} {one['change']} ({one['file']})" for one in document.get("documents", ())
    ]
    lines = [*documents]
    for pod in document["pods"]:
        effect = _describe_effect(pod)
        text = f"pod {full_name(pod)} {pod['change']}{effect and f', {effect}'} ({pod['file']})"
        is_refused = pod["decision"] == "refused"
        if is_refused:
            verb = "is" if pod["decided"] else "will be"
            text += f", and {verb} refused: {_format_refusal(pod)}"
        elif pod["containers"]:
            places = []
            for container in pod["containers"]:
                name, cpus, *where, _ = format_container(container)
                places.append(", ".join([f"{name} {cpus}", *filter(None, where)]))
            text += f": {_list_some(places)}"
        lines.append(text)
        lines += [f"{_INDENT}note: {note}" for note in pod["notes"] if pod["change"] != "unchanged"]
        if pod["decided"] and is_refused:
            lines.append(f"{_INDENT}next: {advise_next_step(pod['reason'], full_name(pod), pod['message'])}")
    return "".join(f"{line}\n" for line in (*lines, *_describe_undecided(document)))


def format_refused(document: Document, width: int = WIDTH) -> str:
    """List the pods that would be refused, each with the missing resources and the remedies."""
    lines: list[str] = []
    for pod in document["pods"]:
        if pod["decision"] == "refused" and not pod["decided"]:
            lines += break_text(f"pod {full_name(pod)} would be refused: {pod['reason']}: {pod['message']}", width)
            lines += _describe_missing(pod, width)
    for note in _describe_undecided(document):
        lines += break_text(note, width)
    return "".join(f"{line}\n" for line in lines)


def format_differences(document: Document, width: int = WIDTH) -> str:
    """Format how the manifests differ from the installed ones, and what each difference does to the running pod. Unchanged pods are left
    out.
    """
    documents = [one for one in document.get("documents", ()) if one["change"] != "unchanged"]
    lines = [f"{one['kind']} {one['name']} {_CHANGE_VERBS[one['change']]} ({one['file']})" for one in documents]
    for pod in document["pods"]:
        if pod["change"] != "unchanged":
            lines += [*([""] if lines else []), *_describe_difference(pod, width)]
    for note in _describe_undecided(document) if lines else ():
        lines += ["", *break_text(note, width)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def format_deleted(document: Document) -> str:
    """Format the removed manifests, with one line per pod, or per file without pods.

    If the command waited for the pods to end, `left` in the document lists the pods that are still running.
    """
    lines, left = [], document.get("left")
    for file in document["files"]:
        path = file["file"]
        for pod in file["pods"]:
            if pod["alsoIn"] is not None:
                lines.append(f"{path} removed, pod {full_name(pod)} stays: {pod['alsoIn']} has it, too")
                continue
            end = "" if pod["endSeconds"] is None else f", it ends within {pod['endSeconds']} s"
            if end and left is not None and full_name(pod) not in left:
                end = ", it has ended"
            if end and pod["domain"] == SYSTEMD:
                end = ", and systemd manages its units' CPUs again"
            lines.append(f"pod {full_name(pod)} deleted, {path} removed{end}")
        lines += [] if file["pods"] else [f"{path} removed, it had no pod"]
    return "".join(f"{line}\n" for line in lines)


def format_decision(entry: PodEntry, promises: Promises, *, restarts: bool) -> str:
    """Describe the agent's decision on a pod. `restarts` tells whether the pod replaces a running pod."""
    pod = entry.pod
    if entry.refusal is not None:
        return f"pod {pod.full_name} refused: {entry.refusal.reason}: {entry.refusal.message}{_POD_STAYS if restarts else ''}\n"
    places = [format_place(promises.of_pod(pod.uid), container) for container in pod.containers]
    return f"pod {pod.full_name} admitted: {_list_some(places)}\n"


def full_name(pod: Document) -> str:
    """Return the pod's namespace/name."""
    return f"{pod['namespace']}/{pod['name']}"


def _describe_undecided(document: Document) -> Iterator[str]:
    if document["undecided"]:
        yield f"note: this takes installed manifests without a decision into account: {_list_some(document['undecided'])}"


def _describe_effect(pod: Document) -> str:
    """Describe the effect of the change on a running pod. The result is empty if the pod doesn't run, or stays unchanged."""
    if pod["decision"] != "admitted" or not (pod["restarts"] or pod["resizes"]):
        return ""
    if pod["resizes"]:
        return "is resized while it runs"
    return "restarts" if pod["domain"] == OWN else "moves"  # a systemd unit is moved to other CPUs while it runs


def _format_refusal(pod: Document) -> str:
    return f"{pod['reason']}: {pod['message']}{_POD_STAYS if pod['restarts'] or pod['resizes'] else ''}"


def _list_some(places: list[str]) -> str:
    further = len(places) - _MAX_LISTED
    return "; ".join(places[:_MAX_LISTED]) + (f"; and {further} more" if further > 0 else "")


def _describe_difference(pod: Document, width: int) -> Iterator[str]:
    effect = _describe_effect(pod)
    yield f"pod {full_name(pod)} {_CHANGE_VERBS[pod['change']]}{effect and f', and {effect}'} ({pod['file']})"
    yield from (f"{_INDENT}{line}" for line in pod["differences"])
    if pod["decision"] == "refused":
        yield from break_text(f"{_INDENT}would be refused: {_format_refusal(pod)}", width)
        yield from (f"{_INDENT}{line}" for line in _describe_missing(pod, width - len(_INDENT)))
    elif pod["containers"]:
        yield f"{_INDENT}would get"
        rows = [format_container(container) for container in pod["containers"]]
        yield from (f"{_INDENT}{_INDENT}{line}" for line in format_table(rows, width - 2 * len(_INDENT)))
    for note in pod["notes"]:
        yield from break_text(f"{_INDENT}note: {note}", width)


def _describe_missing(pod: Document, width: int) -> Iterator[str]:
    for text in pod["why"]:
        yield from break_text(f"{_INDENT}{text}", width)
    if pod["remedies"]:
        yield f"{_INDENT}what would admit it (each of these has been tried):"
        for text in pod["remedies"]:
            yield from break_text(f"{_INDENT}* {text}", width)
