"""State files that releases have written are read, and written again as they are.

The file has 37 of them, two lines each, and together every key of the format that random histories of 0.1 came by.
"""

from pathlib import Path

import pytest

from nodeagent.formats.checkpoint.node_state import decode_state, encode_state

LINES = (Path(__file__).parent / "states_of_0_1.txt").read_bytes().splitlines(keepends=True)
STATES = [head + body for head, body in zip(LINES[::2], LINES[1::2], strict=True)]


@pytest.mark.parametrize("content", STATES, ids=range(len(STATES)))
def test_a_state_of_0_1_is_read_and_written_again_as_it_is(content: bytes) -> None:
    saved = decode_state(content)
    assert encode_state(saved.state, saved.policies) == content


def test_there_are_all_of_them() -> None:
    assert len(STATES) == 37
