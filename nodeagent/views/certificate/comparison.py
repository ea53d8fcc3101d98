"""Comparison of run reports with the report on a good run. Each difference is divided by its measure's threshold, and the differences are
sorted by the quotient.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from nodeagent.core.certificate.disturbances import THRESHOLDS, change_thresholds, rank_kinds
from nodeagent.formats.syntax.json_values import JsonValue, parse_json
from nodeagent.views.certificate.run_report import KIND as REPORT_KIND, VERSION as REPORT_VERSION
from nodeagent.views.certificate.words import format_measure, format_rate

KIND = "RunComparison"
VERSION = 1
"""Version of the document. New fields don't increase the version, and fields are never renamed or removed."""

Document = dict[str, Any]

_FACTS = (
    ("commandSha256", "the command"),
    ("exclusiveCPUs", "exclusive CPUs"),
    ("sharedCPUs", "shared CPUs"),
    ("numaNodes", "NUMA nodes"),
)
_NODE_FACTS = (
    ("kernel", "kernel"),
    ("model", "CPU model"),
    ("microcode", "microcode"),
    ("bootParameters", "boot parameters"),
    ("bootCommandLineSha256", "hash of the boot command line"),
    ("configurationHash", "hash of nodeagent's configuration"),
    ("transparentHugePages", "transparent huge pages"),
    ("addressSpaceRandomisation", "address space randomisation"),
    ("noTurbo", "no_turbo"),
    ("boost", "boost"),
)
_QUIET_FACTS = ("quiet profile", "quiet settings", "missing quiet settings")
_FREQUENCY_FACTS = (
    ("lowestKilohertz", "lowest frequency in kHz"),
    ("highestKilohertz", "highest frequency in kHz"),
    ("limitAtStartKilohertz", "frequency limit at the start in kHz"),
    ("limitAtEndKilohertz", "frequency limit at the end in kHz"),
)
_FREQUENCIES = frozenset(title for _, title in _FREQUENCY_FACTS)
_MOST_FREQUENCY_CHANGE = 0.02
_RATE_FACTS = (
    ("cgroup", "majorPageFaults", "major page faults a second"),
    ("mainThread", "migrations", "migrations a second"),
)
_RATES = frozenset(title for *_, title in _RATE_FACTS)
_LEAST_RATE_FACTOR, _LEAST_COUNT = 2, 10
"""Minimum factor and minimum number of occurrences by which two rates must differ to count as different. A small difference is usual
between any two runs.
"""
_OF_CPU = re.compile(r" of CPU \d+$")


class ReadReport(Struct, frozen=True):
    """Parts of a report that are used for a comparison."""

    name: str
    """Path of the report's file."""
    verdict: str
    elapsed_us: int
    status: int | None
    """Exit status of the command. None means that a signal ended the command."""
    measures: Mapping[str, tuple[int | None, str | None]]
    """Value and main cause of each measure, by the measure's name. None means that the value or cause is unknown. Measures that this
    version doesn't know are left out.
    """
    thresholds: Mapping[str, int]
    """Highest rate that doesn't count as a disturbance, by measure."""
    timeline: tuple[tuple[int, Mapping[str, int]], ...]
    """Consecutive intervals of the run, each with its duration in microseconds and the values of its measures in thousandths."""
    facts: Mapping[str, Any]
    """Properties of the run and the node, by their displayed names."""


