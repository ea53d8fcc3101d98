"""The figures as JSON, as text and as the tables of docs/performance.md."""

import os
import platform
import re
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.goals import Row
from benchmarks.matrix import NODES, OPTIONS, Cell
from benchmarks.timing import REFERENCE_LOOP_MS, Clock

Document = dict[str, Any]


def document(clock: Clock, rows: Iterable[Row], cells: Iterable[Cell]) -> Document:
    measured = [
        {
            "group": row.group,
            "name": row.name,
            "measured": round(row.measured, 4),
            "calibrated": round(row.calibrated, 4),
            "unit": row.unit,
            "goal": None if row.goal is None else round(row.goal, 4),
            "compared": row.compared,
        }
        for row in rows
    ]
    matrix = [[c.cpus, c.nodes, c.pods, c.options, round(c.ms, 4), c.admitted] for c in cells]
    loops = [round(ms, 3) for ms in statistics.quantiles(clock.loops_ms, n=4)]
    return {"machine": machine(), "loopMs": loops, "rows": measured, "matrix": matrix}


def machine() -> Document:
    model = "unknown"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        model = platform.processor() or model
    return {"cpu": model, "cpus": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}


def verdict(row: Document) -> str:
    if row["goal"] is None:
        return ""
    return "reached" if row["calibrated"] <= row["goal"] else "missed"


def missed(found: Document) -> list[str]:
    return [row["name"] for row in found["rows"] if verdict(row) == "missed"]


def introduction(found: Document) -> str:
    of = found["machine"]
    low, middle, high = found["loopMs"]
    return (
        f"Measured on {of['cpus']} CPUs ({of['cpu']}), Linux {of['kernel']}, Python {of['python']}. The calibration loop took "
        f"{middle:.1f} ms here (half of its runs: {low:.1f} to {high:.1f}), {REFERENCE_LOOP_MS} ms on the reference machine."
    )


def table(found: Document, compared: str = "kubelet") -> list[list[str]]:
    """A row for each figure; `compared` says beside what it stands."""
    head = ["work", compared, "goal", "measured", "calibrated", "of the goal", ""]
    body = [
        [
            row["name"],
            row["compared"],
            amount(row["goal"], row["unit"]),
            amount(row["measured"], row["unit"]),
            amount(row["calibrated"], row["unit"]),
            f"{row['calibrated'] / row['goal']:.2f}" if row["goal"] else "",
            verdict(row),
        ]
        for row in found["rows"]
    ]
    return [head, *body]


def matrix(found: Document) -> list[list[str]]:
    """The slowest admission over all numbers of CPUs and of pods present, calibrated."""
    slowest: dict[tuple[str, int], float] = {}
    for _, nodes, _, options, ms, _ in found["matrix"]:
        key = (options, nodes)
        slowest[key] = max(slowest.get(key, 0), ms)
    columns = [nodes for nodes in NODES if any(key[1] == nodes for key in slowest)]
    head = ["policy and options", *(f"{nodes} NUMA" for nodes in columns)]
    return [head, *([name, *(amount(slowest[name, nodes], "ms") for nodes in columns)] for name in OPTIONS)]


def amount(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    number = f"{value:.2g}" if value < 1 else f"{value:,.3g}" if value < 100 else f"{value:,.0f}"
    return f"{number} {unit}".rstrip()


def aligned(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def markdown(rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def rewritten(text: str, short: Document, costs: Document, churn: Document, guest: Document, long: Document) -> str:
    """Put the tables into docs/performance.md, between their markers."""
    parts = {
        "goals": f"{introduction(short)}\n\n{markdown(table(short))}",
        "costs": f"{introduction(costs)}\n\n{markdown(table(costs, 'before'))}",
        "churn": f"{introduction(churn)}\n\n{markdown([[row[0], *row[2:]] for row in table(churn)])}",
        "guest": markdown([[*row[:4], *row[5:]] for row in table(guest, "before")]),
        "matrix": f"{introduction(long)}\n\n{markdown(matrix(long))}",
    }
    for name, part in parts.items():
        pattern = rf"(<!-- {name}: [^\n]* -->\n).*?(<!-- /{name} -->)"
        found = re.search(pattern, text, flags=re.DOTALL)
        assert found, f"docs/performance.md has no place for {name}"
        text = f"{text[: found.end(1)]}{part}\n{text[found.start(2) :]}"
    return text
