"""Decoding of the path of a container's cgroup, as the container runtime reports it (OCI runtime-spec, cgroupsPath, or runc's notation for
systemd).
"""

_SLICE = ".slice"


def decode_cgroup_path(cgroups_path: str) -> str:
    """Return the path of a container's cgroup below the cgroup v2 root. The result is empty if the path can't be determined.

    Args:
        cgroups_path: a path, or `SLICE:PREFIX:NAME`, which means the scope PREFIX-NAME.scope in that slice. A slice's name contains the
            names of the slices above it (systemd.slice(5)).
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
    """Remove leading and trailing slashes from a path that another program has sent. Return an empty text if the path isn't safe, for
    instance because it contains `..`.
    """
    parts = path.strip("/").split("/")
    return "" if any(part in {"", ".", ".."} for part in parts) or "\0" in path else "/".join(parts)
