# ruff: noqa: INP001 - a script of its own
"""Writes the pages of docs/reference/ that repeat the code, from the code: `make reference`. Tests compare them with it."""

import importlib
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from nodeagent.cli.parser import COMMANDS, build_parser
from nodeagent.cli.support.becoming import EXIT_CANNOT_RUN, EXIT_NOT_ENTERED, EXIT_NOT_FOUND
from nodeagent.cli.support.completion_scripts import PLACES
from nodeagent.cli.support.definitions import Argument, Command, extract_command
from nodeagent.cli.support.exit_status import EXIT_AWAY, EXIT_REFUSED, EXIT_WRONG, OUTCOMES
from nodeagent.cli.support.job_outside import EXIT_TIME_IS_OVER
from nodeagent.cli.support.job_report import EXIT_DISTURBED
from nodeagent.cli.support.places import DEFAULT_CONFIG, DEFAULT_SOCKET, PODS_CGROUP
from nodeagent.core.metrics.agent_metrics import (
    AGENT_METRICS,
    BUCKETS,
    CAPACITY_REASONS,
    CONTAINER_INFO,
    DRIFT_CORRECTED,
    EXCLUSIVE_CPU_INTERRUPTS,
    EXCLUSIVE_CPU_SOFTIRQS,
    POD_RESOURCES_METRICS,
    PROBLEMS,
    START_VALUES,
    find_old_name,
)
from nodeagent.core.metrics.manager_metrics import METRICS as KUBELET_METRICS, MetricSpec
from nodeagent.core.model.config import DEFAULT_GATES, Config
from nodeagent.core.model.errata import ASKED_OF_KUBELET, ERRATA, PROPOSALS, SINCE_1_37
from nodeagent.core.model.problem_kinds import EXPLAINED
from nodeagent.core.model.refusals import OF_RUNTIMES, RELEASED, RESIZE_DEFERRED, STATE_NOT_SAVED, UNIT_TAKEN, Reason
from nodeagent.core.resources.cpu.options import EXCLUSIONS, MATURITY
from nodeagent.daemon.domains.jobs.reservations import FILE as RESERVATIONS
from nodeagent.daemon.host.host_settings import HOST_SETTINGS
from nodeagent.daemon.sources.kept_manifests import PARSED_MANIFESTS
from nodeagent.daemon.start.startup import CPU_CHECKPOINT, EX_CONFIG, MEMORY_CHECKPOINT, STATE_FILE
from nodeagent.formats.config.config_schema import KUBELET_UNUSED
from nodeagent.formats.kernel.cpu_counts import CLAIMED, INTERRUPT_KINDS, SOFTIRQ_KINDS
from nodeagent.formats.kernel.pressure import PRESSURES
from nodeagent.views.wording.refusal_advice import advise_next_step
from scripts.reference_configuration import UNLISTED, fields_table
from scripts.reference_errors import errors

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
_TOP = 2
"""Level of a command's heading."""
MADE = "<!-- made by `make reference` -->\n"


def pages() -> dict[Path, str]:
    """Give every page that is made of code."""
    return {
        REFERENCE / "configuration.md": MADE + configuration(),
        REFERENCE / "commands.md": MADE + commands(),
        REFERENCE / "metrics.md": MADE + metrics(),
        REFERENCE / "refusals.md": MADE + refusals(),
        REFERENCE / "errors.md": MADE + errors(),
        REFERENCE / "problems.md": MADE + problems(),
        REFERENCE / "differences.md": MADE + differences(),
        REFERENCE / "files.md": MADE + files(),
    }


