"""What happens to manifests, as text: one line per pod, then notes. Adds words to documents, no facts."""

from collections.abc import Iterator, Mapping
from typing import Any

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Container, Domain
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.state import PodEntry
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.views.explain.text import container_text
from nodeagent.views.wording.columns import broken, table
from nodeagent.views.wording.refusal_advice import next_step

Document = Mapping[str, Any]
WIDTH = 80
_INDENT = "  "
_STAYS = "; the pod that runs stays as it is"
_COMES = {"created": "is not there yet", "changed": "changes"}
_MOST_PLACES = 4
"""Maximum number of a pod's containers, or of pods, that are listed in a line."""


def applied_text(document: Document) -> str:
    """Report what was installed, a line per pod and per note."""
    documents = [
        f"{one['kind']} {one['name']} {one['change']} ({one['file']})" for one in document.get("documents", ())
    ]
    lines = [*documents, *(line for pod in document["pods"] for line in _applied(pod))]
    return "".join(f"{line}\n" for line in (*lines, *_tried_after(document)))


def refused_text(document: Document, width: int = WIDTH) -> str:
    """Explain for each pod that would be refused what is missing, and what would admit it."""
    lines: list[str] = []
    for pod in document["pods"]:
        if pod["decision"] == "refused" and not pod["decided"]:
            lines += broken(f"pod {name_of(pod)} would be refused: {pod['reason']}: {pod['message']}", width)
            lines += _lacking(pod, width)
    for note in _tried_after(document):
        lines += broken(note, width)
    return "".join(f"{line}\n" for line in lines)


def differences_text(document: Document, width: int = WIDTH) -> str:
    """Show the differences from what is installed, and their effect; nothing for pods that don't differ."""
    documents = [one for one in document.get("documents", ()) if one["change"] != "unchanged"]
    lines = [f"{one['kind']} {one['name']} {_COMES[one['change']]} ({one['file']})" for one in documents]
    for pod in document["pods"]:
        if pod["change"] != "unchanged":
            lines += [*([""] if lines else []), *_different(pod, width)]
    for note in _tried_after(document) if lines else ():
        lines += ["", *broken(note, width)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def deleted_text(document: Document) -> str:
    """Report what was removed, a line per pod, or per file without one."""
    lines = []
    for file in document["files"]:
        lines += [_deleted(pod, file["file"]) for pod in file["pods"]]
        lines += [] if file["pods"] else [f"{file['file']} removed, no pod was in it"]
    return "".join(f"{line}\n" for line in lines)


def settled_text(entry: PodEntry, promises: Promises, *, restarts: bool) -> str:
    """Report the decision on a pod that was waited for, and that may have been meant to replace a running one."""
    pod = entry.pod
    if entry.refusal is not None:
        return f"pod {pod.full_name} refused: {entry.refusal.reason}: {entry.refusal.message}{_STAYS if restarts else ''}\n"
    places = [_own_place(container, own_set_of(promises, pod.uid, container.name)) for container in pod.containers]
    return f"pod {pod.full_name} admitted: {_some(places)}\n"


def _own_place(container: Container, own: CpuSet | None) -> str:
    if own is None:
        return f"{container.name} shared"
    return f"{container.name} {own}{' + shared pool' if container.is_mixed else ''}"


def name_of(pod: Document) -> str:
    """Return the pod's usual name: namespace/name."""
    return f"{pod['namespace']}/{pod['name']}"


def _tried_after(document: Document) -> Iterator[str]:
    if document["undecided"]:
        yield f"note: this takes into account what is installed and not decided on yet: {_some(document['undecided'])}"


def _applied(pod: Document) -> Iterator[str]:
    said = f"pod {name_of(pod)} {pod['change']}{_comma(_replaced(pod))} ({pod['file']})"
    if pod["decision"] == "refused":
        how = "and is refused" if pod["decided"] else "and will be refused"
        said += f", {how}: {pod['reason']}: {pod['message']}{_stays(pod)}"
    elif pod["containers"]:
        said += f": {_some([_place(container) for container in pod['containers']])}"
    yield said
    yield from (f"{_INDENT}note: {note}" for note in pod["notes"] if pod["change"] != "unchanged")
    if pod["decided"] and pod["decision"] == "refused":
        yield f"{_INDENT}next: {next_step(pod['reason'], name_of(pod))}"


def _replaced(pod: Document) -> str:
    """Say what happens to a pod that runs already: systemd's unit runs on. Nothing, if there is none or it stays as it is."""
    if pod["decision"] != "admitted" or not (pod["restarts"] or pod["resizes"]):
        return ""
    if pod["resizes"]:
        return "is resized while it runs"
    return "restarts" if pod["domain"] == Domain.OWN else "moves"


def _comma(text: str) -> str:
    return f", {text}" if text else ""


def _stays(pod: Document) -> str:
    return _STAYS if pod["restarts"] or pod["resizes"] else ""


def _place(container: Document) -> str:
    name, cpus, *where, _ = container_text(container)
    return ", ".join([f"{name} {cpus}", *filter(None, where)])


def _some(places: list[str]) -> str:
    further = len(places) - _MOST_PLACES
    return "; ".join(places[:_MOST_PLACES]) + (f"; and {further} more" if further > 0 else "")


def _different(pod: Document, width: int) -> Iterator[str]:
    comes = _COMES[pod["change"]]
    replaced = _replaced(pod)
    yield f"pod {name_of(pod)} {comes}{_comma(f'and {replaced}' if replaced else '')} ({pod['file']})"
    yield from (f"{_INDENT}{line}" for line in pod["differences"])
    if pod["decision"] == "refused":
        yield from broken(f"{_INDENT}would be refused: {pod['reason']}: {pod['message']}{_stays(pod)}", width)
        yield from (f"{_INDENT}{line}" for line in _lacking(pod, width - len(_INDENT)))
    elif pod["containers"]:
        yield f"{_INDENT}would get"
        rows = [container_text(container) for container in pod["containers"]]
        yield from (f"{_INDENT}{_INDENT}{line}" for line in table(rows, width - 2 * len(_INDENT)))
    for note in pod["notes"]:
        yield from broken(f"{_INDENT}note: {note}", width)


def _lacking(pod: Document, width: int) -> Iterator[str]:
    for text in pod["why"]:
        yield from broken(f"{_INDENT}{text}", width)
    if pod["remedies"]:
        yield f"{_INDENT}what would admit it (each of these has been tried):"
        for text in pod["remedies"]:
            yield from broken(f"{_INDENT}* {text}", width)


def _deleted(pod: Document, path: str) -> str:
    if pod["alsoIn"] is not None:
        return f"{path} removed, pod {name_of(pod)} stays: {pod['alsoIn']} holds it, too"
    ends = "" if pod["endSeconds"] is None else f", it ends within {pod['endSeconds']} s"
    if ends and pod["domain"] == Domain.SYSTEMD:
        ends = ", what it stands for is given back to systemd"
    return f"pod {name_of(pod)} deleted, {path} removed{ends}"
