"""Users and groups that every host has, or none."""

from nodeagent.edge.processes.user_database import find_group_id, is_member

UNKNOWN = 2**32 - 2
"""User id that no database gives to anybody (-1 means no id at all)."""


def test_groups() -> None:
    assert find_group_id("root") == 0
    assert find_group_id("no-such-group-here") is None


def test_a_member_is_a_known_user_with_the_group() -> None:
    assert is_member(0, "root")
    assert not is_member(0, "no-such-group-here")
    assert not is_member(UNKNOWN, "root")
    assert not is_member(UNKNOWN, "no-such-group-here")
