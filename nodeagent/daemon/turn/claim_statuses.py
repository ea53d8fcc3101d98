"""Keeps the status documents of resource claims: a file for each claim that a pod has, gone with the last one.

Others read them. The agent does so when its state is lost: no cgroup shows what a claim has.
"""

from collections.abc import Callable

from nodeagent.core.model.claims import shorten_name
from nodeagent.core.model.config import Config
from nodeagent.core.model.promises import UnrecoveredPod
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.claims.holdings import taken_claims
from nodeagent.daemon.turn.kept_files import keep_files
from nodeagent.daemon.turn.machine import node_name
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.files.placement_files import PlacementFileError, PlacementFiles

_LONGEST_NAME = 240
"""Of a file, with what is added to it while it is written: file systems have 255."""


def claim_directory(config: Config) -> str:
    """Return the directory of all status documents: `NAMESPACE/NAME.json` below it."""
    return f"{config.runtime_directory}/claims"


def _file_of(claim: str) -> str:
    namespace, _, name = claim.partition("/")
    return f"{namespace}/{shorten_name(name, _LONGEST_NAME)}.json"


class ClaimStatuses:
    def __init__(self, config: Config) -> None:
        self._files = PlacementFiles(claim_directory(config))
        self._held: dict[str, bytes | None] | None = None
        """What each file says. None: something else; instead of all: not read yet."""

    def keep(self, state: NodeState, *, rescan: bool, alive: Callable[[], None] = lambda: None) -> tuple[Problem, ...]:
        """Make the files as the claims are. Returns what could not be done, once for each reason: it is tried again in the next turn."""
        wanted: dict[str, bytes] = {}
        if taken_claims(state.promises):
            from nodeagent.formats.manifest.claim_status import (  # noqa: PLC0415 - few nodes have claims
                allocated_claims,
                claim_text,
            )

            node = node_name()
            wanted = {_file_of(name): claim_text(claim, node) for name, claim in allocated_claims(state).items()}
        if rescan or self._held is None:
            try:
                self._held = self._files.read()
            except PlacementFileError as err:
                self._held = None
                return (Problem.from_error(err),)
        return keep_files(self._files, self._held, wanted, bytes, alive)


def recorded_claims(config: Config) -> tuple[UnrecoveredPod, ...]:
    """Return what pods have by the documents, as an earlier agent has left them; what can't be read is missing."""
    try:
        files = PlacementFiles(claim_directory(config)).read()
    except PlacementFileError:
        return ()
    if not files:
        return ()
    from nodeagent.formats.manifest.claim_status import (  # noqa: PLC0415 - few nodes have claims
        parse_claim_text,
        pods_on_record,
    )

    read = ((name, parse_claim_text(content)) for name, content in files.items() if content is not None)
    # What it says itself of a claim's name is where it would be kept: be that anywhere.
    return pods_on_record(
        claim for name, claim in read if claim is not None and _file_of(claim.allocation.claim) == name
    )
