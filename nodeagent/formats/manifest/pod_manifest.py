"""Manifest text → pods, one result per pod: a valid Pod, or all its errors. Knows no files."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.pod import Pod
from nodeagent.formats.manifest.pod_fields import PodReader, pod_to_document
from nodeagent.formats.manifest.pod_notes import notes_of
from nodeagent.formats.manifest.pod_rules import breaches, misnamed, negative
from nodeagent.formats.manifest.pod_schema import CLAIM_KINDS
from nodeagent.formats.syntax.fields import Fields, fields_of
from nodeagent.formats.syntax.findings import DocumentError, Finding, Findings
from nodeagent.formats.syntax.tree import ListNode, MapNode, Path, Scalar, TreeNode, kind_of, line_at

if TYPE_CHECKING:
    from nodeagent.formats.manifest.claim_documents import ClaimDocument

__all__ = [
    "ManifestPod",
    "RefusedPod",
    "checked_pod_from_document",
    "named_pod_from_document",
    "parse_manifest",
    "pod_from_document",
    "pod_to_document",
]

_LIST_KINDS = ("List", "PodList")
_KEYED = ("requests", "limits", "overhead", "annotations")


class ManifestPod(Struct, frozen=True):
    """A pod to run."""

    pod: Pod
    unused_fields: tuple[str, ...]
    """Paths of the fields that are set, known to Kubernetes and without effect here."""
    line: int | None
    """Where the pod starts in its file."""
    notes: tuple[str, ...] = ()
    """What is probably not meant as written, one line each."""


class RefusedPod(Struct, frozen=True):
    """A document, or a whole text, that isn't a pod to run."""

    findings: tuple[Finding, ...]
    name: str | None
    """`namespace/name`; None: the text could not be read that far, or the name is what is wrong."""


_ENDS_NOTHING = ": write a pod, or remove the file to end the pods it had"


def parse_manifest(
    content: bytes, source: str, *, without_pod: str = _ENDS_NOTHING
) -> "tuple[ManifestPod | ClaimDocument | RefusedPod, ...]":
    """Read a manifest: one or more v1 Pods, also in a List, and documents that their resource claims mean.

    A text that can't be read is one refusal.
    So is one without any document: a file that was cut off, or is about to be written, ends no pod. An empty List means that there are
    none.

    Args:
        content: YAML or JSON, possibly several documents.
        source: the file's name, for findings.
        without_pod: what to do about a text without a document, for the message.
    """
    from nodeagent.formats.syntax.documents import read_documents  # noqa: PLC0415 - a state's pods are read without YAML

    findings = Findings(source)
    documents = read_documents(content, findings)
    if documents == ():
        what = "holds no pod" if content.strip() else "is empty, as a full disk leaves a file (see `df`)"
        findings.add(1, "", "", f"{what}{without_pod}")
    found: list[ManifestPod | ClaimDocument | RefusedPod] = []
    for document in documents or ():
        found.extend(_document(document, source))
    if not findings:
        return tuple(found)
    # If a field is given twice, the text doesn't say for sure whose pod it is: it is refused as a whole, with everything else that is
    # wrong.
    for further in (finding for one in found if isinstance(one, RefusedPod) for finding in one.findings):
        findings.add(further.line, further.field, further.value, further.allowed, further.words)
    return (RefusedPod(findings.all(), None),)


def _document(root: TreeNode, source: str) -> "Iterator[ManifestPod | ClaimDocument | RefusedPod]":
    if _text_at(root, "kind") not in _LIST_KINDS:
        yield from _read(root, "", source, item_of_list=False)
        return
    assert isinstance(root, MapNode)
    findings = Findings(source)
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
            yield from _read(item, f"items[{index}]", source, item_of_list=_text_at(root, "kind") == "PodList")


