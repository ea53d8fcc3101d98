"""Times of a clock as text."""

import time


def format_local_time(at_ms: int) -> str:
    """Format the month, the day and the local time of milliseconds since the epoch."""
    return time.strftime("%m-%d %H:%M", time.localtime(at_ms // 1000))


def format_utc(at_ms: int) -> str:
    """Format the same in UTC, for nodes whose time zone is unknown."""
    return time.strftime("%m-%d %H:%M UTC", time.gmtime(at_ms // 1000))
