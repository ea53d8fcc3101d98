"""Where commands know the node's state from: the running agent, else its state file. The only place that tells them apart."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeagent.core.cgroup import Seen
from nodeagent.core.idset import CpuSet
from nodeagent.core.layout import OWN_DIRECTORIES, container_path
from nodeagent.core.state import NodeState, violations
from nodeagent.daemon.machine import Node
from nodeagent.daemon.startup import STATE_FILE, discover, kernel_of, load_config
from nodeagent.edge import state_files
from nodeagent.edge.cgroupfs import CgroupError, CgroupTree
from nodeagent.edge.local_api_client import ApiUnavailable, call
from nodeagent.errors import NodeAgentError
from nodeagent.formats.effective_config import config_from_document
from nodeagent.formats.inspection import Sight
from nodeagent.formats.node_state import MAX_BYTES, NodeStateError, decode_state, policies_of, state_from_document

DEFAULT_CONFIG = "/etc/nodeagent/config.yaml"
DEFAULT_SOCKET = "/run/nodeagent/agent.sock"
PODS_CGROUP = "/sys/fs/cgroup/nodeagent.slice/nodeagent-pods.service"
"""Of the pods' unit as installed: where to look when neither configuration nor launcher says."""
_SOCKET_NAME = "agent.sock"


class UnknownStateError(NodeAgentError):
    """Nobody can say what the node's state is."""


@dataclass(frozen=True, slots=True)
class Known:
    """The state, and what is needed to understand it."""

    node: Node
    state: NodeState
    cgroup_root: str | None
    pids: Mapping[str, int] | None
    """Main processes by run id. None: the launcher did not say."""
    is_live: bool
    is_ready: bool = False
    problems: tuple[str, ...] = ()
    recovery: Mapping[str, Any] | None = None
    """What the agent told of a start that could not use its state as it was."""


def known_state(config_path: str, socket_path: str | None) -> Known:
    """Ask the agent, else read what it has saved.

    Args:
        config_path: read only if the agent doesn't answer: it says with which configuration it runs.
        socket_path: the agent's socket. None: where it is by default, or where the configuration puts it.

    Raises:
        NodeAgentError: with what to do.

    """
    try:
        return _live(call(socket_path or DEFAULT_SOCKET, "state"))
    except ApiUnavailable as err:
        down = err
    config = load_config(config_path)
    other_socket = f"{config.runtime_directory}/{_SOCKET_NAME}"
    if socket_path is None and other_socket != DEFAULT_SOCKET:
        try:
            return _live(call(other_socket, "state"))
        except ApiUnavailable as err:
            down = err
    return _saved(discover(config), down)


def _live(answer: Mapping[str, Any]) -> Known:
    try:
        config, saved = config_from_document(answer["config"]), state_from_document(answer["state"])
        return Known(
            node=discover(config, reserved=CpuSet.parse(answer["reservedCPUs"])),
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


def _saved(node: Node, down: ApiUnavailable) -> Known:
    path = str(Path(node.config.state_directory) / STATE_FILE)
    try:
        content = state_files.read(path, max_bytes=MAX_BYTES)
    except state_files.StateFileError as err:
        if os.geteuid() == 0:
            raise
        raise UnknownStateError(
            f"the agent does not answer ({down.message}), and only root may read what it has saved",
            hint="start it with `systemctl start nodeagent`, or run this command as root",
        ) from err
    if content is None:
        raise UnknownStateError(
            f"the agent does not answer ({down.message}), and has saved no state in {path}",
            hint="start it with `systemctl start nodeagent`; `journalctl -u nodeagent` says why it may not run",
        )
    try:
        saved = decode_state(content)
    except NodeStateError as err:
        raise UnknownStateError(
            f"cannot use {path}: {err}", hint="start the agent: it says what to do (`journalctl -u nodeagent`)"
        ) from err
    problems = [f"the agent does not run: {down.message}"]
    problems += [
        f'{path} was written under {field} "{saved.policies.get(field)}", the configuration says "{policy}"'
        for field, policy in policies_of(node.config.placement).items()
        if saved.policies.get(field) != policy
    ]
    problems += [f"the saved state does not fit: {broken}" for broken in violations(node.managers, saved.state)]
    root, pids = _launcher(node, problems)
    return Known(node, saved.state, root, pids, is_live=False, problems=tuple(problems))


def _launcher(node: Node, problems: list[str]) -> tuple[str | None, Mapping[str, int] | None]:
    """Ask the launcher, which lives while the agent doesn't, for the pods' cgroup and their processes."""
    from nodeagent.edge.launcher import LauncherClient, LauncherError  # noqa: PLC0415 - only when the agent is down

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
    """Look at the cgroups, and put everything that is known together."""
    problems = list(known.problems)
    seen = _seen(known.cgroup_root, problems)
    root = None if seen is None else seen.get("")
    return Sight(
        config=known.node.config,
        managers=known.node.managers,
        state=known.state,
        now_ms=time.time_ns() // 1_000_000,
        kernel=None if root is None else kernel_of(known.node, root.controllers),
        seen=seen,
        cgroup_root=known.cgroup_root,
        pids=known.pids,
        is_live=known.is_live,
        is_ready=known.is_ready,
        problems=tuple(problems),
        recovery=known.recovery,
    )


def _seen(root: str | None, problems: list[str]) -> Seen | None:
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


def processes_of(known: Known) -> dict[str, tuple[int, ...]]:
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
