"""What commands know about a node: its state, from the running agent or else its state file, and its observed cgroups and processes.

Which node is meant, this one or a captured one, is decided in cli/support/sources.py.
"""

import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from nodeagent.cli.support.configurations import load_config
from nodeagent.cli.support.named_files import is_absent
from nodeagent.cli.support.places import DEFAULT_CONFIG, DEFAULT_SOCKET, PODS_CGROUP
from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.model.cgroup import ObservedCgroups
from nodeagent.core.model.config import Config
from nodeagent.core.model.host_processes import HostProcess, HostProcesses
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import run_id
from nodeagent.core.resources.cpu.holdings import exclusive_cpus
from nodeagent.daemon.start.startup import LAST_CONFIG, STATE_FILE, StartError, discover
from nodeagent.edge.cgroups.cgroupfs import CgroupError, CgroupTree
from nodeagent.edge.files import state_files
from nodeagent.edge.transport.local_api_client import ApiUnavailable, call
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.node_state import (
    MAX_BYTES,
    NodeStateError,
    SavedState,
    decode_state,
    policies_of,
)
from nodeagent.formats.node_view import NodeView, Observation, ViewReader
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError

_SOCKET_NAME = "agent.sock"
LAST_CONFIG_PATH = f"{Config().state_directory}/{LAST_CONFIG}"


class UnknownStateError(NodeAgentError):
    """The node's state is unknown."""


class NeverSavedError(UnknownStateError):
    """No agent runs, and there is no saved state."""


def known_state(config_path: str, socket: str | None, read: ViewReader | None = None) -> NodeView:
    """Ask the agent, or else read its saved state.

    Args:
        config_path: read only if the agent doesn't answer: the agent reports its own configuration.
        socket: the agent's. None: the default, or as configured.
        read: for repeated calls; what did not change is not read again.

    Raises:
        NodeAgentError: with what to do.
    """
    read = read or ViewReader()
    try:
        return _live(call(socket or DEFAULT_SOCKET, "state"), read)
    except ApiUnavailable as err:
        down = err
    config = load_config(config_path)
    other_socket = socket_path(config)
    if socket is None and other_socket != DEFAULT_SOCKET:
        try:
            return _live(call(other_socket, "state"), read)
        except ApiUnavailable as err:
            down = err
    return _saved(discover(config, config_path), down)


def shown_state(config_path: str | None, socket: str | None, read: ViewReader | None = None) -> NodeView:
    """Like `known_state`; if no agent runs because its configuration is invalid, use the one that it last ran with.

    A named configuration counts, valid or not.
    """
    try:
        return known_state(config_path or DEFAULT_CONFIG, socket, read)
    except StartError as err:
        if config_path is not None or is_absent(LAST_CONFIG_PATH):
            raise
        wrong = err
    try:
        view = known_state(LAST_CONFIG_PATH, socket, read)
    except StartError:  # that one can't be read either
        raise wrong from None
    first, *rest = wrong.message.splitlines()
    problem = f"the configuration is wrong, so this uses the one that the agent last ran with: {first}"
    more = f", and {len(rest)} more" if rest else ""
    return replace(view, problems=(f"{problem}{more} (all errors: nodeagent config validate)", *view.problems))


def _live(answer: Mapping[str, Any], read: ViewReader) -> NodeView:
    try:
        return replace(read(JsonValue(answer)), hostname=os.uname().nodename)
    except (NodeStateError, MisfitError) as err:
        raise UnknownStateError(
            f"cannot understand the agent's state: {err}",
            hint="does its version differ from this command's? after an upgrade: systemctl restart nodeagent (pods keep running)",
        ) from err


