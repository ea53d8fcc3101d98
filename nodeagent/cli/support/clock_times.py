"""Points in time as text."""

import time


def format_local_time(at_ms: int) -> str:
    """Format milliseconds since the epoch as month, day and local time."""
    return time.strftime("%m-%d %H:%M", time.localtime(at_ms // 1000))


def format_utc(at_ms: int) -> str:
    """Format milliseconds since the epoch as month, day and time in UTC, for nodes with an unknown time zone."""
    return time.strftime("%m-%d %H:%M UTC", time.gmtime(at_ms // 1000))
