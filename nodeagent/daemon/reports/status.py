"""Numbers of problems and of pods and containers that need attention, and the status line for `systemctl status` and `/readyz`."""

from collections import Counter
from collections.abc import Iterable, Mapping

from nodeagent.core.admission.managers import Managers
from nodeagent.core.cgroups.desired_cgroups import shared_pool, usable_cpus
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.problem_kinds import ProblemKind
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.cpu.holdings import exclusive_cpus, exclusive_sets, own_set_of
from nodeagent.core.turn.lifecycle import next_start_at_ms
from nodeagent.daemon.turn.problem import Problem
from nodeagent.formats.node_view import NodeView
from nodeagent.views.wording.words import format_count

_MOST_CHARACTERS = 300
"""Maximum length, in characters, of the problem in the status line. systemd always shows the whole line."""


def count_wrong(
    managers: Managers,
    state: NodeState,
    online: CpuSet,
    problems: Iterable[Problem],
    *,
    now_ms: int,
    is_ready: bool,
) -> Mapping[ProblemKind, int]:
    """Count the problems, and the pods and containers that need attention, by kind. Kinds with the count 0 are left out."""
    conspicuous = state.conspicuous_entries()
    crash_loops = sum(
        status.exit is not None and (next_start_at_ms(entry, container, status) or 0) > now_ms
        for entry in conspicuous
        if entry.is_active
        for container, status in entry.pairs()
    )
    counts = Counter(problem.kind for problem in problems) + Counter(
        {
            ProblemKind.SYNC: int(not is_ready),
            ProblemKind.REFUSED: sum(entry.refusal is not None and not entry.is_queued for entry in conspicuous),
            ProblemKind.DEGRADED: sum(not cpus <= online for _, _, cpus in exclusive_sets(state.promises)),
            ProblemKind.STARVED: _count_starved(managers, state, online),
            ProblemKind.CRASH_LOOP: crash_loops,
        }
    )
    return dict(counts)


def _count_starved(managers: Managers, state: NodeState, online: CpuSet) -> int:
    """Count the containers that have no usable CPU, except those that have ended for good."""
    pool = shared_pool(managers, state.promises, online)
    if pool:
        return 0
    return sum(
        not usable_cpus(own_set_of(state.promises, entry.pod.uid, container.name), pool, online)
        for entry in state.entries
        if entry.is_active
        for container, status in entry.pairs()
        if status.exit is None or next_start_at_ms(entry, container, status) is not None
    )


def format_status(view: NodeView) -> str:
    """Format the status line: the numbers of pods, exclusive CPUs, problems with their kinds, and refused pods, followed by the first
    problem.
    """
    refused = view.wrong.get(ProblemKind.REFUSED, 0)
    kinds = [kind.value for kind, count in view.wrong.items() if count and kind is not ProblemKind.REFUSED]
    problems = sum(view.wrong.values()) - refused
    named = f" ({', '.join(kinds)})" if kinds else ""
    line = ", ".join(
        (
            format_count(sum(entry.is_active for entry in view.state.entries), "pod"),
            format_count(len(exclusive_cpus(view.state.promises)), "exclusive CPU"),
            f"{format_count(problems, 'problem')}{named}",
            f"{refused} refused",
        )
    )
    if not view.problems:
        return f"{line} (see: nodeagent inspect)" if problems or refused else line
    first = view.problems[0]
    cut = first if len(first) <= _MOST_CHARACTERS else f"{first[:_MOST_CHARACTERS]}…"
    return f"{line}: {cut} (see: nodeagent inspect)"


def report_readiness(view: NodeView) -> tuple[bool, str]:
    """Return whether the agent is ready, and the text of `/readyz`. The text is `ok` only if nothing needs attention."""
    if view.is_ready and not view.wrong:
        return True, "ok"
    begun = "" if view.problems else ": the first sync is not finished"
    heading = "ready, but something needs attention" if view.is_ready else f"not ready{begun}"
    return view.is_ready, "\n".join((heading, format_status(view), *view.problems))
