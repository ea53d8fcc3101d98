"""Text of a file → its documents as trees, YAML or JSON as kubelet tells them apart. Knows no field names."""

import re

from nodeagent.formats.syntax.findings import DocumentError, Findings
from nodeagent.formats.syntax.json_tree import read_json
from nodeagent.formats.syntax.tree import TreeNode
from nodeagent.formats.syntax.yaml_tree import read_yaml

_SEPARATOR = re.compile(rb"^---(?:\s|$)", re.MULTILINE)
_JSON_START = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*\{")


def parse_documents(content: bytes, source: str) -> tuple[TreeNode, ...]:
    """Read all documents, without any finding.

    Raises:
        DocumentError: the text can't be read; every finding has its line where there is one.
    """
    findings = Findings(source)
    documents = read_documents(content, findings)
    if findings:
        raise DocumentError(findings.all())
    return documents or ()


def read_documents(content: bytes, findings: Findings) -> tuple[TreeNode, ...] | None:
    """Read all documents. Text that starts with `{` is JSON, everything else YAML (apimachinery's util/yaml.ToJSON).

    Several documents that are each in braces are YAML: no line of JSON text can be YAML's separator.

    Args:
        content: the text.
        findings: where findings go, including harmless ones: duplicate keys.

    Returns:
        None: the text can't be read to its end.
    """
    if _JSON_START.match(content) and not _SEPARATOR.search(content):
        return read_json(content, findings)
    return read_yaml(content, findings)
