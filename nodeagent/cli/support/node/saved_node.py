"""Reader of this node's saved state, which commands use if the agent doesn't answer. The saved state is checked with the resource managers'
rules.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from nodeagent.cli.support.named_files import is_absent
from nodeagent.cli.support.node.this_node import NeverSavedError, UnknownStateError, read_saved_state, state_path
from nodeagent.cli.support.places import PODS_CGROUP
from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.model.config import Config
from nodeagent.core.model.state import PodEntry, run_id
from nodeagent.daemon.reports.problems import describe_withheld
from nodeagent.daemon.start.node_builder import discover
from nodeagent.daemon.turn.machine import remove_withheld_cpus
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree
from nodeagent.edge.files import state_files
from nodeagent.edge.processes.launcher import LauncherClient, LauncherError
from nodeagent.edge.transport.local_api_client import ApiUnavailable
from nodeagent.formats.checkpoint.node_state import SavedState, policies_of
from nodeagent.formats.node_view import NodeView
from nodeagent.formats.wire.launcher_protocol import Running, RunStatus


def read_saved_node(config: Config, config_path: str, down: ApiUnavailable) -> NodeView:
    """Read the state that this node's agent has saved, and ask the launcher for the pods' processes.

    Args:
        config: the node's configuration.
        config_path: the path of the configuration file.
        down: the reason why the agent doesn't answer.

    Raises:
        NodeAgentError: there is no saved state, or it can't be read, or the configuration is invalid for the machine.
    """
    node = discover(config, config_path)
    path = state_path(node.config)
    try:
        saved = read_saved_state(node.config)
    except state_files.StateFileError:
        if os.geteuid() == 0:
            raise
        raise UnknownStateError(
            f"the agent does not answer ({down.message}), and only root may read its saved state",
            hint="start it with `systemctl start nodeagent`, or run this command as root",
        ) from down
    if saved is None:
        raise NeverSavedError(
            f"the agent does not answer ({down.message}), and has saved no state in {path}",
            hint="start it with `systemctl start nodeagent`; `journalctl -u nodeagent` says why it may not be running",
        ) from down
    problems = [f"the agent is not running: {down.message}", *find_misfits(node, saved, path)]
    root, runs = _ask_launcher(node, problems)
    pids = None if runs is None else {run.id: run.pid for run in runs if isinstance(run, Running)}
    started = {run.id: run.started_at_ms for run in runs or ()}
    state = replace(saved.state, entries=tuple(_confirm_starts(entry, started) for entry in saved.state.entries))
    if root is not None:
        node, kept = remove_withheld_cpus(node, CgroupTree(root))
        problems += [describe_withheld(kept, node.topology.online | kept.cpus)] if kept.cpus else []
    return NodeView(node, state, root, pids, tuple(problems), policies=saved.policies, hostname=os.uname().nodename)


def find_misfits(node: NodeSetup, saved: SavedState, path: str) -> list[str]:
    """Describe where a saved state doesn't fit the node's configuration or machine."""
    return [
        f'{path} was written under {field} "{saved.policies.get(field)}", the configuration says "{policy}"'
        for field, policy in policies_of(node.config.placement).items()
        if saved.policies.get(field) != policy
    ] + [f"the saved state does not fit: {broken.text}" for broken in violations(node.managers, saved.state)]


def _confirm_starts(entry: PodEntry, started_at_ms: Mapping[str, int]) -> PodEntry:
    """Add start times that the agent had not saved before it stopped. `started_at_ms` contains the start times from the launcher's records,
    by run ID.
    """
    for status in entry.containers:
        if status.is_started and status.started_at_ms is None:
            entry = entry.with_status(replace(status, started_at_ms=started_at_ms.get(run_id(entry, status))))
    return entry


def _ask_launcher(node: NodeSetup, problems: list[str]) -> tuple[str | None, tuple[RunStatus, ...] | None]:
    """Ask the launcher, which keeps running without the agent, for the path of the pods' cgroup and for the runs. Append an error to
    `problems`.
    """
    client = LauncherClient(Path(node.config.launcher_socket))
    try:
        root = node.config.cgroup_root or client.hello().cgroup
        runs = client.list()
    except LauncherError as err:
        problems.append(err.message)
        root = node.config.cgroup_root or (None if is_absent(PODS_CGROUP) else PODS_CGROUP)
        return root, None
    return root, runs
