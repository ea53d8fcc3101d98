"""Conversion of a pinned systemd unit to a pod with one container."""

import json
import re
from collections.abc import Mapping

from nodeagent.core.model.digest import sha256_hex
from nodeagent.formats.manifest.pod_schema import CORE_CLASS, GIVE_BACK, NEAR, NUMA_NODE, UNIT, WHILE_INACTIVE

UNIT_NAMESPACE = "units"
UNIT_CONTAINER = "unit"
_KINDS = tuple(
    f".{kind}"
    for kind in (
        "service",
        "scope",
        "slice",
        "socket",
        "timer",
        "path",
        "target",
        "mount",
        "automount",
        "swap",
        "device",
    )
)
"""Kinds of units. Only the first three kinds have processes."""
_PLAIN_KEY = re.compile(r"[a-z][A-Za-z0-9./-]*")
_DIGEST = 6
_LONGEST_NAME = 200
"""Maximum length of a pod's name, which is also the name of its manifest file."""


def full_unit_name(name: str) -> str:
    """Return a unit's full name. A name without a kind means a service, as for systemctl."""
    return name if name.endswith(_KINDS) else f"{name}.service"


def unit_pod_name(unit: str) -> str:
    """Return the name of a unit's pod. This is the unit's name if a pod may have such a name. Otherwise, a unique name is derived from the
    unit's name.
    """
    stem, _, kind = unit.rpartition(".")
    usable = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if usable == stem and len(unit) <= _LONGEST_NAME:
        return unit
    ending = f"{sha256_hex(unit.encode())[:_DIGEST]}.{kind}"
    return "-".join(filter(None, (usable[: _LONGEST_NAME - len(ending) - 1].rstrip("-"), ending)))


def unit_manifest(
    unit: str,
    amounts: Mapping[str, str],
    numa_node: str | None = None,
    core_class: str | None = None,
    *,
    near: str | None = None,
    gives_back: bool = False,
) -> bytes:
    """Return the manifest of a pod that pins a unit.

    Args:
        unit: the unit's name.
        amounts: the limits, also used as requests.
        numa_node: the number of the required NUMA node. None means any.
        core_class: the required class of the unit's exclusive CPUs. None means any.
        near: the devices whose NUMA nodes are preferred. None means no preference.
        gives_back: whether to release the unit's CPUs and memory while the unit is inactive.
    """
    asked = {
        f"{UNIT}/{UNIT_CONTAINER}": unit,
        NUMA_NODE: numa_node,
        CORE_CLASS: core_class,
        NEAR: near,
        WHILE_INACTIVE: GIVE_BACK if gives_back else None,
    }
    annotations = {key: value for key, value in asked.items() if value is not None}
    # some names are written in quotes, because YAML would otherwise not read such a name as one key
    keys = {name: name if _PLAIN_KEY.fullmatch(name) else json.dumps(name) for name in amounts}
    limits = "".join(f"          {keys[name]}: {json.dumps(amount)}\n" for name, amount in amounts.items())
    return f"""\
# made by `nodeagent pin {unit}`; `nodeagent unpin {unit}` removes it
apiVersion: v1
kind: Pod
metadata:
  name: {json.dumps(unit_pod_name(unit))}
  namespace: {UNIT_NAMESPACE}
  annotations:
{"".join(f"    {json.dumps(key)}: {json.dumps(value)}{chr(10)}" for key, value in annotations.items())}\
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: {UNIT_CONTAINER}
      resources:
        limits:
{limits}""".encode()
