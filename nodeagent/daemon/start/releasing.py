"""Releases a node while the agent isn't running: its own turns until no pod is left, then its cgroups and files.

It makes the same decisions, checkpoints and writes as the running agent, one after the other in this process, with its lock. No manifest is
read, so nothing new is admitted.
"""

import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.cgroups.write_order import RemoveCgroup
from nodeagent.core.model.cgroup_layout import OWN_DIRECTORIES
from nodeagent.core.model.config import Config
from nodeagent.core.model.state import NodeState
from nodeagent.daemon.domains.all import domains_of
from nodeagent.daemon.domains.systemd.unit_cgroups import UnitCgroups, read_cgroups
from nodeagent.daemon.domains.systemd.unit_records import UnitRecords
from nodeagent.daemon.host.host_edges import HostEdges, write_directly
from nodeagent.daemon.host.host_settings import HOST_SETTINGS, PUT_BACK, HostSettings, put_back
from nodeagent.daemon.reports.logs import make_log
from nodeagent.daemon.sources.manifest_list import ManifestList
from nodeagent.daemon.start.recovery import Evidence, start_state
from nodeagent.daemon.start.startup import CPU_CHECKPOINT, LAST_CONFIG, MEMORY_CHECKPOINT, STATE_FILE
from nodeagent.daemon.turn.agent import Agent
from nodeagent.daemon.turn.claim_statuses import ClaimStatuses
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.machine import Machine
from nodeagent.daemon.turn.placements import Placements, placement_directory
from nodeagent.daemon.turn.problem import Problem
from nodeagent.daemon.turn.records import Recorder
from nodeagent.daemon.turn.requests import TurnRequest
from nodeagent.daemon.turn.runs import Runner
from nodeagent.daemon.turn.wakeups import WakeUpReason, Wakeups
from nodeagent.edge.cgroups.cgroupfs import CgroupTree
from nodeagent.edge.files import state_files
from nodeagent.edge.files.manifest_watch import ManifestWatch
from nodeagent.edge.files.placement_files import PlacementFiles
from nodeagent.edge.kernel.host_settings import boot_id
from nodeagent.edge.processes.launcher import LauncherClient, LauncherError
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.host_record import HostRecordError
from nodeagent.formats.syntax.bind_address import UnixAddress, parse_bind_address

_LONGEST_PAUSE_SECONDS = 0.1


class DrainError(NodeAgentError):
    """Something is left of the pods."""


class Pods(Struct, frozen=True):
    """Where the pods are, and what started them."""

    tree: CgroupTree
    runner: Runner


def find_pods_cgroup(config: Config, installed: str) -> Pods | None:
    """Find the pods' cgroup and the launcher. None: there is no such cgroup, so nothing runs.

    Args:
        config: the agent's.
        installed: the cgroup of the pods' unit, used if neither configuration nor launcher names another.

    Raises:
        DrainError: pods have processes, but no launcher runs that could end them in order.
    """
    client = LauncherClient(Path(config.launcher_socket))
    try:
        root = client.hello().cgroup or installed
    except LauncherError as err:
        tree = CgroupTree(config.cgroup_root or installed)
        if any(there.is_populated for path, there in tree.read(OWN_DIRECTORIES).items() if path):
            raise DrainError(
                f"pods run in {tree.root}, and cannot be ended in order: {err.message}",
                hint="`systemctl start nodeagent-launcher`, then again; or end them all at once: `systemctl stop nodeagent-pods`",
            ) from err
        return None
    tree = CgroupTree(config.cgroup_root or root)
    return Pods(tree, Runner(client)) if "" in tree.read(OWN_DIRECTORIES) else None


