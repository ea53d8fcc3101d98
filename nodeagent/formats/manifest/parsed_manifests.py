"""Encoder and decoder of manifests that were parsed by an earlier process, so that a restart doesn't parse them again.

The text has the content of each file, so nobody needs to trust a name or a time. It is of use only to the same program.
"""

import hashlib
from collections.abc import Mapping

import msgspec

from nodeagent.formats.manifest.pod_manifest import ManifestPod

ParsedFiles = dict[str, tuple[bytes, tuple[ManifestPod, ...]]]
"""Content and pods of each file, by name."""


class _Document(msgspec.Struct):
    program: str
    files: ParsedFiles


def encode_parsed(files: Mapping[str, tuple[bytes, tuple[ManifestPod, ...]]], program: str) -> bytes:
    """Encode parsed files. `program` identifies the program that has parsed them."""
    body = msgspec.json.encode(_Document(program, dict(files)))
    return hashlib.sha256(body).hexdigest().encode() + body


def decode_parsed(content: bytes, program: str) -> ParsedFiles:
    """Decode parsed files. The result is empty if the content is damaged or of another program."""
    digest, body = content[:64], content[64:]
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return {}
    try:
        document = msgspec.json.decode(body, type=_Document)
    except msgspec.MsgspecError:  # another program wrote these fields
        return {}
    return document.files if document.program == program else {}
