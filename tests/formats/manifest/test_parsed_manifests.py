from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from nodeagent.formats.manifest.parsed_manifests import ParsedFiles, decode_parsed, encode_parsed
from nodeagent.formats.manifest.pod_manifest import ManifestPod, parse_manifest
from tests.support.claims import NUMA, claiming, request, template
from tests.support.pods import app, pod
from tests.support.strategies import pods

EXAMPLES = tuple((Path(__file__).parents[3] / "examples").glob("*.yaml"))


def parsed_examples() -> ParsedFiles:
    files = ((path.name, path.read_bytes()) for path in EXAMPLES if path.name != "config.yaml")
    found = ((name, content, parse_manifest(content, name)) for name, content in files)
    return {name: (content, tuple(p for p in all_ if isinstance(p, ManifestPod))) for name, content, all_ in found}


def test_what_was_parsed_is_decoded_with_notes_and_large_amounts() -> None:
    files = parsed_examples()
    assert len(files) > 3
    large = pod("large", app("app", "2", memory="20000Gi"))
    files["large.json"] = b"\xff\x00", (ManifestPod(large, ("spec.nodeName",), 3, ("a note",)),)
    claims = claiming("claims", "2", template(request("cpus", count=2), match=NUMA))
    files["claims.yaml"] = b"", (ManifestPod(claims, (), None),)
    assert decode_parsed(encode_parsed(files, "program"), "program") == files


@given(st.data())
def test_any_pod_is_decoded_as_it_was(data: st.DataObject) -> None:
    files = {"pod.yaml": (b"content", (ManifestPod(data.draw(pods("uid")), (), 1),))}
    assert decode_parsed(encode_parsed(files, "program"), "program") == files


def test_another_program_gets_nothing() -> None:
    assert decode_parsed(encode_parsed(parsed_examples(), "program"), "another") == {}


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"x" * 64 + b"{}"], ids=["empty", "zeros", "foreign"])
def test_what_cannot_be_read_is_nothing(content: bytes) -> None:
    assert decode_parsed(content, "program") == {}


def test_no_part_and_no_flipped_bit_of_it_is_used() -> None:
    (name, (content, found)), *_ = parsed_examples().items()
    text = encode_parsed({name: (content, (replace(found[0], notes=()),))}, "program")
    assert decode_parsed(text, "program") != {}
    for at in range(len(text)):
        assert decode_parsed(text[:at], "program") == {}
        damaged = bytearray(text)
        damaged[at] ^= 1 << at % 8
        assert decode_parsed(bytes(damaged), "program") == {}
