"""The manifest directory as the deciding thread uses it: pods in order, problems once per file, nothing parsed twice."""

from dataclasses import dataclass, field, replace

from nodeagent.core.step import Manifest
from nodeagent.edge.manifest_watch import ManifestWatch, ManifestWatchError
from nodeagent.edge.manifests import ManifestDirectoryError, ManifestFile, scan_manifests
from nodeagent.formats.pod_manifest import ManifestPod, RefusedPod, parse_manifest

Documents = tuple[ManifestPod | RefusedPod, ...]


@dataclass(frozen=True, slots=True)
class ManifestProblem:
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class ManifestLook:
    pods: tuple[Manifest, ...] = ()
    unreadable: frozenset[str] = frozenset()
    misspelt: frozenset[str] = frozenset()
    problems: tuple[ManifestProblem, ...] = ()
    new_problems: tuple[ManifestProblem, ...] = ()
    """Those that the look before did not have."""
    is_blind: bool = False
    """The directory can't be read."""


class ManifestList:
    def __init__(self, directory: str, watch: ManifestWatch) -> None:
        self.directory = directory
        self._watch = watch
        self._parsed: dict[str, tuple[bytes, Documents]] = {}
        self._last: ManifestLook | None = None

    def look(self, *, rescan: bool) -> ManifestLook:
        """Give the valid pods; with `rescan`, or at the first look, of the directory as it is now."""
        if self._last is not None and not rescan:
            return replace(self._last, new_problems=())
        draft = _Draft()
        try:
            self._watch.renew()
        except ManifestWatchError as err:
            draft.problems.append(ManifestProblem(self.directory, f"{err.message} ({err.hint})"))
        try:
            scan = scan_manifests(self.directory)
        except ManifestDirectoryError as err:
            problem = ManifestProblem(self.directory, f"{err.message} ({err.hint})")
            return self._told(ManifestLook(is_blind=True, problems=(problem,)))
        parsed: dict[str, tuple[bytes, Documents]] = {}
        for file in scan.files:
            if file.content is None:
                draft.add_unreadable(file)
                continue
            before = self._parsed.get(file.name)
            documents = (
                before[1]
                if before is not None and before[0] == file.content
                else parse_manifest(file.content, file.name)
            )
            parsed[file.name] = (file.content, documents)
            draft.add_documents(file.name, documents)
        self._parsed = parsed
        if scan.unread:
            draft.problems.append(
                ManifestProblem(self.directory, f"{scan.unread} files are too many and were not read")
            )
        return self._told(
            ManifestLook(
                tuple(draft.pods), frozenset(draft.unreadable), frozenset(draft.misspelt), tuple(draft.problems)
            )
        )

    @property
    def problems(self) -> tuple[ManifestProblem, ...]:
        """Found by the last look."""
        return () if self._last is None else self._last.problems

    def close(self) -> None:
        self._watch.stop()

    def _told(self, look: ManifestLook) -> ManifestLook:
        known = self._last.problems if self._last is not None else ()
        self._last = replace(look, new_problems=tuple(p for p in look.problems if p not in known))
        return self._last


@dataclass
class _Draft:
    pods: list[Manifest] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)
    misspelt: set[str] = field(default_factory=set)
    problems: list[ManifestProblem] = field(default_factory=list)

    def add_unreadable(self, file: ManifestFile) -> None:
        self.unreadable.add(file.name)
        if not file.being_written:  # that will pass, and then we are woken
            self.problems.append(ManifestProblem(file.name, file.problem or "it cannot be read"))

    def add_documents(self, source: str, documents: Documents) -> None:
        for document in documents:
            if isinstance(document, ManifestPod):
                self.pods.append(Manifest(document.pod, source, document.unused_fields))
                continue
            self.problems += [ManifestProblem(source, str(finding)) for finding in document.findings]
            if document.name is None:
                self.unreadable.add(source)
            else:
                self.misspelt.add(document.name)