def read_report(text: bytes, name: str) -> ReadReport:
    """Decode the report on a run.

    Raises:
        MisfitError: the document isn't a report on a run.
    """
    document = parse_json(text)
    document.field("kind").among((REPORT_KIND,))
    document.field("version").whole(1, REPORT_VERSION)
    node = document.field("node")
    facts = {title: document.read_optional(field, _read_fact, None) for field, title in _FACTS}
    facts |= {title: node.read_optional(field, _read_fact, None) for field, title in _NODE_FACTS}
    facts["mitigations"] = "; ".join(
        f"{name}: {text}" for name, text in node.field("mitigations").by_name(JsonValue.text)
    )
    frequency = document.field("frequency")
    facts["frequency governors"] = ", ".join(frequency.field("governors").each(JsonValue.text))
    facts["frequency drivers"] = ", ".join(frequency.field("drivers").each(JsonValue.text))
    facts |= {title: frequency.read_optional(field, JsonValue.whole, None) for field, title in _FREQUENCY_FACTS}
    facts |= document.read_optional("quiet", _read_quiet, dict.fromkeys(_QUIET_FACTS, ""))
    elapsed_us = document.field("microseconds").whole(1)
    for part, field, title in _RATE_FACTS:
        count = document.field(part).read_optional(field, JsonValue.whole, None)
        facts[title] = None if count is None else round(count * 1_000_000 / elapsed_us)
    measures = document.field("measures").each(
        lambda one: (
            one.field("name").text(),
            (one.read_optional("value", JsonValue.whole, None), one.read_optional("source", JsonValue.text, None)),
            one.field("threshold").whole(),
        )
    )
    return ReadReport(
        name,
        document.field("verdict").text(),
        elapsed_us,
        document.field("exit").read_optional("status", JsonValue.whole, None),
        {name: found for name, found, _ in measures if name in THRESHOLDS},
        {name: most for name, _, most in measures if name in THRESHOLDS},
        document.field("timeline").each(
            lambda part: (
                part.field("microseconds").whole(),
                dict(
                    part.field("measures").each(
                        lambda one: (one.field("name").text(), one.field("value").whole(0, 1000))
                    )
                ),
            )
        ),
        facts,
    )


def _read_quiet(quiet: JsonValue) -> dict[str, Any]:
    """Read the quiet settings. CPU numbers are removed, so that equal settings on different CPUs count as equal."""

    def join(field: str, value: str) -> str:
        settings = quiet.field(field).each(
            lambda one: f"{_OF_CPU.sub('', one.field('setting').text())}: {one.field(value).text()}"
        )
        return "; ".join(sorted(set(settings)))

    profile = quiet.read_optional("profile", JsonValue.text, "")
    return dict(zip(_QUIET_FACTS, (profile, join("applied", "value"), join("missing", "reason")), strict=True))


def _read_fact(value: JsonValue) -> str | int:
    return value.whole() if isinstance(value.value, int) else value.text()


def describe_comparison(good: ReadReport, bad: Iterable[ReadReport]) -> Document:
    """Describe how each report differs from the good report. The differences of a report are sorted, the largest first."""
    return {
        "kind": KIND,
        "version": VERSION,
        "good": _describe_run(good),
        "others": [
            {
                **_describe_run(one),
                "durationPerMille": round(1000 * one.elapsed_us / good.elapsed_us),
                "differences": _compare_measures(good, one),
                "facts": [
                    {"name": name, "good": value, "value": one.facts[name]}
                    for name, value in good.facts.items()
                    if not _is_same_fact(name, good, one)
                ],
                "same": [
                    *(name for name in THRESHOLDS if _is_same_measure(name, good, one)),
                    *(
                        name
                        for name, value in good.facts.items()
                        if value is not None and _is_same_fact(name, good, one)
                    ),
                ],
            }
            for one in bad
        ],
    }


def _describe_run(report: ReadReport) -> Document:
    return {
        "file": report.name,
        "verdict": report.verdict,
        "microseconds": report.elapsed_us,
        "exitStatus": report.status,
        "unknown": [name for name in THRESHOLDS if report.measures.get(name, (None, None))[0] is None],
    }


