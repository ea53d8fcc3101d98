# ruff: noqa: INP001 - a script of its own
"""Writes docs/reference/, and the table in docs/how-to/kubelet.md, from the code that they are about: `make reference`.

Tests hold the pages to it. What fields mean, and the table of differences, is the README's (scripts/readme.py).
"""

import importlib
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from nodeagent.cli.command_line import COMMANDS, parser_for
from nodeagent.cli.support.completion_scripts import PLACES
from nodeagent.cli.support.definitions import Argument, Command, command_of
from nodeagent.core.cpu.options import EXCLUSIONS, MATURITY
from nodeagent.core.metrics.agent_metrics import (
    AGENT_METRICS,
    BUCKETS,
    CAPACITY_REASONS,
    EXCLUSIVE_CPU_INTERRUPTS,
    EXCLUSIVE_CPU_SOFTIRQS,
    POD_RESOURCES_METRICS,
    START_VALUES,
    old_name,
)
from nodeagent.core.metrics.manager_metrics import METRICS as KUBELET_METRICS, MetricSpec
from nodeagent.core.model.config import DEFAULT_GATES
from nodeagent.core.model.refusals import OF_RUNTIMES, RELEASED, RESIZE_DEFERRED, STATE_NOT_SAVED, UNIT_TAKEN, Reason
from nodeagent.formats.config.config_schema import KUBELET_UNUSED
from nodeagent.formats.kernel.cpu_counts import INTERRUPT_KINDS
from nodeagent.formats.kernel.cpu_use import SOFTIRQS
from nodeagent.views.wording.refusal_advice import next_step
from scripts import readme
from scripts.reference_errors import errors

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
KUBELET = ROOT / "docs" / "how-to" / "kubelet.md"
_TOP = 2
"""Level of a command's heading."""
_MADE = "<!-- made by `make reference` -->\n"


def pages() -> dict[Path, str]:
    """Give every page that is made of code."""
    return {
        REFERENCE / "configuration.md": _MADE + configuration(),
        REFERENCE / "commands.md": _MADE + commands(),
        REFERENCE / "metrics.md": _MADE + metrics(),
        REFERENCE / "refusals.md": _MADE + refusals(),
        REFERENCE / "errors.md": _MADE + errors(),
        KUBELET: _with_differences(KUBELET.read_text()),
    }


def configuration() -> str:
    """Describe the configuration's fields, options and gates."""
    example = (ROOT / "examples" / "config.yaml").read_text()
    gates = "\n".join(f"| `{name}` | {'on' if on else 'off'} |" for name, on in DEFAULT_GATES.items())
    options = "\n".join(f"| `{name}` | {_gate_of(maturity)} | {_others(name)} |" for name, maturity in MATURITY.items())
    unused = ", ".join(f"`{name}`" for name in sorted(KUBELET_UNUSED))
    unlisted = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in readme.UNLISTED.items())
    return f"""\
# Configuration

The file is `/etc/nodeagent/config.yaml`, in YAML. Field names are the KubeletConfiguration's. `nodeagent config validate` reports every
error in it, `nodeagent config show` shows the resulting values, and `systemctl reload nodeagent` applies it.

## Fields

{readme.configuration()}

These fields leave nothing to choose:

| field | meaning |
| --- | --- |
{unlisted}

## `cpuManagerPolicyOptions`

Each is `"true"` or `"false"`; the default is `"false"`. [What they do](../policies/cpu-manager.md).

| option | needs the gate | excludes |
| --- | --- | --- |
{options}

`align-by-socket` also excludes `topologyManagerPolicy: single-numa-node`.

## `featureGates`

| gate | default |
| --- | --- |
{gates}

`AllAlpha` sets the gates that are off in this table, `AllBeta` the others, except those set individually. Other kubelet gates have no use
here, and are logged.

## The sample

`make install` installs this file if there is none:

```yaml
{example}```

## kubelet fields not used here

They are allowed, and logged once: {unused}.
"""


def _gate_of(maturity: str) -> str:
    return "" if maturity == "stable" else f"`CPUManagerPolicy{maturity}Options`"


def _others(option: str) -> str:
    return ", ".join(f"`{b if a == option else a}`" for a, b in EXCLUSIONS if option in {a, b})


