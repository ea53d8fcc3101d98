"""State files that releases have written are read, and written again as they are.

The file has 37 of them, two lines each, and together every key of the format that random histories of 0.1 came by.
"""

from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.core.model.state import NodeState
from nodeagent.daemon.domains.runtime.adapters import CONTAINERD, CRIO
from nodeagent.formats.checkpoint.node_state import decode_state, encode_state

LINES = (Path(__file__).parent / "states_of_0_1.txt").read_bytes().splitlines(keepends=True)
STATES = [head + body for head, body in zip(LINES[::2], LINES[1::2], strict=True)]


@pytest.mark.parametrize("content", STATES, ids=range(len(STATES)))
def test_a_state_of_0_1_is_read_and_written_again_as_it_is(content: bytes) -> None:
    saved = decode_state(content)
    assert encode_state(saved.state, saved.policies) == content


def test_there_are_all_of_them() -> None:
    assert len(STATES) == 37


def test_0_1_refuses_a_state_of_whose_domains_it_does_not_know_one() -> None:
    """It would take the pods of such a domain for its own, and run them."""
    saved = next(saved for content in STATES if (saved := decode_state(content)).state.entries)
    heads = []
    for runtime in (CONTAINERD, CRIO):
        entries = tuple(replace(entry, origin=runtime.origin) for entry in saved.state.entries)
        content = encode_state(NodeState(saved.state.promises, entries), saved.policies)
        assert decode_state(content).state.entries == entries
        heads.append(content.splitlines()[0])
    assert [b'"version":1' in head for head in heads] == [True, False]
