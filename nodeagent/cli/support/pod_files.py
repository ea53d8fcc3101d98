"""Pods from manifests that the command line names: files, directories of files, or pipes such as stdin."""

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.cli.support.named_files import NamedFile
from nodeagent.cli.support.progress import Progress
from nodeagent.core.model.pod import Pod
from nodeagent.edge.files.manifests import (
    MAX_FILE_BYTES,
    ManifestDirectoryError,
    ManifestFile,
    ManifestScan,
    scan_manifests,
)
from nodeagent.errors import NodeAgentError, printable
from nodeagent.formats.manifest.pod_fields import derive_uid
from nodeagent.formats.manifest.pod_manifest import (
    ManifestPod,
    OtherDocument,
    RefusedPod,
    UnknownFields,
    parse_manifest,
    parse_workloads,
)
from nodeagent.formats.manifest.pod_schema import FOR_SCHEDULER
from nodeagent.formats.syntax.findings import DocumentError, Finding, list_names

if TYPE_CHECKING:
    from nodeagent.formats.manifest.claim_documents import ClaimDocument

    _Parsed = ManifestPod | ClaimDocument | RefusedPod


class PodFileError(NodeAgentError):
    """A manifest can't be read, or contains no pod."""


class PodFile(Struct, frozen=True):
    """Manifest with its pods, which are all valid."""

    path: str
    """Path that the user named. For a file in a named directory, it is the directory's path with the file's name."""
    content: bytes
    pods: tuple[ManifestPod, ...]
    claims: "tuple[ClaimDocument, ...]" = ()
    """ResourceClaims and ResourceClaimTemplates in the file."""


def read_pods(paths: Sequence[NamedFile]) -> tuple[Pod, ...]:
    """Read all pods from manifests, for trial decisions. A workload, such as a Deployment, counts as one pod."""
    return tuple(found.pod for file in read_workload_files(paths) for found in file.pods)


def read_workload_files(paths: Sequence[NamedFile]) -> tuple[PodFile, ...]:
    """Read manifests for trial decisions, and report ignored parts on stderr. A workload, such as a Deployment, counts as one pod, made
    from its template. If another pod has the same name already, a number is appended to this pod's name.
    """
    files = _read_files(paths, _parse_workloads)
    # Several workloads may have the same name, a workload may have several templates, and a Pod may have a workload's name.
    names = {found.pod.full_name for file in files for found in file.pods if not found.workload}
    unique = []
    for file in files:
        pods = []
        for found in file.pods:
            pod, count = found.pod, 1
            while found.workload and pod.full_name in names:
                count += 1
                pod = replace(found.pod, name=f"{found.pod.name}-{count}", uid="")
            names.add(pod.full_name)
            pods.append(replace(found, pod=pod if pod.uid else replace(pod, uid=derive_uid(pod))))
        unique.append(replace(file, pods=tuple(pods)))
    return tuple(unique)


def read_pod_files(paths: Sequence[NamedFile]) -> tuple[PodFile, ...]:
    """Read manifests in the order in which the agent reads them: sorted by file name, and the documents of a file in their order.

    Args:
        paths: the paths of files, pipes and directories.

    Raises:
        NodeAgentError: a file can't be read, a document is invalid, or none of the files contains a pod. The message lists everything that
            was found.
    """
    return _read_files(paths, _parse_documents)


def _read_files(
    paths: Sequence[NamedFile], parse: "Callable[[str, bytes], tuple[_Parsed, ...]]"
) -> tuple[PodFile, ...]:
    files: list[PodFile] = []
    with Progress("manifests read") as progress:
        for path in paths:
            for name, content in _read_contents(path):
                documents = parse(name, content)
                pods = tuple(one for one in documents if isinstance(one, ManifestPod))
                claims = tuple(one for one in documents if not isinstance(one, ManifestPod | RefusedPod))
                files.append(PodFile(name, content, pods, claims))
                progress.step()
    if not any(file.pods or file.claims for file in files):
        raise PodFileError(
            f"no pod in {', '.join(paths)}", hint="a manifest has kind: Pod; see examples/guaranteed.yaml"
        )
    return resolve_claims(files, ())


def resolve_claims(files: Sequence[PodFile], others: "Iterable[ClaimDocument]") -> tuple[PodFile, ...]:
    """Add to each pod the requests of its claims, which are defined in the files or in `others`."""
    if not any(found.pod.claims for file in files for found in file.pods):
        return tuple(files)
    from nodeagent.formats.manifest.claim_documents import ClaimDocuments

    documents = ClaimDocuments((*(document for file in files for document in file.claims), *others))
    return tuple(
        replace(file, pods=tuple(replace(found, pod=documents.resolved(found.pod)) for found in file.pods))
        for file in files
    )


