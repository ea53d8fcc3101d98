"""Parser of a manifest into pods. Each result is either a valid pod or the list of all errors of an invalid pod."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.pod import Pod
from nodeagent.formats.manifest.pod_fields import PodReader, pod_to_document
from nodeagent.formats.manifest.pod_notes import find_notes
from nodeagent.formats.manifest.pod_rules import find_breaches, find_invalid_names, find_negative_amounts
from nodeagent.formats.manifest.pod_schema import CLAIM_KINDS, FOR_SCHEDULER
from nodeagent.formats.syntax.fields import Fields, fields_of
from nodeagent.formats.syntax.findings import DocumentError, Finding, Findings
from nodeagent.formats.syntax.tree import ListNode, MapNode, Path, Scalar, TreeNode, kind_of, line_at, text_at

if TYPE_CHECKING:
    from nodeagent.formats.manifest.claim_documents import ClaimDocument

__all__ = [
    "ManifestPod",
    "OtherDocument",
    "RefusedPod",
    "checked_pod_from_document",
    "named_pod_from_document",
    "parse_manifest",
    "parse_workloads",
    "pod_from_document",
    "pod_to_document",
]

_AMOUNTS = ("requests", "limits", "overhead")
_KEYED = (*_AMOUNTS, "annotations")
_ENDED_PHASES = ("Succeeded", "Failed")


class ManifestPod(Struct, frozen=True):
    """A valid pod."""

    pod: Pod
    unused_fields: tuple[str, ...]
    """Paths of the fields that are set and known to Kubernetes but have no effect here."""
    line: int | None
    """Line of the file where the pod begins."""
    notes: tuple[str, ...] = ()
    """Notes about probable mistakes in a valid manifest, one line each."""
    not_run: tuple[str, ...] = ()
    """Paths of the fields that prevent the agent from running the pod. Only `parse_workloads` accepts such a pod, because it is for trial
    decisions.
    """
    workload: str = ""
    """Kind and name of the workload with the pod's template, and its number of pods. Empty for a Pod."""


class RefusedPod(Struct, frozen=True):
    """A document, or a whole text, that doesn't contain a valid pod."""

    findings: tuple[Finding, ...]
    name: str | None
    """`namespace/name`. None if the name is unreadable or invalid."""


class OtherDocument(Struct, frozen=True):
    """A document without a pod, or with a pod that has ended. It doesn't affect decisions."""

    kind: str
    ended_pod: str = ""
    """`namespace/name` of a pod that has ended according to its status. Empty for a document without a pod."""


class UnknownFields(Struct, frozen=True):
    """Unknown fields in a manifest. They don't affect decisions."""

    findings: tuple[Finding, ...]


_ENDS_NOTHING = ": write a pod, or remove the file to end the pods it had"


def parse_manifest(
    content: bytes, source: str, *, without_pod: str = _ENDS_NOTHING
) -> "tuple[ManifestPod | ClaimDocument | RefusedPod, ...]":
    """Parse a manifest: v1 Pods, Lists of them, and the documents of their resource claims.

    A text that can't be read, or has no documents, results in one RefusedPod, because a truncated or unfinished file must not end pods. To
    end all pods of a file, a user writes an empty List.

    Args:
        content: YAML or JSON, possibly several documents.
        source: the file's name, for findings.
        without_pod: the advice in the message for a text without documents.
    """
    found = _parse_documents(content, source, without_pod)
    return tuple(one for one in found if not isinstance(one, OtherDocument))


def parse_workloads(
    content: bytes, source: str
) -> "tuple[ManifestPod | ClaimDocument | RefusedPod | OtherDocument | UnknownFields, ...]":
    """Parse a manifest for trial decisions. A workload, such as a Deployment, counts as one pod, namely its template.

    Unknown fields and fields that the agent can't run a pod with are allowed, and so are documents without a pod. An unknown field with
    almost the name of a field that is read is an error.
    """
    unknown = Findings(source)
    found = _parse_documents(content, source, "", unknown)
    return (*found, UnknownFields(unknown.all())) if unknown else found


