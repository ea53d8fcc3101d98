"""Reader of YAML text into trees with line numbers, with limits on size, depth, nodes and aliases.

This module reads the parser's events instead of using PyYAML's composer, which recurses per level and expands `a: &a
[*a]` forever.
"""

import re
from collections.abc import Iterator

import yaml
from msgspec import Struct, field

from nodeagent.formats.syntax.findings import Findings, shown
from nodeagent.formats.syntax.scalars import ScalarError, resolve
from nodeagent.formats.syntax.tree import MAX_DEPTH, ListNode, MapEntry, MapNode, Scalar, ScalarValue, TreeNode

MAX_BYTES = 1 << 20
"""Maximum size of a text. Objects in the API server have at most 1.5 MiB (etcd's request limit); a pod has a few KiB."""
MAX_NODES = 100_000
"""Maximum number of nodes in the trees of a text. Each use of an alias counts with all nodes of its anchor."""
MAX_ALIASES = 1_000
_MAX_DIRECTIVES = 8

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MERGE = "<<"
_TAB = "\t"
_STANDARD = "tag:yaml.org,2002:"
_TYPES: dict[str, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "null": (type(None),)}


_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels"
_TAGS = "tags are not supported (quote it if ! is meant as text)"


def _show_tag(tag: str) -> str:
    return shown(tag) if tag.startswith(_STANDARD) else ""


class _Open(Struct):
    """A mapping or sequence whose end event has not been read."""

    line: int
    anchor: str | None
    is_map: bool
    size: int = 1
    height: int = 1
    items: list[TreeNode] = field(default_factory=list)
    entries: dict[str, MapEntry] = field(default_factory=dict)
    merged: dict[str, MapEntry] = field(default_factory=dict)
    """The key-value pairs that `<<` merges into this mapping."""
    key: tuple[str, int] | None = None
    """The key of the next value, with the key's line."""


class _Built(Struct, frozen=True):
    """A finished node with its number of nodes and its height, to which the limits apply."""

    node: TreeNode
    size: int
    height: int


class UnreadableError(Exception):
    """The rest of a text can't be read. The reason has already been added to the findings."""


def read_yaml(content: bytes, findings: Findings) -> tuple[TreeNode, ...] | None:
    """Read all documents of a YAML stream. Empty documents are left out. Duplicate keys are reported, and the first
    value counts.

    Returns:
        None if the text can't be read to its end.
    """
    try:
        return tuple(_Builder(findings).documents(_events(checked_text(content, findings), findings)))
    except UnreadableError:
        return None


def checked_text(content: bytes, findings: Findings) -> str:
    """Decode a text as UTF-8. Refuse a text that is too large or has control characters."""
    if len(content) > MAX_BYTES:
        findings.add(1, "", "", f"is larger than {MAX_BYTES} bytes")
        raise UnreadableError
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        findings.add(content.count(b"\n", 0, err.start) + 1, "", "", "is not UTF-8 here")
        raise UnreadableError from err
    bad = _UNPRINTABLE.search(text)
    if bad is not None:
        line = text.count("\n", 0, bad.start()) + 1
        findings.add(line, "", f"U+{ord(bad[0]):04X}", "control characters are not allowed")
        raise UnreadableError
    return text


def _events(text: str, findings: Findings) -> Iterator[yaml.Event]:
    # libyaml compares every %TAG directive with all others, so their number is limited before parsing.
    directives = [number for number, line in enumerate(text.split("\n"), 1) if line.startswith("%")]
    if len(directives) > _MAX_DIRECTIVES:
        findings.add(directives[_MAX_DIRECTIVES], "", "", f"is more than {_MAX_DIRECTIVES} lines that start with %")
        raise UnreadableError
    # libyaml is ten times faster than PyYAML's own parser and part of every wheel. Both yield the same events.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        yield from yaml.parse(text, Loader=loader)
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark or err.context_mark
        # PyYAML counts the end of a text as a separate line.
        line = 1 if mark is None else min(mark.line, text.rstrip("\n").count("\n")) + 1
        wrong = text.split("\n")[line - 1]
        indent = wrong[: len(wrong) - len(wrong.lstrip())]
        reason = f"is not valid YAML: {err.problem or err.context}"
        if "nesting depth" in (err.problem or ""):
            reason = _TOO_DEEP  # since 0.2.6, libyaml has a limit of its own, which may apply first
        elif _TAB in indent:
            reason = f"a tab in column {indent.index(_TAB) + 1} indents this line: YAML takes spaces only"
        findings.add(line, "", "", reason)
        raise UnreadableError from err
    except yaml.YAMLError as err:
        findings.add(1, "", "", f"is not valid YAML: {err}")
        raise UnreadableError from err


