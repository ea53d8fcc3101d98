"""The agent's turn with its steps: look, decide, save, plan, carry out, tell, act, confirm and report.

Each turn has these steps, whether it was caused by a start, a timer or an event. Each step is a function in the module of its name, which
gets and returns values.
"""

import time

from msgspec.structs import replace

from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.domains.domain import TurnDone
from nodeagent.core.model.state import NodeState, latest_ms
from nodeagent.daemon.reports.metrics_recorder import MetricsRecorder
from nodeagent.daemon.start.recovery import Recovery
from nodeagent.daemon.start.reloading import check_takeover
from nodeagent.daemon.turn.act import act
from nodeagent.daemon.turn.carry_out import carry_out
from nodeagent.daemon.turn.clock import read_first_lead_ms
from nodeagent.daemon.turn.confirm import confirm
from nodeagent.daemon.turn.decide import decide
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.execution import unvacated_cpus
from nodeagent.daemon.turn.look import Seen, look
from nodeagent.daemon.turn.memory import TurnMemory
from nodeagent.daemon.turn.plan import plan
from nodeagent.daemon.turn.problem import Problem
from nodeagent.daemon.turn.report import Done, Reporter
from nodeagent.daemon.turn.requests import Requests, TurnRequest
from nodeagent.daemon.turn.rest import rest
from nodeagent.daemon.turn.save import save
from nodeagent.daemon.turn.tell import tell
from nodeagent.daemon.turn.wakeups import WakeUpReason, Wakeups
from nodeagent.formats.node_view import NodeView


class Agent:
    """The agent. Only the deciding thread may use it, except for `wakeups`, `requests`, `retry` and the latest `view`, which any thread may
    use.
    """

    def __init__(
        self, node: NodeSetup, state: NodeState, edges: Edges, wakeups: Wakeups, recovery: Recovery | None = None
    ) -> None:
        self.edges = edges
        self.wakeups = wakeups
        self.recovery = recovery
        self.requests = Requests()
        self.metrics = MetricsRecorder(node, state.promises)
        self.memory = TurnMemory(
            node=node,
            state=state,
            full_topology=node.topology,
            lead_ms=read_first_lead_ms(latest_ms(state)),
            adapted_to=node.managers,
            is_saved=recovery is None,
        )
        self.view = NodeView(node, state, str(edges.tree.root), is_live=True)
        """View of the node after the last turn, for other threads. The value is immutable; each turn replaces it."""
        edges.recorder.expect_checkpoints(node, state.promises)

    @property
    def node(self) -> NodeSetup:
        return self.memory.node

    @property
    def state(self) -> NodeState:
        return self.memory.state

    @property
    def unit_directories(self) -> tuple[str, ...]:
        """Return the cgroup directories of the units that pods pin."""
        return tuple(str(self.edges.tree.mount / cgroup) for cgroup in self.memory.unit_cgroups.values())

    def change_node(self, node: NodeSetup) -> None:
        """Apply a changed configuration to the running agent.

        Raises:
            StartError: the configuration doesn't fit the allocations, or a field changes that needs a restart. The agent keeps the old
                configuration.
        """
        check_takeover(self.node, self.state, node)
        self.memory = replace(self.memory, node=node)
        for domain in self.edges.domains:
            domain.follow(node.config)

    def retry(self, uid: str) -> None:
        """Let the next turn decide again on a refused pod, without waiting for more room."""
        self.requests.put(TurnRequest(retried=frozenset({uid})))
        self.wakeups.wake(WakeUpReason.REQUEST)

    def turn(self, reasons: frozenset[WakeUpReason], standing: tuple[Problem, ...] = ()) -> float:
        """Run one complete turn.

        Args:
            reasons: reasons why the agent was woken.
            standing: problems that exist outside of turns, such as an invalid configuration file.

        Returns:
            Seconds until the next turn, if nothing wakes the agent earlier.
        """
        began, edges = time.monotonic(), self.edges
        reporter = Reporter(edges, self.metrics, self.recovery, standing)
        seen = look(edges, self.memory, reasons)
        requests = self.requests.take()
        is_readable = not isinstance(seen.domains, Problem)
        pause = rest(edges, seen, reasons, standing) if is_readable and not requests else None
        if pause is not None:
            self.memory = seen.memory
            self.metrics.count_rest(time.monotonic() - began)
            return pause
        if isinstance(seen.domains, Problem):
            reported = reporter.report_undecided(seen, began)
            undone = {entry.pod.uid: str(seen.domains) for entry in self.state.entries}
        else:
            seen, done = confirm(edges, seen, self._decide_and_do(seen, requests))
            reported = reporter.report_turn(self.memory, seen, done, began)
            undone = dict(done.saved.undone)
        self.memory, self.view = reported.memory, reported.view
        self.requests.answer(self.view, undone, frozenset(entry.pod.uid for entry in self.memory.postponed))
        return reported.pause_seconds

    def _decide_and_do(self, seen: Seen, requests: tuple[TurnRequest, ...]) -> Done:
        edges = self.edges
        assert not isinstance(seen.domains, Problem)
        decided = decide(edges, seen, requests)
        saved = save(edges, decided)
        state, world = saved.memory.state, decided.world
        planned = plan(edges, saved.memory, world)
        carried = carry_out(edges, seen, planned)
        untold = tell(edges, state, carried.placed, rescan=seen.rescan)
        ready, unvacated = carried.result.ready, unvacated_cpus(carried.result)
        turn_done = TurnDone(
            saved.memory.decided_state, planned.wanted, ready, unvacated, carried.placed, carried.files_in_use
        )
        acted = act(edges, carried.memory, world, turn_done, seen.domains.strays)
        unsaved = () if saved.problem is None else (saved.problem,)
        problems = (*unsaved, *carried.problems, *untold, *acted.problems)
        conditions = (*planned.conditions, *carried.conditions)
        return Done(world, saved, planned.wanted, carried, acted, conditions, problems)
