"""Manifest directory as a source of pods, with the problems of the manifest files. A file is parsed only if its content has changed."""

import shlex
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from nodeagent.core.model.config import Config
from nodeagent.core.model.state import Origin
from nodeagent.core.turn.pod_sources import Manifest, ManifestProblem, PodSource
from nodeagent.daemon.sources.kept_manifests import KeptManifests
from nodeagent.edge.files.manifest_watch import ManifestWatch, ManifestWatchError
from nodeagent.edge.files.manifests import KnownManifests, ManifestDirectoryError, ManifestScan, scan_manifests
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
        kept: KeptManifests | None = None,
    ) -> None:
        self._directory = directory
        self._watch = watch
        self._overdue = _OverdueFiles(directory, patience_seconds, clock)
        self._alive = alive
        """Function that is called after each parsed file, to notify systemd's watchdog while thousands of new files are parsed."""
        self._kept = kept
        left = {} if kept is None else kept.take()
        self._parsed = {name: _ParsedFile.of(name, content, documents) for name, (content, documents) in left.items()}
        """Parsed files of the last read. At first, the files that an earlier agent process has parsed and saved."""
        self._known = KnownManifests()
        self._last: PodSource | None = None
        """Result of the last read. None means that the directory hasn't been read yet."""

    def follow(self, config: Config) -> None:
        """Apply the configuration fields that can change without a restart."""
        self._overdue.patience_seconds = config.file_check_frequency_ms / 1000

    def look(self, *, rescan: bool, part: float = 1.0) -> PodSource:
        """Return the valid pods. The first call and calls with `rescan` read the directory; other calls return the last result.

        Args:
            rescan: whether to read the directory.
            part: fraction, from 0 to 1, of the files to read even if the kernel hasn't reported a change. On network file systems, the
                kernel doesn't report changes made on other machines.
        """
        if self._last is None or rescan:
            self._last = self._read(part)
        return self._last

    def _read(self, part: float) -> PodSource:
        draft = _SourceDraft()
        changed: frozenset[str] | None = None
        try:
            self._watch.renew()
            changed = self._watch.take_changed()
        except ManifestWatchError as err:
            draft.problems.append(ManifestProblem(self._directory, f"{err.message} ({err.hint})"))
        scan_before = self._known.last
        try:
            scan = scan_manifests(
                self._directory, self._known, 1.0 if changed is None else part, changed or frozenset()
            )
        except ManifestDirectoryError as err:
            problem = ManifestProblem(self._directory, f"{err.message} ({err.hint})")
            self._known = KnownManifests()
            return PodSource(is_blind=True, problems=(problem,))
        is_timeless = self._last is not None and not (self._last.problems or self._last.unreadable or scan.others)
        if self._last is not None and scan is scan_before and is_timeless and not (scan.is_partial or draft.problems):
            return self._last
        self._overdue.update(scan)
        for file in [file for file in scan.files if file.content is None]:
            draft.unreadable.add(file.name)
            if not file.being_written:  # if the file is still being written, the end of the write wakes the agent
                draft.problems.append(ManifestProblem(file.name, file.problem or "it cannot be read"))
            elif (overdue := self._overdue.find_open_problem(file.name)) is not None:
                draft.problems.append(ManifestProblem(file.name, overdue))
        contents = {file.name: file.content for file in scan.files if file.content is not None}
        self._parsed = {
            name: known if known is not None and known.content == content else self._parse(name, content)
            for (name, content), known in zip(contents.items(), map(self._parsed.get, contents), strict=True)
        }
        draft.pods += chain.from_iterable([file.manifests for file in self._parsed.values()])
        for name in [name for name, file in self._parsed.items() if file.others]:
            draft.add_others(name, self._parsed[name].others)
        draft.resolve_claims()
        if scan.unread:
            draft.problems.append(ManifestProblem(self._directory, f"too many files: {scan.unread} were not read"))
        draft.problems += self._overdue.problems()
        found = PodSource(
            tuple(draft.pods),
            frozenset(draft.unreadable),
            frozenset(draft.misspelt),
            tuple(draft.problems),
            is_partial=scan.is_partial,
        )
        return self._last if self._last is not None and found == self._last else found

    def _parse(self, name: str, content: bytes) -> "_ParsedFile":
        self._alive()
        return _ParsedFile.of(name, content, parse_manifest(content, name))

    def close(self) -> None:
        """Stop watching the directory, and save the parsed pods for the next agent process."""
        self._watch.stop()
        if self._kept is not None:
            only_pods = {name: (file.content, file.pods) for name, file in self._parsed.items() if not file.others}
            self._kept.leave(only_pods)


class _ParsedFile(Struct, frozen=True):
    """Content of a manifest file, with the pods and refused documents in it."""

    content: bytes
    pods: tuple[ManifestPod, ...]
    manifests: tuple[Manifest, ...]
    """Manifests of the pods in the file."""
    others: "tuple[ClaimDocument | RefusedPod, ...]"

    @classmethod
    def of(cls, name: str, content: bytes, documents: Documents) -> "_ParsedFile":
        pods = tuple(document for document in documents if isinstance(document, ManifestPod))
        return cls(
            content,
            pods,
            tuple(Manifest(pod.pod, Origin(name), pod.unused_fields, pod.notes) for pod in pods),
            tuple(document for document in documents if not isinstance(document, ManifestPod)),
        )


