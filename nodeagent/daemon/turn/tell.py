"""Step `tell` of a turn: write the placement files for containers, and the status documents of claims for other programs."""

from collections.abc import Mapping

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.model.state import NodeState
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.problem import Problem


def tell(
    edges: Edges, state: NodeState, placed: Mapping[str, ContainerPlacement], *, rescan: bool
) -> tuple[Problem, ...]:
    """Write the containers' placement files and the claims' status documents. Return the problems."""
    unwritten = edges.placements.keep(state, placed, rescan=rescan, alive=edges.alive)
    return unwritten + edges.claim_statuses.keep(state, rescan=rescan, alive=edges.alive)
