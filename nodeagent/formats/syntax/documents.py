"""Parser of a file's text into one tree for each document, as YAML or JSON by kubelet's rule."""

import re

from nodeagent.formats.syntax.findings import Findings
from nodeagent.formats.syntax.json_tree import read_json
from nodeagent.formats.syntax.tree import TreeNode
from nodeagent.formats.syntax.yaml_tree import read_yaml

_SEPARATOR = re.compile(rb"^---(?:\s|$)", re.MULTILINE)
_TEMPLATE = b"{{"
"""Start of an action in a Helm template. Unrendered templates are usually neither valid YAML nor valid JSON."""
_JSON_START = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*\{")


def read_documents(content: bytes, findings: Findings) -> tuple[TreeNode, ...] | None:
    """Read all documents. Text that starts with `{` is JSON, everything else YAML (apimachinery's util/yaml.ToJSON).

    A text with YAML's document separator is YAML even if it starts with `{`, because JSON has no such line.

    Returns:
        None if the text can't be read to its end.
    """
    read = read_json if _JSON_START.match(content) and not _SEPARATOR.search(content) else read_yaml
    documents = read(content, findings)
    if documents is None and (start := content.find(_TEMPLATE)) >= 0:
        line = content.count(b"\n", 0, start) + 1
        findings.add(line, "", "", "a template starts here: render the file first, for example with `helm template`")
    return documents
