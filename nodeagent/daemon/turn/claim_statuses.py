"""Status documents of resource claims. There is a file for each allocated claim, which is removed when the claim's last pod has ended.

The files are written for other programs. The agent reads them only after losing its state, because cgroups don't show a claim's allocation.
"""

from collections.abc import Callable

from nodeagent.core.model.claims import shorten_name
from nodeagent.core.model.config import Config
from nodeagent.core.model.promises import UnrecoveredPod
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.claims.holdings import list_claim_owners
from nodeagent.daemon.turn.machine import node_name
from nodeagent.daemon.turn.problem import Problem
from nodeagent.daemon.turn.synced_files import sync_files
from nodeagent.edge.files.placement_files import PlacementFileError, PlacementFiles

_LONGEST_NAME = 240
"""Maximum length of a file name in bytes. It is below the usual limit of 255, because the temporary file has a longer name."""


def claim_directory(config: Config) -> str:
    """Return the directory of the status documents. The file of a claim is `NAMESPACE/NAME.json`."""
    return f"{config.runtime_directory}/claims"


def _file_name(claim: str) -> str:
    namespace, _, name = claim.partition("/")
    return f"{namespace}/{shorten_name(name, _LONGEST_NAME)}.json"


class ClaimStatuses:
    def __init__(self, config: Config) -> None:
        self._files = PlacementFiles(claim_directory(config))
        self._known: dict[str, bytes | None] | None = None
        """Content of each file, by name. The content is None if another program has changed the file.

        The attribute itself is None until the files have been read.
        """

    def keep(self, state: NodeState, *, rescan: bool, alive: Callable[[], None] = lambda: None) -> tuple[Problem, ...]:
        """Write the status document of each allocated claim, and remove all other files. Return the problems, one for each cause."""
        wanted: dict[str, bytes] = {}
        if list_claim_owners(state.promises):
            from nodeagent.formats.manifest.claim_status import (  # noqa: PLC0415 - few nodes have claims
                allocated_claims,
                claim_text,
            )

            node = node_name()
            wanted = {_file_name(name): claim_text(claim, node) for name, claim in allocated_claims(state).items()}
        if rescan or self._known is None:
            try:
                self._known = self._files.read()
            except PlacementFileError as err:
                self._known = None
                return (Problem.from_error(err),)
        return sync_files(self._files, self._known, wanted, bytes, alive)


def read_recorded_claims(config: Config) -> tuple[UnrecoveredPod, ...]:
    """Return the allocations from the status documents that an earlier agent process has written. Documents that can't be read are left
    out.
    """
    try:
        files = PlacementFiles(claim_directory(config)).read()
    except PlacementFileError:
        return ()
    if not files:
        return ()
    from nodeagent.formats.manifest.claim_status import (  # noqa: PLC0415 - few nodes have claims
        group_by_pod,
        parse_claim_text,
    )

    read = ((name, parse_claim_text(content)) for name, content in files.items() if content is not None)
    # a status document is only used if its file has the name of its claim
    return group_by_pod(
        claim for name, claim in read if claim is not None and _file_name(claim.allocation.claim) == name
    )
