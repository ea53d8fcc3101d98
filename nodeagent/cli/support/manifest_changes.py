"""Changes to the manifest directory: finding the installed file of each pod, and writing or removing files.

A pod's file is found by its content and not by its name, because the agent would ignore a second file with the same pod (D7).
"""

import argparse
import enum
import os
import shlex
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.cli.support.configurations import load_config
from nodeagent.cli.support.node.this_node import NeverSavedError, read_this_node, socket_path
from nodeagent.cli.support.node.what_if import WhatIfMachine, WhatIfNode, create_empty_node, create_what_if_node
from nodeagent.cli.support.places import DEFAULT_CONFIG
from nodeagent.cli.support.pod_files import PodFile, require_complete
from nodeagent.cli.support.progress import Progress
from nodeagent.core.admission.resize import is_resizable, is_resize, without_variables
from nodeagent.core.model.config import Config, Errata
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.state import NodeState, Origin, PodEntry
from nodeagent.core.turn.pod_sources import Manifest, find_effective
from nodeagent.edge.files import state_files
from nodeagent.edge.files.manifests import SUFFIXES, ManifestFile, scan_manifests
from nodeagent.edge.kernel.sysfs import read_machine
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.manifest.pod_manifest import ManifestPod, RefusedPod, parse_manifest

if TYPE_CHECKING:
    from nodeagent.formats.manifest.claim_documents import ClaimDocument

_MAX_MODE = 0o644
"""Most permissive mode of an installed manifest. Others must not write to it, because whoever can change a manifest can run any command as
root.
"""


class ManifestPlaceError(NodeAgentError):
    """The manifests can't be installed or removed."""


class Replacement(enum.Enum):
    """Kind of change to a pod's manifest."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


class ManifestPlace(Struct, frozen=True):
    """Location of this node's manifests, and the agent's decisions on their pods."""

    directory: str
    """Path of the manifest directory. If the configuration sets kubelet's staticPodPath, it may be the path of a single file."""
    entries: Mapping[str, PodEntry]
    """The pods' entries in the agent's state, by namespace/name."""
    socket: str
    is_live: bool


class InstalledFile(Struct, frozen=True):
    """File in the manifest directory, with the pods in it."""

    name: str
    path: str
    content: bytes | None
    pods: Mapping[str, Pod]
    """Valid pods in the file, by namespace/name."""
    names: frozenset[str]
    """Names (namespace/name) of all pods in the file, including invalid ones. If the file can't be parsed, they include the pods that the
    agent last read from it.
    """
    problem: str | None
    """Reason why the file could not be parsed. `pods` is then incomplete. None means that the file could be parsed."""
    claims: "tuple[ClaimDocument, ...]" = ()
    """ResourceClaims and ResourceClaimTemplates in the file."""


class PodChange(Struct, frozen=True):
    """One pod of an applied manifest, compared with the installed pod of the same name."""

    found: ManifestPod
    change: Replacement
    path: str
    """Path of the pod's manifest: the installed file, or the file that will be installed."""
    before: Pod | None
    """Currently installed pod with the same name. None means that no such pod is installed."""
    entry: PodEntry | None
    """Entry in the agent's state for the pod with the same name. None means that there is none."""

    @property
    def pod(self) -> Pod:
        return self.found.pod

    @property
    def decided(self) -> PodEntry | None:
        """Final decision of the agent on exactly this version of the pod. None means that the agent hasn't made it yet."""
        is_in_place = self.before is None or self.before == self.pod
        return _find_final_decision(self.entry, self.pod) if is_in_place else None

    @property
    def restarts(self) -> bool:
        """Whether the change would replace a running pod, which then restarts."""
        return self._touches_running and not self.resizes

    @property
    def resizes(self) -> bool:
        """Whether the change would only resize a running pod."""
        if not self._touches_running or self.entry is None or not is_resizable(self.entry):
            return False
        has_others = self.before is not None and _env_of_containers(self.before) != _env_of_containers(self.pod)
        return not has_others and is_resize(without_variables(self.entry.pod), without_variables(self.pod))

    @property
    def _touches_running(self) -> bool:
        entry, decided = self.entry, self.decided
        return entry is not None and entry.is_active and entry.deleting_since_ms is None and decided is not entry


def find_decision(change: PodChange, state: NodeState) -> PodEntry | None:
    """Find the agent's decision on a pod that was just installed. None means that the agent has not decided yet."""
    before, pod = _find_final_decision(change.entry, change.pod), change.pod
    named = next((entry for entry in state.entries if entry.pod.full_name == pod.full_name), None)
    now = _find_final_decision(named, pod)
    is_old = now is not None and before is not None and before.decided_at_ms == now.decided_at_ms
    return None if is_old else now