def configuration() -> str:
    """Describe the configuration's fields, options and gates."""
    example = (ROOT / "examples" / "config.yaml").read_text()
    gates = "\n".join(f"| `{name}` | {'on' if on else 'off'} |" for name, on in DEFAULT_GATES.items())
    options = "\n".join(f"| `{name}` | {_gate_of(maturity)} | {_others(name)} |" for name, maturity in MATURITY.items())
    unused = ", ".join(f"`{name}`" for name in sorted(KUBELET_UNUSED))
    unlisted = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in UNLISTED.items())
    return f"""\
# Configuration

The configuration is a YAML file, `/etc/nodeagent/config.yaml`. Its fields have the names of the KubeletConfiguration, and kubelet's own
configuration file works without changes. `nodeagent config validate` reports all errors at once, with line numbers. `nodeagent config show`
prints the resulting values. `nodeagent config reload` applies the file, or says why it can't.

## Fields

{fields_table()}

These fields are accepted for compatibility with kubelet, but can't change a decision:

| field | meaning |
| --- | --- |
{unlisted}

## `cpuManagerPolicyOptions`

The value of an option is `"true"` or `"false"`, by default `"false"`. [CPU manager](../policies/cpu-manager.md) explains them.

| option | needs the gate | excludes |
| --- | --- | --- |
{options}

`align-by-socket` also excludes `topologyManagerPolicy: single-numa-node`.

## `featureGates`

| gate | default |
| --- | --- |
{gates}

`AllAlpha` sets the gates that are off in this table, and `AllBeta` the others; a gate set individually keeps its own value. Other gates of
kubelet have no effect here, and are logged.

## The sample

`make install` installs this file if none exists:

```yaml
{example}```

## kubelet fields not used here

These fields are allowed, have no effect, and are logged once: {unused}.
"""


def _gate_of(maturity: str) -> str:
    return "" if maturity == "stable" else f"`CPUManagerPolicy{maturity}Options`"


def _others(option: str) -> str:
    return ", ".join(f"`{b if a == option else a}`" for a, b in EXCLUSIONS if option in {a, b})


def commands() -> str:
    """Describe every command as its help does."""
    places = " and ".join(f"`share/{place}`" for place in PLACES.values())
    found = {name: _extract(name) for name in COMMANDS}
    parts = [
        f"""\
# Commands

This page has the text of `--help` and of the manual pages (`man nodeagent-inspect`). Bash, zsh and fish complete commands and the names of
pods and containers. `make install` installs the completions into {places}
and fish's own directory; `eval "$(nodeagent completion bash)"` loads them into one shell.

Commands that only read take `--root DIR` for a copied node and `--machine FILE` for a capture or the output of `topology -o json`.

## Answers for programs

`-o json` and `-o yaml` print the same document, with sorted keys. Names stay, and new ones may be added; `version`, if present,
increases when a name is removed. The schemas (JSON Schema 2020-12) allow additional fields, so that a document from a later version is
valid under an earlier schema. Programs should ignore fields that they don't know.

| command | document |
| --- | --- |
{_answers()}

`--out FILE` names a file to write, in every command that writes one.

## Exit status

The same kind of outcome has the same status in all commands:

| status | kind of outcome |
| --- | --- |
{_table(_EXIT_STATUSES)}

What a status means for each command (64 is the same for all):

| command | 0 | 1 | 2 | 3 | 4 | others |
| --- | --- | --- | --- | --- | --- | --- |
{_table(_status_row(name, command) for name, command in found.items())}
"""
    ]
    return "\n".join([*parts, *("\n".join(_command(command, _TOP)) for command in found.values())])


def _extract(name: str) -> Command:
    importlib.import_module(f"nodeagent.cli.commands.{name}")
    (found,) = [one for one in extract_command(build_parser([name])).subcommands if one.name == name]
    return extract_command(found.parser)


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
    "config reload": "none: it says in one line what is in effect",
    "config show": ("configuration",),
    "config migrate-from-kubelet": "none: it writes a configuration, in YAML with comments",
    "completion": "none: it writes a shell script",
    "job": ("run-report",),
    "queue": ("job-queue",),
    "reserve": ("reservations",),
    "report compare": ("run-comparison",),
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
"""Schemas of what a command prints (of `capture` and `job`: writes), or why there are none."""


