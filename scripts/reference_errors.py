# ruff: noqa: INP001 - a part of scripts/reference.py
"""Reads out of the source what commands and agent say when something outside is wrong: message and next step, by kind of error."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "nodeagent"
_BASE = "NodeAgentError"
_START = "StartRefused"
_BY_CASE = "(by case)"
_OTHER = "…"


@dataclass(frozen=True, slots=True)
class Said:
    """A message with its next step; what is filled in stands as `…`. Empty: it is passed on from elsewhere."""

    message: str
    hint: str


def errors() -> str:
    """Give the page."""
    kinds = dict(sorted(_kinds().items(), key=lambda item: item[1].lower()))
    said = _said(set(kinds))
    starts = sorted({(one.message, one.hint) for tree in _trees() for _, one in _of_calls(tree, {_START}, tree)})
    sections = []
    for kind, purpose in kinds.items():
        rows = dict.fromkeys(f"| {_cell(one.message)} | {_cell(one.hint)} |" for one in said.get(kind, []))
        if rows:
            sections.append(f"## {purpose}\n\n| message | next step |\n| --- | --- |\n" + "\n".join(rows) + "\n")
    return (
        """\
# Errors

What can go wrong outside the program. Errors appear on stderr, in the journal of `nodeagent.service`, and as problems in `nodeagent
inspect`. The message names the file or thing and its value; the line after it, `hint:`, has the next step. `…` stands for variable parts.
A refused pod is not an error: see [Refusals](refusals.md). Errors in configurations and manifests are all reported at once, with lines.

"""
        + "\n".join(sections)
        + "\n## Configuration, machine and state don't match\n\n"
        "Why a start is refused; in kubelet's words if kubelet refuses it too and they are about the configuration. "
        "The last column names the configuration field or the file.\n\n"
        "| message | field or file |\n| --- | --- |\n"
        + "".join(f"| {_cell(message)} | {_cell(about)} |\n" for message, about in starts)
    )


def list_hints() -> list[str]:
    """Give every next step that the source has as a text, those in tables `_HINTS` among them."""
    found = {one.hint for said in _said(set(_kinds())).values() for one in said}
    for tree in _trees():
        for node in tree.body:
            if (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == "_HINTS"
                and isinstance(node.value, ast.Dict)
            ):
                found |= {_texts(value, {})[0] for value in node.value.values}
    return sorted(found - {_BY_CASE, _OTHER})


@cache
def _trees() -> tuple[ast.Module, ...]:
    return tuple(ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py")))


@cache
def _nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def _kinds() -> dict[str, str]:
    """Give every class of errors with what its docstring says."""
    bases: dict[str, tuple[str, ...]] = {}
    purpose: dict[str, str] = {}
    for tree in _trees():
        for node in _nodes(tree):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = tuple(ast.unparse(base) for base in node.bases)
                purpose[node.name] = (ast.get_docstring(node) or "").partition("\n")[0].partition(". ")[0].rstrip(".")
    found = {_BASE}
    while more := {name for name, above in bases.items() if found & set(above)} - found:
        found |= more
    return {name: purpose[name] for name in found - {_BASE}}


def _said(kinds: set[str]) -> dict[str, list[Said]]:
    """Give what is written where an error is made: with its class, or in the class itself."""
    found: dict[str, list[Said]] = {}
    for tree in _trees():
        for kind, one in _of_calls(tree, kinds, tree):
            found.setdefault(kind, []).append(one)
        for node in _nodes(tree):
            if isinstance(node, ast.ClassDef) and node.name in kinds:
                found.setdefault(node.name, [])[:0] = [one for _, one in _of_calls(node, {"__init__"}, tree)]
    return found


def _of_calls(outer: ast.AST, names: set[str], tree: ast.Module) -> Iterator[tuple[str, Said]]:
    constants = _constants(tree)
    for node in _nodes(outer):
        if isinstance(node, ast.Call) and _name(node.func) in names and node.args:
            hints = [keyword.value for keyword in node.keywords if keyword.arg == "hint"] or node.args[1:2]
            plain = [keyword.value for keyword in node.keywords if keyword.arg == "plain"]
            ours = [one for one in plain if isinstance(one, ast.Constant | ast.JoinedStr)]
            for message in _texts((ours or node.args)[0], constants):
                for hint in _texts(hints[0], constants) if hints else [_OTHER]:
                    if re.search(r"[a-z]{3}.* ", message):
                        yield _name(node.func), Said(message, _BY_CASE if hint == _OTHER else hint)


def _constants(tree: ast.Module) -> dict[str, str]:
    """Give a module's texts that have a name."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _texts(node: ast.expr, constants: Mapping[str, str]) -> list[str]:
    """Give what an expression may say."""
    match node:
        case ast.Constant(value=str() as text):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(_texts(part, constants)[0] for part in parts)]
        case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
            return _texts(inner, constants)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [_texts(left, constants)[0] + _texts(right, constants)[0]]
        case ast.IfExp(body=first, orelse=second):
            return [*_texts(first, constants), *_texts(second, constants)]
        case ast.Name(id=name):
            return [constants.get(name, _OTHER)]
        case _:
            return [_OTHER]


def _cell(text: str) -> str:
    """Let Markdown show a text as it is, but for what stands in backquotes."""
    parts = re.split(r"(`[^`]*`)", re.sub(r"\s*\n\s*", " ", text).replace("|", "\\|"))
    return "".join(part if part.startswith("`") else re.sub(r"([*_<])", r"\\\1", part) for part in parts)
