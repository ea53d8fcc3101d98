"""The manifest directory as the deciding thread uses it: pods in order, problems with files, nothing parsed twice."""

import shlex
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from nodeagent.core.model.config import Config
from nodeagent.core.model.state import Origin
from nodeagent.core.turn.pod_sources import Manifest, ManifestProblem, PodSource
from nodeagent.edge.files.manifest_watch import ManifestWatch, ManifestWatchError
from nodeagent.edge.files.manifests import ManifestDirectoryError, ManifestFile, ManifestScan, scan_manifests
from nodeagent.edge.processes.open_files import find_writers
from nodeagent.formats.manifest.pod_manifest import ManifestPod, RefusedPod, parse_manifest

if TYPE_CHECKING:
    from nodeagent.formats.manifest.claim_documents import ClaimDocument

Documents = tuple["ManifestPod | ClaimDocument | RefusedPod", ...]


class ManifestList:
    def __init__(
        self,
        directory: str,
        watch: ManifestWatch,
        patience_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = directory
        self._watch = watch
        self.patience_seconds = patience_seconds
        """How long a file may be open for writing, or exist without being a manifest, or the directory keep changing, before that is a
        problem.
        """
        self._clock = clock
        self._alive = alive
        """Called after each file: thousands of new files take time."""
        self._open: dict[str, _OpenFile] = {}
        self._others: dict[str, float] = {}
        """Files whose names are not those of manifests, with the time when each was first seen: files of editors disappear soon."""
        self._partial_since: float | None = None
        """When the directory was first found changing while it was read; None: it was not at the last look."""
        self._parsed: dict[str, tuple[bytes, Documents]] = {}
        self._last: PodSource | None = None

    def follow(self, config: Config) -> None:
        """Apply the parts of the configuration that can change."""
        self.patience_seconds = config.file_check_frequency_ms / 1000

    def look(self, *, rescan: bool) -> PodSource:
        """Return the valid pods; with `rescan`, or at the first look, of the directory as it is now."""
        if self._last is None or rescan:
            self._last = self._read()
        return self._last

    def _read(self) -> PodSource:
        draft = _LookDraft()
        try:
            self._watch.renew()
        except ManifestWatchError as err:
            draft.problems.append(ManifestProblem(self.directory, f"{err.message} ({err.hint})"))
        try:
            scan = scan_manifests(self.directory)
        except ManifestDirectoryError as err:
            problem = ManifestProblem(self.directory, f"{err.message} ({err.hint})")
            return PodSource(is_blind=True, problems=(problem,))
        parsed: dict[str, tuple[bytes, Documents]] = {}
        self._follow_writers(scan)
        for file in scan.files:
            if file.content is None:
                draft.add_unreadable(file, self._open.get(file.name))
                continue
            before = self._parsed.get(file.name)
            documents = (
                before[1]
                if before is not None and before[0] == file.content
                else parse_manifest(file.content, file.name)
            )
            parsed[file.name] = (file.content, documents)
            draft.add_documents(file.name, documents)
            self._alive()
        self._parsed = parsed
        draft.resolve_claims()
        if scan.unread:
            draft.problems.append(ManifestProblem(self.directory, f"too many files: {scan.unread} were not read"))
        now = self._clock()
        if not scan.is_partial:
            self._partial_since = None
        elif self._partial_since is None:
            self._partial_since = now
        elif now - self._partial_since >= self.patience_seconds:
            text = (
                f"it has kept changing while it was read for over {self.patience_seconds:.0f} s: until it rests, pods whose manifests "
                f"are missing are not ended (`inotifywait -m {self.directory}` shows what changes)"
            )
            draft.problems.append(ManifestProblem(self.directory, text))
        self._others = {name: self._others.get(name, now) for name in scan.others}
        for name in (name for name, since in self._others.items() if now - since >= self.patience_seconds):
            way_out = f"name it so, or hide it: `mv {shlex.quote(name)} .{shlex.quote(name)}`"
            text = f"it is not read: only *.yaml, *.yml and *.json are manifests ({way_out})"
            draft.problems.append(ManifestProblem(name, text))
        return PodSource(
            tuple(draft.pods),
            frozenset(draft.unreadable),
            frozenset(draft.misspelt),
            tuple(draft.problems),
            is_partial=scan.is_partial,
        )

    def _follow_writers(self, scan: ManifestScan) -> None:
        now = self._clock()
        written = [file.name for file in scan.files if file.being_written]
        self._open = {name: self._open.get(name, _OpenFile(now)) for name in written}
        for name, file in self._open.items():
            if file.problem is None and now - file.since >= self.patience_seconds:
                path = name if name == self.directory else f"{self.directory}/{name}"
                writers = (
                    ", ".join(f"process {w.pid} ({w.name})" for w in find_writers(path))
                    or f"a process that `fuser -v {shlex.quote(path)}` shows"
                )
                file.problem = (
                    f"still open for writing after {self.patience_seconds:.0f} s, by {writers}, so it is not read: "
                    "let it close the file, or write elsewhere and rename it into place"
                )

    def close(self) -> None:
        self._watch.stop()


class _OpenFile(Struct):
    """A file that a process has open for writing."""

    since: float
    """When it was first seen open, by the list's clock."""
    problem: str | None = None
    """Set once, after it has been open for too long, and not looked up again: the writing process."""


class _LookDraft(Struct):
    pods: list[Manifest] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)
    misspelt: set[str] = field(default_factory=set)
    problems: list[ManifestProblem] = field(default_factory=list)
    claims: "list[tuple[str, ClaimDocument]]" = field(default_factory=list)
    """Documents that pods' claims mean, each with its file."""

    def add_unreadable(self, file: ManifestFile, written: _OpenFile | None) -> None:
        self.unreadable.add(file.name)
        if written is not None:  # temporary, and its end wakes us
            if written.problem is not None:
                self.problems.append(ManifestProblem(file.name, written.problem))
        else:
            self.problems.append(ManifestProblem(file.name, file.problem or "it cannot be read"))

    def add_documents(self, source: str, documents: Documents) -> None:
        for document in documents:
            if isinstance(document, ManifestPod):
                self.pods.append(Manifest(document.pod, Origin(source), document.unused_fields, document.notes))
                continue
            if not isinstance(document, RefusedPod):
                self.claims.append((source, document))
                continue
            self.problems += [ManifestProblem(source, str(finding)) for finding in document.findings]
            if document.name is None:
                self.unreadable.add(source)
            else:
                self.misspelt.add(document.name)

    def resolve_claims(self) -> None:
        """Tell pods what their claims ask for. One that needs a document which isn't there waits for it: it is neither new nor gone."""
        if not self.claims and not any(manifest.pod.claims for manifest in self.pods):
            return
        from nodeagent.formats.manifest.claim_documents import ClaimDocuments, missing_documents  # noqa: PLC0415 - few nodes have claims

        documents = ClaimDocuments(document for _, document in self.claims)
        doubled = {id(document) for document in documents.doubled}  # equal ones are told apart
        for source, document in self.claims:
            if id(document) in doubled:
                text = f"{document.kind} {document.name} is in another file, too, which counts: remove one of them"
                self.problems.append(ManifestProblem(source, text))
        pods = []
        for manifest in self.pods:
            pod = documents.resolved(manifest.pod)
            missing = missing_documents(pod)
            if not missing:
                pods.append(replace(manifest, pod=pod))
                continue
            self.misspelt.add(pod.full_name)
            text = (
                f"pod {pod.full_name} waits for {' and '.join(missing)}: put the document into the manifest directory"
            )
            self.problems.append(ManifestProblem(manifest.origin.name, text))
        self.pods = pods
