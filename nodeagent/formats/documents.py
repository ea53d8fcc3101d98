"""Text of a file → its documents as trees, YAML or JSON as kubelet tells them apart. Knows no field names."""

import re

from nodeagent.formats.json_tree import parse_json
from nodeagent.formats.tree import Node
from nodeagent.formats.yaml_tree import parse_yaml

_SEPARATOR = re.compile(rb"^---(?:\s|$)", re.MULTILINE)
_JSON_START = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*\{")


def parse_documents(content: bytes, source: str) -> tuple[Node, ...]:
    """Read all documents. Text that starts with `{` is JSON, all else YAML (apimachinery's util/yaml.ToJSON).

    Several documents that are each in braces are YAML: no line of JSON text can be YAML's separator.

    Raises:
        DocumentError: the text can't be read; every finding has its line where there is one.
    """
    if _JSON_START.match(content) and not _SEPARATOR.search(content):
        return parse_json(content, source)
    return parse_yaml(content, source)