def _find_final_decision(entry: PodEntry | None, pod: Pod) -> PodEntry | None:
    """Return the agent's decision on exactly this version of the pod. If the agent refused to change a running pod to this version, return
    an entry that describes the refusal. None means that there is no final decision.
    """
    if entry is None or entry.deleting_since_ms is not None or entry.is_undecided:
        return None
    if _is_same(entry.pod, pod):
        return entry
    change = entry.refused_change
    if change is None or not _is_same(change.pod, pod):
        return None
    return PodEntry(pod, entry.qos, entry.origin, change.refusal.at_ms, change.refusal)


def _is_same(one: Pod, other: Pod) -> bool:
    """Return whether two pods are equal, apart from their environment variables. The agent doesn't report these, because they may be
    secret.
    """
    return without_variables(one) == without_variables(other)


def _env_of_containers(pod: Pod) -> tuple[tuple[tuple[str, str], ...], ...]:
    return tuple(container.env for container in pod.containers)


class FileChange(Struct, frozen=True):
    """Applied manifest file, compared with the installed file."""

    path: str
    content: bytes
    mode: int
    is_written: bool
    """Whether the file must be written. False means that the installed file has the same content, and that only its owner
    may write to it.
    """
    pods: tuple[PodChange, ...]
    claims: "tuple[ClaimDocument, ...]" = ()


def locate_manifests(config: Config, state: NodeState | None, socket: str | None, *, is_live: bool) -> ManifestPlace:
    """Return the location of the manifests, as the configuration determines it, with the pods' entries in the state. If `state` is None,
    there are no entries.
    """
    entries = {} if state is None else {entry.pod.full_name: entry for entry in state.entries}
    return ManifestPlace(config.static_pod_path, entries, socket or socket_path(config), is_live)


def read_manifest_node(options: argparse.Namespace) -> tuple[ManifestPlace, WhatIfNode]:
    """Read the location of this node's manifests, and the node for trial decisions. If no agent has ever run here, the node has no pods.

    Raises:
        NodeAgentError: the configuration, the machine or the state can't be read.
    """
    path = options.config or DEFAULT_CONFIG
    try:
        known = read_this_node(path, options.socket)
    except NeverSavedError:
        config = load_config(path)
        machine = WhatIfMachine(topology_of(read_machine()), "this one")
        place = locate_manifests(config, None, options.socket, is_live=False)
        return place, create_empty_node(machine, config, path, Errata.FIXED)
    place = locate_manifests(known.node.config, known.state, options.socket, is_live=known.is_live)
    return place, create_what_if_node(known)


def read_installed(place: ManifestPlace) -> tuple[InstalledFile, ...]:
    """Read the installed manifests, sorted by name.

    Raises:
        NodeAgentError: a manifest can't be read.
    """
    found = require_complete(scan_manifests(place.directory), place.directory)
    with Progress("installed manifests read", len(found)) as progress:
        held = []
        for file in found:
            held.append(_parse_installed(file, place))
            progress.step()
    if not any(file.claims for file in held):
        return tuple(held)
    from nodeagent.formats.manifest.claim_documents import ClaimDocuments

    documents = ClaimDocuments(document for file in held for document in file.claims)
    return tuple(
        replace(file, pods={name: documents.resolved(pod) for name, pod in file.pods.items()}) for file in held
    )


def _parse_installed(file: ManifestFile, place: ManifestPlace) -> InstalledFile:
    pods: dict[str, Pod] = {}
    named: set[str] = set()
    is_understood = file.content is not None
    claims = []
    for document in () if file.content is None else parse_manifest(file.content, file.name):
        if isinstance(document, ManifestPod):
            pods.setdefault(document.pod.full_name, document.pod)
        elif not isinstance(document, RefusedPod):
            claims.append(document)
        elif document.name is not None:
            named.add(document.name)
        else:
            is_understood = False
    if not is_understood:
        named |= {name for name, entry in place.entries.items() if entry.origin == Origin(file.name)}
    path = file.name if file.name == place.directory else f"{place.directory}/{file.name}"
    return InstalledFile(file.name, path, file.content, pods, frozenset({*pods, *named}), file.problem, tuple(claims))