class _Builder:
    """Builder of trees from events, without recursion."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._nodes = 0
        self._aliases = 0
        self._open: list[_Open] = []
        self._anchors: dict[str, _Built | None] = {}
        """Finished node for each anchor. None means that the anchored node is still open."""
        self._done: list[TreeNode] = []

    def documents(self, events: Iterator[yaml.Event]) -> Iterator[TreeNode]:
        for event in events:
            assert event.start_mark is not None
            line = event.start_mark.line + 1
            match event:
                case yaml.DocumentStartEvent():
                    self._anchors.clear()
                case yaml.DocumentEndEvent():
                    root = self._done.pop() if self._done else Scalar(None, line)
                    if root != Scalar(None, root.line):
                        yield root
                case yaml.AliasEvent():
                    self._place(self._resolve_alias(event.anchor, line), line)
                case yaml.ScalarEvent():
                    self._count(1, line)
                    built = _Built(Scalar(self._scalar(event, line), line), 1, 0)
                    if event.anchor:
                        self._anchors[event.anchor] = built
                    self._place(built, line)
                case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                    self._start(event, line)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    done = self._open.pop()
                    entries = tuple((done.merged | done.entries).values())
                    node = MapNode(entries, done.line) if done.is_map else ListNode(tuple(done.items), done.line)
                    built = _Built(node, done.size, done.height)
                    if done.anchor:
                        self._anchors[done.anchor] = built
                    self._place(built, done.line)

    def _abort(self, line: int | None, allowed: str, value: str = "") -> UnreadableError:
        self._findings.add(line, "", value, allowed)
        return UnreadableError()

    def _count(self, nodes: int, line: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise self._abort(line, f"has more than {MAX_NODES} values, aliases counted in full")

    def _start(self, event: yaml.CollectionStartEvent, line: int) -> None:
        is_map = isinstance(event, yaml.MappingStartEvent)
        if event.tag not in (None, "!", _STANDARD + ("map" if is_map else "seq")):
            raise self._abort(line, _TAGS, _show_tag(event.tag))
        if self._open and self._open[-1].is_map and self._open[-1].key is None:
            raise self._abort(line, "a key must be a plain value")
        self._count(1, line)
        self._open.append(_Open(line, event.anchor, is_map))
        if len(self._open) > MAX_DEPTH:
            raise self._abort(line, _TOO_DEEP)
        if event.anchor:
            self._anchors[event.anchor] = None

    def _resolve_alias(self, anchor: str | None, line: int) -> _Built:
        self._aliases += 1
        if self._aliases > MAX_ALIASES:
            raise self._abort(line, f"has more than {MAX_ALIASES} aliases")
        if anchor is None or anchor not in self._anchors:
            # The message doesn't show names of anchors and custom tags, because such a name may be an unquoted password.
            raise self._abort(line, "refers to an anchor that doesn't exist (quote it if * is meant as text)")
        built = self._anchors[anchor]
        if built is None:
            raise self._abort(line, "contains itself", shown(anchor))
        self._count(built.size, line)
        if len(self._open) + built.height > MAX_DEPTH:
            raise self._abort(line, _TOO_DEEP)
        return built

    def _place(self, built: _Built, line: int) -> None:
        """Add a finished node to the innermost open collection."""
        if not self._open:
            self._done.append(built.node)
            return
        parent = self._open[-1]
        parent.size += built.size
        parent.height = max(parent.height, built.height + 1)
        if not parent.is_map:
            parent.items.append(built.node)
        elif parent.key is None:
            match built.node:
                case Scalar(value=bool() as flag):
                    parent.key = "true" if flag else "false", line
                case Scalar(value=str() | int() as value):
                    parent.key = str(value), line
                case _:
                    raise self._abort(line, "a key must be a string")
        else:
            self._add_entry(parent, *parent.key, built.node)
            parent.key = None

    def _add_entry(self, parent: _Open, key: str, line: int, value: TreeNode) -> None:
        if key == _MERGE:
            # If several merged maps have a key, the first one counts. Entries of `parent` itself override merged entries.
            for source in value.items if isinstance(value, ListNode) else (value,):
                if not isinstance(source, MapNode):
                    raise self._abort(line, "<< needs a map, or a list of maps")
                for entry in source:
                    parent.merged.setdefault(entry.key, entry)
        elif key in parent.entries:
            self._findings.add(line, "", shown(key), f"is given twice, first in line {parent.entries[key].line}")
        else:
            parent.entries[key] = MapEntry(key, value, line)

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> ScalarValue:
        text: str = event.value
        if event.tag in (None, "!"):
            if not event.implicit[0]:
                if "\0" in text:
                    raise self._abort(line, "a NUL character is not allowed")
                return text
            return self._resolve_scalar(text, line)
        kind = event.tag.removeprefix(_STANDARD)
        if kind == "str":
            return text
        if kind not in _TYPES or event.tag == kind:
            raise self._abort(line, _TAGS, _show_tag(event.tag))
        value = self._resolve_scalar(text, line)
        if type(value) not in _TYPES[kind]:
            raise self._abort(line, f"is not a {kind}")
        return value

    def _resolve_scalar(self, text: str, line: int) -> ScalarValue:
        try:
            return resolve(text)
        except ScalarError as err:
            raise self._abort(line, str(err), shown(text)) from err
