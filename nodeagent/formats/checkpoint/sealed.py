"""Format of the agent's own files. The first line contains the format's name and version, and the SHA-256 of the content. The second line
is the content as JSON.
"""

import json

from nodeagent.core.model.digest import sha256_hex
from nodeagent.errors import NodeAgentError
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError, parse_json


class SealError(NodeAgentError):
    """One of the agent's files is damaged, isn't in the expected format, or was written by a later version (`is_newer`)."""

    def __init__(self, message: str, *, way_out: str, is_newer: bool = False) -> None:
        super().__init__(
            message, hint="install the nodeagent that wrote it (`nodeagent --version`)" if is_newer else way_out
        )
        self.is_newer = is_newer


def seal(body: bytes, form: str, version: int) -> bytes:
    """Add the header line to a file's content, which must be a single line. `form` names the content's format."""
    header = {"format": form, "version": version, "sha256": sha256_hex(body)}
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode() + b"\n" + body + b"\n"


def unseal(content: bytes, form: str, version: int, way_out: str, *, judge: bool = True) -> JsonValue:
    """Check the header line of a file, and return the content. `form` is the name of the expected format, and `version` is the latest
    readable version. `way_out` is the hint of the error if the file is damaged. Without `judge`, a wrong checksum is accepted.

    Raises:
        SealError: the file is damaged or malformed, or a later version wrote it.
    """
    head, _, rest = content.partition(b"\n")
    try:
        header = parse_json(head)
        found = header.field("format")
        is_ours = found.text() == form
        written, digest = header.field("version").whole(1), header.field("sha256").text()
    except MisfitError as err:
        raise SealError(f"the first line is not a {form} header: {err}", way_out=way_out) from err
    if not is_ours:
        raise SealError(f"the first line is not a {form} header, but names the format {found.value!r}", way_out=way_out)
    if written > version:
        raise SealError(
            f"format version {written} was written by a later nodeagent; this nodeagent reads versions up to {version}",
            way_out=way_out,
            is_newer=True,
        )
    body = rest.removesuffix(b"\n")
    if judge and (body == rest or sha256_hex(body) != digest):
        raise SealError("the checksum does not match: the file is truncated or damaged", way_out=way_out)
    try:
        return parse_json(body)
    except MisfitError as err:
        raise SealError(f"the checksum matches, but the content is invalid: {err}", way_out=way_out) from err
