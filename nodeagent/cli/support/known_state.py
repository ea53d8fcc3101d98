"""What commands know of a node: its state, from the running agent, else its state file, and what is seen of its cgroups and processes.

Which node is meant, this one or a captured one, is decided in cli/support/sources.py.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.cli.support.configurations import load_config
from nodeagent.cli.support.places import DEFAULT_SOCKET, PODS_CGROUP
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.cgroups.desired_cgroups import OWN_DIRECTORIES, container_path
from nodeagent.core.model.cgroup import ObservedCgroups
from nodeagent.core.model.config import Config
from nodeagent.core.model.host_processes import HostProcess, HostProcesses
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import NodeState, run_id
from nodeagent.daemon.machine import NodeSetup
from nodeagent.daemon.startup import STATE_FILE, discover, kernel_of
from nodeagent.edge import state_files
from nodeagent.edge.cgroupfs import CgroupError, CgroupTree
from nodeagent.edge.local_api_client import ApiUnavailable, call
from nodeagent.errors import NodeAgentError
from nodeagent.formats.capture import Sighting
from nodeagent.formats.checkpoint.node_state import (
    MAX_BYTES,
    NodeStateError,
    SavedState,
    decode_state,
    policies_of,
    state_from_document,
)
from nodeagent.formats.config.effective_config import config_from_document
from nodeagent.formats.syntax.json_values import JsonValue
from nodeagent.views.inspect.document import Sight

_SOCKET_NAME = "agent.sock"


class UnknownStateError(NodeAgentError):
    """Nobody can say what the node's state is."""


class NeverSavedError(UnknownStateError):
    """No agent runs, and none has saved a state."""


class Known(Struct, frozen=True):
    """The state, and what is needed to understand it."""

    node: NodeSetup
    state: NodeState
    cgroup_root: str | None
    pids: Mapping[str, int] | None
    """Main processes by run id. None: the launcher did not say."""
    is_live: bool
    is_ready: bool = False
    problems: tuple[str, ...] = ()
    recovery: Mapping[str, Any] | None = None
    """What the agent told of a start that could not use its state as it was."""
    policies: Mapping[str, str] | None = None
    """Under which the state was saved; None: those of the node's configuration."""
    is_here: bool = True
    """The node is the one that this program runs on; else its processes cannot be looked at."""
    is_agent_known: bool = True
    """False: only a machine is known, and nothing of an agent on it."""
    at_ms: int | None = None
    """When all this was so; None: it is so now."""
    sighting: Sighting | None = None
    """What was seen when the node was captured; None: one has to look."""


class StateReader:
    """Reads one state after the other; the same again costs only the comparison."""

    def __init__(self) -> None:
        self._last: tuple[object, SavedState] | None = None

    def __call__(self, document: object) -> SavedState:
        """Read as `state_from_document` does.

        Raises:
            NodeStateError: as there.

        """
        if self._last is None or self._last[0] != document:
            self._last = document, state_from_document(document)
        return self._last[1]


def known_state(
    config_path: str, socket: str | None, read: Callable[[object], SavedState] = state_from_document
) -> Known:
    """Ask the agent, else read what it has saved.

    Args:
        config_path: read only if the agent doesn't answer: it says with which configuration it runs.
        socket: the agent's. None: where it is by default, or where the configuration puts it.
        read: how to read the agent's state; for those who ask again and again.

    Raises:
        NodeAgentError: with what to do.

    """
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


def _live(answer: Mapping[str, Any], read: Callable[[object], SavedState]) -> Known:
    try:
        config, saved = config_from_document(JsonValue(answer["config"], "config")), read(answer["state"])
        config = replace(config, static_pod_path=answer["manifestDirectory"])
        return Known(
            node=discover(config, "the agent's configuration", reserved=CpuSet.parse(answer["reservedCPUs"])),
            state=saved.state,
            cgroup_root=answer["cgroupRoot"],
            pids=answer["pids"] if answer["launcher"] else None,
            is_live=True,
            is_ready=answer["ready"],
            problems=tuple(answer["problems"]),
            recovery=answer["recovery"],
        )
    except (NodeStateError, KeyError, TypeError, ValueError, AttributeError, IndexError) as err:
        raise UnknownStateError(
            f"cannot understand the agent's state: {type(err).__name__}: {err}",
            hint="is it of another version than this command? after an upgrade: systemctl restart nodeagent (pods run on)",
        ) from err


def _saved(node: NodeSetup, down: ApiUnavailable) -> Known:
    path = state_path(node.config)
    try:
        saved = saved_in(node.config)
    except state_files.StateFileError as err:
        if os.geteuid() == 0:
            raise
        raise UnknownStateError(
            f"the agent does not answer ({down.message}), and only root may read what it has saved",
            hint="start it with `systemctl start nodeagent`, or run this command as root",
        ) from err
    if saved is None:
        raise NeverSavedError(
            f"the agent does not answer ({down.message}), and has saved no state in {path}",
            hint="start it with `systemctl start nodeagent`; `journalctl -u nodeagent` says why it may not run",
        )
    problems = [f"the agent does not run: {down.message}", *misfits(node, saved, path)]
    root, pids = _launcher(node, problems)
    return Known(node, saved.state, root, pids, is_live=False, problems=tuple(problems), policies=saved.policies)


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
    """Say when a state that is there was saved."""
    return Path(root + state_path(config)).stat().st_mtime_ns // 1_000_000


def state_path(config: Config) -> str:
    """Say where the agent saves its state."""
    return str(Path(config.state_directory) / STATE_FILE)


def socket_path(config: Config) -> str:
    """Say where the agent answers."""
    return f"{config.runtime_directory}/{_SOCKET_NAME}"


