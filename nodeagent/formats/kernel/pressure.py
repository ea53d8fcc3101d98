"""Pressure stall information (PSI) and throttling of a cgroup, in the kernel's files (cgroup v2)."""

_SHARES = ("some", "full")
PRESSURES = (("cpu", "some"), ("cpu", "full"), ("memory", "some"), ("memory", "full"), ("irq", "full"))
"""Pressures that the kernel measures for a cgroup: pairs of a resource and `some` or `full` (some or all tasks wait)."""


def parse_pressure_us(text: str) -> dict[str, int]:
    """Parse a pressure file, such as `cpu.pressure`.

    Returns:
        Microseconds for which some or all tasks have waited, by the keys `some` and `full`. Malformed lines are left out.
    """
    found = {}
    for line in text.splitlines():
        share, *fields = line.split()[:9] or [""]
        total = next((field.removeprefix("total=") for field in fields if field.startswith("total=")), "")
        if share in _SHARES and total.isascii() and total.isdigit():
            found[share] = int(total[:20])
    return found


def parse_throttled_periods(cpu_stat: str) -> int | None:
    """Return `nr_throttled` of a cpu.stat. None means that the file lacks this field, for instance without the cpu controller."""
    for line in cpu_stat.splitlines():
        name, _, value = line.partition(" ")
        if name == "nr_throttled" and value.isascii() and value.isdigit():
            return int(value[:20])
    return None