def commands() -> str:
    """Describe every command as its help does."""
    places = " and ".join(f"`share/{place}`" for place in PLACES.values())
    parts = [
        f"""\
# Commands

As in `--help` and the manual pages (`man nodeagent-inspect`). Commands complete in bash, zsh and fish, with the names of pods and
containers: `make install` installs the completions into {places} and fish's own directory;
`eval "$(nodeagent completion bash)"` does it for one shell.

## Answers for programs

`-o json` and `-o yaml` print the same document, with sorted keys. Names stay, and new ones may be added; `version`, if present,
increases when a name is removed. The schemas (JSON Schema 2020-12) therefore allow fields that they don't define: a document from a
later version is valid under an earlier schema. Have readers ignore what they don't know.

| command | document |
| --- | --- |
{_answers()}

`--out FILE` names a file to write, in every command that writes one.
"""
    ]
    for name in COMMANDS:
        importlib.import_module(f"nodeagent.cli.commands.{name}")
        (found,) = [one for one in command_of(parser_for([name])).subcommands if one.name == name]
        parts.append("\n".join(_command(command_of(found.parser), _TOP)))
    return "\n".join(parts)


ANSWERS: dict[str, tuple[str, ...] | str] = {
    "run": "none: it logs, one JSON object per line",
    "inspect": ("inspection",),
    "interference": ("interference",),
    "probe": ("probe",),
    "topology": ("topology",),
    "capture": ("capture",),
    "fleet inspect": ("fleet-inspection",),
    "fleet capacity": ("fleet-capacity",),
    "fleet diff": ("fleet-difference",),
    "check": ("check",),
    "config validate": ("config-validation",),
    "config show": ("configuration",),
    "config migrate-from-kubelet": "none: it writes a configuration, in YAML with comments",
    "completion": "none: it writes a shell script",
    "job": "none: the output is that of the command",
    "exec": "none: the output is that of the command",
    "cpus": ("cpus",),
    "pin": ("apply",),
    "unpin": ("delete",),
    "apply": ("apply",),
    "diff": ("diff",),
    "delete": ("delete",),
    "retry": ("retry",),
    "release": ("release",),
    "checkpoint verify": ("checkpoint",),
    "checkpoint show": ("checkpoint",),
    "checkpoint convert": "none: it writes a state file, byte for byte",
    "explain": ("explanation",),
    "simulate": ("simulation", "comparison", "scenario-result", "scenario-times"),
}
"""Schemas of what a command prints (of `capture`: writes), or why there are none."""


def _answers() -> str:
    return "\n".join(
        f"| `{name}` | {found if isinstance(found, str) else ', '.join(f'[{one}.json](../schema/{one}.json)' for one in found)} |"
        for name, found in ANSWERS.items()
    )


