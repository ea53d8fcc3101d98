"""Strict reader of one object of a document, field by field. Wrong types, unknown names and refused fields become
findings.

This module knows how to read a field, but not which fields exist.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from nodeagent.core.model.pod import Resources
from nodeagent.core.model.quantity import Quantity, QuantitySyntaxError
from nodeagent.formats.syntax.findings import DocumentError, Findings, shown
from nodeagent.formats.syntax.quantity_words import explain_no_quantity
from nodeagent.formats.syntax.tree import ListNode, MapNode, Number, Scalar, TreeNode, kind_of, tree_of

T = TypeVar("T")

MAX_RESOURCES = 64
"""Maximum number of resources in a resource list, because lookups in the list are linear."""


_SIMILAR, _MISTYPED = 0.6, 0.8
"""Lowest similarities (difflib) at which a known name is suggested, and at which an unknown name counts as a typing error."""


class Fields:
    """Reader of one object. `close` reports every field that was neither read nor passed to `unused`."""

    def __init__(
        self, node: MapNode, path: str, findings: Findings, *, keyed: bool = False, secret: bool = False
    ) -> None:
        """Create a reader of `node`.

        Args:
            node: the object.
            path: the path shown in findings.
            findings: collects the findings.
            keyed: whether the object is a map with arbitrary keys, written `path[key]`.
            secret: whether to leave names of unknown fields out of findings, because they may be pieces of an unquoted
                secret value.
        """
        self.path = path
        self._keyed = keyed
        self._secret = secret
        self.line = node.line
        self._entries = node.entries
        # Null counts as missing, as in Kubernetes' decoder.
        self._values = {
            entry.key: entry.value
            for entry in node.entries
            if not isinstance(entry.value, Scalar) or entry.value.value is not None
        }
        self._findings = findings
        self.known: set[str] = set()
        """Names of the fields that were read or declared unused."""
        self._unused: set[str] = set()

    def at(self, key: str) -> str:
        """Return the path of a field of this object."""
        if self._keyed:
            return f"{self.path}[{key}]"
        return f"{self.path}.{key}" if self.path else key

    def line_of(self, key: str) -> int | None:
        """Return the line of a field, or the line of the object if the field is missing."""
        return next((entry.line for entry in self._entries if entry.key == key), self.line)

    def present(self) -> tuple[str, ...]:
        """Return the names of the fields with a value other than null, in text order."""
        return tuple(self._values)

    def has(self, key: str) -> bool:
        return self._node(key) is not None

    def report(self, key: str, allowed: str, value: object = None, words: str = "") -> None:
        """Add a finding about a field of this object. `words` is kubelet's message for this error, or empty if kubelet has none."""
        self._findings.add(self.line_of(key), self.at(key), "" if value is None else shown(value), allowed, words)

    def _node(self, key: str) -> TreeNode | None:
        """Return the value of a field, and mark the field as known, so that `close` doesn't report the field."""
        self.known.add(key)
        return self._values.get(key)

    def _wrong_type(self, path: str, node: TreeNode, wanted: str, *, secret: bool = False) -> None:
        plain = isinstance(node, Scalar) and not secret
        text = shown(_plain(node)) if plain and isinstance(node, Scalar) else ""
        self._findings.add(node.line, path, text, f"must be {wanted}, not {kind_of(node)}")

    def string(self, key: str, *, secret: bool = False, wanted: str = "a string (quote it)") -> str | None:
        """Read a string. `wanted` tells how to correct a number or a boolean."""
        node = self._node(key)
        if node is None:
            return None
        if isinstance(node, Scalar) and isinstance(node.value, str):
            return node.value
        self._wrong_type(self.at(key), node, wanted if isinstance(node, Scalar) else "a string", secret=secret)
        return None

    def integer(self, key: str, low: int, high: int) -> int | None:
        number = self._typed(key, int, "a whole number")
        if number is None or low <= number <= high:
            return number
        self.report(key, f"must be between {low} and {high}", number)
        return None

    def boolean(self, key: str) -> bool | None:
        return self._typed(key, bool, "true or false")

    def _typed(self, key: str, kind: type[T], wanted: str) -> T | None:
        node = self._node(key)
        if node is None:
            return None
        if isinstance(node, Scalar) and type(node.value) is kind:
            return node.value
        self._wrong_type(self.at(key), node, wanted)
        return None

    def one_of(self, key: str, values: Iterable[str]) -> str | None:
        text = self.string(key)
        allowed = tuple(values)
        if text is None or text in allowed:
            return text
        self.report(key, f"must be one of {', '.join(allowed)}", text)
        return None

    def object(self, key: str, *, keyed: bool = False) -> "Fields | None":
        node = self._node(key)
        if node is None:
            return None
        if isinstance(node, MapNode):
            return Fields(node, self.at(key), self._findings, keyed=keyed)
        self._wrong_type(self.at(key), node, "an object")
        return None

    def _read_items(self, key: str, wanted: str, *, secret: bool = False) -> tuple[TreeNode, ...]:
        node = self._node(key)
        if node is None:
            return ()
        if isinstance(node, ListNode):
            return node.items
        self._wrong_type(self.at(key), node, wanted, secret=secret)
        return ()

    def objects(self, key: str, *, secret: bool = False) -> tuple["Fields", ...]:
        found = []
        for index, item in enumerate(self._read_items(key, "a list of objects", secret=secret)):
            path = f"{self.at(key)}[{index}]"
            if isinstance(item, MapNode):
                found.append(Fields(item, path, self._findings, secret=secret))
            else:
                self._wrong_type(path, item, "an object", secret=secret)
        return tuple(found)

    def strings(self, key: str, *, secret: bool = False) -> tuple[str, ...]:
        found = []
        for index, item in enumerate(self._read_items(key, "a list of strings", secret=secret)):
            if isinstance(item, Scalar) and isinstance(item.value, str):
                found.append(item.value)
            else:
                self._wrong_type(f"{self.at(key)}[{index}]", item, "a string (quote it)", secret=secret)
        return tuple(found)

    def integers(self, key: str, low: int, high: int) -> tuple[int, ...] | None:
        """Read a list of whole numbers. None means that the field is missing or null."""
        if not self.has(key):
            return None
        found = []
        for index, item in enumerate(self._read_items(key, "a list of whole numbers")):
            if isinstance(item, Scalar) and type(item.value) is int and low <= item.value <= high:
                found.append(item.value)
            else:
                path = f"{self.at(key)}[{index}]"
                self._findings.add(item.line, path, "", f"must be a whole number between {low} and {high}")
        return tuple(found)

    def pairs(self, key: str) -> tuple[tuple[str, str], ...]:
        """Read a list of pairs of strings."""
        found = []
        for index, item in enumerate(self._read_items(key, "a list of pairs of strings")):
            texts = (
                [each.value for each in item.items if isinstance(each, Scalar)] if isinstance(item, ListNode) else []
            )
            match texts:
                case [str(first), str(second)]:
                    found.append((first, second))
                case _:
                    self._wrong_type(f"{self.at(key)}[{index}]", item, "a list of two strings")
        return tuple(found)

    def has_text(self, key: str) -> bool:
        """Tell whether the value of the field is a string. Needed for fields that accept several types."""
        node = self._values.get(key)
        return isinstance(node, Scalar) and isinstance(node.value, str)

    def string_map(self, key: str) -> tuple[tuple[str, str], ...]:
        """Read a map of strings, sorted by key."""
        return self._read_map(key, Fields.string)

    def booleans(self, key: str) -> tuple[tuple[str, bool], ...]:
        """Read a map of booleans, sorted by key."""
        return self._read_map(key, Fields.boolean)

    def _read_map(self, key: str, read: "Callable[[Fields, str], T | None]") -> tuple[tuple[str, T], ...]:
        inner = self.object(key, keyed=True)
        pairs = () if inner is None else [(name, read(inner, name)) for name in sorted(inner.present())]
        return tuple((name, value) for name, value in pairs if value is not None)

    def quantity(self, key: str) -> Quantity | None:
        """Read a quantity, given as a string or a number. A number is parsed from the text that Go prints for it."""
        node = self._node(key)
        if node is None:
            return None
        path = self.at(key)
        if not isinstance(node, Scalar) or isinstance(node.value, bool):
            self._wrong_type(path, node, "a quantity such as 2, 500m or 1Gi")
            return None
        text = str(_plain(node))
        try:
            return Quantity.parse(text)
        except QuantitySyntaxError:
            self._findings.add(node.line, path, shown(text), explain_no_quantity(text))
            return None

    def quantities(self, key: str) -> Resources:
        """Read a resource list. An entry with the value null is left out."""
        inner = self.object(key, keyed=True)
        if inner is None:
            return Resources()
        names = inner.present()
        if len(names) > MAX_RESOURCES:
            self.report(key, f"has more than {MAX_RESOURCES} entries")
            return Resources()
        amounts = {name: inner.quantity(name) for name in names}
        return Resources.of({name: amount for name, amount in amounts.items() if amount is not None})

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Report an error for each of these fields that has a value. `reasons` gives the reason for each field."""
        for key, reason in reasons.items():
            node = self._node(key)
            if node is not None and not _is_empty(node):
                self._findings.add(self.line_of(key), self.at(key), "", reason)

    def unused(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Accept these fields without reading them. Return the paths of those that have a value."""
        wanted = set(keys)
        self.known |= wanted
        self._unused |= wanted
        return tuple(
            self.at(entry.key) for entry in self._entries if entry.key in wanted and not _is_empty(entry.value)
        )

    def close(self) -> None:
        """Report every field that was not read, with the nearest known name. A name that is probably a typing error is an error even where
        unknown fields are allowed, because the value would be lost.
        """
        for entry in self._entries:
            if entry.key in self.known:
                continue
            findings, is_full = self._findings.unknown, self._findings.unknown.full()
            if self._secret:
                known = ", ".join(sorted(self.known))
                findings.add(entry.line, self.path, "", f"has an unknown field; known are {known}")
                continue
            if not is_full and _find_nearest(entry.key, self.known - self._unused, _MISTYPED):
                findings = self._findings
            meant = "" if is_full else suggest_nearest(entry.key, self.known)
            findings.add(entry.line, self.at(entry.key), "", f"unknown field{meant}")


