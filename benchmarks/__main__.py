"""`python -m benchmarks`: measure, print the table, keep the figures. See docs/performance.md."""

import argparse
import json
import sys
from collections.abc import Iterable

from benchmarks import RESULTS, ROOT
from benchmarks.churn import churn
from benchmarks.costs import costs
from benchmarks.goals import Row, rows
from benchmarks.matrix import cells
from benchmarks.report import Document, aligned, document, introduction, matrix, missed, rewritten, table
from benchmarks.timing import Clock

DOCS = ROOT / "docs" / "performance.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--long", action="store_true", help="the whole matrix of machines, pods and options, instead of the goals"
    )
    parser.add_argument(
        "--costs",
        nargs="?",
        const="",
        metavar="NAME",
        help="what an agent and its commands cost, instead of the goals of decisions: all rows, or those of one generator",
    )
    parser.add_argument(
        "--churn",
        nargs="?",
        const=60.0,
        type=float,
        metavar="MINUTES",
        help="1,000 pods that come and go at random, beside an agent that is restarted, instead of the goals",
    )
    parser.add_argument(
        "--docs", action="store_true", help="measure nothing: write the kept figures into docs/performance.md"
    )
    args = parser.parse_args()
    if args.docs:
        DOCS.write_text(rewritten(DOCS.read_text(), *map(kept, ("goals", "costs", "churn", "guest", "matrix"))))
        return 0
    if args.long:
        measure_matrix()
        return 0
    if args.churn is not None:
        measure_churn(args.churn)
        return 0
    if args.costs is None:
        measure_goals()
    measure_costs(args.costs or "")
    return 0


def measure_goals() -> None:
    clock = Clock()
    measured = tuple(told(rows(clock)))
    found = document(clock, measured, cells(clock, every=False))
    keep("goals", found)
    print(introduction(found), "", *aligned(table(found)), "", *aligned(matrix(found)), sep="\n")
    print("", f"missed: {', '.join(missed(found)) or 'no goal'}", sep="\n")


def measure_costs(only: str) -> None:
    clock = Clock()
    clock.calibrate()
    clock.calibrate()
    found = document(clock, tuple(told(costs(clock, only))), ())
    if only:
        new = {row["name"]: row for row in found["rows"]}
        found["rows"] = [new.pop(row["name"], row) for row in kept("costs")["rows"]] + list(new.values())
    keep("costs", found)
    print(introduction(found), "", *aligned(table(found, "before")), sep="\n")
    print("", f"missed: {', '.join(missed(found)) or 'no goal'}", sep="\n")


def measure_churn(minutes: float) -> None:
    clock = Clock()
    clock.calibrate()
    found = document(clock, tuple(told(churn(clock, minutes))), ())
    keep("churn", found)
    print(introduction(found), "", *aligned(table(found, "before")), sep="\n")
    print("", f"missed: {', '.join(missed(found)) or 'no goal'}", sep="\n")


def told(measured: Iterable[Row]) -> Iterable[Row]:
    for row in measured:
        print(f"{row.calibrated:12.4f} {row.unit:3} {row.name}", file=sys.stderr)
        yield row


def measure_matrix() -> None:
    clock = Clock()
    found = document(clock, (), cells(clock, every=True))
    keep("matrix", found)
    print(introduction(found), "", *aligned(matrix(found)), sep="\n")


def keep(name: str, found: Document) -> None:
    RESULTS.mkdir(exist_ok=True)
    lines = json.dumps(found, sort_keys=True, ensure_ascii=False, indent=1)
    (RESULTS / f"{name}.json").write_text(lines + "\n")


def kept(name: str) -> Document:
    found: Document = json.loads((RESULTS / f"{name}.json").read_text())
    return found


if __name__ == "__main__":
    sys.exit(main())
