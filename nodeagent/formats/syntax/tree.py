"""A document as a tree of values with their line numbers, made from YAML, JSON or plain values."""

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal

from msgspec import Struct

MAX_DEPTH = 64
"""Maximum number of nested levels. A pod needs about a dozen."""


class Number(Struct, frozen=True):
    """A number that isn't a plain integer, as Go prints it in JSON. Kubernetes reads quantities from this text."""

    text: str

    @classmethod
    def of(cls, value: float) -> "Number":
        # Go's encoding/json prints as few digits as possible: in fixed notation from 1e-6 to 1e21, otherwise with an exponent.
        size = abs(value)
        if size != 0 and (size < 1e-6 or size >= 1e21):
            mantissa, _, exponent = repr(value).partition("e")
            return cls(f"{mantissa}e{int(exponent):+03d}" if int(exponent) > 0 else f"{mantissa}e{int(exponent)}")
        fixed = format(Decimal(repr(value)), "f")
        return cls(fixed.removesuffix(".0"))


ScalarValue = str | int | bool | Number | None


class Scalar(Struct, frozen=True):
    value: ScalarValue
    line: int | None = None


class MapEntry(Struct, frozen=True):
    key: str
    value: "TreeNode"
    line: int | None = None
    """Line of the key in the text. None means that the tree wasn't read from a text."""


class MapNode(Struct, frozen=True):
    entries: tuple[MapEntry, ...] = ()
    line: int | None = None

    def get(self, key: str) -> "TreeNode | None":
        for entry in self.entries:
            if entry.key == key:
                return entry.value
        return None

    def __iter__(self) -> Iterator[MapEntry]:
        return iter(self.entries)


class ListNode(Struct, frozen=True):
    items: tuple["TreeNode", ...] = ()
    line: int | None = None


TreeNode = Scalar | MapNode | ListNode


Path = tuple[str | int, ...]
"""Path from the root to a value: field names and list indices."""


def line_at(root: TreeNode, path: Path) -> int | None:
    """Return the line of the value at a path, or of its nearest existing ancestor."""
    node, line = root, root.line
    for step in path:
        match node:
            case MapNode():
                entry = next((entry for entry in node if entry.key == step), None)
                if entry is None:
                    return line
                node, line = entry.value, entry.line
            case ListNode() if isinstance(step, int) and step < len(node.items):
                node = node.items[step]
                line = node.line
            case _:
                return line
    return line


def text_at(root: TreeNode, path: Path) -> str | None:
    """Return the text of the string or number at a path. None means that the path leads to no string or number."""
    node: TreeNode | None = root
    for step in path:
        match node:
            case MapNode() if isinstance(step, str):
                node = node.get(step)
            case ListNode() if isinstance(step, int) and step < len(node.items):
                node = node.items[step]
            case _:
                return None
    match node:
        case Scalar(value=Number(text=text)):
            return text
        case Scalar(value=str() | int() as value) if not isinstance(value, bool):
            return str(value)
        case _:
            return None


def kind_of(node: TreeNode) -> str:
    """Return the JSON type of a value with an article, such as `a string`, for findings."""
    match node:
        case MapNode():
            return "an object"
        case ListNode():
            return "a list"
        case Scalar(value=bool()):
            return "a boolean"
        case Scalar(value=int() | Number()):
            return "a number"
        case Scalar(value=str()):
            return "a string"
        case _:
            return "null"


def tree_of(value: object, depth: int = 0) -> TreeNode:
    """Create a tree without lines from the result of `json.loads`.

    Raises:
        ValueError: the value is nested too deeply or has no form in JSON.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    # most values have these types, and this check is faster than the check for a Mapping
    if value is None or isinstance(value, str | int):
        return Scalar(value)
    if isinstance(value, Mapping):
        return MapNode(tuple([MapEntry(str(key), tree_of(item, depth + 1)) for key, item in value.items()]))
    if isinstance(value, float) and math.isfinite(value):
        return Scalar(int(value) if value.is_integer() and abs(value) < 2**53 else Number.of(value))
    if isinstance(value, list | tuple):
        return ListNode(tuple([tree_of(item, depth + 1) for item in value]))
    raise ValueError(f"{value!r} has no JSON form")
