"""What readers outside the deciding thread see: one immutable value per turn, replaced as a whole."""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.state import NodeState
from nodeagent.core.turn.lifecycle import Run
from nodeagent.daemon.machine import NodeSetup
from nodeagent.daemon.recovery import Recovery, recovery_document
from nodeagent.formats.checkpoint.node_state import policies_of, public_document
from nodeagent.formats.config.effective_config import config_document


class Snapshot(Struct, frozen=True):
    node: NodeSetup
    state: NodeState
    cgroup_root: str
    runs: Mapping[str, Run] | None
    problems: tuple[str, ...] = ()
    """What a person should look at: invalid manifests, failed writes, the launcher out of reach."""
    is_ready: bool = False
    recovery: Recovery | None = None
    set_aside: tuple[str, ...] = ()
    """Files that the start could not use, where they are now."""

    def document(self) -> dict[str, object]:
        """Spell it for the local API; `nodeagent inspect` adds what it sees of the cgroups itself."""
        runs = self.runs or {}
        return {
            "config": config_document(self.node.config),
            "state": public_document(self.state, policies_of(self.node.config.placement)),
            "reservedCPUs": str(self.node.reserved),
            "cgroupRoot": self.cgroup_root,
            "manifestDirectory": self.node.config.static_pod_path,
            "launcher": self.runs is not None,
            "pids": {run.id: run.pid for run in runs.values() if run.exit is None and run.pid is not None},
            "problems": list(self.problems),
            "ready": self.is_ready,
            "recovery": None if self.recovery is None else recovery_document(self.recovery, self.set_aside),
        }