_EXIT_STATUSES = (
    *((str(status), kind) for status, kind in OUTCOMES.items()),
    (
        f"{EX_CONFIG}",
        "of `run`: a person must correct the configuration or the state; systemd doesn't restart the agent",
    ),
    (f"{EXIT_TIME_IS_OVER}", "of `job --max-time`: the job's time was over, and the agent has ended it"),
    (
        f"{EXIT_DISTURBED}",
        (
            "of `job --report FILE`: the command succeeded, but its report could not be written; with `--require-clean`, also if its run "
            "was disturbed or the verdict is unknown"
        ),
    ),
    (
        f"{EXIT_NOT_ENTERED}, {EXIT_CANNOT_RUN}, {EXIT_NOT_FOUND}",
        (
            "of `exec`, `job`: container not entered or job not started; command not executable; command not found. "
            "Any other status is the command's own"
        ),
    ),
)


def exit_statuses(command: Command) -> dict[str, str]:
    """Give what a command's help says about each exit status. A status of the command that it runs has the key "own"."""
    (text,) = (text for text in re.split(r"\n\s*\n", _epilog(command)) if text.startswith("exit status:"))
    parts = (
        " ".join(part.split()).partition(": ") for part in re.split(r";\s+(?=\d)", text.removeprefix("exit status:"))
    )
    return {status if meaning else "own": meaning or status for status, _, meaning in parts}


def _status_row(name: str, command: Command) -> tuple[str, ...]:
    statuses = exit_statuses(command)
    others = [f"{status}: {statuses[status]}" for status in statuses if status not in {*map(str, OUTCOMES), "own"}]
    own = [statuses["own"]] if "own" in statuses else []
    return f"`{name}`", *(_cell(statuses.get(str(status), "")) for status in range(5)), "; ".join([*own, *others])


def _epilog(command: Command) -> str:
    """Give a command's epilog. That of a subcommand is its command's."""
    return command.epilog or (extract_command(command.subcommands[0].parser).epilog if command.subcommands else "")


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


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
        inner = extract_command(one.parser)
        yield from _command(inner if inner.description else _described(inner, one.help), level + 1)
    if level == _TOP:
        yield from (_paragraph(text) for text in re.split(r"\n\s*\n", _epilog(command)) if text.strip())


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


_KINDS = {EXCLUSIVE_CPU_INTERRUPTS: INTERRUPT_KINDS, EXCLUSIVE_CPU_SOFTIRQS: SOFTIRQ_KINDS}


_SERIES_OF_CONTAINER = (
    len(INTERRUPT_KINDS) - len((CLAIMED,)) + len(SOFTIRQ_KINDS) + len(("throttled periods",)) + len(PRESSURES)
)


def metrics() -> str:
    """Describe every metric."""
    return f"""\
# Metrics

The agent serves metrics at `http://127.0.0.1:9753/metrics`, and the checks `/healthz` and `/readyz` at the same address.
`metricsBindAddress` changes the address. If the table lists values of a label, the series with these values exist from the start, with the
value 0. `contrib/prometheus`, in the source and in `share/nodeagent`, has a scrape configuration, recording rules, and alerts with tests;
`contrib/grafana` has a dashboard.

## kubelet's

These metrics have the names, types and labels of kubelet 1.36. With `metricsAliases: true`, the default, each metric is also exported under
the name in the last column.

| metric | type | meaning | labels | other name |
| --- | --- | --- | --- | --- |
{_metric_rows(KUBELET_METRICS, aliases=True)}

These are exported if `podResourcesSocket` is set ([serve PodResources](../how-to/pod-resources.md)):

| metric | type | meaning | labels | other name |
| --- | --- | --- | --- | --- |
{_metric_rows(POD_RESOURCES_METRICS, aliases=True)}

## nodeagent's own

| metric | type | meaning | labels |
| --- | --- | --- | --- |
{_metric_rows(AGENT_METRICS, aliases=False)}

Each container with exclusive CPUs has {_SERIES_OF_CONTAINER} series in addition to `{CONTAINER_INFO}`. It has one more if its pod claims
interrupts, and one less if the kernel has no irq.pressure. So a node has at most {_SERIES_OF_CONTAINER + 1} such series for each CPU.
`metricsContainers: false` leaves out these series. `{CONTAINER_INFO}` always has the names of pods and containers, with their CPUs
and memory nodes, for joins:
`rate(nodeagent_container_throttled_periods_total[5m]) * on (instance, namespace, pod, container) group_left (cpus, mems) {CONTAINER_INFO}`.

## Histogram buckets

{_bucket_rows()}

The metrics of the process (`process_…`, `python_…`) come from the Prometheus client library.
"""