def _read(
    root: TreeNode, prefix: str, source: str, *, item_of_list: bool
) -> "Iterator[ManifestPod | ClaimDocument | RefusedPod]":
    kind = _text_at(root, "kind")
    if kind not in CLAIM_KINDS:
        yield _pod(root, prefix, source, item_of_list=item_of_list)
        return
    from nodeagent.formats.manifest.claim_documents import read_claim_document  # noqa: PLC0415 - few nodes have any

    assert isinstance(root, MapNode)
    findings = Findings(source)
    document = read_claim_document(Fields(root, prefix, findings), kind)
    if findings:
        yield RefusedPod(findings.all(), None)
        document = replace(document, is_whole=False)
    yield document


def _pod(root: TreeNode, prefix: str, source: str, *, item_of_list: bool) -> ManifestPod | RefusedPod:
    findings = Findings(source)
    if not isinstance(root, MapNode):
        findings.add(root.line, prefix, "", f"must be an object of kind Pod, not {kind_of(root)}")
        return RefusedPod(findings.all(), None)
    kind = _text_at(root, "kind")
    if kind not in (None, "Pod"):
        # Everything else in it would be unknown too: one finding is enough.
        findings.add(
            line_at(root, ("kind",)),
            f"{prefix}.kind".lstrip("."),
            kind or "",
            f"must be Pod, List, PodList, {', '.join(CLAIM_KINDS[:-1])} or {CLAIM_KINDS[-1]}",
        )
        return RefusedPod(findings.all(), None)
    decoded = PodReader(strict=True, typed=not item_of_list).read(Fields(root, prefix, findings))
    unreadable = findings.fields()
    broken = tuple(breaches(decoded.pod))
    for breach in broken:
        path = _spelled(prefix, breach.path)
        # What couldn't be read already has its finding; its value here is only a placeholder.
        if findings.full():
            findings.add_another()
        elif not any(path.startswith(field) for field in unreadable):
            findings.add(line_at(root, breach.path), path, breach.value, breach.allowed)
    if findings:
        named = not any(breach.path[0] == "metadata" for breach in broken)
        return RefusedPod(findings.all(), decoded.pod.full_name if named else None)
    notes = notes_of(decoded.pod, decoded.unused_fields)
    return ManifestPod(decoded.pod, decoded.unused_fields, root.line, notes)


def _text_at(root: TreeNode, key: str) -> str | None:
    node = root.get(key) if isinstance(root, MapNode) else None
    return node.value if isinstance(node, Scalar) and isinstance(node.value, str) else None


def _spelled(prefix: str, path: Path) -> str:
    """Write a path as Kubernetes does."""
    text = prefix
    keyed = False
    for step in path:
        text += f"[{step}]" if keyed or isinstance(step, int) else f".{step}"
        keyed = step in _KEYED
    return text.removeprefix(".")


def pod_from_document(document: Mapping[str, object], source: str = "pod") -> Pod:
    """Read a v1 Pod of plain values with defaults applied, without validating it (D5). Unused fields are ignored.

    Args:
        document: the pod.
        source: names it in findings.

    Raises:
        DocumentError: a field has the wrong type, or an amount isn't a quantity.
    """
    findings = Findings(source)
    decoded = PodReader(strict=False).read(fields_of(document, findings))
    if findings:
        raise DocumentError(findings.all())
    return decoded.pod


def checked_pod_from_document(document: Mapping[str, object], source: str) -> Pod:
    """Read a pod like `pod_from_document`, and judge it as a manifest.

    Raises:
        DocumentError: as there, or the API server would not accept it.
    """
    pod = pod_from_document(document, source)
    findings = Findings(source)
    for breach in breaches(pod):
        findings.add(None, _spelled("", breach.path), breach.value, breach.allowed)
    if findings:
        raise DocumentError(findings.all())
    return pod


def named_pod_from_document(document: Mapping[str, object]) -> Pod:
    """Read a pod like `pod_from_document`, from a program that took it from a manifest.

    Its names are valid, and safe to print; its amounts can be summed up.

    Raises:
        DocumentError: as there, or it has a name or a negative amount that no manifest may have.
    """
    pod = pod_from_document(document)
    findings = Findings("pod")
    for breach in (*misnamed(pod), *negative(pod)):
        findings.add(None, _spelled("", breach.path), breach.value, breach.allowed)
    if findings:
        raise DocumentError(findings.all())
    return pod
