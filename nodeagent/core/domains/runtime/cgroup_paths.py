"""Path of a container's cgroup, decoded from the notation of OCI (runtime-spec, cgroupsPath) or from runc's form for systemd."""

_SLICE = ".slice"


def decode_cgroup_path(cgroups_path: str) -> str:
    """Return the cgroup's path below the root of all cgroups. The path is empty if it can't be determined.

    Args:
        cgroups_path: `SLICE:PREFIX:NAME`, or a path. The first form is the scope PREFIX-NAME in a slice. The name of a slice begins with
            the names of the slices above it (systemd.slice(5)).
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
    """Return a path that was received from another program. Return an empty text if the path leads outside of the cgroups."""
    parts = path.strip("/").split("/")
    return "" if any(part in {"", ".", ".."} for part in parts) or "\0" in path else "/".join(parts)
