"""Errors in a text that a person wrote: the place, the value, what is allowed. Knows no particular format."""

import json
from collections.abc import Iterable

from msgspec import Struct

from nodeagent.errors import NodeAgentError, printable

MAX_FINDINGS = 100
"""A hostile file has one finding per byte; nobody reads more than this, and it limits the log."""
_MAX_SHOWN = 80
_MAX_FIELD = 200


class Finding(Struct, frozen=True, order=True):
    """One thing to correct."""

    source: str
    """The file, as the caller names it."""
    line: int | None
    """Counted from 1; None: the document never was a text."""
    field: str
    """Path in Kubernetes' notation, such as `spec.containers[0].resources.limits[cpu]`; empty: the whole document."""
    value: str
    """The value, shortened and with control characters escaped; empty if it means nothing or must not be shown."""
    allowed: str
    words: str = ""
    """The text of another program, kubelet, where that is used; empty: the value and what is allowed suffice."""

    @property
    def message(self) -> str:
        """What is wrong, without where."""
        return self.words or ": ".join(part for part in (self.value, self.allowed) if part)

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return ": ".join(part for part in (where, self.field, self.message) if part)


class DocumentError(NodeAgentError):
    """A document that must be right is wrong."""

    def __init__(self, findings: Iterable[Finding], *, hint: str | None = None) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(map(str, self.findings)), hint=hint or f"correct {self.findings[0].source}")


def shown(value: object) -> str:
    """Spell a value for a finding: one line, bounded, nothing that a terminal could act on."""
    text = json.dumps(value[:_MAX_SHOWN] if isinstance(value, str) else value, ensure_ascii=True, default=str)
    return printable(text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…")


def _bounded(text: str) -> str:
    return printable(text if len(text) <= _MAX_FIELD else text[: _MAX_FIELD - 1] + "…")


class Findings:
    """Collects the findings about one source, in the order in which they are found."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._found: list[Finding] = []
        self._fields: set[str] = set()
        self._suppressed = 0

    def add(self, line: int | None, field: str, value: str, allowed: str, words: str = "") -> None:
        self._fields.add(field)
        finding = Finding(self._source, line, _bounded(field), _bounded(value), printable(allowed), printable(words))
        if finding in self._found:
            return  # a field that is read twice is wrong once
        if len(self._found) < MAX_FINDINGS:
            self._found.append(finding)
        else:
            self._suppressed += 1

    def add_another(self) -> None:
        """Count a finding that is not worth wording any more."""
        assert self.full()
        self._suppressed += 1

    def fields(self) -> frozenset[str]:
        """Paths that have a finding so far."""
        return frozenset(self._fields - {""})

    def full(self) -> bool:
        """Whether further findings would only be counted: no need to word them."""
        return len(self._found) >= MAX_FINDINGS

    def __bool__(self) -> bool:
        return bool(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def all(self) -> tuple[Finding, ...]:
        """By line, then as found; the last one says how many more there are."""
        found = sorted(self._found, key=lambda f: f.line or 0)
        if self._suppressed:
            found.append(Finding(self._source, None, "", "", f"and {self._suppressed} more findings"))
        return tuple(found)
