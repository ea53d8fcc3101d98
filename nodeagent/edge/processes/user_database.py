"""The host's users and groups, by NSS: files, and whatever /etc/nsswitch.conf names besides. A service that it asks may take its time."""

import grp
import os
import pwd


def group_id(name: str) -> int | None:
    """Return the id of a group. None means that there is none of that name."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def is_member(user: int, group: str) -> bool:
    """Return whether the user database knows a user id and has it in a group.

    What groups a process has says something else: the subordinate ids of its user's namespaces, which the database doesn't know
    (subuid(5)), keep them.
    """
    try:
        entry = pwd.getpwuid(user)
    except KeyError:
        return False
    return group_id(group) in os.getgrouplist(entry.pw_name, entry.pw_gid)
