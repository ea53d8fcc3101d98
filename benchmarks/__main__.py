"""`python -m benchmarks`: measure, print the table, keep the figures. See docs/performance.md."""

import argparse
import json
import sys

from benchmarks import RESULTS, ROOT
from benchmarks.goals import rows
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
        "--docs", action="store_true", help="measure nothing: write the kept figures into docs/performance.md"
    )
    args = parser.parse_args()
    if args.docs:
        DOCS.write_text(rewritten(DOCS.read_text(), kept("goals"), kept("matrix")))
        return 0
    return measure_matrix() if args.long else measure_goals()


def measure_goals() -> int:
    clock = Clock()
    measured = []
    for row in rows(clock):
        print(f"{row.calibrated:12.4f} {row.unit:2} {row.name}", file=sys.stderr)
        measured.append(row)
    found = document(clock, measured, cells(clock, every=False))
    keep("goals", found)
    print(introduction(found), "", *aligned(table(found)), "", *aligned(matrix(found)), sep="\n")
    print("", f"missed: {', '.join(missed(found)) or 'no goal'}", sep="\n")
    return 0


def measure_matrix() -> int:
    clock = Clock()
    found = document(clock, (), cells(clock, every=True))
    keep("matrix", found)
    print(introduction(found), "", *aligned(matrix(found)), sep="\n")
    return 0


def keep(name: str, found: Document) -> None:
    RESULTS.mkdir(exist_ok=True)
    lines = json.dumps(found, sort_keys=True, ensure_ascii=False, indent=1)
    (RESULTS / f"{name}.json").write_text(lines + "\n")


def kept(name: str) -> Document:
    found: Document = json.loads((RESULTS / f"{name}.json").read_text())
    return found


if __name__ == "__main__":
    sys.exit(main())