def fields_of(document: Mapping[str, object], findings: Findings) -> Fields:
    """Create the reader of a document made of plain values.

    Raises:
        DocumentError: the document is nested too deeply or has a value that JSON can't express.
    """
    try:
        tree = tree_of(document)
    except ValueError as err:
        findings.add(None, "", "", str(err))
        raise DocumentError(findings.all()) from err
    assert isinstance(tree, MapNode)
    return Fields(tree, "", findings)


def suggest_nearest(name: str, known: Iterable[str]) -> str:
    """Return a suggestion of the most similar known name, for the end of a finding. The result is empty if no name is similar."""
    nearest = _find_nearest(name, known, _SIMILAR)
    return f", did you mean {nearest}?" if nearest else ""


def _find_nearest(name: str, known: Iterable[str], similarity: float) -> str | None:
    import difflib  # noqa: PLC0415 - only for a mistyped name

    by_folded = {candidate.casefold(): candidate for candidate in sorted(known)}
    close = difflib.get_close_matches(name[:64].casefold(), by_folded, n=1, cutoff=similarity)
    return by_folded[close[0]] if close else None


def _is_empty(node: TreeNode) -> bool:
    match node:
        case Scalar(value=None | ""):
            return True
        case MapNode(entries=()) | ListNode(items=()):
            return True
        case _:
            return False


def _plain(node: Scalar) -> str | int | bool | None:
    return node.value.text if isinstance(node.value, Number) else node.value
