"""Step `report` of a turn: log and count its events, write the checkpoints in kubelet's format, and publish the view of the node."""

import time
from collections.abc import Iterator
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import describe_suspended_plugins, shortfalls
from nodeagent.core.metrics.agent_metrics import MOVED
from nodeagent.core.model.cgroup import DesiredCgroup
from nodeagent.core.model.problem_kinds import ProblemKind
from nodeagent.core.model.reservation import ReservedRoom
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.violations import Shortfall
from nodeagent.core.turn.lifecycle import is_unsettled
from nodeagent.core.turn.quiet import find_left_alone
from nodeagent.core.turn.world import EventKind, World
from nodeagent.daemon.reports.logs import log_event, pod_fields
from nodeagent.daemon.reports.metrics_recorder import MetricsRecorder
from nodeagent.daemon.reports.problems import (
    describe_duplicate,
    describe_misnamed_pods,
    describe_refused_change,
    describe_refused_containers,
    describe_waiting_units,
)
from nodeagent.daemon.reports.status import count_wrong
from nodeagent.daemon.start.recovery import Recovery, encode_recovery, log_refusal
from nodeagent.daemon.turn.act import Acted
from nodeagent.daemon.turn.carry_out import CarriedOut
from nodeagent.daemon.turn.decide import device_pools, managers_with_devices
from nodeagent.daemon.turn.drift import log_corrected, log_gathered
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.look import Seen
from nodeagent.daemon.turn.memory import POLL_SECONDS, Settled, TurnMemory
from nodeagent.daemon.turn.problem import Problem, as_problem
from nodeagent.daemon.turn.rest import list_inputs
from nodeagent.daemon.turn.save import Saved
from nodeagent.formats.node_view import NodeView

_RETRY_SECONDS = 1.0
_LONGEST_POLL_SECONDS = 1.0


class Done(Struct, frozen=True):
    """Results of the steps of a complete turn."""

    world: World
    saved: Saved
    wanted: tuple[DesiredCgroup, ...]
    carried: CarriedOut
    acted: Acted
    conditions: tuple[str, ...]
    problems: tuple[Problem, ...]
    is_confirmed: bool = False
    """Whether the agent has observed the turn's effects, and found nothing left to do."""


class TurnReport(Struct, frozen=True):
    memory: TurnMemory
    view: NodeView
    pause_seconds: float
    """Seconds until the next turn, if nothing wakes the agent earlier."""