def _saved(node: NodeSetup, down: ApiUnavailable) -> NodeView:
    path = state_path(node.config)
    try:
        saved = saved_in(node.config)
    except state_files.StateFileError as err:
        if os.geteuid() == 0:
            raise
        raise UnknownStateError(
            f"the agent does not answer ({down.message}), and only root may read its saved state",
            hint="start it with `systemctl start nodeagent`, or run this command as root",
        ) from err
    if saved is None:
        raise NeverSavedError(
            f"the agent does not answer ({down.message}), and has saved no state in {path}",
            hint="start it with `systemctl start nodeagent`; `journalctl -u nodeagent` says why it may not be running",
        )
    from nodeagent.daemon.reports.problems import withheld_problem
    from nodeagent.daemon.turn.machine import without_withheld

    troubles: list[str] = []
    root, pids = _launcher(node, troubles)
    if root is not None:
        node, kept = without_withheld(node, CgroupTree(root))
        troubles += [withheld_problem(kept)] if kept.cpus else []
    problems = [f"the agent is not running: {down.message}", *misfits(node, saved, path), *troubles]
    return NodeView(
        node, saved.state, root, pids, tuple(problems), policies=saved.policies, hostname=os.uname().nodename
    )


def saved_in(config: Config, root: str = "") -> SavedState | None:
    """Read what the agent has saved below a root; None: nothing.

    Raises:
        NodeAgentError: it cannot be read.

    """
    path = root + state_path(config)
    content = state_files.read(path, max_bytes=MAX_BYTES)
    if content is None:
        return None
    try:
        return decode_state(content)
    except NodeStateError as err:
        hint = "start the agent: it says what to do (`journalctl -u nodeagent`)"
        if root:
            hint = "copy it from the node once more, or take a capture there: `nodeagent capture --out FILE`"
        raise UnknownStateError(f"cannot use {path}: {err}", hint=hint) from err


def saved_at_ms(config: Config, root: str) -> int:
    """Return the time when the existing state was saved."""
    return Path(root + state_path(config)).stat().st_mtime_ns // 1_000_000


def state_path(config: Config) -> str:
    """Return the path of the agent's state."""
    return str(Path(config.state_directory) / STATE_FILE)


def socket_path(config: Config) -> str:
    """Return the agent's socket."""
    return f"{config.runtime_directory}/{_SOCKET_NAME}"


def misfits(node: NodeSetup, saved: SavedState, path: str) -> list[str]:
    """Report what in a saved state does not fit the node it is shown on."""
    return [
        f'{path} was written under {field} "{saved.policies.get(field)}", the configuration says "{policy}"'
        for field, policy in policies_of(node.config.placement).items()
        if saved.policies.get(field) != policy
    ] + [f"the saved state does not fit: {broken.text}" for broken in violations(node.managers, saved.state)]


def _launcher(node: NodeSetup, problems: list[str]) -> tuple[str | None, Mapping[str, int] | None]:
    """Ask the launcher, which keeps running without the agent, for the pods' cgroup and their processes."""
    from nodeagent.edge.processes.launcher import LauncherClient, LauncherError

    client = LauncherClient(Path(node.config.launcher_socket))
    try:
        root = node.config.cgroup_root or client.hello().cgroup
        running = {s.id: s.pid for s in client.list() if hasattr(s, "pid")}
    except LauncherError as err:
        problems.append(err.message)
        root = node.config.cgroup_root or (None if is_absent(PODS_CGROUP) else PODS_CGROUP)
        return root, None
    return root, running


def looked_at(view: NodeView) -> NodeView:
    """Observe the cgroups, unless that was done; of processes only the main ones are known."""
    return view if view.observation is not None else _with_cgroups(view)


def with_observation(view: NodeView, *, host_processes: bool) -> NodeView:
    """Observe the cgroups and the processes in them, and on request those of the host on exclusive CPUs (D12)."""
    if view.observation is not None:
        return view if host_processes else replace(view, observation=replace(view.observation, host=None))
    view = _with_cgroups(view)
    processes, beside = _processes(view)
    ours = frozenset(pid for pids in processes.values() for pid in pids)
    exclusive = exclusive_cpus(view.state.promises) & view.node.topology.online
    observation = replace(
        view.observed,
        process_counts={path: len(pids) for path, pids in processes.items()},
        strays=_strays(view, processes),
        beside=beside,
        host=_host_processes(exclusive, ours, view) if host_processes and view.is_here else None,
    )
    return replace(view, observation=observation)


