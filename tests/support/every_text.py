"""Finds in a module's source the texts that it may say, as patterns, so that a test can ask for each to have been said."""

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True)
class Text:
    where: str
    pattern: str

    def is_in(self, said: Iterable[str]) -> bool:
        return any(re.search(self.pattern, one, re.DOTALL) for one in said)


def texts(module: ModuleType, calls: Mapping[str, int]) -> list[Text]:
    """Give every text that is written at a call.

    Args:
        module: whose source is read.
        calls: name of a function, method or class → which of its arguments is the text. What is only passed on is left out.

    """
    tree = ast.parse(Path(str(module.__file__)).read_text())
    found = []
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        local = _assigned(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and _name(node) in calls and len(node.args) > calls[_name(node)]:
                argument = node.args[calls[_name(node)]]
                found += [Text(f"{module.__name__}:{node.lineno}", p) for p in _patterns(argument, local)]
    return found


def hints(module: ModuleType) -> list[Text]:
    """Give every next step that is written in a module: as a `hint=`, or in a table `_HINTS`. What is filled in is left out."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    found = []
    for node in ast.walk(tree):
        values: list[ast.expr] = []
        match node:
            case ast.keyword(arg="hint", value=value):
                values = [value]
            case ast.Assign(targets=[ast.Name(id="hint" | "_HINT" | "way_out")], value=value):
                values = [value]
            case ast.Assign(targets=[ast.Name(id="_HINTS" | "_NEXT_STEPS")], value=ast.Dict(values=several)):
                values = several
        found += [Text(f"{module.__name__}:{v.lineno}", _shown(v)) for v in values if _shown(v)]
    return found


def _shown(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_shown(part) or "X" for part in parts)
        case ast.BinOp(left=left, right=right):
            return _shown(left) + _shown(right)
        case _:
            return ""


def calls_of(module: ModuleType, name: str) -> int:
    """Count the places where something is called."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    return sum(isinstance(node, ast.Call) and _name(node) == name for node in ast.walk(tree))


def unsaid(expected: Iterable[Text], said: Iterable[str]) -> list[Text]:
    """Give the texts that nobody has said."""
    everything = tuple(said)
    return [text for text in expected if not text.is_in(everything)]


def _assigned(function: ast.FunctionDef) -> dict[str, list[ast.expr]]:
    """What a name may stand for within a function."""
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values.setdefault(node.targets[0].id, []).append(node.value)
    return values


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _patterns(node: ast.expr, local: Mapping[str, list[ast.expr]]) -> list[str]:
    match node:
        case ast.Constant(value=str()) | ast.JoinedStr() | ast.BinOp(op=ast.Add()):
            return [_pattern(node)] if len(_constant(node)) > 0 else []
        case ast.IfExp(body=first, orelse=second):
            return [*_patterns(first, local), *_patterns(second, local)]
        case ast.Name(id=name):
            return [pattern for value in local.get(name, []) for pattern in _patterns(value, {})]
        case _:
            return []


def _pattern(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str() as text):
            return re.escape(text)
        case ast.JoinedStr(values=parts):
            return "".join(map(_pattern, parts))
        case ast.BinOp(left=left, right=right):
            return _pattern(left) + _pattern(right)
        case _:
            return ".*?"


def _constant(node: ast.expr) -> str:
    return re.sub(r"\.\*\?", "", _pattern(node))