class Reporter(Struct, frozen=True):
    """Reporter of turns. `standing` contains problems that exist outside of turns, such as an invalid configuration file."""

    edges: Edges
    metrics: MetricsRecorder
    recovery: Recovery | None
    standing: tuple[Problem, ...]

    def report_undecided(self, seen: Seen, began: float) -> TurnReport:
        """Report a turn that made no decision, because the cgroups couldn't be used."""
        return self._publish(seen.memory, seen, None, seen.problems, _RETRY_SECONDS, began)

    def report_turn(self, before: TurnMemory, seen: Seen, done: Done, began: float) -> TurnReport:
        """Log and count what a complete turn has done, and publish the view of the node after it."""
        edges, saved, carried = self.edges, done.saved, done.carried
        state, turn, memory = saved.memory.state, saved.turn, done.acted.memory
        if saved.problem is not None:
            self.metrics.count_failed_save(saved.error)
        known = {entry.pod.uid for entry in before.unsaved}
        for entry in memory.unsaved:
            if entry.pod.uid not in known and entry.refusal is not None:
                self.metrics.count_refusal(entry.refusal.reason)
                log_refusal(entry, edges.log)
        took = {"writes": len(carried.result.written), "duration_ms": round((time.monotonic() - began) * 1000)}
        duplicates = []
        for event in turn.events:
            if event.kind is not EventKind.MANIFEST_SHADOWED:
                log_event(edges.log, event, state, took)
                continue
            duplicates.append(describe_duplicate(event))
            if duplicates[-1] not in before.reported.duplicates:
                log_event(edges.log, event, state, {})
        log_gathered(done.world, carried.result, state, edges.log)
        drift = log_corrected(carried.result, before.in_sync, state, edges.log)
        self.metrics.count(turn, carried.result, (*drift, *[MOVED] * done.acted.moved_back), saved.took_ms)
        pools = device_pools(edges, memory)
        unprojected = edges.recorder.update_checkpoints(memory.node, state.promises, pools, rescan=seen.rescan)
        problems = (*seen.problems, *done.problems, *unprojected)
        runs = done.world.runs
        unsettled = (  # whether a change is expected that doesn't wake the agent
            edges.host_settings.is_settling
            or any(domain.is_unsettled for domain in edges.domains)
            or (
                runs is not None
                and any(is_unsettled(entry, runs, done.world.observed) for entry in done.world.awake(state.entries))
            )
        )
        pauses = [memory.node.config.rescan_period_ms / 1000]
        if turn.wake_at_ms is not None:
            pauses.append(max(0.0, (turn.wake_at_ms - done.world.now_ms) / 1000))
        if memory.failures.pause_seconds is not None:
            pauses.append(memory.failures.pause_seconds)
        if set(problems) - carried.deferred:
            pauses.append(_RETRY_SECONDS)
        if unsettled:
            pauses.append(memory.poll_seconds)
        memory = replace(
            memory,
            in_sync=carried.in_sync,
            conditions=done.conditions,
            has_reconciled=memory.has_reconciled or seen.runs is not None,
            reported=replace(memory.reported, duplicates=tuple(duplicates)),
            settled=None,
            left_alone=None if saved.problem else find_left_alone(seen.memory.state, memory.state, done.world, turn),
            poll_seconds=min(_LONGEST_POLL_SECONDS, memory.poll_seconds * 1.5) if unsettled else POLL_SECONDS,
        )
        reported = self._publish(memory, seen, done, problems, min(pauses), began)
        is_changed = bool(turn.events or carried.result.written) and not done.is_confirmed
        is_settled = not (problems or unsettled or turn.postponed or is_changed) and (
            turn.wake_at_ms is None or turn.wake_at_ms > done.world.now_ms
        )
        if not is_settled:
            return reported
        inputs = list_inputs(edges, reported.memory, seen, self.standing)
        settled = Settled(inputs, carried.host, turn.wake_at_ms)
        return replace(reported, memory=replace(reported.memory, settled=settled))

    def _publish(
        self,
        memory: TurnMemory,
        seen: Seen,
        done: Done | None,
        problems: tuple[Problem, ...],
        pause_seconds: float,
        began: float,
    ) -> TurnReport:
        """Log the problems that are new or over, and publish the view of the node."""
        edges, state, known = self.edges, memory.state, memory.reported
        for domain in edges.domains:
            self.metrics.count_domain(domain.count())
        problems = tuple(dict.fromkeys(problems))
        found: dict[Shortfall, dict[str, str]] = {}
        for short in shortfalls(managers_with_devices(edges, memory), state.promises):
            uid, container = short.holder or ("", None)
            entry = state.entry(uid)
            found[short] = {} if entry is None else pod_fields(entry.pod, container)
        self._log_problems(seen, known.manifests, known.problems, problems)
        for short, fields in found.items():
            if short not in known.shortfalls:
                edges.log.warning("promise_short", **fields, problem=short.text)
        for short, before in known.shortfalls.items():
            if short not in found:
                edges.log.info("promise_kept_again", **before, problem=short.text)
        refused = tuple(problem for source in seen.sources for problem in source.problems)
        memory = replace(
            memory,
            reported=replace(known, manifests=refused, problems=frozenset(problems), shortfalls=found),
        )
        runs = seen.runs
        # invalid manifests have their own log lines, and don't count as problems of the agent
        manifests = [
            *((problem.source, problem.text) for problem in refused),
            *known.duplicates,
            *(
                (entry.origin.name, text)
                for entry in state.conspicuous_entries()
                if (text := describe_refused_change(entry)) is not None
            ),
        ]
        all_problems = (
            *map(as_problem, self._find_conditions(memory)),
            *problems,
            *(Problem(_format_holder(short, state) + short.text, kind=ProblemKind.PROMISE) for short in found),
            *(
                Problem(text, kind=ProblemKind.REFUSED)
                for text in describe_refused_containers(state, for_room=memory.node.config.retries_for_room)
            ),
            *(Problem(text, kind=ProblemKind.PROMISE) for text in describe_waiting_units(state)),
            *(Problem(text, kind=ProblemKind.REFUSED) for text in describe_misnamed_pods(state)),
            *(Problem(f"manifest {source}: {text}", kind=ProblemKind.MANIFEST) for source, text in manifests),
        )
        is_ready = done is not None and runs is not None and not memory.save_failed
        shown, online = memory.shown_state, memory.node.topology.online
        wrong = count_wrong(memory.node.managers, shown, online, all_problems, now_ms=seen.now_ms, is_ready=is_ready)
        view = NodeView(
            node=memory.node,
            state=shown,
            cgroup_root=str(edges.tree.root),
            unit_cgroups=memory.unit_cgroups,
            pids=None if runs is None else {r.id: r.pid for r in runs.values() if r.exit is None and r.pid is not None},
            problems=tuple(map(str, all_problems)),
            wrong=wrong,
            recovery=None
            if self.recovery is None or self.recovery.is_ordinary
            else encode_recovery(self.recovery, edges.recorder.set_aside),
            is_live=True,
            is_ready=is_ready,
            pools=device_pools(edges, memory),
            reservations=tuple(_list_reservations(seen)),
        )
        self.metrics.publish(
            view,
            memory.node.managers,
            decided_something=done is not None and bool(done.saved.turn.events),
            manifest_problems=len({source for source, _ in manifests}),
            seconds=time.monotonic() - began,
            quiet=frozenset() if done is None else done.world.quiet,
        )
        return TurnReport(memory, view, pause_seconds)

    def _find_conditions(self, memory: TurnMemory) -> Iterator[str]:
        """Yield the problems that aren't failures of this turn."""
        yield from self.standing
        yield from filter(None, (memory.withheld_problem, *memory.conditions, memory.misplaced_problem))
        services = [describe_suspended_plugins(memory.node.managers)]
        services += [domain.standing_problem() for domain in self.edges.domains]
        if self.edges.plugins is not None:
            services += self.edges.plugins.problems()
        yield from (Problem(text, kind=ProblemKind.SERVICE) for text in services if text)

    def _log_problems(
        self, seen: Seen, manifests: tuple[object, ...], known: frozenset[Problem], problems: tuple[Problem, ...]
    ) -> None:
        log = self.edges.log
        new = (problem for source in seen.sources for problem in source.problems if problem not in manifests)
        for source, group in groupby(new, key=lambda problem: problem.source):
            log.warning("manifest_refused", source=source, problems=[problem.text for problem in group])
        for problem in problems:
            if problem not in known:
                log.error("trouble", **problem.log_fields, problem=str(problem))
        for problem in sorted(known - set(problems)):
            log.info("trouble_over", **problem.log_fields, problem=str(problem))


def _list_reservations(seen: Seen) -> Iterator[ReservedRoom]:
    for source in [source for source in seen.sources if source.reservations]:
        names = {manifest.pod.uid: manifest.pod.full_name for manifest in source.pods}
        for one in [one for one in source.reservations if one.is_made]:
            yield ReservedRoom.of(one, [names[terms.uid] for terms in source.terms if terms.reservation == one.name])


def _format_holder(short: Shortfall, state: NodeState) -> str:
    """Format the beginning of a shortfall's text, which names the pod and the container. Empty means that the shortfall concerns several
    pods.
    """
    if short.holder is None:
        return ""
    uid, container = short.holder
    entry = state.entry(uid)
    name = uid if entry is None else entry.pod.full_name
    return f"pod {name}, container {container}: " if container else f"pod {name}: "
