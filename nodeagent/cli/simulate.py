"""`nodeagent simulate`: what would be decided on a described machine? Scenarios in, one result line each out."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from nodeagent.errors import NodeAgentError
from nodeagent.formats.scenario import Scenario, scenario_from_text
from nodeagent.formats.scenario_replay import replay, timed_adds


class SimulateInputError(NodeAgentError):
    """The scenarios can't be read."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"cannot read scenarios from {path}: {why}",
            hint="give a file of JSON lines, or - for stdin; docs/simulate.md (`nodeagent --help` says where) describes them",
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", metavar="FILE|-", help="scenarios, one JSON object per line; - reads stdin")
    parser.add_argument(
        "--bench",
        metavar="N",
        type=_positive,
        help="replay each scenario N times in memory and print the time of its add steps (decision and both checkpoint texts)",
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = """\
exit status: 0: all were replayed; 1: a scenario could not be read; 2: wrong arguments

examples:
  nodeagent simulate scenarios.jsonl
  nodeagent simulate - <scenarios.jsonl | jq .steps[].admitted

next: docs/simulate.md (nodeagent --help says where) describes a scenario; nodeagent topology -o json prints this machine for one"""


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def run(args: argparse.Namespace) -> int:
    """Print one line per scenario."""
    for number, line in enumerate(_lines(args.file), start=1):
        if not line.strip():
            continue
        scenario = scenario_from_text(line, f"{args.file}:{number}")
        result = replay(scenario) if args.bench is None else _benchmark(scenario, args.bench)
        print(json.dumps(result, sort_keys=True, separators=(",", ":"), ensure_ascii=False))
    return 0


def _lines(path: str) -> Iterator[str]:
    if path == "-":
        yield from sys.stdin
        return
    try:
        with Path(path).open(encoding="utf-8") as file:
            yield from file
    except (OSError, UnicodeDecodeError) as err:
        why = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise SimulateInputError(path, why) from err


def _benchmark(scenario: Scenario, rounds: int) -> dict[str, object]:
    times: list[int] = []
    for _ in range(rounds):
        times += timed_adds(scenario, time.perf_counter_ns)
    times.sort()
    return {
        "id": scenario.id,
        "adds": len(times) // rounds,
        "medianNsPerAdd": int(statistics.median(times)) if times else None,
        "p90NsPerAdd": times[(len(times) * 9 + 9) // 10 - 1] if times else None,
    }
