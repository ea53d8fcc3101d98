"""Translator of a KubeletConfiguration into a nodeagent configuration with the same effect. Unused fields become comments.

The file's lines, order and comments are kept wherever possible.
"""

import re
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.config import Config
from nodeagent.formats.config.config_text import KIND
from nodeagent.formats.config.config_yaml import parse_config
from nodeagent.formats.config.configuration_sources import read_configuration
from nodeagent.formats.syntax.findings import DocumentError, Findings
from nodeagent.formats.syntax.tree import ListNode, MapNode, Number, Scalar, TreeNode
from nodeagent.formats.syntax.yaml_lines import yaml_lines

_NO_USE = "not used here"
_STATIC_PODS = "kubelet's own pods: set nodeagent's directory, or keep the default /etc/nodeagent/manifests"
_ANCHOR = re.compile(r"(^|[\s\[{,:-])[&*]\w")
_KINDS = {"apiVersion", "kind"}
_SECRET = {"staticPodURLHeader"}
"""Kubelet fields that may contain passwords. Their values are left out, because more users may be able to read the new file.
"""


class Migration(Struct, frozen=True):
    text: str
    config: Config
    """Configuration that was parsed from the text."""
    kept: tuple[str, ...]
    commented: tuple[str, ...]
    """Names of the top-level fields that became comments."""
    notes: tuple[str, ...]
    """Notes on the used and unused parts of a file that contains more than a configuration."""
    partly_used: tuple[str, ...]
    """Names of ignored parts of fields that were kept, such as `evictionHard[nodefs.available]`."""


def migrate_config(content: bytes, source: str) -> Migration:
    """Translate a KubeletConfiguration.

    Raises:
        DocumentError: the file is invalid, or an unsupported field would affect placement.
    """
    before = parse_config(content, source)
    found = read_configuration(content, Findings(source))
    assert found is not None, "parse_config has read it"
    root = found.root
    assert isinstance(root, MapNode), "parse_config has read it"
    reported = set(before.reported_fields)
    reasons = {entry.key: _NO_USE for entry in root if entry.key in reported}
    reasons |= {entry.key: _STATIC_PODS for entry in root if entry.key == "staticPodPath"}
    wanted = replace(before, static_pod_path=Config().static_pod_path, reported_fields=(), notes=())
    text = _edit_lines(content, root, reasons) if found.is_document else None
    try:
        # the line-by-line edit may have broken the text, for instance if it has several fields on one line
        is_same = text is not None and replace(parse_config(text.encode(), ""), reported_fields=(), notes=()) == wanted
    except DocumentError:
        is_same = False
    if text is None or not is_same:
        lines = [f"kind: {KIND}"]
        for entry in root:
            own = yaml_lines({entry.key: _to_plain_value(entry.value)})
            if entry.key in reasons:
                lines += _format_comments(entry.key, reasons[entry.key], own)
            elif entry.key not in _KINDS:
                lines += own
        text = "\n".join(lines) + "\n"
    return Migration(
        text=text,
        config=parse_config(text.encode(), source),
        kept=tuple(entry.key for entry in root if entry.key not in reasons and entry.key not in _KINDS),
        commented=tuple(reasons),
        notes=found.notes,
        partly_used=tuple(name for name in before.reported_fields if name not in reasons),
    )


def _edit_lines(content: bytes, root: MapNode, reasons: dict[str, str]) -> str | None:
    """Edit the text line by line. None means that this isn't possible, because fields share lines or use anchors."""
    lines = content.decode("utf-8-sig").splitlines()
    starts = [entry.line for entry in root]
    if None in starts or len(set(starts)) < len(starts) or not root.entries:
        return None
    begins = [start - 1 for start in starts if start is not None]
    if any(lines[start][:1].isspace() or lines[start][:1] in {"{", "-", "?", '"'} for start in begins):
        return None
    if any(_ANCHOR.search(line) for line in lines):
        return None
    # If a file has several documents, only one of them is the configuration.
    ends = [number for number, line in enumerate(lines) if line[:3] in {"---", "..."}]
    end = next((number for number in ends if number > begins[-1]), len(lines))
    head = lines[: begins[0]]
    if any(line.strip() and not line.lstrip().startswith(("#", "---")) for line in head):
        before = [number for number in ends if number < begins[0]]
        if not before:
            return None
        head = head[before[-1] :]
    result = [line for line in head if line.strip() != "---"]
    result.append(f"kind: {KIND}")
    for entry, start, stop in zip(root, begins, [*begins[1:], end], strict=True):
        own = lines[start:stop]
        after: list[str] = []
        while own[-1].lstrip().startswith("#") or not own[-1].strip():
            after.insert(0, own.pop())
        if entry.key in reasons:
            result += _format_comments(entry.key, reasons[entry.key], own)
        elif entry.key not in _KINDS:
            result += own
        result += after
    return "\n".join(result) + "\n"


def _format_comments(key: str, reason: str, own: list[str]) -> list[str]:
    return [f"# {reason}:", *(f"# {line}" for line in ([f"{key}: value omitted"] if key in _SECRET else own))]


def _to_plain_value(node: TreeNode) -> Any:
    match node:
        case Scalar(value=Number(text=text)):
            return text
        case Scalar(value=value):
            return value
        case ListNode(items=items):
            return [_to_plain_value(item) for item in items]
        case MapNode():
            return {entry.key: _to_plain_value(entry.value) for entry in node}