def find_undecided(files: Sequence[PodFile], held: Sequence[InstalledFile], place: ManifestPlace) -> tuple[Pod, ...]:
    """Return the installed pods on which the agent has not decided yet, in the order in which it will decide. Pods in `files` are left out,
    because they are about to be changed.
    """
    given = {found.pod.full_name for file in files for found in file.pods}
    manifests = [Manifest(pod, Origin(file.name)) for file in held for pod in file.pods.values()]
    others = tuple(manifest for manifest in manifests if manifest.pod.full_name not in given)
    counted, _ = find_effective(others, tuple(place.entries.values()))
    pods = []
    for name, manifest in counted.items():
        entry, pod = place.entries.get(name), manifest.pod
        is_released = entry is not None and entry.is_released and _is_same(entry.pod, pod)
        if not is_released and _find_final_decision(entry, pod) is None:
            pods.append(pod)
    running = [entry.pod.full_name for entry in place.entries.values() if entry.is_active]
    order = {name: number for number, name in enumerate(running)}  # changes of running pods are tried before new pods
    return tuple(sorted(pods, key=lambda pod: order.get(pod.full_name, len(order))))


def plan_changes(
    files: Sequence[PodFile], held: Sequence[InstalledFile], place: ManifestPlace
) -> tuple[FileChange, ...]:
    """Plan how each file that the command line names changes the manifest directory.

    Args:
        files: the named files, all of them valid.
        held: the installed files.
        place: the location at which the files are installed.

    Raises:
        NodeAgentError: a pod can't be installed without ending another pod.
    """
    _check_unique_pods(files)
    given = {found.pod.full_name for file in files for found in file.pods}
    _check_uids(files, held, given)
    changes: list[FileChange] = []
    for file in files:
        if not file.pods and not file.claims:
            continue
        old = _find_installed_file(file, held)
        taken = {change.path for change in changes}
        if old is not None and (old.path in taken or old.names - {found.pod.full_name for found in file.pods}):
            own = {found.pod.full_name for found in file.pods}
            others = old.names - own
            lost_pods = sorted(others & given) or sorted(others)
            raise ManifestPlaceError(
                f"{file.path} would replace {old.path}, but doesn't contain {', '.join(lost_pods)}: these pods would end",
                hint=f"put all pods of {old.path} into one file, and run `nodeagent apply` on that file; or edit {old.path}",
            )
        if old is not None and old.content != file.content:
            _check_replaceable(old)
        path = _choose_path(file, place, taken) if old is None else old.path
        changes.append(_plan_change(file, old, path, place))
    return tuple(changes)


def _plan_change(file: PodFile, old: InstalledFile | None, path: str, place: ManifestPlace) -> FileChange:
    pods = []
    for found in file.pods:
        name = found.pod.full_name
        before = None if old is None else old.pods.get(name)
        change = Replacement.CREATED if old is None or name not in old.names else Replacement.CHANGED
        if before == found.pod:
            change = Replacement.UNCHANGED
        pods.append(PodChange(found, change, path, before, place.entries.get(name)))
    is_written = old is None or old.content != file.content or _is_writable_by_others(path)
    return FileChange(
        path, file.content, _find_mode(file.path if old is None else path), is_written, tuple(pods), file.claims
    )


def _find_mode(path: str) -> int:
    """Return the permissions for an installed file: those of `path`, without write permission for group and others. If `path` doesn't exist
    or is in /dev, return the default.
    """
    with suppress(OSError):
        status = Path(path).stat()
        if not path.startswith("/dev/"):
            return status.st_mode & _MAX_MODE
    return _MAX_MODE


def _is_writable_by_others(path: str) -> bool:
    try:
        mode = Path(path).lstat().st_mode
    except OSError:  # the file was removed in the meantime, so it is written again
        return True
    return stat.S_ISREG(mode) and bool(mode & 0o022)


def _check_unique_pods(files: Sequence[PodFile]) -> None:
    first: dict[str, str] = {}
    for file in files:
        for found in file.pods:
            name = found.pod.full_name
            if name in first:
                where = f"twice in {file.path}" if first[name] == file.path else f"in {first[name]} and in {file.path}"
                raise ManifestPlaceError(
                    f"pod {name} is {where}",
                    hint="remove one of the two manifests, then run `nodeagent apply` again",
                )
            first[name] = file.path


def _check_uids(files: Sequence[PodFile], held: Sequence[InstalledFile], given: set[str]) -> None:
    """Check that no pod has the UID of another pod, because the agent would ignore the later of the two pods."""
    owners: dict[str, tuple[str, str]] = {}
    for old in held:
        owners |= {pod.uid: (name, old.path) for name, pod in old.pods.items() if name not in given}
    for file in files:
        for found in file.pods:
            name, where = owners.setdefault(found.pod.uid, (found.pod.full_name, file.path))
            if name != found.pod.full_name:
                raise ManifestPlaceError(
                    f"pod {found.pod.full_name} in {file.path} has the UID of {name} in {where}: {found.pod.uid}",
                    hint="remove metadata.uid (the UID is then a hash of the pod) or change it, then run `nodeagent apply` again",
                )


