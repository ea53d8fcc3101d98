"""Errors in text written by people, in any format. Each error states the place, the wrong value and the allowed values."""

import json
from collections.abc import Iterable

from msgspec import Struct

from nodeagent.errors import NodeAgentError, printable

MAX_FINDINGS = 100
"""Maximum number of findings of a file. Nobody would read more, and a hostile file could fill the log with a finding for each byte.
"""
_MAX_SHOWN = 80
_MAX_FIELD = 200
_MAX_NAMES = 20


class Finding(Struct, frozen=True, order=True):
    """One error that the author of a text has to correct."""

    source: str
    """File name as the caller gave it."""
    line: int | None
    """Line number, counted from 1. None means that the document wasn't read from a text."""
    field: str
    """Path in Kubernetes' notation, such as `spec.containers[0].resources.limits[cpu]`. Empty means the whole document."""
    value: str
    """Wrong value, shortened and with control characters escaped. Empty if the value would not help the author or is secret."""
    allowed: str
    words: str = ""
    """Kubelet's message for this error. Empty if the wrong value and the allowed values say enough."""

    @property
    def message(self) -> str:
        """Text of the error without its place."""
        return self.words or ": ".join(part for part in (self.value, self.allowed) if part)

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return ": ".join(part for part in (where, self.field, self.message) if part)


class DocumentError(NodeAgentError):
    """A document contains errors, although the caller needs a valid one."""

    def __init__(self, findings: Iterable[Finding], *, hint: str | None = None) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(map(str, self.findings)), hint=hint or f"fix {self.findings[0].source}")


def shown(value: object) -> str:
    """Format a value for a finding as one line of limited length, without control characters."""
    text = json.dumps(value[:_MAX_SHOWN] if isinstance(value, str) else value, ensure_ascii=True, default=str)
    return printable(text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…")


def list_names(names: Iterable[str]) -> str:
    """List names that occur in a text, each name once. Long names are shortened. A long list ends with the number of names left out."""
    listed = [printable(name[:_MAX_SHOWN]) for name in dict.fromkeys(names)]
    further = [f"{len(listed) - _MAX_NAMES} more"] if len(listed) > _MAX_NAMES else []
    return ", ".join((*listed[:_MAX_NAMES], *further))


def _shorten(text: str) -> str:
    return printable(text if len(text) <= _MAX_FIELD else text[: _MAX_FIELD - 1] + "…")


class Findings:
    """Collection of the findings about one source, in the order of discovery."""

    def __init__(self, source: str, unknown: "Findings | None" = None) -> None:
        """Create an empty collection. `unknown` collects unknown fields if they don't count as errors."""
        self.unknown = self if unknown is None else unknown
        self._source = source
        self._found: list[Finding] = []
        self._fields: set[str] = set()
        self._suppressed = 0

    def add(self, line: int | None, field: str, value: str, allowed: str, words: str = "") -> None:
        self._fields.add(field)
        finding = Finding(self._source, line, _shorten(field), _shorten(value), printable(allowed), printable(words))
        if finding in self._found:
            return  # if a field is read twice, its finding is only reported once
        if len(self._found) < MAX_FINDINGS:
            self._found.append(finding)
        else:
            self._suppressed += 1

    def add_another(self) -> None:
        """Count a finding beyond the limit, without its text."""
        assert self.full()
        self._suppressed += 1

    def fields(self) -> frozenset[str]:
        """Return the paths of the fields with a finding."""
        return frozenset(self._fields - {""})

    def full(self) -> bool:
        """Tell whether the collection has reached MAX_FINDINGS. Further findings are only counted."""
        return len(self._found) >= MAX_FINDINGS

    def __bool__(self) -> bool:
        return bool(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def all(self) -> tuple[Finding, ...]:
        """Return the findings sorted by line. If there are more than MAX_FINDINGS, a last finding tells how many are missing."""
        found = sorted(self._found, key=lambda f: f.line or 0)
        if self._suppressed:
            found.append(Finding(self._source, None, "", "", f"and {self._suppressed} more findings"))
        return tuple(found)
