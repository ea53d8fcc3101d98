"""Documents that describe the effect of applying or deleting manifests. Their schemas are in `docs/schema/`."""

import difflib
from collections.abc import Collection
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted
from nodeagent.core.admission.node_rules import container_reports
from nodeagent.core.admission.what_if import Fits, Refused
from nodeagent.core.model.pod import OWN, SYSTEMD, Pod
from nodeagent.core.model.refusals import NotResized
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.waiting import Waiting
from nodeagent.formats.manifest.pod_fields import derive_uid
from nodeagent.formats.manifest.pod_manifest import pod_to_document
from nodeagent.views.explain.document import ExplainedPod, describe_placed_containers
from nodeagent.views.explain.words import explain_refusal, format_remedy

Document = dict[str, Any]
VERSION = 1
_CONTEXT_LINES = 3
_HIDDEN, _CHANGED = "(hidden)", "(hidden, another one)"


class AppliedPod(Struct, frozen=True):
    """Pod of an applied manifest, with the kind of change and the decision on the pod."""

    pod: Pod
    before: Pod | None
    """Currently installed pod with the same name. None means that no such pod is installed."""
    path: str
    """Path under which the manifest is installed. For `nodeagent diff`, the file may not exist yet."""
    change: str
    """Kind of the change: `created`, `changed` or `unchanged`."""
    restarts: bool
    """Whether the pod replaces a running pod."""
    entry: PodEntry | None
    """The agent's decision on the pod. None means that the agent hasn't decided yet."""
    notes: tuple[str, ...] = ()
    explained: ExplainedPod | None = None
    """Trial decision on the pod. None means that no trial is needed, because the agent has already decided or the pod is only resized."""
    resize: Fits | NotResized | None = None
    """Trial decision on the resize of a running pod. None means that the pod isn't resized."""


def describe_applied(applied: AppliedPod) -> Document:
    """Describe one pod of an applied manifest."""
    pod, explained = applied.pod, applied.explained
    decision = None if explained is None else explained.trace.decision
    recorded = None if explained is not None or applied.entry is None else applied.entry.refusal
    refusal: Waiting | Refused | NotResized | None = recorded
    if decision is not None and not isinstance(decision, Admitted):
        refusal = decision
    if isinstance(applied.resize, NotResized):
        refusal = applied.resize
    containers: list[Document] = []
    if explained is not None and isinstance(decision, Admitted):
        containers = describe_placed_containers(
            explained.before.managers, pod, decision.report.containers, decision.promises
        )
    if isinstance(applied.resize, Fits):
        node = applied.resize.node
        reports = container_reports(node.managers, node.promises, pod)
        containers = describe_placed_containers(node.managers, pod, reports, node.promises)
    return {
        "change": applied.change,
        "containers": containers,
        "decided": explained is None and applied.resize is None,
        "decision": "admitted" if refusal is None else "refused",
        "domain": SYSTEMD if pod.units else OWN,
        "differences": compare_pods(applied.before, pod) if applied.change == "changed" else [],
        "file": applied.path,
        "message": None if refusal is None else refusal.message,
        "name": pod.name,
        "namespace": pod.namespace,
        "notes": list(applied.notes),
        "reason": None if refusal is None else str(refusal.reason),
        "remedies": [] if explained is None else [format_remedy(remedy) for remedy in explained.remedies.found],
        "resizes": applied.resize is not None,
        "restarts": applied.restarts,
        "uid": pod.uid,
        "why": explain_refusal(explained.before, explained.trace)
        if explained is not None and refusal is not None
        else [],
    }


def compare_pods(before: Pod | None, after: Pod) -> list[str]:
    """Compare two pods field by field, with defaults filled in. Return the lines of a unified diff, without the `---` and `+++` lines.

    The values of environment variables are hidden, because they may be secret.
    """
    containers = () if before is None else before.containers
    known = {(container.name, name, value) for container in containers for name, value in container.env}
    old = [] if before is None else _format_pod(before, known)
    return list(difflib.unified_diff(old, _format_pod(after, known), n=_CONTEXT_LINES, lineterm=""))[2:]


def _format_pod(pod: Pod, known: Collection[tuple[str, str, str]]) -> list[str]:
    """Format a pod as the lines of a manifest, and hide the values of environment variables. A variable that isn't in `known` (container,
    name, value) is marked as changed.
    """
    import yaml  # noqa: PLC0415 - only for pods that differ

    is_hashed = pod.uid == derive_uid(pod)
    containers = [
        replace(
            one,
            env=tuple((name, _HIDDEN if (one.name, name, value) in known else _CHANGED) for name, value in one.env),
        )
        for one in pod.containers
    ]
    document = pod_to_document(replace(pod, containers=tuple(containers)))
    metadata = document["metadata"]
    assert isinstance(metadata, dict)
    if is_hashed:  # the UID is a hash of all other fields, so it is left out
        del metadata["uid"]
    text: str = yaml.safe_dump(document, sort_keys=False)
    return text.splitlines()


def add_decision(document: Document, entry: PodEntry | None) -> Document:
    """Add the agent's decision to the document of a pod. None means that the agent hasn't decided yet."""
    if entry is None:
        return document
    if entry.refusal is None:
        return document | {"admitted": True, "decided": True}
    refused = {"decision": "refused", "reason": entry.refusal.reason, "message": entry.refusal.message}
    return document | refused | {"admitted": False, "decided": True, "containers": []}