def resolve_installed_claims(files: Sequence[PodFile], directory: str) -> tuple[PodFile, ...]:
    """Add to each pod the requests of those claims that the files don't define. The definitions are searched in the installed manifests;
    unreadable manifests are skipped.
    """
    if not any(claim.spec is None for file in files for found in file.pods for claim in found.pod.claims):
        return tuple(files)
    try:
        scan = scan_manifests(directory)
    except ManifestDirectoryError:
        return tuple(files)
    others = [
        one
        for file in scan.files
        if file.content is not None
        for one in parse_manifest(file.content, file.name)
        if not isinstance(one, ManifestPod | RefusedPod)
    ]
    return resolve_claims(files, others)


def _read_contents(path: NamedFile) -> Iterable[tuple[str, bytes]]:
    if path.is_pipe:
        return [(path, path.read(MAX_FILE_BYTES) or b"")]
    path.check_open()
    try:
        scan = scan_manifests(path)
    except ManifestDirectoryError as err:
        raise PodFileError(
            f"cannot read {path}: {err.reason}",
            hint=f"name a manifest, a directory of them, or - for stdin; `namei -l {shlex.quote(path)}` shows what is there, "
            "and who may read it",
        ) from err
    files = require_complete(scan, path)
    if not files:
        raise PodFileError(f"{path} contains no manifest", hint=f"see `ls -l {shlex.quote(path)}`")
    found = []
    for file in files:
        if file.content is None:
            why = file.problem or f"{path}/{file.name} can't be read"
            raise PodFileError(why, hint=f"see `ls -l {shlex.quote(path)}`")
        found.append((path if file.name == path else f"{path}/{file.name}", file.content))
    return found


def require_complete(scan: ManifestScan, path: str) -> tuple[ManifestFile, ...]:
    """Check that a scan of a directory is complete, and return the files that it found.

    Raises:
        PodFileError: the scan may have missed a file.
    """
    if scan.is_partial:
        raise PodFileError(
            f"{path} changed while it was read",
            hint=f"run the same command again; `inotifywait -m {shlex.quote(path)}` shows what changes there",
        )
    return scan.files


def parse_pods(name: str, content: bytes) -> tuple[ManifestPod, ...]:
    """Parse a manifest, and return its pods.

    Raises:
        DocumentError: a pod is invalid.
    """
    return tuple(one for one in _parse_documents(name, content) if isinstance(one, ManifestPod))


def _parse_documents(name: str, content: bytes) -> "tuple[_Parsed, ...]":
    return _require_valid(parse_manifest(content, name, without_pod=""))


def _parse_workloads(name: str, content: bytes) -> "tuple[_Parsed, ...]":
    documents = parse_workloads(content, name)
    others = [one for one in documents if isinstance(one, OtherDocument)]
    pods = [one for one in documents if isinstance(one, ManifestPod)]
    fields = sorted({re.split(r"[.\[]", path)[-1] for pod in pods for path in pod.not_run})
    unused = {path.rpartition(".")[2] for pod in pods for path in pod.unused_fields}
    unknown = [found for one in documents if isinstance(one, UnknownFields) for found in one.findings]
    said = {
        "one pod is decided for each of": [pod.workload for pod in pods if pod.workload],
        "documents without pods are ignored": [one.kind for one in others if not one.ended_pod],
        "pods that have ended are ignored": [one.ended_pod for one in others if one.ended_pod],
        "fields that `nodeagent apply` refuses are ignored": fields,
        "unknown fields are ignored": [_format_unknown(found) for found in unknown],
        "fields that choose a node are ignored": [name for name in FOR_SCHEDULER if name in unused],
    }
    if parts := [f"{what}: {list_names(names)}" for what, names in said.items() if names]:
        print(f"{printable(name)}: {'; '.join(parts)}", file=sys.stderr)
    return _require_valid(tuple(one for one in documents if not isinstance(one, OtherDocument | UnknownFields)))


def _format_unknown(found: Finding) -> str:
    """Format an unknown field as its name, its line and the name that the user probably meant."""
    if not found.field:  # this finding only contains the number of unknown fields that are not listed
        return found.allowed
    meant = found.allowed.removeprefix("unknown field").lstrip(", ")
    return f"{found.field.rpartition('.')[2]} (line {found.line}{f', {meant}' if meant else ''})"


def _require_valid(documents: "tuple[_Parsed, ...]") -> "tuple[_Parsed, ...]":
    findings = [finding for one in documents if isinstance(one, RefusedPod) for finding in one.findings]
    if findings:
        raise DocumentError(findings, hint="fix these lines; examples/guaranteed.yaml is a valid manifest")
    return documents