def _is_same_fact(name: str, good: ReadReport, bad: ReadReport) -> bool:
    """Return whether a property is the same in both reports. Frequencies and rates count as the same if they differ only slightly."""
    was, value = good.facts[name], bad.facts[name]
    if was is None or value is None or name not in _FREQUENCIES | _RATES:
        return bool(was == value)
    low, high = sorted((was, value))
    if name in _FREQUENCIES:
        return bool(high - low <= _MOST_FREQUENCY_CHANGE * high)
    count = (high - low) * min(good.elapsed_us, bad.elapsed_us) / 1_000_000
    return bool(high < _LEAST_RATE_FACTOR * low or count < _LEAST_COUNT)


def _is_same_measure(name: str, good: ReadReport, bad: ReadReport) -> bool:
    (was, _), (value, _) = (one.measures.get(name, (None, None)) for one in (good, bad))
    most = change_thresholds(good.thresholds)[name].most
    return was is not None and value is not None and abs(value - was) <= most


def _compare_measures(good: ReadReport, bad: ReadReport) -> list[Document]:
    """Return the measures that are higher than in the good report by more than the threshold, the largest difference first."""
    found: dict[str, Document] = {}
    for name, threshold in change_thresholds(good.thresholds).items():
        (was, _), (value, source) = (one.measures.get(name, (None, None)) for one in (good, bad))
        if was is not None and value is not None and value - was > threshold.most:
            measure = {"name": name, "unit": threshold.unit, "value": value, "source": source}
            found[name] = {
                **measure,
                "good": was,
                "sizePerMille": round(1000 * (value - was) / max(1, threshold.most)),
                "sentence": format_measure(measure),
                "remedy": threshold.remedy,
            }
    ranks = rank_kinds({name: one["sizePerMille"] for name, one in found.items()})
    return sorted(found.values(), key=lambda one: ranks[one["name"]])


def render_comparison(document: Mapping[str, Any]) -> str:
    """Format a comparison as text."""
    good = document["good"]
    lines = [f"good: {good['file']}: {_format_run(good)}"]
    for one in document["others"]:
        lines += ["", f"{one['file']}: {_format_run(one)}, {format_duration(one['durationPerMille'])}"]
        for number, found in enumerate(one["differences"], 1):
            before = format_rate(found["unit"], found["good"])
            lines += [f"  {number}. {found['sentence']}; good: {before}", f"     remedy: {found['remedy']}"]
        for fact in one["facts"]:
            value, before = (format_fact(fact["name"], fact[key]) for key in ("value", "good"))
            lines.append(f"  other {fact['name']}" + (f": {value}; good: {before}" if value != before else ""))
        if same := format_same(one):
            lines.append(f"  {same}")
        unknown = sorted({*good["unknown"], *one["unknown"]})
        if unknown:
            lines.append(f"  unknown in one of the reports: {', '.join(unknown)}")
    return "\n".join(lines) + "\n"


def _format_run(run: Mapping[str, Any]) -> str:
    return f"{run['microseconds'] / 1_000_000:.2f} s, {run['verdict']}{format_exit(run['exitStatus'])}"


def format_exit(status: int | None) -> str:
    """Format how the command ended. The result is empty for a command that succeeded."""
    if status is None:
        return ", ended by a signal"
    return "" if status == 0 else f", exit status {status}"


def format_same(run: Mapping[str, Any]) -> str:
    """State that no difference was measured, and list the compared measures and properties. The result is empty if any difference was
    found.
    """
    if run["differences"] or run["facts"]:
        return ""
    return f"no difference in {', '.join(run['same'])} was measured"


def format_duration(per_mille: int) -> str:
    """Format the duration of a run, given in thousandths of the good run's duration."""
    if per_mille == 1000:
        return "as long"
    difference = format_rate("perMille", abs(per_mille - 1000))
    return f"{difference} {'longer' if per_mille > 1000 else 'shorter'}"


def format_fact(name: str, value: object) -> str:
    """Format the value of a property. The result is empty for a hash, which tells readers nothing."""
    if "hash" in name or name == "the command":
        return ""
    return "unknown" if value is None else str(value) or "none"