def _metric_rows(specs: tuple[MetricSpec, ...], *, aliases: bool) -> str:
    rows = []
    for spec in specs:
        other = f" {f'`{name}`' if (name := find_old_name(spec.name)) else ''} |" if aliases else ""
        rows.append(f"| `{spec.name}` | {spec.kind} | {_cell(spec.help)} | {_labels(spec)} |{other}")
    return "\n".join(rows)


def _labels(spec: MetricSpec) -> str:
    """Give each label with its values, where they are a closed set."""
    found = []
    for place, label in enumerate(spec.labels):
        values = dict.fromkeys(row[place] for row in START_VALUES.get(spec.name, ()))
        if spec.name in _KINDS and label == "kind":
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

A pod is refused as a whole if one of its requests can't be met. The refusal is final until the manifest changes, or until you make room and
run `nodeagent retry POD`. `nodeagent inspect POD` shows the reason, the message and the next step. `nodeagent explain POD` shows what was
missing, where, and what would admit the pod. `nodeagent_pod_refusals_total` counts refusals by reason.

Reasons and messages are kubelet's wherever kubelet has them.

| reason | of | what to do |
| --- | --- | --- |
{rows}

`OutOf` is followed by the name of the missing resource, as in `OutOfhugepages-2Mi`.
"""


def _advice(reason: str) -> str:
    """Give what is said of this reason alone."""
    text = advise_next_step(reason, "POD").partition("; `nodeagent explain POD`")[0]
    return _cell(f"{text[:1].upper()}{text[1:]}")


def problems() -> str:
    """Describe everything that can be wrong on a node, and what shows it."""
    away = (
        "the agent doesn't run, or doesn't answer",
        "3",
        "`up`",
        "`NodeagentDown`",
        "`systemctl start nodeagent`; `journalctl -u nodeagent` says why it has stopped",
    )
    inspected = [
        (
            "a cgroup differs from what was allocated, and the agent has not corrected it",
            f"{EXIT_WRONG}",
            f"`{DRIFT_CORRECTED}`",
            "`NodeagentForeignCgroupWrites`",
            "end the other program that writes these files; the agent corrects them by itself",
        ),
    ]
    rows = [
        (one.what, f"{EXIT_WRONG}", f'`{PROBLEMS}{{kind="{kind.value}"}}`', f"`{one.alert}`", one.mended_by)
        for kind, one in EXPLAINED.items()
    ]
    return f"""\
# What can be wrong

Four places show whether anything on a node needs attention. Each place alone is sufficient, with one exception. Only `nodeagent inspect`
compares the cgroups with their desired values, so only `inspect` detects the problem in the last row of the table.

