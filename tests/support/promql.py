"""What a PromQL expression asks for: metrics with their label matchers, and the labels that it groups by. Reads tokens, not grammar.

Every name that is no known function, operator or label is a metric: a misspelt one of either kind cannot hide. What isn't checked here:
whether operands, brackets and ranges stand where they must (`up ==`, `(up`, `sum by (job) up`) and are of the right type (`rate(up)`).
A Prometheus server says that of every rule and panel, and promtool of the rules, in integration/test_prometheus_live.py.
"""

import re
from dataclasses import dataclass

FUNCTIONS = frozenset(
    {"sum", "count", "min", "max", "avg", "rate", "increase", "delta", "histogram_quantile", "time", "label_values"}
)
_LISTS_LABELS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_OPERATORS = frozenset({"and", "or", "unless", "bool", "offset"})
_TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<string>"(?:[^"\\]|\\.)*")|(?P<range>\[[^\]]*\])|(?P<name>[a-zA-Z_:][\w:]*)|(?P<number>\d+(?:\.\d+)?)"""
    r"""|(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^(){},=<>])"""
)


@dataclass(frozen=True, slots=True)
class Matcher:
    label: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True)
class Selector:
    metric: str
    matchers: tuple[Matcher, ...]


@dataclass(frozen=True, slots=True)
class Query:
    selectors: tuple[Selector, ...]
    grouped_by: frozenset[str]
    """Labels in `by`, `on` and the like."""

    @property
    def metrics(self) -> frozenset[str]:
        return frozenset(selector.metric for selector in self.selectors)


def read(expression: str) -> Query:
    """Take a query apart. ValueError: it has something that no query has."""
    tokens = _tokens(expression)
    selectors: list[Selector] = []
    labels: set[str] = set()
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        at += 1
        if kind != "name" or text in _OPERATORS:
            continue
        following = tokens[at][1] if at < len(tokens) else ""
        if text in _LISTS_LABELS:
            if following == "(":
                inside, at = _until(")", tokens, at + 1)
                if any(kind != "name" and word != "," for kind, word in inside):
                    raise ValueError(f"no list of labels: {expression}")
                labels |= {word for _, word in inside if word != ","}
        elif text in FUNCTIONS:
            if following != "(" and following not in _LISTS_LABELS:
                raise ValueError(f"{text} is a function: {expression}")
        elif following == "(":
            raise ValueError(f"no function {text}: {expression}")
        elif following == "{":
            inside, at = _until("}", tokens, at + 1)
            selectors.append(Selector(text, _matchers(inside, expression)))
        else:
            selectors.append(Selector(text, ()))
    return Query(tuple(selectors), frozenset(labels))


def _tokens(expression: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while at < len(expression):
        token = _TOKEN.match(expression, at)
        if token is None:
            raise ValueError(f"no token at {expression[at:]!r}")
        at = token.end()
        assert token.lastgroup is not None
        if token.lastgroup != "space":
            found.append((token.lastgroup, token[0]))
    return found


def _until(end: str, tokens: list[tuple[str, str]], at: int) -> tuple[list[tuple[str, str]], int]:
    for index in range(at, len(tokens)):
        if tokens[index][1] == end:
            return tokens[at:index], index + 1
    raise ValueError(f"{end} is missing")


def _matchers(inside: list[tuple[str, str]], expression: str) -> tuple[Matcher, ...]:
    words = [token for token in inside if token != ("sign", ",")]
    made = []
    for index in range(0, len(words), 3):
        kinds = [kind for kind, _ in words[index : index + 3]]
        if kinds != ["name", "sign", "string"]:
            raise ValueError(f"no matchers: {expression}")
        (_, label), (_, operator), (_, value) = words[index : index + 3]
        made.append(Matcher(label, operator, value[1:-1]))
    return tuple(made)