def _parse_documents(
    content: bytes, source: str, without_pod: str, unknown: Findings | None = None
) -> "tuple[ManifestPod | ClaimDocument | RefusedPod | OtherDocument, ...]":
    from nodeagent.formats.syntax.documents import read_documents  # noqa: PLC0415 - pods of a state are read without YAML

    findings = Findings(source)
    documents = read_documents(content, findings)
    if documents == ():
        error = "contains no pod" if content.strip() else "is empty, perhaps because the disk was full (see `df`)"
        findings.add(1, "", "", f"{error}{without_pod}")
    found: list[ManifestPod | ClaimDocument | RefusedPod | OtherDocument] = []
    for document in documents or ():
        found.extend(_parse_document(document, source, unknown))
    if not findings:
        return tuple(found)
    # If a field is given twice, the intended pod is unknown. The whole text is then refused, and all other errors in
    # the text are reported, too.
    for further in (finding for pod in found if isinstance(pod, RefusedPod) for finding in pod.findings):
        findings.add(further.line, further.field, further.value, further.allowed, further.words)
    return (RefusedPod(findings.all(), None),)


def _parse_document(
    root: TreeNode, source: str, unknown: Findings | None
) -> "Iterator[ManifestPod | ClaimDocument | RefusedPod | OtherDocument]":
    kind = _find_text(root, "kind")
    if kind not in {"List", "PodList"}:
        yield from _parse_object(root, "", source, unknown, item_of_list=False)
        return
    assert isinstance(root, MapNode)
    findings = Findings(source, unknown)
    fields = Fields(root, "", findings)
    fields.one_of("apiVersion", ("v1",))
    fields.unused(("kind", "metadata"))
    items = root.get("items")
    if not isinstance(items, ListNode):
        fields.report("items", "must be a list of pods")
    fields.unused(("items",))
    fields.close()
    if findings:
        yield RefusedPod(findings.all(), None)
    elif isinstance(items, ListNode):
        for index, item in enumerate(items.items):
            yield from _parse_object(item, f"items[{index}]", source, unknown, item_of_list=kind == "PodList")


def _parse_object(
    root: TreeNode, prefix: str, source: str, unknown: Findings | None, *, item_of_list: bool
) -> "Iterator[ManifestPod | ClaimDocument | RefusedPod | OtherDocument]":
    kind = _find_text(root, "kind")
    if kind not in CLAIM_KINDS:
        if unknown is None:
            yield _parse_pod(root, prefix, source, None, item_of_list=item_of_list)
        else:
            yield from _parse_workload(root, prefix, source, unknown, item_of_list=item_of_list)
        return
    from nodeagent.formats.manifest.claim_documents import read_claim_document  # noqa: PLC0415 - few nodes have claims

    assert isinstance(root, MapNode)
    findings = Findings(source, unknown)
    document = read_claim_document(Fields(root, prefix, findings), kind)
    if findings:
        yield RefusedPod(findings.all(), None)
        document = replace(document, is_whole=False)
    yield document


def _parse_workload(
    root: TreeNode, prefix: str, source: str, unknown: Findings, *, item_of_list: bool
) -> "Iterator[ManifestPod | RefusedPod | OtherDocument]":
    """Parse a pod, or the templates of a document of another kind."""
    from nodeagent.formats.manifest.workloads import find_templates, named_by_generator  # noqa: PLC0415 - not for the agent

    kind = _find_text(root, "kind")
    if kind in (None, "Pod"):
        root = named_by_generator(root)
        if _find_text(root, "phase", "status") in _ENDED_PHASES:
            namespace = _find_text(root, "namespace", "metadata") or "default"
            yield OtherDocument(kind or "Pod", f"{namespace}/{_find_text(root, 'name', 'metadata') or ''}")
            return
        yield _parse_pod(root, prefix, source, unknown, item_of_list=item_of_list)
        return
    templates = tuple(find_templates(root, prefix))
    for template in templates:
        pod = _parse_pod(template.pod, template.path, source, unknown, item_of_list=True)
        yield pod if isinstance(pod, RefusedPod) else replace(pod, workload=template.workload)
    if not templates:
        yield OtherDocument(kind)