def _with_cgroups(view: NodeView) -> NodeView:
    problems: list[str] = []
    view, observed = _observed_cgroups(view, problems)
    at_ms = time.time_ns() // 1_000_000 if view.at_ms is None else view.at_ms
    return replace(view, observation=Observation(at_ms, os.sysconf("SC_PAGE_SIZE"), observed, tuple(problems)))


def _observed_cgroups(view: NodeView, problems: list[str]) -> tuple[NodeView, ObservedCgroups | None]:
    """Read the cgroups. The view returned knows where those of units are."""
    if view.cgroup_root is None:
        return view, None
    from nodeagent.daemon.domains.systemd.unit_cgroups import UnitCgroups, read_cgroups

    tree = CgroupTree(view.cgroup_root)
    units = UnitCgroups(tree)
    try:
        observed = dict(read_cgroups(tree, units, view.state.pods_of_units()))
        elsewhere = (status.cgroup for entry in view.state.entries for status in entry.containers if status.cgroup)
        found = ((path, tree.read_of_others(path)) for path in elsewhere)
        observed = {**observed, **{path: there for path, there in found if there is not None}}
    except CgroupError as err:
        problems.append(f"{err.message} ({err.hint})")
        return view, None
    problems += [unknown.problem for unknown in units.unknown if unknown.problem not in view.problems]
    if "" not in observed:
        problems.append(f"there is no cgroup {view.cgroup_root} (start it: systemctl start nodeagent-pods)")
        return view, None
    return replace(view, unit_cgroups=units.unit_cgroups or view.unit_cgroups), observed


def _processes(view: NodeView) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """Return the processes of all containers by cgroup path, and those where none belongs. What can't be read is left out: it is shown as 0
    processes.
    """
    if view.cgroup_root is None:
        return {}, {}
    tree = CgroupTree(view.cgroup_root)
    found, beside = {}, {}
    for path in [entry.container_path(c.name) for entry in view.state.entries for c in entry.containers]:
        try:
            found[path] = tree.processes(view.cgroup_of(path))
            beside[path] = tree.beside(path)
        except CgroupError:
            continue
    return found, {path: pid for path, pid in beside.items() if pid is not None}


def _strays(view: NodeView, processes: Mapping[str, Collection[int]]) -> dict[str, int]:
    """Find main processes that are not where they were started."""
    strays = {}
    for entry in view.state.entries:
        for status in (status for container, status in entry.pairs() if container.is_launched):
            pid = (view.pids or {}).get(run_id(entry, status))
            path = entry.container_path(status.name)
            if pid is not None and pid not in processes.get(path, ()):
                strays[path] = pid
    return strays


def _host_processes(exclusive: CpuSet, ours: frozenset[int], view: NodeView) -> HostProcesses:
    """Find other processes that may run on exclusive CPUs (D12), and interrupts that may come there although no container asks for it."""
    if not exclusive:
        return HostProcesses()
    from nodeagent.core.host.irq_owners import assign_interrupts, interrupt_requests
    from nodeagent.edge.kernel.host_settings import HostSettingsFiles
    from nodeagent.edge.kernel.interrupts import may_come_to
    from nodeagent.edge.processes.host_processes import may_run_on, of_caller

    asked = () if view.node.config.interrupt_isolation == "none" else interrupt_requests(view.state)
    holders = assign_interrupts(asked, HostSettingsFiles().interrupts_of).holders
    wanted = {int(interrupt.name): claim.cpus for interrupt, claim in holders.items()}
    scan = may_run_on(exclusive, excluding=(ours | of_caller()).__contains__)
    threads = [p for p in scan.found if p.is_kernel_thread]
    return HostProcesses(
        processes=tuple(HostProcess(p.pid, p.name, p.cpus & exclusive) for p in scan.found if not p.is_kernel_thread),
        kernel_threads=len(threads),
        kernel_thread_cpus=CpuSet.from_ids(cpu for p in threads for cpu in p.cpus & exclusive),
        hidden=len(scan.hidden),
        interrupts=tuple(
            replace(one, cpus=cpus)
            for one in may_come_to(exclusive)
            if (cpus := one.cpus - wanted.get(one.number, CpuSet()))
        ),
    )