def misfits(node: NodeSetup, saved: SavedState, path: str) -> list[str]:
    """Say what of a saved state does not fit the node it is shown on."""
    return [
        f'{path} was written under {field} "{saved.policies.get(field)}", the configuration says "{policy}"'
        for field, policy in policies_of(node.config.placement).items()
        if saved.policies.get(field) != policy
    ] + [f"the saved state does not fit: {broken}" for broken in violations(node.managers, saved.state)]


def _launcher(node: NodeSetup, problems: list[str]) -> tuple[str | None, Mapping[str, int] | None]:
    """Ask the launcher, which lives while the agent doesn't, for the pods' cgroup and their processes."""
    from nodeagent.edge.launcher import LauncherClient, LauncherError

    client = LauncherClient(Path(node.config.launcher_socket))
    try:
        root = node.config.cgroup_root or client.hello().cgroup
        running = {s.id: s.pid for s in client.list() if hasattr(s, "pid")}
    except LauncherError as err:
        problems.append(err.message)
        root = node.config.cgroup_root or (PODS_CGROUP if Path(PODS_CGROUP).is_dir() else None)
        return root, None
    return root, running


def sight_of(known: Known) -> Sight:
    """Look at the cgroups, and put everything that is known together; of processes there are only the main ones."""
    return _sight(known, known.sighting or _cgroups(known))


def full_sight_of(known: Known, *, host_processes: bool) -> Sight:
    """Look at the cgroups and at the processes in them, and, if wanted, at those of the host on exclusive CPUs (D12)."""
    return _sight(known, sighting_of(known, host_processes=host_processes))


def sighting_of(known: Known, *, host_processes: bool) -> Sighting:
    """Give what is seen of cgroups and processes, now or when the node was captured."""
    if known.sighting is not None:
        return known.sighting if host_processes else replace(known.sighting, host=None)
    processes = _processes(known)
    ours = frozenset(pid for pids in processes.values() for pid in pids)
    exclusive = known.state.promises.exclusive() & known.node.topology.online
    return replace(
        _cgroups(known),
        process_counts={path: len(pids) for path, pids in processes.items()},
        strays=_strays(known, processes),
        host=_host_processes(exclusive, ours) if host_processes and known.is_here else None,
    )


def _cgroups(known: Known) -> Sighting:
    problems: list[str] = []
    seen = _seen(known.cgroup_root, problems)
    at_ms = time.time_ns() // 1_000_000 if known.at_ms is None else known.at_ms
    return Sighting(at_ms, os.sysconf("SC_PAGE_SIZE"), seen, tuple(problems))


def _sight(known: Known, sighting: Sighting) -> Sight:
    seen = sighting.seen
    root = None if seen is None else seen.get("")
    kernel = None if root is None else replace(kernel_of(known.node, root.controllers), page_bytes=sighting.page_bytes)
    return Sight(
        config=known.node.config,
        managers=known.node.managers,
        state=known.state,
        now_ms=sighting.at_ms,
        kernel=kernel,
        seen=seen,
        cgroup_root=known.cgroup_root,
        pids=known.pids,
        process_counts=sighting.process_counts,
        strays=sighting.strays,
        host=sighting.host,
        is_live=known.is_live,
        is_ready=known.is_ready,
        is_here=known.is_here,
        copied_at=None if known.is_here or not sighting.at_ms else _spelled(sighting.at_ms),
        is_agent_known=known.is_agent_known,
        problems=(*known.problems, *sighting.problems),
        recovery=known.recovery,
    )


def _spelled(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_ms // 1000))


def _seen(root: str | None, problems: list[str]) -> ObservedCgroups | None:
    if root is None:
        return None
    try:
        seen = CgroupTree(root).read(OWN_DIRECTORIES)
    except CgroupError as err:
        problems.append(f"{err.message} ({err.hint})")
        return None
    if "" not in seen:
        problems.append(f"there is no cgroup {root} (start it: systemctl start nodeagent-pods)")
        return None
    return seen


def _processes(known: Known) -> dict[str, tuple[int, ...]]:
    """Give the processes of all containers by cgroup path. What can't be read is left out: it is shown as 0 processes."""
    if known.cgroup_root is None:
        return {}
    tree = CgroupTree(known.cgroup_root)
    found = {}
    for path in [container_path(entry, c.name) for entry in known.state.entries for c in entry.containers]:
        try:
            found[path] = tree.processes(path)
        except CgroupError:
            continue
    return found


def _strays(known: Known, processes: Mapping[str, Collection[int]]) -> dict[str, int]:
    """Find main processes that are not where they were started."""
    strays = {}
    for entry in known.state.entries:
        for status in (status for container, status in entry.pairs() if container.command):
            pid = (known.pids or {}).get(run_id(entry, status))
            path = container_path(entry, status.name)
            if pid is not None and pid not in processes.get(path, ()):
                strays[path] = pid
    return strays


def _host_processes(exclusive: CpuSet, ours: frozenset[int]) -> HostProcesses:
    """Look who else may run on exclusive CPUs (D12)."""
    if not exclusive:
        return HostProcesses()
    from nodeagent.edge.processes import may_run_on, of_caller

    scan = may_run_on(exclusive, excluding=(ours | of_caller()).__contains__)
    threads = [p for p in scan.found if p.is_kernel_thread]
    return HostProcesses(
        processes=tuple(HostProcess(p.pid, p.name, p.cpus & exclusive) for p in scan.found if not p.is_kernel_thread),
        kernel_threads=len(threads),
        kernel_thread_cpus=CpuSet.from_ids(cpu for p in threads for cpu in p.cpus & exclusive),
        hidden=len(scan.hidden),
    )