class _OpenFile(Struct):
    """Manifest file that some process has open for writing, so that it isn't read yet."""

    since: float
    """Monotonic time at which the file was first seen open."""
    problem: str | None = None
    """Text about a file that has been open for too long. None until then, because the process that has the
    file open is searched only then.
    """


class _OverdueFiles:
    """States of the directory that are normal for a short time, and become problems after `patience_seconds`."""

    def __init__(self, directory: str, patience_seconds: float, clock: Callable[[], float]) -> None:
        self.patience_seconds = patience_seconds
        self._directory = directory
        self._clock = clock
        self._open: dict[str, _OpenFile] = {}
        self._others: dict[str, float] = {}
        """Names of files whose endings aren't those of manifests, with the time when each was first seen. Such a file may be an editor's
        temporary file, which soon disappears.
        """
        self._partial_since: float | None = None
        """Monotonic time since which the directory has changed during each scan. None means that the last scan was complete."""

    def update(self, scan: ManifestScan) -> None:
        """Update the times from a scan's result. For each file that has been open for too long, find the process that has it open."""
        now = self._clock()
        self._others = {name: self._others.get(name, now) for name in scan.others}
        if not scan.is_partial:
            self._partial_since = None
        elif self._partial_since is None:
            self._partial_since = now
        written = [file.name for file in scan.files if file.being_written]
        self._open = {name: self._open.get(name, _OpenFile(now)) for name in written}
        for name, file in self._open.items():
            if file.problem is None and now - file.since >= self.patience_seconds:
                path = name if name == self._directory else f"{self._directory}/{name}"
                writers = (
                    ", ".join(f"process {w.pid} ({w.name})" for w in find_writers(path))
                    or f"a process that `fuser -v {shlex.quote(path)}` shows"
                )
                file.problem = (
                    f"still open for writing after {self.patience_seconds:.0f} s, by {writers}, so it is not read: "
                    "let it close the file, or write elsewhere and rename it into place"
                )

    def find_open_problem(self, name: str) -> str | None:
        """Return the text about a file that has been open for too long. None means that the file isn't open, or not for that long yet."""
        file = self._open.get(name)
        return None if file is None else file.problem

    def problems(self) -> Iterator[ManifestProblem]:
        """Yield the problems with a directory that keeps changing, and with files that aren't manifests."""
        now = self._clock()
        if self._partial_since is not None and now - self._partial_since >= self.patience_seconds:
            text = (
                f"the directory has changed during each read for over {self.patience_seconds:.0f} s; pods without manifests are not "
                f"ended until one read sees no change (`inotifywait -m {self._directory}` shows the changes)"
            )
            yield ManifestProblem(self._directory, text)
        for name in (name for name, since in self._others.items() if now - since >= self.patience_seconds):
            way_out = f"rename the file, or hide it: `mv {shlex.quote(name)} .{shlex.quote(name)}`"
            text = f"the file is not read: only *.yaml, *.yml and *.json are manifests ({way_out})"
            yield ManifestProblem(name, text)


class _SourceDraft(Struct):
    pods: list[Manifest] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)
    misspelt: set[str] = field(default_factory=set)
    problems: list[ManifestProblem] = field(default_factory=list)
    claims: "list[tuple[str, ClaimDocument]]" = field(default_factory=list)
    """Documents of resource claims, each with the name of its file."""

    def add_others(self, source: str, documents: "tuple[ClaimDocument | RefusedPod, ...]") -> None:
        """Add the claim documents and refused pods of a file."""
        for document in documents:
            if not isinstance(document, RefusedPod):
                self.claims.append((source, document))
                continue
            self.problems += [ManifestProblem(source, str(finding)) for finding in document.findings]
            if document.name is None:
                self.unreadable.add(source)
            else:
                self.misspelt.add(document.name)

    def resolve_claims(self) -> None:
        """Complete each pod with the requests of its resource claims, which are in claim documents.

        A pod waits if the document of a claim is missing. Until then, the pod is neither started as a new pod nor ended as a removed one.
        """
        if not self.claims and not any(manifest.pod.claims for manifest in self.pods):
            return
        from nodeagent.formats.manifest.claim_documents import ClaimDocuments, find_missing_documents  # noqa: PLC0415 - few nodes have claims

        documents = ClaimDocuments(document for _, document in self.claims)
        # documents are compared by identity, because two files may contain equal documents
        doubled = {id(document) for document in documents.doubled}
        for source, document in self.claims:
            if id(document) in doubled:
                text = f"{document.kind} {document.name} is also in another file, which is used: remove one of the two"
                self.problems.append(ManifestProblem(source, text))
        pods = []
        for manifest in self.pods:
            pod = documents.resolved(manifest.pod)
            missing = find_missing_documents(pod)
            if not missing:
                pods.append(replace(manifest, pod=pod))
                continue
            self.misspelt.add(pod.full_name)
            text = (
                f"pod {pod.full_name} waits for {' and '.join(missing)}: put the document into the manifest directory"
            )
            self.problems.append(ManifestProblem(manifest.origin.name, text))
        self.pods = pods
