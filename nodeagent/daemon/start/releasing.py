"""Release of a node without a running agent: run turns until all pods have ended, then remove the cgroups and files.

This process takes the agent's lock, and decides and writes like the agent. Its turns read no manifests, so they admit no pods.
"""

import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.cgroups.write_order import GiveUnitBack, RemoveCgroup
from nodeagent.core.domains.domain import DomainInput
from nodeagent.core.model.cgroup_layout import OWN_DIRECTORIES
from nodeagent.core.model.config import Config
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.state import NodeState
from nodeagent.daemon.domains.all import make_domains
from nodeagent.daemon.domains.systemd.units import SystemdDomain
from nodeagent.daemon.host.host_edges import HostEdges, write_directly
from nodeagent.daemon.host.host_settings import HOST_SETTINGS, PUT_BACK, HostSettings, put_back
from nodeagent.daemon.reports.logs import make_log
from nodeagent.daemon.sources.kept_manifests import PARSED_MANIFESTS
from nodeagent.daemon.sources.manifest_list import ManifestList
from nodeagent.daemon.start.recovery import Evidence, read_evidence, start_state
from nodeagent.daemon.start.startup import CPU_CHECKPOINT, LAST_CONFIG, MEMORY_CHECKPOINT, STATE_FILE
from nodeagent.daemon.turn.agent import Agent
from nodeagent.daemon.turn.claim_statuses import ClaimStatuses
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.machine import Machine
from nodeagent.daemon.turn.placements import Placements, placement_directory
from nodeagent.daemon.turn.records import Recorder
from nodeagent.daemon.turn.requests import TurnRequest
from nodeagent.daemon.turn.runs import Runner
from nodeagent.daemon.turn.wakeups import WakeUpReason, Wakeups
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree
from nodeagent.edge.files import state_files
from nodeagent.edge.files.manifest_watch import ManifestWatch
from nodeagent.edge.files.placement_files import PlacementFiles
from nodeagent.edge.kernel.host_settings import read_boot_id
from nodeagent.edge.processes.launcher import LauncherClient, LauncherError
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.host_record import HostRecordError
from nodeagent.formats.syntax.bind_address import UnixAddress, parse_bind_address

_LONGEST_PAUSE_SECONDS = 0.1


class DrainError(NodeAgentError):
    """The release could not end all pods, or could not restore everything."""


class Pods(Struct, frozen=True):
    """Access to the node's pods: their cgroups and the launcher."""

    tree: CgroupTree
    runner: Runner


def find_pods_cgroup(config: Config, installed: str) -> Pods | None:
    """Find the pods' cgroup and the launcher. None means that the cgroup doesn't exist, so no pods are running.

    The cgroup is the configured one, otherwise the launcher's, otherwise `installed`.

    Raises:
        DrainError: pods have processes, but the launcher isn't running and can't end them.
    """
    client = LauncherClient(Path(config.launcher_socket))
    try:
        root = client.hello().cgroup or installed
    except LauncherError as err:
        tree = CgroupTree(config.cgroup_root or installed)
        if any(there.is_populated for path, there in tree.read(OWN_DIRECTORIES).items() if path):
            raise DrainError(
                f"pods run in {tree.root}, but cannot be ended one by one: {err.message}",
                hint="run `systemctl start nodeagent-launcher`, then try again; or end all pods at once: `systemctl stop nodeagent-pods`",
            ) from err
        return None
    tree = CgroupTree(config.cgroup_root or root)
    return Pods(tree, Runner(client)) if "" in tree.read(OWN_DIRECTORIES) else None


