"""What is kept on disk: the source of truth first, then kubelet's two checkpoints, derived from it."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.model.config import Config
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.devices.holdings import count_devices
from nodeagent.daemon.reports.logs import Log
from nodeagent.daemon.start.startup import (
    CPU_CHECKPOINT,
    DEVICE_CHECKPOINT,
    LAST_CONFIG,
    MAX_CHECKPOINT_BYTES,
    MEMORY_CHECKPOINT,
    STATE_FILE,
)
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.files import state_files
from nodeagent.formats.checkpoint.checkpoint_versions import CheckpointError, read_checkpoint
from nodeagent.formats.checkpoint.cpu_checkpoint import encode_cpu_state
from nodeagent.formats.checkpoint.memory_checkpoint import encode_memory_state
from nodeagent.formats.checkpoint.node_state import StateEncoder, policies_of
from nodeagent.formats.config.config_text import config_fields, config_text

if TYPE_CHECKING:
    from nodeagent.core.resources.devices.pools import DevicePool

_MADE_ANEW = f"it is rebuilt from {STATE_FILE}; `nodeagent inspect` shows what is promised"


class Recorder:
    def __init__(self, directory: str, log: Log, *, unusable: tuple[str, ...] = ()) -> None:
        self._directory = Path(directory)
        self._log = log
        self._unusable = unusable
        """Files that a start could not use: nothing is written in their place before they are set aside."""
        self.set_aside: tuple[str, ...] = ()
        """Where they are now."""
        self._encoder = StateEncoder()
        self._written: dict[str, bytes] = {}
        """What this process last wrote to each checkpoint."""
        self._left: dict[str, bytes] = {}
        self._has_devices = False
        """Somebody has had devices since this process began."""

    def begin(self, node: NodeSetup, promises: Promises) -> None:
        """Remember what an agent with these promises left in kubelet's files: nobody else changed that."""
        self._left = checkpoints(node, promises)

    def save(self, node: NodeSetup, state: NodeState) -> None:
        """Make a state durable: from here on it has happened.

        Raises:
            StateFileError: it could not be written; the file holds the previous generation.
        """
        content = self._encoder.encode(state, policies_of(node.config.placement))
        while self._unusable:
            name, *rest = self._unusable
            self._set_aside(name)
            self._unusable = tuple(rest)
        state_files.write_atomically(str(self._directory / STATE_FILE), content)

    def keep_config(self, config: Config) -> None:
        """Save the configuration that the agent runs with. Only `inspect` uses it, while no agent runs."""
        try:
            content = config_text(config_fields(config)).encode()
            state_files.write_atomically(str(self._directory / LAST_CONFIG), content)
        except state_files.StateFileError as err:
            self._log.warning("configuration_not_kept", problem=err.message, hint=err.hint)

    def _set_aside(self, name: str) -> None:
        aside = state_files.set_aside(str(self._directory / name))
        if aside in self.set_aside:
            return  # keep the first name until something is written there
        self._log.warning(
            "state_set_aside",
            file=name,
            aside=aside,
            hint=f"`nodeagent checkpoint show {shlex.quote(aside)}` shows its content",
        )
        self.set_aside = (*self.set_aside, aside)

    def project(self, node: NodeSetup, promises: Promises, pools: "tuple[DevicePool, ...]" = ()) -> tuple[Problem, ...]:
        """Update kubelet's files from the truth. They are derived from it, so a failure here loses nothing.

        Args:
            node: as configured.
            promises: as saved.
            pools: the devices that there are.
        """
        if self._unusable:
            return ()  # the truth itself could not be saved yet
        problems = []
        for name, content in checkpoints(node, promises).items():
            try:
                self._project_one(name, content)
            except state_files.StateFileError as err:
                problems.append(Problem.from_error(err))
        if pools or count_devices(promises) or self._has_devices:
            problems += self._project_devices(promises, pools)
        return tuple(problems)

    def _project_devices(self, promises: Promises, pools: "tuple[DevicePool, ...]") -> list[Problem]:
        """Write kubelet's file of devices. What was there isn't judged: nothing is decided by it while the truth is there."""
        from nodeagent.formats.checkpoint.device_checkpoint import encode_devices  # noqa: PLC0415 - few nodes give devices

        content = encode_devices(promises, pools).encode()
        self._has_devices = True
        if self._written.get(DEVICE_CHECKPOINT) == content:
            return []
        try:
            state_files.write_atomically(str(self._directory / DEVICE_CHECKPOINT), content)
        except state_files.StateFileError as err:
            return [Problem.from_error(err)]
        self._written[DEVICE_CHECKPOINT] = content
        return []

    def _project_one(self, name: str, content: bytes) -> None:
        path = str(self._directory / name)
        before = self._written.get(name)
        found = state_files.read(path, max_bytes=MAX_CHECKPOINT_BYTES)
        if before is None and found is not None and found not in {content, self._left.get(name)}:
            self._judge_what_was_there(name, found)
        if before is not None and found != before:
            self._log.warning(
                "checkpoint_changed_by_others",
                file=path,
                hint=_MADE_ANEW,
            )
        if found != content:
            state_files.write_atomically(path, content)
        self._written[name] = content

    def _judge_what_was_there(self, name: str, found: bytes) -> None:
        """Keep a damaged file. An intact one is another agent's, or was left by one of ours that died before this write."""
        if _is_whole(found):
            self._log.info("checkpoint_differed", file=str(self._directory / name), hint=_MADE_ANEW)
        else:
            self._set_aside(name)


def _is_whole(content: bytes) -> bool:
    try:
        return read_checkpoint(content).problem is None
    except CheckpointError:
        return False


def checkpoints(node: NodeSetup, promises: Promises) -> dict[str, bytes]:
    """Return the exact content that kubelet 1.36 would have written for these promises, by file name."""
    placement = node.config.placement
    pod_level = placement.gate("PodLevelResourceManagers")
    return {
        CPU_CHECKPOINT: encode_cpu_state(placement.cpu_manager_policy, promises, pod_level=pod_level).encode(),
        MEMORY_CHECKPOINT: encode_memory_state(placement.memory_manager_policy, promises, pod_level=pod_level).encode(),
    }
