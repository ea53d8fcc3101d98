"""Probable mistakes in a valid manifest: fields without effect here, amounts that lack their unit, and amounts that must be rounded."""

import re
from collections.abc import Callable

from nodeagent.core.model.pod import CPU, MEMORY, Container, Pod, ResourceRequirements
from nodeagent.core.model.quantity import Quantity
from nodeagent.formats.manifest.pod_schema import IMAGE_ALONE, MISLEADING
from nodeagent.formats.syntax.tree import Path

_PLAIN_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?![0-9.eE])")
_MOST_PATHS = 3
"""Maximum number of paths in a note. Further paths are only counted, because a pod may have 256 containers."""
_LEAST_BYTES = 1 << 20
"""Smallest plausible amount of memory. A smaller amount probably lacks its unit, because no process could run with it.
"""


def find_notes(
    pod: Pod, unused_fields: tuple[str, ...], text_at: Callable[[Path], str | None] = lambda _: None
) -> tuple[str, ...]:
    """Return notes about probable mistakes in a pod with defaults, one note for each kind of mistake.

    Args:
        pod: the pod.
        unused_fields: paths of unused fields. They begin with the item's index if the pod is an item of a list.
        text_at: function that returns an amount as written in the manifest. If it returns None, the note shows the pod's normalized amount.
    """
    found: dict[str, list[str]] = {}
    for path in unused_fields:
        key = "ephemeral-storage" if path.endswith("[ephemeral-storage]") else path.rpartition(".")[2]
        why = MISLEADING.get(key)
        if (image := re.search(r"spec\.(containers|initContainers)\[(\d+)\]\.image$", path)) is not None:
            container = _group_containers(pod)[image[1]][int(image[2])]
            why = None if container.command else IMAGE_ALONE
        if why is not None:
            found.setdefault(f"no effect here: {why}", []).append(path)
    owners: list[tuple[Path, str, ResourceRequirements]] = []
    if pod.resources is not None:
        owners.append((("spec", "resources"), "spec.resources", pod.resources))
    for key, containers in _group_containers(pod).items():
        owners += (
            (("spec", key, index, "resources"), f"spec.{key}[{index}].resources", container.resources)
            for index, container in enumerate(containers)
        )
    for owner, name, resources in owners:
        # if a request equals its limit, it may be a default, so only the limit is checked
        for resource in (MEMORY, CPU):
            limit, request = (part.get(resource) for part in (resources.limits, resources.requests))
            amounts = {"limits": limit} | ({"requests": request} if request != limit else {})
            for key, amount in amounts.items():
                if amount is None:
                    continue
                text = text_at((*owner, key, resource)) or str(amount)
                is_checked = resource == MEMORY and (key == "limits" or limit is None)
                tiny = explain_tiny_memory(amount, text) if is_checked else None
                if why := tiny or explain_rounding(resource, text):
                    found.setdefault(why, []).append(f"{name}.{key}[{resource}]")
    notes = []
    for why, paths in found.items():
        further = f" and {len(paths) - _MOST_PATHS} more" if len(paths) > _MOST_PATHS else ""
        notes.append(f"{', '.join(paths[:_MOST_PATHS])}{further}: {why}")
    return tuple(notes)


def explain_tiny_memory(amount: Quantity, text: str) -> str | None:
    """Explain an amount of memory that probably lacks its unit. None means that the amount is plausible."""
    if not 0 < amount.value() < _LEAST_BYTES:
        return None
    whole = amount.as_whole_bytes()
    number = _PLAIN_NUMBER.match(text)
    meant = str(whole) if whole != amount else f"{number[0]}Mi" if number else None
    count = "1 byte" if amount.value() == 1 else f"{amount.value()} bytes"
    return f"{text} is {count}" + (f": is {meant} meant?" if meant else "")


def explain_rounding(resource: str, text: str) -> str | None:
    """Explain an amount of memory or CPU that is finer than what can be allocated. None means that the amount is not rounded."""
    given = Quantity.parse(text)
    if resource == MEMORY and given.nano != (whole := given.value()) * 10**9:
        return f"{text} is not a whole number of bytes: it counts as {whole} bytes, as in kubelet"
    if resource == CPU and given != (stored := given.rounded_up_to_milli()):
        return f"{text} is not a whole number of thousandths of a CPU: it counts as {stored}, as in kubelet"
    return None


def _group_containers(pod: Pod) -> dict[str, tuple[Container, ...]]:
    return {"initContainers": tuple(pod.inits()), "containers": tuple(pod.apps())}
