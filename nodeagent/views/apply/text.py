"""The effect of manifests as text: one line per pod, then notes."""

from collections.abc import Iterator, Mapping
from typing import Any

from nodeagent.core.model.pod import OWN, SYSTEMD
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.state import PodEntry
from nodeagent.views.explain.text import container_text
from nodeagent.views.holdings.cpu import format_place
from nodeagent.views.wording.columns import broken, table
from nodeagent.views.wording.refusal_advice import next_step

Document = Mapping[str, Any]
WIDTH = 80
_INDENT = "  "
_STAYS = "; the running pod stays unchanged"
_COMES = {"created": "does not exist yet", "changed": "changes"}
_MOST_PLACES = 4
"""Limit on a pod's containers, or on pods, that are listed in a line."""


def applied_text(document: Document) -> str:
    """Report the installed manifests, a line per pod and per note."""
    documents = [
        f"{one['kind']} {one['name']} {one['change']} ({one['file']})" for one in document.get("documents", ())
    ]
    lines = [*documents, *(line for pod in document["pods"] for line in _describe_applied(pod))]
    return "".join(f"{line}\n" for line in (*lines, *_describe_undecided(document)))


def refused_text(document: Document, width: int = WIDTH) -> str:
    """Explain for each pod that would be refused what is missing and what would admit it."""
    lines: list[str] = []
    for pod in document["pods"]:
        if pod["decision"] == "refused" and not pod["decided"]:
            lines += broken(f"pod {name_of(pod)} would be refused: {pod['reason']}: {pod['message']}", width)
            lines += _describe_lack(pod, width)
    for note in _describe_undecided(document):
        lines += broken(note, width)
    return "".join(f"{line}\n" for line in lines)


def differences_text(document: Document, width: int = WIDTH) -> str:
    """Format the differences from the installed manifests and their effect. Unchanged pods are left out."""
    documents = [one for one in document.get("documents", ()) if one["change"] != "unchanged"]
    lines = [f"{one['kind']} {one['name']} {_COMES[one['change']]} ({one['file']})" for one in documents]
    for pod in document["pods"]:
        if pod["change"] != "unchanged":
            lines += [*([""] if lines else []), *_describe_difference(pod, width)]
    for note in _describe_undecided(document) if lines else ():
        lines += ["", *broken(note, width)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def deleted_text(document: Document) -> str:
    """Report the removed manifests, a line per pod, or per file without pods."""
    lines = []
    for file in document["files"]:
        lines += [_describe_deleted(pod, file["file"]) for pod in file["pods"]]
        lines += [] if file["pods"] else [f"{file['file']} removed, it had no pod"]
    return "".join(f"{line}\n" for line in lines)


def settled_text(entry: PodEntry, promises: Promises, *, restarts: bool) -> str:
    """Report the decision on a pod whose decision was awaited. `restarts` tells that it should replace a running pod."""
    pod = entry.pod
    if entry.refusal is not None:
        return f"pod {pod.full_name} refused: {entry.refusal.reason}: {entry.refusal.message}{_STAYS if restarts else ''}\n"
    places = [format_place(promises.of_pod(pod.uid), container) for container in pod.containers]
    return f"pod {pod.full_name} admitted: {_list_some(places)}\n"


def name_of(pod: Document) -> str:
    """Return the pod's namespace/name."""
    return f"{pod['namespace']}/{pod['name']}"


def _describe_undecided(document: Document) -> Iterator[str]:
    if document["undecided"]:
        yield f"note: this takes installed manifests without a decision into account: {_list_some(document['undecided'])}"


def _describe_applied(pod: Document) -> Iterator[str]:
    said = f"pod {name_of(pod)} {pod['change']}{_with_comma(_describe_replacement(pod))} ({pod['file']})"
    if pod["decision"] == "refused":
        how = "and is refused" if pod["decided"] else "and will be refused"
        said += f", {how}: {pod['reason']}: {pod['message']}{_describe_staying(pod)}"
    elif pod["containers"]:
        said += f": {_list_some([_format_place(container) for container in pod['containers']])}"
    yield said
    yield from (f"{_INDENT}note: {note}" for note in pod["notes"] if pod["change"] != "unchanged")
    if pod["decided"] and pod["decision"] == "refused":
        yield f"{_INDENT}next: {next_step(pod['reason'], name_of(pod))}"


def _describe_replacement(pod: Document) -> str:
    """Tell the effect on a running pod, whose systemd unit would keep running. Empty if no pod runs or it stays unchanged."""
    if pod["decision"] != "admitted" or not (pod["restarts"] or pod["resizes"]):
        return ""
    if pod["resizes"]:
        return "is resized while it runs"
    return "restarts" if pod["domain"] == OWN else "moves"


def _with_comma(text: str) -> str:
    return f", {text}" if text else ""


def _describe_staying(pod: Document) -> str:
    return _STAYS if pod["restarts"] or pod["resizes"] else ""


def _format_place(container: Document) -> str:
    name, cpus, *where, _ = container_text(container)
    return ", ".join([f"{name} {cpus}", *filter(None, where)])


def _list_some(places: list[str]) -> str:
    further = len(places) - _MOST_PLACES
    return "; ".join(places[:_MOST_PLACES]) + (f"; and {further} more" if further > 0 else "")


def _describe_difference(pod: Document, width: int) -> Iterator[str]:
    comes = _COMES[pod["change"]]
    replaced = _describe_replacement(pod)
    yield f"pod {name_of(pod)} {comes}{_with_comma(f'and {replaced}' if replaced else '')} ({pod['file']})"
    yield from (f"{_INDENT}{line}" for line in pod["differences"])
    if pod["decision"] == "refused":
        yield from broken(
            f"{_INDENT}would be refused: {pod['reason']}: {pod['message']}{_describe_staying(pod)}", width
        )
        yield from (f"{_INDENT}{line}" for line in _describe_lack(pod, width - len(_INDENT)))
    elif pod["containers"]:
        yield f"{_INDENT}would get"
        rows = [container_text(container) for container in pod["containers"]]
        yield from (f"{_INDENT}{_INDENT}{line}" for line in table(rows, width - 2 * len(_INDENT)))
    for note in pod["notes"]:
        yield from broken(f"{_INDENT}note: {note}", width)


def _describe_lack(pod: Document, width: int) -> Iterator[str]:
    for text in pod["why"]:
        yield from broken(f"{_INDENT}{text}", width)
    if pod["remedies"]:
        yield f"{_INDENT}what would admit it (each of these has been tried):"
        for text in pod["remedies"]:
            yield from broken(f"{_INDENT}* {text}", width)


def _describe_deleted(pod: Document, path: str) -> str:
    if pod["alsoIn"] is not None:
        return f"{path} removed, pod {name_of(pod)} stays: {pod['alsoIn']} has it, too"
    ends = "" if pod["endSeconds"] is None else f", it ends within {pod['endSeconds']} s"
    if ends and pod["domain"] == SYSTEMD:
        ends = ", and systemd manages its units' CPUs again"
    return f"pod {name_of(pod)} deleted, {path} removed{ends}"