def load_agent(node: NodeSetup, pods: Pods) -> Agent:
    """Create an agent that knows what the last one knew, and ends all pods in its next turns.

    Raises:
        DrainError: what runs can't be read.
    """
    config, problem = node.config, ""

    watch = ManifestWatch(config.static_pod_path, lambda: None)
    with closing(ManifestList(config.static_pod_path, watch, patience_seconds=0)) as manifests:
        known = manifests.look(rescan=True).pods

    def look() -> Evidence | None:
        nonlocal problem
        runs = pods.runner.look()
        if isinstance(runs, Problem):
            problem = runs
            return None
        units = UnitCgroups(pods.tree, recorded=UnitRecords(config).look)
        observed = read_cgroups(pods.tree, units, tuple(manifest.pod for manifest in known))
        if units.last_read.unanswered:
            problem = Problem(units.last_read.unanswered)
            return None
        return Evidence(observed, runs)

    start = start_state(node, known, time.time_ns() // 1_000_000, look, devices=Machine().devices)
    if start is None:
        raise DrainError(
            f"cannot find out which processes run: {problem}", hint="`systemctl status nodeagent-launcher`"
        )
    log = make_log(io.StringIO())  # the caller reports what happens, from the states
    edges = Edges(
        log=log,
        machine=Machine(),
        domains=domains_of(config, pods.tree),
        runner=pods.runner,
        tree=pods.tree,
        recorder=Recorder(
            config.state_directory, log, unusable=() if start.recovery is None else start.recovery.unusable
        ),
        host_settings=HostSettings(
            HostEdges(write_directly, str(pods.tree.root)), config.state_directory, boot_id(), log
        ),
        placements=Placements(PlacementFiles(placement_directory(config))),
        claim_statuses=ClaimStatuses(config),
    )
    return Agent(node, start.state, edges, Wakeups(), start.recovery)


def drain(agent: Agent, report: Callable[[NodeState], None], deadline: float) -> None:
    """Run turns until no pod holds anything.

    Args:
        agent: does the turns.
        report: gets each state.
        deadline: by the monotonic clock.

    Raises:
        DrainError: it has passed.
    """
    agent.requests.put(TurnRequest(released=frozenset(entry.pod.uid for entry in agent.state.own_entries())))
    reasons = frozenset({WakeUpReason.START})
    while True:
        pause = agent.turn(reasons)
        report(agent.state)
        left = [entry.pod.full_name for entry in agent.state.own_entries() if entry.is_active]
        if not left:
            return
        if time.monotonic() > deadline:
            problems = f" ({'; '.join(agent.view.problems)})" if agent.view.problems else ""
            raise DrainError(
                f"still there: {', '.join(left)}{problems}",
                hint="`nodeagent inspect POD` shows its processes; run the same command again to continue",
            )
        reasons = frozenset({WakeUpReason.TIMER})
        time.sleep(min(pause, _LONGEST_PAUSE_SECONDS))


def put_host_settings_back(config: Config, *, forget: bool = False) -> int:
    """Give interrupts and the kernel's work the CPUs that they had before the agent changed that; return how many there were.

    Args:
        config: the agent's.
        forget: remove the record, too. Only without a running agent.

    Raises:
        DrainError: not all could be written.
        NodeAgentError: it is unknown what they were.
    """
    path = str(Path(config.state_directory) / HOST_SETTINGS)
    edges = HostEdges(write_directly, config.cgroup_root or "")
    try:
        count, problems = put_back(edges, config.state_directory, boot_id())
    except HostRecordError:
        if forget:
            state_files.set_aside(path)
            state_files.remove(path)
        raise
    if problems:
        raise DrainError(
            f"not put back: {'; '.join(problems)}",
            hint="try again: `nodeagent release --host-settings`; CPUs that it needs may be offline, or a service hangs",
        )
    if forget:
        state_files.remove(path)
        state_files.remove(str(Path(config.state_directory) / PUT_BACK))
    return count


def remove_cgroups(tree: CgroupTree) -> tuple[str, ...]:
    """Remove every cgroup that the agent created and that has no process; return those that have.

    Raises:
        CgroupError: one can't be removed, or read.
    """
    seen = tree.read(OWN_DIRECTORIES)
    for path in sorted(filter(None, seen), reverse=True):
        if not seen[path].is_populated:
            tree.apply(RemoveCgroup(path))
    return tuple(path for path, there in sorted(seen.items()) if path.count("/") and there.is_populated)


def own_files(config: Config) -> Iterator[str]:
    """Return the agent's files that exist: state, files set aside, its last configuration, lock, sockets."""
    directory = Path(config.state_directory)
    for name in (STATE_FILE, CPU_CHECKPOINT, MEMORY_CHECKPOINT, HOST_SETTINGS, PUT_BACK, LAST_CONFIG):
        found = [directory / name, Path(state_files.temporary_path(str(directory / name))), *_aside(directory, name)]
        yield from (str(path) for path in found if os.path.lexists(path))
    sockets = [Path(config.runtime_directory) / name for name in ("agent.sock", "jobs.sock")]
    address = parse_bind_address(config.metrics_bind_address) if config.metrics_bind_address else None
    if isinstance(address, UnixAddress):
        sockets.append(Path(address.path))
    if config.pod_resources_socket:
        sockets.append(Path(config.pod_resources_socket))
    yield from (str(path) for path in (*sockets, directory / state_files.LOCK_NAME) if os.path.lexists(path))


def _aside(directory: Path, name: str) -> list[Path]:
    return sorted(directory.glob(f"{name}.aside-*"))
