"""Encoder and decoder of parsed manifests, so that a restarted agent doesn't parse them again.

The encoded text includes the content of each file, so the agent detects changed files by content and not by time. Only the program version
that encoded the text can decode it.
"""

from collections.abc import Mapping

import msgspec

from nodeagent.core.model.digest import sha256_hex
from nodeagent.formats.manifest.pod_manifest import ManifestPod

ParsedFiles = dict[str, tuple[bytes, tuple[ManifestPod, ...]]]
"""Content and pods of each file, by name."""


class _Document(msgspec.Struct):
    program: str
    files: ParsedFiles


def encode_parsed(files: Mapping[str, tuple[bytes, tuple[ManifestPod, ...]]], program: str) -> bytes:
    """Encode parsed files. `program` identifies the program that has parsed them."""
    body = msgspec.json.encode(_Document(program, dict(files)))
    return sha256_hex(body).encode() + body


def decode_parsed(content: bytes, program: str) -> ParsedFiles:
    """Decode parsed files. The result is empty if the content is damaged, or if another program wrote the content."""
    digest, body = content[:64], content[64:]
    if sha256_hex(body).encode() != digest:
        return {}
    try:
        document = msgspec.json.decode(body, type=_Document)
    except msgspec.MsgspecError:  # another program wrote these fields
        return {}
    return document.files if document.program == program else {}
