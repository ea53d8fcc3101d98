"""Manifest text → pods, one result per document: a valid Pod, or everything that is wrong with it. Knows no files."""

from collections.abc import Mapping

from nodeagent.core.pod import Pod
from nodeagent.formats.fields import Fields
from nodeagent.formats.findings import DocumentError, Findings
from nodeagent.formats.pod_fields import PodReader, pod_to_document
from nodeagent.formats.tree import MapNode, tree_of

__all__ = ["pod_from_document", "pod_to_document"]


def pod_from_document(document: Mapping[str, object]) -> Pod:
    """Read a v1 Pod of plain values with defaults applied, without validating it (D5). Fields without use are not looked at.

    Raises:
        DocumentError: a field has the wrong type, or an amount is no quantity.
    """
    findings = Findings("pod")
    try:
        tree = tree_of(document)
    except ValueError as err:
        findings.add(None, "", "", str(err))
        raise DocumentError(findings.all()) from err
    assert isinstance(tree, MapNode)
    decoded = PodReader(strict=False).read(Fields(tree, "", findings))
    if findings:
        raise DocumentError(findings.all())
    return decoded.pod
