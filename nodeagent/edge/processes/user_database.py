"""Users and groups of this host, looked up through NSS (nsswitch.conf(5)). A lookup may block while NSS asks a network service."""

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
    """Return whether the user database contains a user ID, and has this user in a group.

    The group IDs of the user's process aren't enough. In a user namespace, a process with a subordinate user ID (subuid(5)) keeps its
    groups, but the database doesn't contain this ID.
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
    """Return the name of a user ID, or the ID as text if it has no name."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