* `nodeagent inspect` exits with 0 if nothing is wrong. Otherwise its last line has the number of problems. The statuses are those of [all
  commands](commands.md#exit-status): {EXIT_WRONG} if something is wrong, {EXIT_AWAY} if no agent answers, and with a POD {EXIT_REFUSED} if
  it is refused.
* The `Status:` line of `systemctl status nodeagent` ends with `0 problems, 0 refused` if nothing is wrong. Otherwise the line has the kinds
  of the problems, as in the metrics, and the first problem: `2 problems (launcher, sync), 0 refused: …`.
* `/readyz`, at the address of the [metrics](metrics.md), returns only `ok` if nothing is wrong, and otherwise lists the problems. The HTTP
  status is 200 as long as the agent can finish its syncs.
* The sum of the metric, `sum(nodeagent_problems)`, is 0 if nothing is wrong.

| problem | status of `inspect` | metric | alert | how to solve it |
| --- | --- | --- | --- | --- |
{_table([away, *rows, *inspected])}

## A script that names it

`contrib/check/nodeagent-health`, in the source and in `share/nodeagent`, prints the kinds of a node's problems, one per line. The exit
status is 0 without problems, and 2 otherwise. Three printed names are no kinds of the metric: `agent_away` is the first row of the table,
and `difference` the last row. `other_release` means that the agent or the command is of a release that the script can't read, as in the
middle of an upgrade: install one release, then run `systemctl restart nodeagent && systemctl reload nodeagent-launcher`. The script reads
the exit status of `inspect`, the status line and the metrics, as your own script can.

## A configuration that isn't in use

`sudo nodeagent config reload` checks the file first. If the file can't be applied, the command prints the reason and exits with 2, and
nothing changes. The reason is in the log, and in the four places above, until the file is corrected. `systemctl reload nodeagent` runs the
same command, but without a terminal, so systemctl only points to the status line and the log. A file that was changed and not reloaded is
shown in the same places, within seconds. If the file is invalid when the agent starts, the agent uses the last valid configuration of this
file, which it has stored next to the state ([D58](../decisions.md)). The agent refuses to start only if no such configuration
fits the machine or can be found: if the file is missing, only the default state directory is searched.
"""


def differences() -> str:
    """Describe every difference from kubelet."""
    rows = []
    for entry in ERRATA:
        issues = ", ".join(f"[{link.rpartition('/')[2]}]({link})" for link in entry.links)
        number = f"{entry.erratum.value}{'*' if entry.always_fixed else ''}"
        mended = "" if entry.mended_by is None else f"1.38 ({_pull_request(entry.mended_by)})"
        rows.append(f"| {number} | {_cell(entry.kubelet)} | {_cell(entry.nodeagent)} | {mended} | {issues} |")
    table = "\n".join(rows)
    since = "\n".join(
        f"| {_cell(row.kubelet)} | {_cell(row.nodeagent)} | {', '.join(map(_pull_request, row.changes))} |"
        for row in SINCE_1_37
    )
    proposals = "\n".join(
        f"| {_cell(row.proposal)} | {_cell(row.nodeagent)} | {_cell(row.unknown)} |" for row in PROPOSALS
    )
    own = "\n".join(
        f"| {_cell(row.kubelet)} | {_cell(row.nodeagent)} | `{row.setting}` | "
        f"[{row.issue}](https://github.com/kubernetes/kubernetes/issues/{row.issue}) |"
        for row in ASKED_OF_KUBELET
    )
    return f"""\
# Differences from kubelet

The agent decides as kubelet 1.36 does, except as listed here. `nodeagent explain` and `nodeagent simulate` take `--errata`: with
`kubelet-1.36` or `kubelet-1.37` they decide as this version does (`kubelet-1.36` is the default for scenarios), with `fixed` as the agent
does (the default for pods). Rows marked * are hangs, panics, or about the daemon's own order of work; no profile reproduces them.

| # | kubelet 1.36 and 1.37 | nodeagent | fixed in | issues |
| --- | --- | --- | --- | --- |
{table}

## kubelet 1.37

This table lists the known differences between kubelet 1.37 and 1.36 in the managers and in claims, by the change logs of Kubernetes. None
of the rows above is known to be fixed in 1.37, so the profile `kubelet-1.37` reproduces all of them. The profile is based on these change
logs. kubelet 1.37 itself was not run.

| kubelet 1.37 | nodeagent | changes |
| --- | --- | --- |
{since}

## Not in kubelet

These settings are proposals. No released kubelet has them, so kubelet refuses a configuration with one of the options, and doesn't know the
field. The agent takes them in every profile, because configurations and tools begin to have them.

| proposal | nodeagent | what isn't settled, or differs |
| --- | --- | --- |
{proposals}

## Asked of kubelet

These settings are not in any kubelet. They are off by default. They don't cause a refusal of a pod that would be admitted without them.
They can't be combined with a profile that reproduces kubelet's behaviour. `nodeagent simulate --compare` shows what a setting changes on a
node or a capture.

| kubelet | nodeagent | setting | issue |
| --- | --- | --- | --- |
{own}

For balance over NUMA nodes ([125453](https://github.com/kubernetes/kubernetes/issues/125453)) there is no setting of the project's own: the
proposal's `numa-allocation-strategy: least-allocated`, above, does it ([topology
manager](../policies/topology-manager.md#numa-allocation-strategy)).
"""


def _pull_request(number: int) -> str:
    return f"[{number}](https://github.com/kubernetes/kubernetes/pull/{number})"


def files() -> str:
    """Describe the files, sockets and cgroups of an installation."""
    default = Config()
    state, runtime = default.state_directory, default.runtime_directory
    rows = (
        (f"`{DEFAULT_CONFIG}`, `{default.static_pod_path}/`", "the configuration and the manifests, which you write"),
        (
            "`/opt/nodeagent`, `/usr/local/bin/nodeagent`",
            "the program; its `share/nodeagent` has documents and examples",
        ),
        (f"`{state}/{STATE_FILE}`", "the state, which is the source of truth"),
        (
            f"`{state}/{CPU_CHECKPOINT}`, `{state}/{MEMORY_CHECKPOINT}`",
            "copies of the allocations in kubelet's format, written after the state",
        ),
        (
            f"`{state}/last_config.yaml`",
            "the last valid configuration, which the agent and `inspect` use if the file is invalid",
        ),
        (f"`{state}/{RESERVATIONS}`", "the [reservations](../how-to/job.md#reserve-a-time)"),
        (f"`{state}/{HOST_SETTINGS}`", "original values of the host's settings that the agent has changed"),
        (f"`{state}/….aside-N`", "files that the agent could not use when it started"),
        (
            "`/var/lib/nodeagent-pods/`",
            "the launcher's records: processes, and exit codes that the agent hasn't read yet",
        ),
        (f"`{DEFAULT_SOCKET}`", "the agent's socket, for commands such as `inspect`"),
        (f"`{runtime}/jobs.sock`", "the agent's socket for `nodeagent job`, `queue` and `reserve`"),
        (f"`{default.launcher_socket}`", "the launcher's socket, for the agent"),
        (
            f"`{runtime}/{PARSED_MANIFESTS}`",
            "pods of the manifests, left by an agent that was stopped, for the next one",
        ),
        (f"`{runtime}/claims/NAMESPACE/NAME.json`", "a ResourceClaim of a pod, with its status"),
        (
            f"`{runtime}/placement/UID/CONTAINER`, `{runtime}/placement/_shared/pool`",
            "CPUs and memory nodes of a container, or of all containers in the shared pool, [for their processes](../how-to/placement.md)",
        ),
        (
            f"`{PODS_CGROUP}/`",
            (
                "cgroups of the pods: `pod<UID>/<container>` for Guaranteed pods, below `burstable/` and `besteffort/` for the "
                "others; processes are in `payload` below a container's cgroup. Pods that never hold CPUs or memory nodes are below "
                "`shared/pool/payload/`, with the processes in the container's cgroup"
            ),
        ),
        (f"`{default.metrics_bind_address}`", "[metrics](metrics.md) at `/metrics`; `/healthz` and `/readyz`"),
    )
    return f"""\
# Files and sockets

| path | content |
| --- | --- |
{_table(rows)}

A configuration can name other directories and sockets: see its [fields](configuration.md).
"""


def main() -> int:
    """Write the pages."""
    for path, text in pages().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
