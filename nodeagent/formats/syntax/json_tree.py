"""Reader of JSON text into trees with line numbers, with the limits of formats/syntax/yaml_tree.py.

JSON needs its own reader, because the YAML reader treats escaped surrogate pairs, tabs as indentation and numbers such as 1e3 differently.
"""

import json
import re

from nodeagent.formats.syntax.findings import Findings, shown
from nodeagent.formats.syntax.scalars import json_number
from nodeagent.formats.syntax.tree import MAX_DEPTH, ListNode, MapEntry, MapNode, Scalar, ScalarValue, TreeNode
from nodeagent.formats.syntax.yaml_tree import MAX_NODES, UnreadableError, checked_text

_BLANK = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,399})(?P<rest>(?:\.[0-9]{1,400})?(?:[eE][-+]?[0-9]{1,5})?)(?![0-9.eE])")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


def read_json(content: bytes, findings: Findings) -> tuple[TreeNode, ...] | None:
    """Read one JSON document, or several in a row. Duplicate keys are reported, and the first value counts.

    Returns:
        None if the text can't be read to its end.
    """
    documents: list[TreeNode] = []
    try:
        text = checked_text(content, findings)
        scanner = _Scanner(text, findings)
        while not scanner.at_end():
            documents.append(scanner.value(0))
    except UnreadableError:
        return None
    return tuple(documents)


class _Scanner:
    def __init__(self, text: str, findings: Findings) -> None:
        self._text = text
        self._findings = findings
        self._position = 0
        self._line = 1
        self._nodes = 0

    def at_end(self) -> bool:
        self._skip()
        return self._position == len(self._text)

    def value(self, depth: int) -> TreeNode:
        self._skip()
        self._nodes += 1
        if depth > MAX_DEPTH:
            raise self._abort(f"is nested deeper than {MAX_DEPTH} levels")
        if self._nodes > MAX_NODES:
            raise self._abort(f"has more than {MAX_NODES} values")
        line = self._line
        match self._peek():
            case "{":
                return self._object(line, depth)
            case "[":
                return self._list(line, depth)
            case '"':
                return Scalar(self._string(), line)
            case _:
                return Scalar(self._plain(), line)

    def _abort(self, allowed: str, value: str = "") -> UnreadableError:
        self._findings.add(self._line, "", value, allowed)
        return UnreadableError()

    def _skip(self) -> None:
        match = _BLANK.match(self._text, self._position)
        assert match is not None
        self._line += match[0].count("\n")
        self._position = match.end()

    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _take(self, wanted: str) -> bool:
        self._skip()
        if self._peek() != wanted:
            return False
        self._position += 1
        return True

    def _expect(self, wanted: str, where: str) -> None:
        if not self._take(wanted):
            found = shown(self._peek()) if self._peek() else "the end"
            raise self._abort(f"is not valid JSON: {wanted} is expected {where}, not {found}")

    def _object(self, line: int, depth: int) -> MapNode:
        entries: dict[str, MapEntry] = {}
        self._expect("{", "here")
        while not self._take("}"):
            if entries:
                self._expect(",", "between fields")
            self._skip()
            key_line = self._line
            if self._peek() != '"':
                raise self._abort(
                    "is not valid JSON, as which a text in braces is read: a field's name in double quotes is expected"
                )
            key = self._string()
            self._expect(":", "after a field's name")
            value = self.value(depth + 1)
            if key in entries:
                self._findings.add(key_line, "", shown(key), f"is given twice, first in line {entries[key].line}")
            else:
                entries[key] = MapEntry(key, value, key_line)
        return MapNode(tuple(entries.values()), line)

    def _list(self, line: int, depth: int) -> ListNode:
        items: list[TreeNode] = []
        self._expect("[", "here")
        while not self._take("]"):
            if items:
                self._expect(",", "between items")
            items.append(self.value(depth + 1))
        return ListNode(tuple(items), line)

    def _string(self) -> str:
        match = _STRING.match(self._text, self._position)
        if match is None:
            raise self._abort("is not valid JSON: a string has no end")
        try:
            text: str = json.loads(match[0])
        except json.JSONDecodeError as err:
            raise self._abort(f"is not valid JSON: {err.msg.removesuffix(' at')} in a string") from err
        self._position = match.end()
        if "\0" in text or (not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text)):
            raise self._abort("NUL characters and unpaired surrogates are not allowed")
        return text

    def _plain(self) -> ScalarValue:
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._position):
                self._position += len(word)
                return value
        match = _NUMBER.match(self._text, self._position)
        if match is None:
            raise self._abort("is not valid JSON: a value is expected")
        self._position = match.end()
        if not match["rest"]:
            return int(match[0])
        number = float(match[0])
        if abs(number) == float("inf"):
            raise self._abort("is not a finite number", shown(match[0]))
        return json_number(number)
