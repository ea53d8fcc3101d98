"""`nodeagent delete`: finds the files that contain the pods, and the other pods that would end if these files were removed."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nodeagent.cli.support.colour import find_terminal_width
from nodeagent.cli.support.configurations import load_config
from nodeagent.cli.support.documents import format_document
from nodeagent.cli.support.exit_status import EXIT_ERROR
from nodeagent.cli.support.manifest_changes import (
    InstalledFile,
    ManifestPlace,
    ManifestPlaceError,
    format_unwritable_hint,
    locate_manifests,
    read_installed,
    remove_manifest,
)
from nodeagent.cli.support.manifest_decisions import WaitError, check_wait, wait_for_agent
from nodeagent.cli.support.named_files import NamedFile
from nodeagent.cli.support.node.this_node import NeverSavedError, UnknownStateError, read_this_node
from nodeagent.cli.support.places import DEFAULT_CONFIG
from nodeagent.cli.support.pod_files import read_pod_files
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.edge.files.manifests import SUFFIXES, lock_manifests
from nodeagent.views.apply.document import VERSION
from nodeagent.views.apply.text import format_deleted, full_name
from nodeagent.views.release_text import find_longest_end_seconds
from nodeagent.views.wording.columns import fit_lines

Document = dict[str, Any]


Choose = Callable[[Sequence[InstalledFile], ManifestPlace], Sequence[NamedFile]]
"""Function that gets the installed manifests and their location, and returns the pods or files to remove."""


def delete_manifests(options: argparse.Namespace) -> int:
    """Remove the manifests that the command line names, as described for `uninstall`.

    Raises:
        NodeAgentError: there is no such pod, its manifest contains other pods, or it can't be removed.
    """
    return uninstall(options, lambda _held, _find_place: options.words, ("delete", *options.words))


def uninstall(options: argparse.Namespace, choose: Choose, typed: Sequence[str]) -> int:
    """Remove manifests, report the pods that end, and return the exit status.

    Args:
        options: the parsed command line, with the options for waiting, output and the agent.
        choose: a function that returns the pods or files to remove.
        typed: the command line as typed, for a hint that repeats it.

    Raises:
        NodeAgentError: there is no such pod, its manifest contains other pods, or it can't be removed.
    """
    place = _find_place(options)
    check_wait(options, place)
    hint = format_unwritable_hint(place, "nodeagent", *typed)
    with lock_manifests(place.directory, hint):
        # the manifests are read again, because they may have changed before the directory was locked
        place = _find_place(options)
        held = read_installed(place)
        files = _find_files(choose(held, place), held, place)
        for file in files:
            remove_manifest(file.path, hint)
    document = _describe_removal(files, held, place)
    # If another file contains the pod as well, the pod doesn't end.
    names = {full_name(pod) for file in document["files"] for pod in file["pods"] if pod["alsoIn"] is None}
    ending = {name: entry for name, entry in place.entries.items() if name in names}
    left: list[str] = []
    if options.wait:
        document["left"] = left = _wait_for_pods(options, place, ending)
    if options.output == "text":
        sys.stdout.write(fit_lines(format_deleted(document), find_terminal_width()))
        sys.stdout.flush()
    else:
        document["left"] = left
        sys.stdout.write(format_document(document, options.output))
        return EXIT_ERROR if left else 0
    if not place.is_live:
        note = "note: the agent is not running; it will act on this once started: systemctl start nodeagent"
        sys.stdout.write(fit_lines(note, find_terminal_width()))
    if left:
        raise WaitError(
            f"the manifests are removed, but some pods have not ended yet: {', '.join(left)}",
            hint="the agent keeps ending these pods: `nodeagent inspect POD` shows what delays a pod, and with --timeout SECONDS, the "
            "command waits longer",
        )
    return 0


def _find_place(options: argparse.Namespace) -> ManifestPlace:
    path = options.config or DEFAULT_CONFIG
    try:
        known = read_this_node(path, options.socket)
    except UnknownStateError as err:
        if os.geteuid() != 0 and not isinstance(err, NeverSavedError):
            raise
        # The manifests can be removed from the directory without the agent's state.
        return locate_manifests(load_config(path), None, options.socket, is_live=False)
    return locate_manifests(known.node.config, known.state, options.socket, is_live=known.is_live)


def _find_files(
    words: Sequence[NamedFile], held: Sequence[InstalledFile], place: ManifestPlace
) -> tuple[InstalledFile, ...]:
    """Find the manifest files of the named pods, and check that they contain no other pods."""
    chosen: dict[str, InstalledFile] = {}
    names: set[str] = set()
    for word in words:
        if not (word.is_pipe or word.endswith(SUFFIXES)):
            names.add(_find_pod_name(word, held, place))
            continue
        wanted = None if word.is_pipe else _resolve_parent(word)
        itself = next((file for file in held if wanted is not None and _resolve_parent(file.path) == wanted), None)
        if itself is None:
            names |= {
                _find_pod_name(found.pod.full_name, held, place)
                for file in read_pod_files([word])
                for found in file.pods
            }
        else:
            chosen[itself.path] = itself
    for file in held:
        if file.path in chosen or not file.names & names:
            continue
        others = sorted(file.names - names)
        if others:
            raise ManifestPlaceError(
                f"removing {file.path}, which contains {', '.join(sorted(file.names & names))}, would also end {', '.join(others)}",
                hint=f"to end all of them: `nodeagent delete {' '.join(sorted(file.names))}`; to keep some, edit {file.path}",
            )
        chosen[file.path] = file
    return tuple(chosen.values())


def _resolve_parent(path: str) -> str:
    return f"{os.path.realpath(Path(path).parent)}/{Path(path).name}"


def _find_pod_name(word: str, held: Sequence[InstalledFile], place: ManifestPlace) -> str:
    """Find a pod by name, namespace/name or UID, and return its namespace/name."""
    uids = {pod.uid: name for file in held for name, pod in file.pods.items()}
    names = {name for file in held for name in file.names}
    found = {name for name in names if word in {name, name.partition("/")[2]}} | (
        {uids[word]} if word in uids else set()
    )
    if len(found) == 1:
        return found.pop()
    if found:
        raise ManifestPlaceError(
            f"{len(found)} pods are named '{word}'",
            hint=f"give the full name of one of them, as `nodeagent inspect` shows it: {', '.join(sorted(found))}",
        )
    entry = place.entries.get(word) or next(
        (e for e in place.entries.values() if word in {e.pod.name, e.pod.uid}), None
    )
    if entry is not None:
        raise ManifestPlaceError(
            f"pod {entry.pod.full_name} has no manifest in {place.directory}: it is ending, or the agent has not read the directory yet",
            hint=f"see `nodeagent inspect {entry.pod.full_name}`",
        )
    import difflib

    known = [spelling for name in names for spelling in (name, name.partition("/")[2])]
    near = "".join(f"did you mean {name}? " for name in difflib.get_close_matches(word, known, n=1))
    raise ManifestPlaceError(
        f"no manifest in {place.directory} contains a pod '{word}'",
        hint=f"{near}`nodeagent inspect` lists the pods, `ls {place.directory}` the manifests",
    )


def _describe_removal(files: Sequence[InstalledFile], held: Sequence[InstalledFile], place: ManifestPlace) -> Document:
    gone = {file.path for file in files}
    kept = {name: file.path for file in reversed(held) if file.path not in gone for name in file.names}
    listed = []
    for file in files:
        pods: list[Document] = []
        for pod in sorted(file.names):
            namespace, _, name = pod.partition("/")
            entry, other = place.entries.get(pod), kept.get(pod)
            ends = entry is not None and entry.is_active and other is None
            pods.append(
                {
                    "namespace": namespace,
                    "name": name,
                    "uid": None if entry is None else entry.pod.uid,
                    "alsoIn": other,
                    "domain": None if entry is None else entry.domain,
                    "endSeconds": find_longest_end_seconds((entry,)) if entry is not None and ends else None,
                }
            )
        listed.append({"file": file.path, "pods": pods})
    return {"kind": "Delete", "version": VERSION, "files": listed}


def _wait_for_pods(options: argparse.Namespace, place: ManifestPlace, ending: dict[str, PodEntry]) -> list[str]:
    """Wait until the pods have ended or the time is over. Return the names of the pods that are left."""

    def left(state: NodeState) -> list[str]:
        present = {(entry.pod.uid, entry.decided_at_ms) for entry in state.entries}
        return [name for name, entry in ending.items() if (entry.pod.uid, entry.decided_at_ms) in present]

    return left(wait_for_agent(options, place, ending.values(), lambda state: not left(state)))