def load_agent(node: NodeSetup, pods: Pods) -> Agent:
    """Create an agent with the saved state, for turns that end all pods.

    Raises:
        DrainError: the agent can't find out which processes are running.
    """
    config, problems = node.config, ""
    watch = ManifestWatch(config.static_pod_path, lambda: None)
    with closing(ManifestList(config.static_pod_path, watch, patience_seconds=0)) as manifests:
        known = manifests.look(rescan=True).pods

    def look() -> Evidence | None:
        nonlocal problems
        evidence = read_evidence(config, pods.tree, pods.runner, known)
        if isinstance(evidence, Evidence):
            return evidence
        problems = "; ".join(evidence)
        return None

    start = start_state(node, known, time.time_ns() // 1_000_000, look, devices=Machine().devices)
    if start is None:
        raise DrainError(
            f"cannot find out which processes run: {problems}", hint="see `systemctl status nodeagent-launcher`"
        )
    log = make_log(io.StringIO())  # this log is discarded, because the caller reports the result
    edges = Edges(
        log=log,
        machine=Machine(),
        domains=make_domains(config, pods.tree),
        runner=pods.runner,
        tree=pods.tree,
        recorder=Recorder(
            config.state_directory, log, unusable=() if start.recovery is None else start.recovery.unusable
        ),
        host_settings=HostSettings(
            HostEdges(write_directly, str(pods.tree.root)), config.state_directory, read_boot_id(), log
        ),
        placements=Placements(PlacementFiles(placement_directory(config))),
        claim_statuses=ClaimStatuses(config),
    )
    return Agent(node, start.state, edges, Wakeups(), start.recovery)


def drain(agent: Agent, report: Callable[[NodeState], None], deadline: float) -> None:
    """Run turns until all pods have ended and hold no resources. Call `report` with the state after each turn.

    Raises:
        DrainError: some pods have not ended by the deadline.
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
                f"some pods have not ended yet: {', '.join(left)}{problems}",
                hint="`nodeagent inspect POD` shows the pod's processes; run the same command again to continue",
            )
        reasons = frozenset({WakeUpReason.TIMER})
        time.sleep(min(pause, _LONGEST_PAUSE_SECONDS))


def restore_host_settings(config: Config, *, has_agent: bool = False, forget: bool = False) -> int:
    """Restore the original CPUs of interrupts, kernel threads and other host settings. Return the number of changed settings.

    Args:
        config: the configuration.
        has_agent: whether an agent is running. If none is, the pinned units are restored, too.
        forget: whether to remove the record of the original values, because all pods have ended.

    Raises:
        DrainError: some settings could not be written.
        NodeAgentError: the record can't be read.
    """
    path = str(Path(config.state_directory) / HOST_SETTINGS)
    edges = HostEdges(write_directly, config.cgroup_root or "")
    units, of_units = (0, ()) if has_agent else _restore_units(config)
    try:
        count, problems = put_back(edges, config.state_directory, read_boot_id())
    except HostRecordError:
        if forget:
            state_files.set_aside(path)
            state_files.remove(path)
        raise
    if of_units or problems:
        raise DrainError(
            f"not restored: {'; '.join((*of_units, *problems))}",
            hint="try again: `nodeagent release --host-settings`; CPUs of the original settings may be offline, or a service may hang",
        )
    if forget:
        state_files.remove(path)
        state_files.remove(str(Path(config.state_directory) / PUT_BACK))
    return units + count


def _restore_units(config: Config) -> tuple[int, tuple[str, ...]]:
    """Restore the original settings of all pinned units, active or not. If manifests still pin these units, the next agent pins them again.

    Returns:
        The number of changed units, and the problems.

    Raises:
        CgroupError: a unit's cgroup can't be read.
    """
    domain, nothing = SystemdDomain(config, CgroupTree(config.cgroup_root or "/sys/fs/cgroup")), NodeState(Promises())
    look = DomainInput(nothing, sources=(), rescan=True)
    seen, count, problems = domain.observe(look), 0, list[str]()
    for want in domain.desired(seen.cgroups):
        before = want.goes_back_to
        if before is None or seen.cgroups[want.path].unit == before:
            continue
        try:
            domain.apply(GiveUnitBack(want.path, before))
        except CgroupError as err:
            problems.append(err.message)
        else:
            count += 1
    after = domain.observe(look)
    problems += domain.record(nothing, after.cgroups)
    return count, (*problems, *after.problems, *domain.take_back(nothing).problems)


def remove_cgroups(tree: CgroupTree) -> tuple[str, ...]:
    """Remove all of the agent's cgroups that have no processes. Return the cgroups of containers that still have some.

    Raises:
        CgroupError: a cgroup can't be read or removed.
    """
    seen = tree.read(OWN_DIRECTORIES)
    for path in sorted(filter(None, seen), reverse=True):
        if not seen[path].is_populated:
            tree.apply(RemoveCgroup(path))
    populated = {path for path, there in seen.items() if path.count("/") and there.is_populated}
    return tuple(sorted(populated - OWN_DIRECTORIES))


def find_own_files(config: Config) -> Iterator[str]:
    """Yield the paths of the agent's files, if they exist: state, renamed old files, last valid configuration, parsed manifests, lock and
    sockets.
    """
    directory = Path(config.state_directory)
    for name in (STATE_FILE, CPU_CHECKPOINT, MEMORY_CHECKPOINT, HOST_SETTINGS, PUT_BACK, LAST_CONFIG):
        aside = sorted(directory.glob(f"{name}.aside-*"))
        found = [directory / name, Path(state_files.temporary_path(str(directory / name))), *aside]
        yield from (str(path) for path in found if os.path.lexists(path))
    runtime = Path(config.runtime_directory)
    sockets = [runtime / name for name in ("agent.sock", "jobs.sock")]
    address = parse_bind_address(config.metrics_bind_address) if config.metrics_bind_address else None
    if isinstance(address, UnixAddress):
        sockets.append(Path(address.path))
    if config.pod_resources_socket:
        sockets.append(Path(config.pod_resources_socket))
    yield from (
        str(path)
        for path in (*sockets, runtime / PARSED_MANIFESTS, directory / state_files.LOCK_NAME)
        if os.path.lexists(path)
    )
