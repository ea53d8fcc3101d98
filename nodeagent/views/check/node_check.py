"""All checks of a node in a fixed order, as a document with stable field names, and as text."""

from collections.abc import Iterable, Mapping
from typing import Any

from nodeagent.views.check import host, isolation, kernel_settings, placement, runtime
from nodeagent.views.check.verdicts import CheckResult, Level, NodeFacts
from nodeagent.views.wording.columns import break_text

KIND = "NodeCheck"
VERSION = 1
"""Version of the document. New fields and checks don't increase the version, and fields are never renamed or removed."""

Document = dict[str, Any]
_SGR = {Level.OK: "32", Level.NOTE: "36", Level.WARNING: "33", Level.FAILURE: "1;31", Level.UNKNOWN: "35"}
WIDTH = 80
_LEVEL_WIDTH, _NAME_WIDTH = 8, 16
"""Widths of the columns for the level and for the check's name. A longer name widens its column."""
_FIX_INDENT = 9


def run_checks(facts: NodeFacts) -> tuple[CheckResult, ...]:
    """Run all checks in a fixed order."""
    of_devices: Iterable[CheckResult] = ()
    if facts.devices is not None:
        from nodeagent.views.check.devices import check_devices  # noqa: PLC0415 - few nodes have devices

        of_devices = check_devices(facts)
    return (
        host.check_kernel(facts),
        host.check_cgroup_v2(facts),
        host.check_controllers(facts),
        host.check_delegation(facts),
        placement.check_configuration(facts),
        placement.check_reserved_cpus(facts),
        placement.check_online_cpus(facts),
        *placement.check_core_classes(facts),
        placement.check_smt(facts),
        isolation.check_host_isolation(facts),
        isolation.check_interrupts(facts),
        isolation.check_isolcpus(facts),
        isolation.check_nohz_full(facts),
        placement.check_huge_pages(facts),
        *placement.check_memory_only_nodes(facts),
        *of_devices,
        host.check_numa_balancing(facts),
        host.check_governor(facts),
        *kernel_settings.check_kernel_settings(facts),
        host.check_irqbalance(facts),
        host.check_kubelet(facts),
        *host.check_competing_services(facts),
        *runtime.check_runtime(facts),
    )


def is_fit(found: tuple[CheckResult, ...], *, strict: bool = False) -> bool:
    """Return whether the agent can work on the node. With `strict`, a warning or an unknown result makes the node unfit, too."""
    bad = {Level.FAILURE, Level.WARNING, Level.UNKNOWN} if strict else {Level.FAILURE}
    return all(verdict.level not in bad for verdict in found)


def describe_checks(found: tuple[CheckResult, ...]) -> Document:
    return {
        "kind": KIND,
        "version": VERSION,
        "fit": is_fit(found),
        "checks": [
            {
                "check": v.check,
                "level": v.level.value,
                "reason": v.reason,
                "fix": v.fix or None,
                "fixable": bool(v.writes),
            }
            for v in found
        ],
        "summary": {level.value: sum(v.level is level for v in found) for level in Level},
    }


def render_node_check(document: Mapping[str, Any], *, coloured: bool = False, width: int = WIDTH) -> str:
    """Format one line per check, or several lines for a long reason. A fix always stays on one line, so that users can copy it."""
    lines = []
    names = max(_NAME_WIDTH, *(len(check["check"]) for check in document["checks"]))
    indent = _LEVEL_WIDTH + 1 + names + 1
    for check in document["checks"]:
        level = Level(check["level"])
        first, *rest = break_text(check["reason"], width - indent)
        word = f"{level.value:<{_LEVEL_WIDTH}}"
        lines.append(f"{_paint(level, word, coloured)} {check['check']:<{names}} {first}")
        lines += [" " * indent + line for line in rest]
        if check["fix"]:
            lines.append(" " * _FIX_INDENT + f"fix: {check['fix']}")
    counts = [
        f"{count} {name}s" if count > 1 and name in {"note", "warning", "failure"} else f"{count} {name}"
        for name, count in document["summary"].items()
        if count
    ]
    level, word = Level.OK, "fit"
    if not document["fit"]:
        level, word = Level.FAILURE, "NOT fit"
    elif document["summary"]["unknown"]:
        level, word = Level.UNKNOWN, "fit as far as known"
    lines += ["", f"{_paint(level, word, coloured)}: {', '.join(counts)}"]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _paint(level: Level, text: str, coloured: bool) -> str:
    return f"\x1b[{_SGR[level]}m{text}\x1b[0m" if coloured else text
