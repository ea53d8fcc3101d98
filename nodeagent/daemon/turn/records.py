"""Files in the state directory: the state, and the checkpoints in kubelet's format that are derived from it."""

import shlex
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.devices.holdings import count_devices
from nodeagent.daemon.reports.logs import Log
from nodeagent.daemon.start.startup import (
    CPU_CHECKPOINT,
    DEVICE_CHECKPOINT,
    MAX_CHECKPOINT_BYTES,
    MEMORY_CHECKPOINT,
    STATE_FILE,
)
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.files import state_files
from nodeagent.edge.files.state_files import Sync
from nodeagent.formats.checkpoint.checkpoint_versions import CheckpointError, read_checkpoint
from nodeagent.formats.checkpoint.cpu_checkpoint import encode_cpu_state
from nodeagent.formats.checkpoint.memory_checkpoint import encode_memory_state
from nodeagent.formats.checkpoint.node_state import StateEncoder, policies_of

if TYPE_CHECKING:
    from nodeagent.core.model.device_pools import DevicePool

_MADE_ANEW = f"it is rebuilt from {STATE_FILE}; `nodeagent inspect` shows the allocations"


class Recorder:
    def __init__(self, directory: str, log: Log, *, unusable: tuple[str, ...] = ()) -> None:
        self._directory = Path(directory)
        self._log = log
        self._unusable = unusable
        """Names of files that could not be used at the start. Each is renamed before a new file is written in its place."""
        self.set_aside: tuple[str, ...] = ()
        """New names of the files that were renamed because they couldn't be used."""
        self._encoder = StateEncoder()
        self._written: dict[str, bytes] = {}
        """Content of each checkpoint as last written, by file name."""
        self._expected: dict[str, bytes] = {}
        self._updated_for: tuple[object, ...] = ()
        """Node, promises and device pools from which the current checkpoints were written. Empty means that a write failed."""
        self._has_devices = False
        """Whether any pod has had devices since this agent process started."""

    def expect_checkpoints(self, node: NodeSetup, promises: Promises) -> None:
        """Compute the content that the checkpoints should already have, if an earlier agent process wrote them for the same promises. Files
        with this content aren't reported as changed.
        """
        self._expected = encode_checkpoints(node, promises)

    def save(self, node: NodeSetup, state: NodeState, sync: Sync = Sync.DURABLE) -> None:
        """Replace the state file atomically.

        Args:
            node: the node.
            state: the state to save.
            sync: what is guaranteed after a power loss.

        Raises:
            StateFileError: the state could not be saved. The file still contains the previous state.
        """
        content = self._encoder.encode(state, policies_of(node.config.placement))
        while self._unusable:
            name, *rest = self._unusable
            self._set_aside(name)
            self._unusable = tuple(rest)
        state_files.write_atomically(str(self._directory / STATE_FILE), content, sync=sync)

    def _set_aside(self, name: str) -> None:
        aside = state_files.set_aside(str(self._directory / name))
        if aside in self.set_aside:
            return  # the file was already set aside under this path, and reported then
        self._log.warning(
            "state_set_aside",
            file=name,
            aside=aside,
            hint=f"`nodeagent checkpoint show {shlex.quote(aside)}` shows its content",
        )
        self.set_aside = (*self.set_aside, aside)

    def update_checkpoints(
        self, node: NodeSetup, promises: Promises, pools: "tuple[DevicePool, ...]" = (), *, rescan: bool = True
    ) -> tuple[Problem, ...]:
        """Update the checkpoints in kubelet's format, and return the problems. The state has all their data, so a failure loses nothing.

        If `rescan` is false and the allocations are unchanged, the files aren't checked for changes by other programs.
        """
        if self._unusable:
            return ()  # the state isn't saved yet, so kubelet's checkpoints aren't written either
        inputs = (node, promises, pools)
        if not rescan and self._updated_for and all(map(is_, inputs, self._updated_for)):
            return ()
        problems = []
        for name, content in encode_checkpoints(node, promises).items():
            try:
                self._write_checkpoint(name, content)
            except state_files.StateFileError as err:
                problems.append(Problem.from_error(err))
        if pools or count_devices(promises) or self._has_devices:
            problems += self._write_device_checkpoint(promises, pools)
        self._updated_for = () if problems else inputs
        return tuple(problems)

    def _write_device_checkpoint(self, promises: Promises, pools: "tuple[DevicePool, ...]") -> list[Problem]:
        """Write the device checkpoint. Changes by other programs aren't checked, because no decision uses this file."""
        from nodeagent.formats.checkpoint.device_checkpoint import encode_devices  # noqa: PLC0415 - few nodes give devices

        content = encode_devices(promises, pools).encode()
        self._has_devices = True
        if self._written.get(DEVICE_CHECKPOINT) == content:
            return []
        try:
            state_files.write_atomically(str(self._directory / DEVICE_CHECKPOINT), content, sync=Sync.NONE)
        except state_files.StateFileError as err:
            return [Problem.from_error(err)]
        self._written[DEVICE_CHECKPOINT] = content
        return []

    def _write_checkpoint(self, name: str, content: bytes) -> None:
        path = str(self._directory / name)
        before = self._written.get(name)
        found = state_files.read(path, max_bytes=MAX_CHECKPOINT_BYTES)
        # after a loss of power, an unsynced file may be empty or consist of zeros
        is_blank = found is not None and not found.strip(b"\0")
        if before is None and found is not None and not is_blank and found not in {content, self._expected.get(name)}:
            try:
                is_intact = read_checkpoint(found).problem is None
            except CheckpointError:
                is_intact = False
            if is_intact:  # another agent wrote the file, or an earlier process ended before it could update the file
                self._log.info("checkpoint_differed", file=path, hint=_MADE_ANEW)
            else:
                self._set_aside(name)
        if before is not None and found != before:
            self._log.warning("checkpoint_changed_by_others", file=path, hint=_MADE_ANEW)
        if found != content:
            state_files.write_atomically(path, content, sync=Sync.NONE)
        self._written[name] = content


def encode_checkpoints(node: NodeSetup, promises: Promises) -> dict[str, bytes]:
    """Encode the CPU and memory checkpoints exactly as kubelet 1.36 writes them. Return their contents by file name."""
    placement = node.config.placement
    pod_level = placement.gate("PodLevelResourceManagers")
    return {
        CPU_CHECKPOINT: encode_cpu_state(placement.cpu_manager_policy, promises, pod_level=pod_level).encode(),
        MEMORY_CHECKPOINT: encode_memory_state(placement.memory_manager_policy, promises, pod_level=pod_level).encode(),
    }