def _parse_pod(
    root: TreeNode, prefix: str, source: str, unknown: Findings | None, *, item_of_list: bool
) -> ManifestPod | RefusedPod:
    """Parse a pod. `unknown` collects unknown fields of a pod for trial decisions; None means that the agent runs the pod."""
    findings, is_run = Findings(source, unknown), unknown is None
    if not isinstance(root, MapNode):
        findings.add(root.line, prefix, "", f"must be an object of kind Pod, not {kind_of(root)}")
        return RefusedPod(findings.all(), None)
    kind = _find_text(root, "kind")
    if kind not in (None, "Pod"):
        # One finding for the document is enough, because all its fields are unknown.
        findings.add(
            line_at(root, ("kind",)),
            f"{prefix}.kind".lstrip("."),
            kind or "",
            f"must be Pod, List, PodList, {', '.join(CLAIM_KINDS[:-1])} or {CLAIM_KINDS[-1]}",
        )
        return RefusedPod(findings.all(), None)
    decoded = PodReader(strict=True, typed=not item_of_list, is_run=is_run).read(Fields(root, prefix, findings))
    unreadable = findings.fields()
    broken = tuple(find_breaches(decoded.pod, is_run=is_run))
    for breach in broken:
        path = _format_path(prefix, breach.path)
        # A placeholder replaces an unreadable value, which has already been reported, so it isn't checked.
        if findings.full():
            findings.add_another()
        elif not any(path.startswith(field) for field in unreadable):
            # A message quotes an amount as written in the file, because the pod only has the canonical form of the
            # amount, limited to 2^63-1.
            is_amount = breach.value and breach.path[-2:-1] in {(key,) for key in _AMOUNTS}
            value = (text_at(root, breach.path) if is_amount else None) or breach.value
            findings.add(line_at(root, breach.path), path, value, breach.allowed)
    if findings:
        named = not any(breach.path[0] == "metadata" for breach in broken)
        return RefusedPod(findings.all(), decoded.pod.full_name if named else None)
    is_template = kind is None and not is_run
    unused = () if is_template or decoded.not_run else decoded.unused_fields
    if not is_run:  # commands that try decisions report these fields once for all pods
        unused = tuple(path for path in unused if path.rpartition(".")[2] not in FOR_SCHEDULER)
    notes = find_notes(decoded.pod, unused, lambda path: text_at(root, path))
    return ManifestPod(decoded.pod, decoded.unused_fields, root.line, notes, decoded.not_run)


def _find_text(root: TreeNode, key: str, within: str = "") -> str | None:
    """Return the string in a field of the object, or of the object in its field `within`."""
    parent = root.get(within) if within and isinstance(root, MapNode) else root
    node = parent.get(key) if isinstance(parent, MapNode) else None
    return node.value if isinstance(node, Scalar) and isinstance(node.value, str) else None


def _format_path(prefix: str, path: Path) -> str:
    """Format a path in Kubernetes' notation."""
    text = prefix
    keyed = False
    for step in path:
        text += f"[{step}]" if keyed or isinstance(step, int) else f".{step}"
        keyed = step in _KEYED
    return text.removeprefix(".")


def pod_from_document(document: Mapping[str, object], source: str = "pod") -> Pod:
    """Read a v1 Pod of plain values and apply defaults, without validating it (D5). Unused fields are ignored.

    Raises:
        DocumentError: a field has the wrong type, or an amount isn't a quantity.
    """
    findings = Findings(source)
    decoded = PodReader(strict=False).read(fields_of(document, findings))
    if findings:
        raise DocumentError(findings.all())
    return decoded.pod


def checked_pod_from_document(document: Mapping[str, object], source: str) -> Pod:
    """Read a pod like `pod_from_document`, and validate the pod like a manifest.

    Raises:
        DocumentError: the pod can't be read, or the API server would refuse it.
    """
    pod = pod_from_document(document, source)
    findings = Findings(source)
    for breach in find_breaches(pod):
        findings.add(None, _format_path("", breach.path), breach.value, breach.allowed)
    if findings:
        raise DocumentError(findings.all())
    return pod


def named_pod_from_document(document: Mapping[str, object]) -> Pod:
    """Read an already validated pod, such as a pod of the saved state.

    Only names and the signs of amounts are checked, so that names are safe to print and amounts can be summed.

    Raises:
        DocumentError: the pod can't be read, or has an invalid name or a negative amount.
    """
    pod = pod_from_document(document)
    findings = Findings("pod")
    for breach in (*find_invalid_names(pod), *find_negative_amounts(pod)):
        findings.add(None, _format_path("", breach.path), breach.value, breach.allowed)
    if findings:
        raise DocumentError(findings.all())
    return pod
