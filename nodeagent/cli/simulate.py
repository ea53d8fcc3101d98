"""`nodeagent simulate`: what would be decided? Scenarios replayed, or pods on this, a copied or a described machine."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from nodeagent.cli.documents import spelled
from nodeagent.cli.progress import Progress
from nodeagent.cli.trial_arguments import TRIAL_OPTIONS, add_trial_arguments
from nodeagent.errors import NodeAgentError
from nodeagent.formats.scenario import Scenario, scenario_from_text
from nodeagent.formats.scenario_replay import replay, timed_adds

_EXAMPLES = """\
exit status: 0: all was decided, also where pods are refused; 1: something could not be read; 2: wrong arguments

examples:
  nodeagent simulate examples/scenario.jsonl
  nodeagent simulate -f examples/guaranteed.yaml --topology 2s.2n.8c.2t --config examples/config.yaml
  nodeagent simulate --capacity -f examples/guaranteed.yaml --topology 2s.2n.8c.2t --config examples/config.yaml
  nodeagent simulate -f examples/guaranteed.yaml --topology 2n.4c.2t --config examples/config.yaml -o svg >node.svg
  nodeagent simulate --compare examples/config.yaml examples/strict-reservation/config.yaml -f examples/guaranteed.yaml --topology 2n.4c.2t

on a node:
  nodeagent simulate --capacity -f pod.yaml
  nodeagent simulate --compare /etc/nodeagent/config.yaml new.yaml
  nodeagent simulate - <scenarios.jsonl | jq .steps[].admitted

Nothing is changed. --compare decides anew on all pods that are there, then on those of -f.
next: nodeagent explain -f pod.yaml says why; docs/simulate.md (nodeagent --help says where) describes scenarios and -o json"""


class SimulateInputError(NodeAgentError):
    """The scenarios can't be read."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"cannot read scenarios from {path}: {why}",
            hint="give a file of JSON lines, or - for stdin; docs/simulate.md (`nodeagent --help` says where) describes them",
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", nargs="?", metavar="FILE|-", help="scenarios, one JSON object per line; - reads stdin")
    parser.add_argument(
        "--bench",
        metavar="N",
        type=_positive,
        help="replay each scenario N times in memory and print the time of its add steps (decision and both checkpoint texts)",
    )
    parser.add_argument(
        "-f",
        "--file",
        dest="manifests",
        action="append",
        metavar="FILE|-|DIR",
        help="decide on these pods: a manifest, - for stdin, or a directory of manifests; can be given again",
    )
    parser.add_argument(
        "--capacity", action="store_true", help="how many more of these pods fit, all of them together?"
    )
    parser.add_argument(
        "--compare", nargs=2, metavar=("A.yaml", "B.yaml"), help="decide under two configurations, side by side"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json", "yaml", "svg"),
        default="text",
        help="form of the answer about pods: svg is a picture of who has which CPU (default: text; about scenarios JSON lines, or yaml)",
    )
    add_trial_arguments(parser)
    parser.epilog = _EXAMPLES
    parser.set_defaults(parser=parser)


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def run(args: argparse.Namespace) -> int:
    """Print one line per scenario, or what becomes of the pods.

    Raises:
        NodeAgentError: scenarios, manifests, machine or configuration can't be read.
    """
    about_pods = args.manifests is not None or args.compare is not None
    if (args.file is None) != about_pods:
        args.parser.error("give either scenarios, or pods with -f (or --compare)")
    if args.capacity and (args.manifests is None or args.compare is not None):
        args.parser.error("--capacity needs pods with -f, and goes with no --compare")
    if args.compare is not None and args.config is not None:
        args.parser.error("--compare names both configurations: leave --config out")
    _check_scenario_options(args)
    if args.output == "svg" and (args.compare is not None or args.capacity or not about_pods):
        args.parser.error(
            "-o svg draws the end of one run: it needs pods with -f, and goes with no --compare or --capacity"
        )
    if about_pods:
        from nodeagent.cli.simulate_pods import simulate_pods

        sys.stdout.write(simulate_pods(args))
        return 0
    found = False
    with Progress("scenarios", beside_output=True) as progress:
        for number, line in enumerate(_lines(args.file), start=1):
            if not line.strip():
                continue
            scenario = scenario_from_text(line, f"{args.file}:{number}")
            result = replay(scenario) if args.bench is None else _benchmark(scenario, args.bench)
            sys.stdout.write(_line(result, args.output))
            progress.step()
            found = True
    if not found:
        raise SimulateInputError(args.file, "it holds no scenario")
    return 0


def _check_scenario_options(args: argparse.Namespace) -> None:
    """Refuse what would be ignored: a scenario brings its machine, its rules and its pods; pods with -f are decided once."""
    if args.file is None:
        given = ["--bench"] if args.bench is not None else []
        why = "times scenarios: it goes with no pods"
    else:
        given = [f"--{name}" for name in TRIAL_OPTIONS if getattr(args, name)]
        why = "needs pods with -f (or --compare): scenarios bring their own machine, rules and pods"
    if given:
        args.parser.error(f"{given[0]} {why}")


def _line(result: Mapping[str, object], output: str) -> str:
    if output == "yaml":
        return "---\n" + spelled(result, output)
    return json.dumps(result, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"


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