def _find_installed_file(file: PodFile, held: Sequence[InstalledFile]) -> InstalledFile | None:
    """Find the installed file that contains pods of a manifest. None means that no installed file contains any of them."""
    names = {found.pod.full_name for found in file.pods}
    documents = {(document.kind, document.name) for document in file.claims}
    holders = [old for old in held if old.names & names]
    if not names:
        holders = [old for old in held if documents & {(one.kind, one.name) for one in old.claims}]
    if len(holders) > 1:
        where = ", ".join(f"{name} in {old.path}" for old in holders for name in sorted(old.names & names))
        where = where or ", ".join(old.path for old in holders)
        raise ManifestPlaceError(
            f"the {'pods' if names else 'documents'} of {file.path} are in several manifests: {where}",
            hint="apply each of them from a file of its own, or first remove the extra manifests: `nodeagent delete FILE`",
        )
    return holders[0] if holders else None


def _check_replaceable(old: InstalledFile) -> None:
    quoted = shlex.quote(old.path)
    if old.content is None:
        raise ManifestPlaceError(
            f"cannot read {old.path}, which contains {', '.join(sorted(old.names))} and perhaps other pods: {old.problem}",
            hint=f"see `ls -l {quoted}`, and who may read it: `namei -l {quoted}`",
        )
    if Path(old.path).is_symlink():
        raise ManifestPlaceError(
            f"{old.path} is a symbolic link, which would be replaced",
            hint=f"change its target {os.path.realpath(old.path)}, or first remove the link: `nodeagent delete {quoted}`",
        )


def _choose_path(file: PodFile, place: ManifestPlace, taken: set[str]) -> str:
    """Choose the path of a file that is not installed yet. The file keeps its name if possible, or else gets the name of its first pod."""
    if not Path(place.directory).is_dir():
        named = f"pod {file.pods[0].pod.full_name}" if file.pods else f"{file.claims[0].kind} {file.claims[0].name}"
        raise ManifestPlaceError(
            f"manifestDirectory is a single file, {place.directory}, which doesn't contain {named}",
            hint=f"add the manifest to {place.directory}, or set manifestDirectory to a directory",
        )
    own = Path(file.path).name
    usable = own.endswith(SUFFIXES) and not own.startswith(".") and own.isprintable() and own.isascii()
    first = file.pods[0].pod.full_name if file.pods else file.claims[0].name
    names = [*([own] if usable else []), f"{first.rpartition('/')[2]}.yaml", f"{first.replace('/', '.')}.yaml"]
    for name in names:
        path = f"{place.directory}/{name}"
        if path not in taken and not os.path.lexists(path):
            return path
    raise ManifestPlaceError(
        f"no file name is left for {file.path} in {place.directory}: {', '.join(names)} belong to other pods",
        hint=f"rename {file.path}, or remove a manifest there: `nodeagent delete FILE`",
    )


def write_changes(changes: Iterable[FileChange], hint: str) -> None:
    """Write the changes, each file completely or not at all. The caller must have locked the directory.

    Args:
        changes: the planned changes.
        hint: the next step for the user if a write fails (`format_unwritable_hint`).

    Raises:
        StateFileError: a file could not be written. The files before it are already installed.
    """
    for change in changes:
        if change.is_written:
            state_files.write_atomically(change.path, change.content, mode=change.mode, hint=hint)


def format_unwritable_hint(place: ManifestPlace, *command: str) -> str:
    """Return the next step for a user whose command can't write or remove manifests. `command` is the command line, which the user may have
    to repeat as root.
    """
    directory = place.directory if Path(place.directory).is_dir() else str(Path(place.directory).parent)
    quoted = shlex.quote(directory)
    if os.geteuid() != 0:
        return f"run it as root: `{shlex.join(['sudo', *command])}`; `namei -l {quoted}` shows who may write there"
    return f"`df {quoted}` shows whether it is full or read-only, `lsattr -d {quoted}` whether it is immutable"


def remove_manifest(path: str, hint: str) -> None:
    """Remove a manifest. The caller must have locked the directory.

    Raises:
        ManifestPlaceError: the manifest could not be removed.
    """
    try:
        state_files.remove(path)
    except state_files.StateFileError as err:
        raise ManifestPlaceError(err.message, hint=hint) from err
