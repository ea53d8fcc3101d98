"""The status documents of claims, as they are read back."""

import pytest

from nodeagent.core.model.claims import AllocatedDevice, ClaimAllocation
from nodeagent.formats.manifest.claim_status import AllocatedClaim, ClaimHolder, claim_text, parse_claim_text

DEVICES = (
    AllocatedDevice("cpus", "dra.cpu", "cpudev004"),
    AllocatedDevice("zone", "dra.memory", "memory-1", (("dra.memory/size", 2**30),)),
)
CLAIM = AllocatedClaim(ClaimAllocation("default/a-own", "", DEVICES), (ClaimHolder("a", "uid-a"),), ())


def test_what_was_written_is_read() -> None:
    assert parse_claim_text(claim_text(CLAIM, "node1")) == CLAIM


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("cpudev004", "cpudev"),
        ("cpudev004", "core4"),
        ('"1Gi"', '"much"'),
        ('"results"', '"result"'),
        ("{", "["),
        ('"1Gi"', '"-1"'),
        ('"uid-a"', r'"\ud800"'),
    ],
)
def test_what_somebody_has_changed_into_something_else_is_no_claim(old: str, new: str) -> None:
    text = claim_text(CLAIM, "node1").decode()
    assert old in text
    assert parse_claim_text(text.replace(old, new, 1).encode()) is None


def test_what_is_nested_deeply_is_no_claim() -> None:
    assert parse_claim_text(b"[" * 60_000) is None
