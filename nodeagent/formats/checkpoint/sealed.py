"""The form of the agent's own files: a line that says format, version and SHA-256 of the content, and the content, one line of JSON."""

import hashlib
import json

from nodeagent.errors import NodeAgentError
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError, parsed


class SealError(NodeAgentError):
    """A file of the agent's own is damaged, of a later version, or something else. `is_newer`: a later version wrote it."""

    def __init__(self, message: str, *, way_out: str, is_newer: bool = False) -> None:
        super().__init__(
            message, hint="install the nodeagent that wrote it (`nodeagent --version`)" if is_newer else way_out
        )
        self.is_newer = is_newer


def sealed(body: bytes, form: str, version: int) -> bytes:
    """Put the first line above a content.

    Args:
        body: without a line break.
        form: what the content is.
        version: of its form.
    """
    header = {"format": form, "version": version, "sha256": hashlib.sha256(body).hexdigest()}
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode() + b"\n" + body + b"\n"


def unsealed(content: bytes, form: str, version: int, way_out: str, *, judge: bool = True) -> JsonValue:
    """Return the content.

    Args:
        content: of the whole file.
        form: what it is to be.
        version: the latest that can be read.
        way_out: what to do if it is damaged, or something else.
        judge: False: accept a damaged one, whatever its checksum.

    Raises:
        SealError: truncated, damaged, of a later version, or something else.
    """
    head, _, rest = content.partition(b"\n")
    try:
        header = parsed(head)
        found = header.field("format")
        is_ours = found.text() == form
        written, digest = header.field("version").whole(1), header.field("sha256").text()
    except MisfitError as err:
        raise SealError(f"the first line is not a {form} header: {err}", way_out=way_out) from err
    if not is_ours:
        raise SealError(f"the first line is not a {form} header: it says format {found.value!r}", way_out=way_out)
    if written > version:
        raise SealError(
            f"version {written} was written by a later nodeagent; this one reads up to {version}",
            way_out=way_out,
            is_newer=True,
        )
    body = rest.removesuffix(b"\n")
    if judge and (body == rest or hashlib.sha256(body).hexdigest() != digest):
        raise SealError("the checksum does not match: the file is truncated or damaged", way_out=way_out)
    try:
        return parsed(body)
    except MisfitError as err:
        raise SealError(f"the checksum matches but the content does not fit: {err}", way_out=way_out) from err
