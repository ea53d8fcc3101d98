"""Measures what docs/performance.md says: `make bench`. Tests count work; only here are seconds measured."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"

# Machines and pods in a line each are made where the tests make them.
sys.path.append(str(ROOT / "tests"))
