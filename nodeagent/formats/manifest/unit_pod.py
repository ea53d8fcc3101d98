"""A systemd unit as a pod: one container that stands for it. Knows no systemd."""

import hashlib
import json
import re
from collections.abc import Mapping

from nodeagent.formats.manifest.pod_schema import CORE_CLASS, GIVE_BACK, NEAR, NUMA_NODE, UNIT, WHILE_INACTIVE

UNIT_NAMESPACE = "units"
UNIT_CONTAINER = "unit"
_KINDS = (
    ".service",
    ".scope",
    ".slice",
    ".socket",
    ".timer",
    ".path",
    ".target",
    ".mount",
    ".automount",
    ".swap",
    ".device",
)
"""Of units. Only the first three have processes."""
_PLAIN_KEY = re.compile(r"[a-z][A-Za-z0-9./-]*")
_DIGEST = 6
_LONGEST_NAME = 200
"""Of a pod, as its file is called so, too."""


def full_unit_name(name: str) -> str:
    """Return the name of the unit that is meant: without a kind it is a service, as for systemctl."""
    return name if name.endswith(_KINDS) else f"{name}.service"


def unit_pod_name(unit: str) -> str:
    """Return the name of a unit's pod: the unit's own, where a pod may be called so, and otherwise one that no other unit's pod has."""
    stem, _, kind = unit.rpartition(".")
    usable = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if usable == stem and len(unit) <= _LONGEST_NAME:
        return unit
    ending = f"{hashlib.sha256(unit.encode()).hexdigest()[:_DIGEST]}.{kind}"
    return "-".join(filter(None, (usable[: _LONGEST_NAME - len(ending) - 1].rstrip("-"), ending)))


def _key(name: str) -> str:
    """Whatever a resource is said to be called is one key."""
    return name if _PLAIN_KEY.fullmatch(name) else json.dumps(name)


def unit_manifest(
    unit: str,
    amounts: Mapping[str, str],
    numa_node: str | None = None,
    core_class: str | None = None,
    *,
    near: str | None = None,
    gives_back: bool = False,
) -> bytes:
    """Return the manifest of a pod that stands for a unit.

    Args:
        unit: its name.
        amounts: its limits, which are its requests, too.
        numa_node: the number of the NUMA node on which it has to be. None: any.
        core_class: of which its exclusive CPUs have to be. None: any.
        near: the devices that it asks to be near. None: none.
        gives_back: others may have its CPUs and memory while it isn't active.
    """
    idle = GIVE_BACK if gives_back else None
    asked = {f"{UNIT}/{UNIT_CONTAINER}": unit, NUMA_NODE: numa_node, CORE_CLASS: core_class, NEAR: near}
    asked |= {WHILE_INACTIVE: idle}
    annotations = {key: value for key, value in asked.items() if value is not None}
    limits = "".join(f"          {_key(name)}: {json.dumps(amount)}\n" for name, amount in amounts.items())
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
