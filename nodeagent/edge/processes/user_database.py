"""Users and groups of the host, looked up by NSS (nsswitch.conf(5)). A lookup can block while NSS asks a network service."""

import grp
import os
import pwd


def find_group_id(name: str) -> int | None:
    """Return the ID of a group. None means that there is no group of this name."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def is_member(user: int, group: str) -> bool:
    """Return whether a user ID is in the user database and belongs to a group.

    The groups of a process don't answer this question. Subordinate IDs of a user namespace (subuid(5)) keep the groups, but aren't in the
    database.
    """
    try:
        entry = pwd.getpwuid(user)
    except KeyError:
        return False
    return find_group_id(group) in os.getgrouplist(entry.pw_name, entry.pw_gid)


def find_user_id(name: str) -> int | None:
    """Return the ID of a user. None means that there is no user of this name."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def name_user(user: int) -> str:
    """Return the name of a user ID, or the number if the ID has no name."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
