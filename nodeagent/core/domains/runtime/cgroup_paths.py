"""Where a container's cgroup is, from how OCI spells it (runtime-spec, cgroupsPath; runc's form for systemd)."""

_SLICE = ".slice"


def cgroup_of(cgroups_path: str) -> str:
    """Return the cgroup's path below the root of all cgroups; "": it can't be told.

    Args:
        cgroups_path: `SLICE:PREFIX:NAME` is the scope PREFIX-NAME in a slice, which lies in those that its name begins with
            (systemd.slice(5)); otherwise a path.
    """
    parent, colon, scope = cgroups_path.partition(":")
    if not colon:
        return _checked(cgroups_path)
    prefix, _, name = scope.partition(":")
    words = parent.removesuffix(_SLICE).split("-")
    slices = ["-".join(words[: count + 1]) + _SLICE for count in range(len(words))]
    if not parent.endswith(_SLICE) or not all(words) or "/" in scope:
        return ""
    return _checked("/".join((*slices, f"{prefix}-{name}.scope")))


def _checked(path: str) -> str:
    """It comes from outside: no path that leads elsewhere."""
    parts = path.strip("/").split("/")
    return "" if any(part in {"", ".", ".."} for part in parts) or "\0" in path else "/".join(parts)
