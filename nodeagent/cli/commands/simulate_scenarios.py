"""`nodeagent simulate FILE`: replays scenarios, one per line of the file. Options can replace the machine, the configuration and the errata
that the scenarios name.
"""

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.cli.support.colour import text_width
from nodeagent.cli.support.configurations import load_config
from nodeagent.cli.support.documents import format_document, format_json_line
from nodeagent.cli.support.named_files import NamedFile
from nodeagent.cli.support.node.what_if import WhatIfMachine, create_empty_node, find_errata, read_what_if_machine
from nodeagent.cli.support.progress import Progress
from nodeagent.core.admission.node_capacity import with_machine
from nodeagent.core.admission.node_setup import NodeSetup, on_machine
from nodeagent.core.model.config import Config, Errata
from nodeagent.daemon.start.node_builder import load_plugins
from nodeagent.errors import NodeAgentError, printable
from nodeagent.formats.scenario.scenario import Scenario, scenario_from_text
from nodeagent.views.simulate.scenario_replay import measure_adds, replay, replay_to_end
from nodeagent.views.simulate.scenario_text import (
    BRIEF_NOTE,
    ScenarioTotals,
    render_line,
    render_scenario,
    render_times,
    render_totals,
)

MAX_LINE_BYTES = 16 * 2**20
"""Maximum size in bytes of a line with one scenario. A scenario with a thousand CPUs and a thousand pods has a tenth of this size."""
IN_FULL = 10
"""Number of scenarios that are reported in full. Each further scenario gets one line."""


class SimulateInputError(NodeAgentError):
    """The scenarios can't be read."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"cannot read scenarios from {path}: {why}",
            hint="give a file of JSON lines (`jq -c . FILE` writes each JSON object of a file into one), or - for stdin; "
            "docs/simulate.md (`nodeagent --help` says where) describes them",
        )


class Replacements(Struct, frozen=True):
    """Values from options, which replace the values in each scenario. None means that each scenario keeps its own value."""

    machine: WhatIfMachine | None
    config: Config | None
    errata: Errata | None

    def read(self, line: bytes, where: str) -> Scenario:
        """Decode a line as a scenario, and replace the values for which the user gave options.

        Raises:
            ScenarioError: the line isn't a scenario.
        """
        scenario = scenario_from_text(line, where, None if self.machine is None else self.machine.topology)
        placement = replace(
            scenario.placement, errata=scenario.placement.errata if self.errata is None else self.errata
        )
        if self.config is not None:
            config = replace(self.config, placement=replace(self.config.placement, errata=placement.errata))
            node = on_machine(config, scenario.topology)
            # A configuration that is invalid for the machine is refused when the scenario starts, in kubelet's words.
            complete = with_machine(config, scenario.topology.memory_bytes)
            placement = node.managers.placement if isinstance(node, NodeSetup) else complete.placement
        loaded, missing = load_plugins(Config(placement))
        if missing:
            raise SimulateInputError(where, "; ".join(refused.message for refused in missing))
        return replace(scenario, placement=loaded.placement)


class _TextReport:
    """Reporter that formats the outcome of scenarios as text. Only the first scenarios are formatted in full."""

    def __init__(self, path: NamedFile, where: str) -> None:
        self._path = path
        self._where = where
        self._totals = ScenarioTotals()
        self._width = text_width()

    def render(self, scenario: Scenario, number: int) -> str:
        """Replay the scenario, and format its outcome. `number` is the number of its line."""
        found = replay_to_end(scenario)
        self._totals = self._totals.with_result(found)
        if self._totals.scenarios <= IN_FULL:
            gap = "\n" if self._totals.scenarios > 1 else ""
            return gap + render_scenario(scenario, found, number, self._where, self._width)
        line = render_line(scenario, found, number, self._width)
        if self._totals.scenarios > IN_FULL + 1:
            return line
        path = shlex.quote(printable(self._path))
        one = "" if self._path.is_pipe else f"; one in full:\n  sed -n {number}p {path} | nodeagent simulate -"
        return f"\n{BRIEF_NOTE}\n-o json has everything{one}\n\n{line}"

    def render_totals(self) -> str:
        """Format the totals of all scenarios. The result is empty for a single scenario."""
        return f"\n{render_totals(self._totals, self._width)}" if self._totals.scenarios > 1 else ""


def simulate_scenarios(options: argparse.Namespace) -> None:
    """Print the outcome of each scenario as soon as it is known.

    Raises:
        NodeAgentError: scenarios, machine or configuration can't be read, or machine and configuration don't match.
    """
    instead = _read_replacements(options)
    words = _TextReport(options.file, "the scenario's own" if instead.machine is None else instead.machine.where)
    is_reported = options.output == "text" and options.bench is None
    options.file.check_open()
    found = False
    with Progress("scenarios", beside_output=True) as progress:
        for number, line in _read_lines(options.file):
            scenario = instead.read(line, f"{options.file}:{number}")
            if is_reported:
                text = words.render(scenario, number)
            elif options.bench is not None:
                text = _time_replays(scenario, number, options.bench, options.output)
            else:
                text = _format_result(replay(scenario), options.output)
            sys.stdout.write(text)
            progress.step()
            found = True
    if not found:
        raise SimulateInputError(options.file, "it contains no scenario")
    if is_reported:
        sys.stdout.write(words.render_totals())


def _read_replacements(options: argparse.Namespace) -> Replacements:
    errata = None if options.errata is None else find_errata(options)
    config = None if options.config is None else load_config(options.config)
    if options.root is options.machine is options.topology is None:
        return Replacements(None, config, errata)
    machine = read_what_if_machine(argparse.Namespace(**{**vars(options), "empty": True}))
    if config is not None:
        # a machine that doesn't match the configuration is reported once, and not for each scenario
        create_empty_node(machine, config, options.config, find_errata(options))
    return Replacements(machine, config, errata)


def _format_result(result: Mapping[str, object], output: str) -> str:
    return "---\n" + format_document(result, output) if output == "yaml" else format_json_line(result)


def _read_lines(path: NamedFile) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that aren't blank, each with its number."""
    try:
        with nullcontext(sys.stdin.buffer) if path.is_stdin else Path(path).open("rb") as file:
            number = 1
            while line := file.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    raise SimulateInputError(path, f"line {number} has more than {MAX_LINE_BYTES} bytes")
                if not line.isspace():
                    yield number, line
                number += 1
    except OSError as err:
        raise SimulateInputError(path, err.strerror or str(err)) from err


def _time_replays(scenario: Scenario, number: int, rounds: int, output: str) -> str:
    times: list[int] = []
    with Progress("replays", rounds) as progress:
        for _ in range(rounds):
            times += measure_adds(scenario, time.perf_counter_ns)
            progress.step()
    times.sort()
    found = {
        "id": scenario.id,
        "adds": len(times) // rounds,
        "medianNsPerAdd": int(statistics.median(times)) if times else None,
        "p90NsPerAdd": times[(len(times) * 9 + 9) // 10 - 1] if times else None,
    }
    return render_times(found, number, text_width()) if output == "text" else _format_result(found, output)
