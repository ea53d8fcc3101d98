"""The files of contrib/ as values: rules, and the dashboard's queries."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CONTRIB = Path(__file__).parent.parent / "contrib"
METRICS_PAGE = CONTRIB.parent / "docs/reference/metrics.md"
PROMETHEUS = CONTRIB / "prometheus"


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    expression: str
    is_alert: bool
    texts: tuple[str, ...]
    """Annotations."""


@dataclass(frozen=True, slots=True)
class PanelQuery:
    panel: str
    expression: str
    legend: str


def rules() -> tuple[Rule, ...]:
    return tuple(
        Rule(
            rule.get("alert") or rule["record"],
            rule["expr"],
            "alert" in rule,
            tuple(rule.get("annotations", {}).values()),
        )
        for path in sorted(PROMETHEUS.glob("nodeagent.[ar]*.yml"))
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    )


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((CONTRIB / "grafana" / "nodeagent.json").read_text())
    return document


def panel_queries() -> tuple[PanelQuery, ...]:
    return tuple(
        PanelQuery(panel["title"], target["expr"], target["legendFormat"])
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    )


def filled_in(expression: str) -> str:
    """Replace Grafana's variables as Grafana does, for all nodes."""
    filled = expression.replace("$__rate_interval", "1m").replace("$instance", ".*")
    assert "$" not in filled, f"another variable in {expression}"
    return filled


def named_labels(text: str) -> frozenset[str]:
    """Labels that a legend or an annotation inserts."""
    return frozenset(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)[^}]*\}\}", text))