def _command(command: Command, level: int) -> Iterator[str]:
    yield f"{'#' * level} `{command.name}`\n"
    if command.description:
        yield f"{command.description}\n"
    usage = textwrap.fill(command.usage, 100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    yield f"```\n{usage}\n```\n"
    arguments = [
        one for one in (*command.places, *command.options) if one.help is not None and "-h" not in one.spellings
    ]
    if arguments:
        yield "| argument | meaning |\n| --- | --- |"
        yield from (f"| {_heading(one)} | {_cell(one.help or '')} |" for one in arguments)
        yield ""
    for one in command.subcommands:
        inner = command_of(one.parser)
        yield from _command(inner if inner.description else _described(inner, one.help), level + 1)
    if level == _TOP:  # that of a subcommand is its command's
        epilog = command.epilog or (command_of(command.subcommands[0].parser).epilog if command.subcommands else "")
        yield from (_paragraph(text) for text in re.split(r"\n\s*\n", epilog) if text.strip())


def _described(command: Command, purpose: str) -> Command:
    words = {name: getattr(command, name) for name in command.__struct_fields__}
    return Command(**{**words, "description": f"{purpose[:1].upper()}{purpose[1:]}."})


def _heading(argument: Argument) -> str:
    if not argument.spellings:
        return f"`{_cell(argument.metavar)}`"
    value = f" {argument.metavar}" if argument.metavar else ""
    return ", ".join(f"`{_cell(spelling + value)}`" for spelling in argument.spellings)


def _paragraph(text: str) -> str:
    """Turn one of an epilog's paragraphs into Markdown."""
    title, _, rest = text.partition("\n")
    if title.endswith(":") and rest.startswith("  "):
        lines = "\n".join(line.removeprefix("  ") for line in rest.splitlines())
        return f"{title[:1].upper()}{title[1:]}\n\n```sh\n{lines}\n```\n"
    if text.startswith("exit status:"):
        statuses = [" ".join(part.split()) for part in re.split(r";\s+(?=\d)", text.removeprefix("exit status:"))]
        return "Exit status:\n\n" + "\n".join(f"* {status}" for status in statuses) + "\n"
    return re.sub(r"\nnext:", "\n\nNext:", f"\n{text}").strip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_KINDS = {EXCLUSIVE_CPU_INTERRUPTS: INTERRUPT_KINDS, EXCLUSIVE_CPU_SOFTIRQS: SOFTIRQS}


def metrics() -> str:
    """Describe every metric."""
    return f"""\
# Metrics

`http://127.0.0.1:9753/metrics`, or at `metricsBindAddress`, which also serves `/healthz` and `/readyz`. Series with the label values listed
here exist from the start, with 0. `contrib/prometheus`, in the source and in `share/nodeagent`, has a scrape configuration, rules and
alerts; `contrib/grafana` has a dashboard.

## kubelet's

Names, types and labels are those of kubelet 1.36. With `metricsAliases: true`, the default, the names of the last column are there, too.

| metric | type | meaning | labels | other name |
| --- | --- | --- | --- | --- |
{_metric_rows(KUBELET_METRICS, aliases=True)}

These are there where `podResourcesSocket` is set ([serve PodResources](../how-to/pod-resources.md)):

| metric | type | meaning | labels | other name |
| --- | --- | --- | --- | --- |
{_metric_rows(POD_RESOURCES_METRICS, aliases=True)}

## nodeagent's own

| metric | type | meaning | labels |
| --- | --- | --- | --- |
{_metric_rows(AGENT_METRICS, aliases=False)}

## Histogram buckets

{_bucket_rows()}

The process metrics (`process_…`, `python_…`) are those of the Prometheus client library.
"""


def _metric_rows(specs: tuple[MetricSpec, ...], *, aliases: bool) -> str:
    rows = []
    for spec in specs:
        other = f" {f'`{name}`' if (name := old_name(spec.name)) else ''} |" if aliases else ""
        rows.append(f"| `{spec.name}` | {spec.kind} | {_cell(spec.help)} | {_labels(spec)} |{other}")
    return "\n".join(rows)


def _labels(spec: MetricSpec) -> str:
    """Give each label with its values, where they are a closed set."""
    found = []
    for place, label in enumerate(spec.labels):
        values = dict.fromkeys(row[place] for row in START_VALUES.get(spec.name, ()))
        if label == "kind":
            values = dict.fromkeys(_KINDS[spec.name])
        found.append(f"`{label}`" + (": " + ", ".join(f"`{value}`" for value in values) if values else ""))
    return "; ".join(found)


def _bucket_rows() -> str:
    return "\n".join(f"* `{name}`: {', '.join(f'{bound:g}' for bound in bounds)}" for name, bounds in BUCKETS.items())


def refusals() -> str:
    """Describe every reason of a refusal, with what to do."""
    reasons = [
        *CAPACITY_REASONS[:3],
        "OutOfhugepages-2Mi",
        *(reason.value for reason in Reason),
        UNIT_TAKEN,
        RELEASED,
        STATE_NOT_SAVED,
        RESIZE_DEFERRED,
        *OF_RUNTIMES,
    ]
    plugins = {Reason.CPU_PLUGIN_FAILED.value, Reason.CPU_PLUGIN_REFUSED.value, Reason.DEVICE_PLUGINS_SLOW.value}
    of_nodes = {Reason.CORE_CLASS.value, Reason.DEVICE.value}
    own = {STATE_NOT_SAVED, RELEASED, UNIT_TAKEN, RESIZE_DEFERRED, *of_nodes, *plugins, *OF_RUNTIMES}
    rows = "\n".join(
        f"| `{reason}` | {'nodeagent' if reason in own else 'kubelet'} | {_advice(reason)} |" for reason in reasons
    )
    return f"""\
# Refusals

A pod that can't have what it asks for is refused as a whole. The refusal is final until its manifest changes, or until you make room and
run `nodeagent retry POD`. `nodeagent inspect POD` shows the reason, message and next step, `nodeagent explain POD` what was missing where
and what would admit it. `nodeagent_pod_refusals_total` counts refusals by reason.

Reasons and messages are kubelet's wherever kubelet has them.

| reason | of | what to do |
| --- | --- | --- |
{rows}

`OutOf` is followed by the name of any resource that the node lacks, such as `OutOfhugepages-2Mi`.
"""


def _advice(reason: str) -> str:
    """Give what is said of this reason alone."""
    text = next_step(reason, "POD").partition("; `nodeagent explain POD`")[0]
    return _cell(f"{text[:1].upper()}{text[1:]}")


def _with_differences(text: str) -> str:
    marks = "(<!-- differences: made by `make reference` -->\n).*?(<!-- /differences -->)"
    table = readme.differences()
    text, count = re.subn(marks, lambda found: f"{found[1]}{table}\n{found[2]}", text, flags=re.DOTALL)
    assert count == 1, f"{KUBELET} has no place for the differences"
    return text


def main() -> int:
    """Write the pages."""
    for path, text in pages().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
