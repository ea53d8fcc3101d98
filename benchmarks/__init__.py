"""Measures what docs/performance.md says: `make bench`. Tests count work; only here are seconds measured."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
