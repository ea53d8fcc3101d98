"""The form of the agent's own files: a line that says format, version and SHA-256 of the content, and the content, one line of JSON."""

import hashlib
import json

from nodeagent.formats.syntax.json_values import JsonValue, MisfitError, parsed


class SealError(ValueError):
    """The bytes are not whole, or of something else. `is_newer`: a later version wrote them."""

    def __init__(self, why: str, *, is_newer: bool = False) -> None:
        super().__init__(why)
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


def unsealed(content: bytes, form: str, version: int, *, judge: bool = True) -> JsonValue:
    """Return the content.

    Args:
        content: of the whole file.
        form: what it is to be.
        version: the latest that can be read.
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
        raise SealError(f"the first line is not a {form} header: {err}") from err
    if not is_ours:
        raise SealError(f"the first line is not a {form} header: it says format {found.value!r}")
    if written > version:
        raise SealError(
            f"version {written} was written by a later nodeagent; this one reads up to {version}", is_newer=True
        )
    body = rest.removesuffix(b"\n")
    if judge and (body == rest or hashlib.sha256(body).hexdigest() != digest):
        raise SealError("the checksum does not match: the file is truncated or damaged")
    try:
        return parsed(body)
    except MisfitError as err:
        raise SealError(f"the checksum matches but the content does not fit: {err}") from err
